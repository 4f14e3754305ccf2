"""CrIBo, cross-image object-level bootstrapping (ICLR 2024).

    ssl-jax train --config=cribo:vits16_coco --config.data.dir=/data/tfds --workdir=runs/cribo_coco
    ssl-jax train --config=cribo:photo_collages --workdir=runs/cribo_photo_collages

Variants: vits16_in1k (or vits16), vits16_coco, vitb16_in1k (or vitb16); small: cifar10,
imagenette96, photos, photo_collages.
Hardware: full size: 8 GPUs of 80 GB (the memory alone takes 2.5 to 5 GB on each) or a TPU v4-32;
small: minutes to hours on a CPU.
Expected time: 28 minutes for an epoch of vitb16_in1k on 8 dies of MI250x (table 10); not measured
by us.
Expected number: `ssl-jax show --paper=cribo`. Small variants: docs/results.md.

Values are those of the published arguments: two views of scale .25-1 and no local ones, P 65536 for
images and for objects, tau_s .1, tau_t .04 -> .07, K = 32 and lambda_pos = 1 on ImageNet, K = 64
and lambda_pos = 2 on COCO, S = 25000 images, both center momenta .9, weight decay .04 -> .4, EMA
.996 -> 1, AdamW. The way back of a cycle is searched among the images of a device: 128, 64 for
ViT-B, 32 on COCO. ViT-B: the gain is fixed, clip .3, last layers frozen for 3 epochs. Ours are in
bfloat16, the published runs of ViT-S in float16 and those of ViT-B in float32, which takes three
passes on a GPU or TPU (model.dtype=float32).

Where paper and official code differ: costs of the clustering are normalised per image
(cribo.normalize=batch: over the batch, here the global one, there that of a device), each view of
L_ci is divided by its own number of cycles (cribo.counts=first: both by that of the first, and
nothing if that is 0), cluster marginals follow the clusters as in the published runs
(cribo.update_marginals=False: the paper), one cluster per token (cribo.hard=False: section 3.2.1).

The supervised oracles of table 11 read the masks of COCO-Stuff: cribo.clustering=masks,
cribo.same_classes=True with cribo.cycle=False; see the rows cribo/table11 of `ssl-jax show`.
"""

from ssl_jax import evals

from . import presets, small

FULL = {"vits16_in1k": "vits16", "vits16_coco": "vits16", "vitb16_in1k": "vitb16"}  # -> network
SHORT = {"vits16": "vits16_in1k", "vitb16": "vitb16_in1k"}
VARIANTS = (*FULL, *SHORT, *small.VARIANTS)


def get_config(variant: str = "vits16_in1k"):
    variant = SHORT.get(variant, variant)
    if variant in small.VARIANTS:
        return small.recipe("cribo", variant)
    config = presets.start("cribo", variant, VARIANTS)
    optim, cribo = config.optim, config.cribo
    presets.imagenet(config, FULL[variant])
    config.views.local_count = 0
    optim.final_lr, optim.clip_by = 1e-5, "none"
    _dense_retrieval(config)
    if variant == "vits16_coco":
        config.data.name = "coco/2017"
        optim.batch_size, optim.epochs = 256, 300.0
        cribo.clusters, cribo.position_weight, cribo.group = 64, 2.0, 32
    if variant == "vitb16_in1k":
        optim.lr, optim.final_lr, optim.clip, optim.clip_by = 7.5e-4, 2e-6, 0.3, "tensor"
        cribo.norm_last_layer, cribo.freeze_last_layer_epochs = True, 3
        cribo.teacher_temperature_epochs, cribo.group = 50.0, 64
    return config


def _dense_retrieval(config):
    """Tables 1 and 4: VOC and ADE20K at native size. Not run unless they are named,
    because few have both sets:

    ssl-jax eval RUN --task=voc,ade20k --config.evals.voc.data.dir=/data/VOCdevkit \\
        --config.evals.ade20k.data.dir=/data/ADEChallengeData2016
    """
    for name, split in (("voc", "train_aug"), ("ade20k", "train")):
        images = dict(kind=name, split=split, test_split="val")
        config.evals[name] = evals.new("dense", protocol="cribo", data=images)
