"""Published networks trained further on images of your own, on one GPU: docs/adapting.md.

    ssl-jax train --config=adapt:sop --config.init_from=WEIGHTS --config.data.kind=folder
        --config.data.dir=/my/images --workdir=runs/adapted

Variants: sop, sove, cribo, flsl, dinov2, ibot, dino: the method that trains.
Hardware: one GPU; `ssl-jax plan --memory=8` says what fits one of 8 GB.
Expected time: not measured by us on a GPU.
Expected number: none; docs/adapting.md has short trials, in which Gram anchoring and larger rates
helped most.

WEIGHTS are a file or folder of DINOv2, DINOv3, timm or transformers, or a run or saved network of
this package; the section `model` follows them (init_model), and heads are new (init_only: a run of
the same method and widths keeps its own with init_only=""). Without data.kind and data.dir the
images are photographs that come with the package, to try it.

Losses, heads and memories are those of configs/small.py, with wider heads. The rest is ours, and
made to forget little: new heads learn for an epoch while the backbone waits; its learning rate is a
tenth of theirs and falls towards the input; the teacher starts from the same weights; weight decay
is constant; crops keep most of an image, and colours change less. Where there are labels, k-NN is
computed before the first step and every 100; the best network stays as best.safetensors, and the
log says when training makes it worse.
"""

from ssl_jax import evals, settings
from ssl_jax.config import InputError, unknown

from . import small

# Method -> small crops; those of a method that has none stay away.
_LOCAL = {"sop": 4, "sove": 4, "cribo": 0, "flsl": 2, "dinov2": 4, "ibot": 4, "dino": 4}
VARIANTS = tuple(_LOCAL)


def get_config(variant: str = "sop"):
    if variant not in VARIANTS:
        raise InputError(unknown("variant", variant, VARIANTS))
    config = settings.base_config(variant)
    small.change_method(config)
    config[variant].head_hidden = 1024
    config.init_model, config.init_only, config.teacher.momentum = True, "backbone", 0.996
    data, views, optim = config.data, config.views, config.optim
    data.kind, data.size, data.length, data.crop_on = "photos", 256, 2048, "host"
    views.global_size, views.global_scale = 224, (0.4, 1.0)
    views.local_count, views.local_size, views.local_scale = _LOCAL[variant], 96, (0.1, 0.4)
    views.jitter_prob, views.solarize_prob = 0.5, 0.0
    optim.batch_size = optim.base_batch = 64
    optim.epochs, optim.warmup_epochs = 20.0, 1.0
    optim.lr, optim.final_lr, optim.backbone_lr = 5e-4, 1e-6, 0.1
    optim.backbone_freeze_epochs, optim.backbone_layer_decay = 1.0, 0.85
    optim.weight_decay = optim.final_weight_decay = 0.04
    images = dict(kind="training", size=256)
    evals.add(config, "knn", "linear", "rank", data=images, crop=224)
    config.evals.tasks, config.evals.best = ("knn",), "knn"
    config.evals.every_steps = config.checkpoint.every_steps = 100
    return config
