"""DINOv2, self-distillation with balanced targets (Oquab et al. 2023).

    ssl-jax train --config=dinov2:vitl16 --config.data.dir=/data/tfds --workdir=runs/dinov2_vitl16
    ssl-jax train --config=dinov2:photos --workdir=runs/dinov2_photos

Variants: vitl16, the authors' fast setup on ImageNet-1k; vits16, vitb16, ours: smaller networks in
it; vits14, vitb14, vitl14, ours: the losses and patches of the released models, on ImageNet-1k and
the fast setup's schedule; small: cifar10, imagenette96, photos, photo_collages.
Hardware: full size: 32 GPUs of 80 GB (official README); small: minutes to hours on a CPU.
Expected time: about a day for vitl16 (official README); none was measured by us.
Expected number: `ssl-jax show --paper=dinov2`; only vitl16 has one.

The fast setup: DINO's running means and one head for class token and patches; K 65536, tau_s .1,
tau_t .04 -> .07, EMA .992 -> 1, weight decay .04 -> .4, drop-path .3, clip 3 per network, learning
rate .9 times that of the next block and .2 of that for the patch embedding, masks of .1 to .5 of
half of the views, crops .32-1 and eight of .05-.32; blur with probability 0, .9 and .5 (their
settings 1, .1, .5 reach the blur as 1 - p). The authors count epochs of 1250 steps: 100 of them are
200 epochs of ImageNet at batch 2048, and all lengths are doubled here. Their learning rate is 4e-3
x sqrt(batch / 1024); ours grows linearly with the batch, so that `lr` is the one for 2048: set both
`lr` and `base_batch` for another.

The released models (ViT-L/14): Sinkhorn-Knopp, two heads, K 131072, a bottleneck of 384 for the
class token, EMA .994 -> 1, weight decay to .2, drop-path .4, local crops of 98 pixels. They were
trained on ImageNet-22k, in 625,000 steps of 3072 images, with a base learning rate of 2e-4, warm-up
of 100,000 steps and no decay of it over blocks; ViT-S and ViT-B were distilled from ViT-g. Models
with registers: --config.model.registers=4.

Not here: SwiGLU (the released ViT-L and ViT-g were trained with it), one drop-path rate for all
blocks (ours rises from 0 to it), a masked half of each batch (ours masks each view with probability
.5), nearest neighbours of KoLeo among a GPU's images (ours: the whole batch), the last layer's
moments while it is frozen.
"""

import math

from . import presets, small

RELEASED = ("vits14", "vitb14", "vitl14")
VARIANTS = (*presets.SIZES, *RELEASED, *small.VARIANTS)


def get_config(variant: str = "vitl16"):
    if variant in small.VARIANTS:
        return small.recipe("dinov2", variant)
    config = presets.start("dinov2", variant, VARIANTS)
    presets.imagenet(config, variant.replace("14", "16"))
    dinov2, views, model, optim = config.dinov2, config.views, config.model, config.optim
    views.mask, views.mask_ratio, views.mask_prob = "block", (0.1, 0.5), 0.5
    views.mask_block, views.blur_prob = 4, (0.0, 0.9, 0.5)
    optim.clip_by = "global"
    views.global_scale, views.local_scale, views.local_count = (0.32, 1.0), (0.05, 0.32), 8
    model.layer_scale, model.cls_std = 1e-5, 1e-6
    optim.batch_size = optim.base_batch = 2048
    optim.lr = 4e-3 * math.sqrt(optim.base_batch / 1024)
    optim.epochs, optim.warmup_epochs = 200.0, 20.0
    dinov2.teacher_temperature_epochs, dinov2.freeze_last_layer_epochs = 60.0, 2
    large = model.size == "l"
    if large:
        model.remat = "block"
    if variant in RELEASED:
        model.patch, views.local_size = 14, 98
        dinov2.cls.prototypes = dinov2.patch.prototypes = 131072
        dinov2.cls.bottleneck = 384
        config.teacher.momentum, optim.final_weight_decay = 0.994, 0.2
        model.drop_path = 0.4 if large else 0.1
    else:
        dinov2.centering, dinov2.separate_head = "ema", False
        config.teacher.momentum = 0.992
        model.drop_path = 0.3 if large else 0.1
    return config
