"""FLSL, feature-level self-supervised learning (NeurIPS 2023): clusters of patch tokens, no class
token.

    ssl-jax train --config=flsl:vits16 --config.data.dir=/data/tfds --workdir=runs/flsl_vits16
    ssl-jax train --config=flsl:photo_collages --workdir=runs/flsl_photo_collages

Variants: vits16, vits8, vitb16 with the views of the published code; vits16_paper, vits8_paper,
vitb16_paper with those of the paper; small: cifar10, imagenette96, photos, photo_collages.
Hardware: full size: 8 GPUs of 80 GB (optim.chunks > 1 where patches of 8 pixels do not fit) or a
TPU v4-32; small: minutes to hours on a CPU.
Expected time: 1.19 x DINO's for an epoch of vits16 (appendix E.2); not measured by us.
Expected number: `ssl-jax show --paper=flsl`. Small variants: docs/results.md.

- Code: one teacher view, one global and two local student views inside it, solarisation in half of
  the views only.
- Paper: a symmetric loss. One crop in two treatments for the teacher, a crop of it against each, no
  local views, blur and solarisation in all views.
Both take the paper's numbers where it gives any: lr 2.5e-4 x batch / 256, warm-up 10 of 300 epochs,
weight decay .05 -> .5, K 4096, tau_t .04 -> .07 in 30 epochs, windows of 2 x 2 with a random
position. The row flsl/code/defaults has those of the published code.

All published models were trained on ImageNet; COCO, UAVDT, DAVIS and ADE20K are transfers of them.
Not here: LayerNorm on modes in place of tokens, and the attention of an earlier stage mixed into
the cross-attention, both options of the code that the paper does not use. (The temperatures of the
mean shift follow the width by themselves: flsl.sa_sharpness is tau x D.)
"""

from . import presets, small

FULL = {"vits16": "vits16", "vits8": "vits16", "vitb16": "vitb16"}  # variant -> network
VARIANTS = (*FULL, *(f"{variant}_paper" for variant in FULL), *small.VARIANTS)


def get_config(variant: str = "vits16"):
    if variant in small.VARIANTS:
        return small.recipe("flsl", variant)
    config = presets.start("flsl", variant, VARIANTS)
    views, optim, flsl = config.views, config.optim, config.flsl
    size = variant.removesuffix("_paper")
    presets.imagenet(config, FULL[size])
    config.model.cls, config.model.position = False, "sincos"
    views.global_scale, views.local_scale, views.flip = (0.8, 1.0), (0.05, 0.4), 0.0
    if variant.endswith("_paper"):
        views.global_count, views.local_count, flsl.photometric = 2, 0, "both"
    else:
        views.global_count, views.local_count, flsl.photometric = 1, 2, "either"
    config.model.patch = 8 if size == "vits8" else 16
    views.blur_prob = (0.5, 0.1, 0.5)
    optim.batch_size, optim.epochs, optim.lr = 512, 300.0, 2.5e-4
    optim.weight_decay, optim.final_weight_decay = 0.05, 0.5
    if size == "vitb16":  # the same tau, twice the width
        flsl.sa_sharpness, flsl.ca_sharpness = 2 * flsl.sa_sharpness, 2 * flsl.ca_sharpness
    return config
