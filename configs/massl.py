"""MaSSL, memory augmented self-supervised learning (Silva, Pedrini and Ramirez Rivera 2024): SOP
without support embeddings.

    ssl-jax train --config=massl:vits16 --config.data.dir=/data/tfds --workdir=runs/massl_vits16
    ssl-jax train --config=massl:photos --workdir=runs/massl_photos

Variants: vits16, vitb16, vitl16; small: cifar10, imagenette96, photos, photo_collages.
Hardware: full size: 8 GPUs of 80 GB or a TPU v4-32; small: minutes to hours on a CPU.
Expected time: 177.3 hours for vits16 (SOP, table B.1); not measured by us.
Expected number: `ssl-jax show --paper=massl`. vitl16 was not published. Small variants:
docs/results.md.

Values follow the published commands: memory of 131072 rows, cut at every step into 8 blocks of
16384, all of them used; crops .32-1 / .05-.32 (2 of 224 px, 10 of 96 px), tau_s .1, tau_t .04 ->
.07, clip 3 per tensor, drop-path .1, weight decay .04 -> .4. ViT-S/16: lr 5e-4 x batch / 256
without warm-up, EMA .992 -> 1, tau_t over 30 epochs. ViT-B/16: lr 7.5e-4 -> 2e-6, 10 epochs of
warm-up, EMA .996 -> 1, tau_t over 50 epochs. The batch size was not published; 1024 is ours.
"""

from . import presets, small

VARIANTS = (*presets.SIZES, *small.VARIANTS)


def get_config(variant: str = "vits16"):
    if variant in small.VARIANTS:
        return small.recipe("massl", variant)
    config = presets.start("massl", variant, VARIANTS)
    presets.imagenet(config, variant)
    if variant == "vits16":
        config.views.global_scale, config.views.local_scale = (0.32, 1.0), (0.05, 0.32)
        config.optim.warmup_epochs, config.teacher.momentum = 0.0, 0.992
    else:
        presets.massl_base(config)
        config.massl.teacher_temperature_epochs = 50.0
    return config
