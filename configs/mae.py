"""MAE, masked autoencoders (He et al. 2021, arXiv 2111.06377).

    ssl-jax train --config=mae:vitb16 --config.data.dir=/data/tfds --workdir=runs/mae_vitb16
    ssl-jax train --config=mae:photos --workdir=runs/mae_photos

Variants: vitb16, vitl16, vith14; small: cifar10, imagenette96, photos, photo_collages.
Hardware: full size: 8 GPUs of 80 GB (optim.chunks > 1 where the batch of 4096 does not fit) or a
TPU v4-64; small: minutes to hours on a CPU.
Expected time: 42 hours on 64 V100 for vitl16 (official PRETRAIN.md); not measured by us.
Expected number: `ssl-jax show --paper=mae`. Small variants: docs/results.md.

Values are the published ones, the same for all sizes: 75 % of the patches dropped at random;
decoder of 8 blocks, width 512, 16 heads; sine-cosine position embeddings in encoder and decoder;
squared error on dropped patches, each normalised by its own mean and (unbiased) variance; random
resized crops of .2-1 and flips, no photometric draws; AdamW with betas .9 and .95, lr 1.5e-4 x
batch / 256 -> 0, warm-up 40 of 800 epochs, batch 4096, weight decay .05, constant and on no bias or
1-D parameter (class and mask token ARE decayed, as in the published code, by their rank), no
clipping, no drop-path. One thing differs: initial kernels are normal with standard deviation .02,
where the published code draws Xavier-uniform ones (.0255 for qkv and .0228 for the MLP of ViT-B).

Not here: table 1c (an encoder with mask tokens), PCA and dVAE targets (1d), fixed-size crops (1e),
block and grid masks (1f), the curves of figures 5 and 7, the ViT-S on COCO of CrIBo's authors.
"""

from . import presets, small

VARIANTS = ("vitb16", "vitl16", "vith14", *small.VARIANTS)


def get_config(variant: str = "vitb16"):
    if variant in small.VARIANTS:
        return small.recipe("mae", variant)
    config = presets.start("mae", variant, VARIANTS)
    presets.imagenet(config, "vitl16" if variant == "vith14" else variant)
    if variant == "vith14":
        config.model.size, config.model.patch = "h", 14
    views, optim = config.views, config.optim
    views.global_count, views.global_scale, views.local_count = 1, (0.2, 1.0), 0
    views.jitter_prob, views.gray_prob, views.solarize_prob = 0.0, 0.0, 0.0
    views.blur_prob = (0.0, 0.0, 0.0)
    views.mask, views.mask_ratio, views.mask_prob = "random", (0.75, 0.75), 1.0
    config.model.position, config.model.drop_path = "sincos", 0.0
    optim.weight_decay, optim.final_weight_decay, optim.beta2 = 0.05, 0.05, 0.95
    optim.clip_by, optim.final_lr = "none", 0.0
    optim.batch_size, optim.epochs, optim.lr = 4096, 800.0, 1.5e-4
    optim.warmup_epochs = 40.0
    config.evals.tasks = ("linear",)
    return config
