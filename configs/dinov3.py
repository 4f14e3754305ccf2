"""DINOv3: DINOv2's objective at a larger scale, and Gram anchoring (Siméoni et al. 2025).

    ssl-jax train --config=dinov3:vitl16 --config.data.dir=/data/tfds --workdir=runs/dinov3
    ssl-jax train --config=dinov3:vitl16_pretrain --config.data.dir=/data/tfds --workdir=runs/stage1
    ssl-jax train --config=dinov3:vitl16_gram --config.init_from=runs/stage1 \
        --config.data.dir=/data/tfds --workdir=runs/stage2
    ssl-jax train --config=dinov3:vitl16_highres --config.init_from=runs/stage2 \
        --config.data.dir=/data/tfds --workdir=runs/stage3

Variants: vitl16, the authors' recipe for ImageNet-1k alone; vitl16_pretrain, vitl16_gram and
vitl16_highres, the three stages of their 7B network with a ViT-L, which they did not publish (they
advise to scale the settings of the 7B network down), on ImageNet-1k in place of LVD-1689M.
Hardware: vitl16: 32 H100 (official README); the 7B stages: 256.
Expected time: 14 hours for vitl16 (official README); none was measured by us.
Expected number: vitl16: k-NN 82.2, linear 83.3 (comment of the authors' config; the README has 82.0
and 83.5); of the three stages of a ViT-L there are none.

As in the authors' code: two heads without a shared layer, Sinkhorn-Knopp on class tokens and masked
patches, KoLeo .1; blur with probability 0, .9 and .5 (their settings 1, .1, .5 reach the blur as 1
- p, which they confirmed); tau_t rises for 37,500 steps (stages: 100,000). They count epochs of
1250 steps: 100 of them are 200 epochs of ImageNet at batch 2048. Their learning rate is lr x 4
sqrt(batch / 1024); ours grows linearly with the batch, so that `lr` is the one for the batch here:
set both `lr` and `base_batch` for another. In the stages it stays after the warm-up.

The Gram stage starts from the first stage's weights, as the official README says; its Gram teacher
is the teacher of the start and then, three times from step 10,000 on, the EMA teacher. It sees
crops of 512 pixels, in the last stage of 768, whose maps are reduced. Steps count from 0 in each
stage (the authors count the second from 1,000,000), and so do Adam's moments.

Not here, and so different: one factor of `model.rope_rescale` for each image and pass (theirs: for
each block and group of crops); the heads' last layer is weight-normalised (theirs is plain), and
both heads have the hidden width of the first (in the stages 8192; theirs of patches: 4096); each
view is masked with probability .5 by a drawn share (theirs: half of a batch, shares evenly spaced
from .1 to .5); drop-path rises over the blocks and is drawn per image (theirs: one rate, a subset
of the batch); nearest neighbours of KoLeo are among the whole batch (theirs: a GPU's 64 or 16
images, in the last stage 16 of two GPUs); the weight of local crops stays (theirs falls to .5 in
the Gram stage); the last layer's moments wait while it is frozen; a norm of its own for the class
token of local crops; the last stage draws one size of crops per step out of five (here the
smallest, 512 / 112 / 768) and raises the learning rate on half a cosine (here linearly); its
student starts from the one of the stage before (theirs from the teacher; so does ours from a file
of `ssl_jax.save`); a Gram teacher's crop is cut from the image, as the student's is (theirs is cut
once, and reduced for the student); fp8.
"""

import math

from ssl_jax import settings
from ssl_jax.config import InputError, unknown

from . import presets

STAGES = ("vitl16_pretrain", "vitl16_gram", "vitl16_highres")
VARIANTS = ("vitl16", *STAGES)
IMAGES = 1_281_167  # of ImageNet-1k, for what is counted in epochs here and in steps there


def get_config(variant: str = "vitl16"):
    if variant not in VARIANTS:
        raise InputError(unknown("variant", variant, VARIANTS))
    config = settings.base_config("dinov2")
    presets.imagenet(config, "vitl16")
    dinov2, views, model, optim = config.dinov2, config.views, config.model, config.optim
    views.mask, views.mask_ratio, views.mask_prob = "block", (0.1, 0.5), 0.5
    views.mask_block, views.blur_prob = 4, (0.0, 0.9, 0.5)
    views.global_scale, views.local_scale, views.local_count = (0.32, 1.0), (0.05, 0.32), 8
    model.position, model.layer_scale, model.drop_path = "rope", 1e-5, 0.3
    model.remat = "block"
    optim.clip_by, optim.batch_size = "global", 2048
    optim.epochs, optim.warmup_epochs = 200.0, 20.0
    config.teacher.momentum = 0.992
    dinov2.teacher_temperature_epochs, dinov2.freeze_last_layer_epochs = 60.0, 2
    if variant in STAGES:
        stage(config, variant)
    optim.base_batch = optim.batch_size
    base = {"vitl16_pretrain": 5e-5, "vitl16_gram": 3e-5, "vitl16_highres": 1.25e-5}
    optim.lr = base.get(variant, 1e-3) * 4 * math.sqrt(optim.batch_size / 1024)
    if variant in STAGES:
        optim.final_lr = optim.lr
    return config


def stage(config, variant: str) -> None:
    """What the three stages of the 7B network have in common, and each for itself."""
    dinov2, views, model, optim = config.dinov2, config.views, config.model, config.optim
    optim.batch_size = 2048 if variant == "vitl16_highres" else 4096
    epoch = IMAGES // optim.batch_size  # steps
    optim.steps, optim.warmup_epochs = 1_000_000, 100_000 / epoch
    optim.final_weight_decay, optim.beta2, optim.clip = optim.weight_decay, 0.99, 30.0
    dinov2.layer_decay, model.drop_path = 0.98, 0.4
    model.registers, model.norm_eps = 4, 1e-5
    model.qkv_bias, model.rope_rescale = "none", 2.0
    model.image_size, views.global_size, views.local_size, views.flip = 256, 256, 112, 0.0
    dinov2.head_hidden, dinov2.cls.prototypes, dinov2.cls.bottleneck = 8192, 262144, 512
    dinov2.patch.prototypes, dinov2.patch.bottleneck = 98304, 384
    dinov2.teacher_temperature_epochs = 100_000 / epoch
    dinov2.freeze_last_layer_epochs = round(5_000 / epoch)
    config.teacher.momentum = config.teacher.final_momentum = 0.994
    if variant == "vitl16_pretrain":
        return
    # Later stages: the schedules of the first one are over; as the commands above name its run.
    config.init_from = "runs/stage1" if variant == "vitl16_gram" else "runs/stage2"
    config.teacher.momentum = config.teacher.final_momentum = 0.999
    dinov2.teacher_temperature_epochs, dinov2.freeze_last_layer_epochs = 0.0, 0
    gram = config.gram
    if variant == "vitl16_gram":
        optim.steps, optim.warmup_epochs = 200_000, 0.0
        gram.weight, gram.rise, gram.size = 2.0, (0, 1_000), 512
        gram.first_update, gram.every, gram.updates = 10_000, 10_000, 3
    else:
        optim.steps, optim.warmup_epochs = 30_000, 10_000 / epoch
        gram.weight, gram.size = 1.5, 768
        model.image_size, views.global_size = 512, 512
