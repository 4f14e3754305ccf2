"""Distillation from a frozen, published network, beside SOP's own loss.

    ssl-jax train --config=distill:imagenette96 --config.distill.teacher=PATH
        --config.data.dir=/data/tfds --workdir=runs/distilled
    ssl-jax train --config=distill:vits16 --config.distill.teacher=VIT_L
        --config.data.dir=/data/tfds --workdir=runs/distill_vits16

PATH is what `init_from` takes: a folder of timm's or transformers', a weight file, a saved network
or a run. Variants: vits16 (ViT-S/16 from a ViT-L, such as DINOv2's ViT-L/14, which sees views at
224 pixels), imagenette96 (a small network on two CPU cores).
Hardware: vits16: 8 GPUs of 80 GB; imagenette96: a CPU.
Expected time: minutes for imagenette96; vits16: not measured by us.
Expected number: docs/methods/distill.md for imagenette96; vits16: not measured by us.

The values are SOP's presets and weights of ours. Each step costs a forward pass of the teacher for
one view of each image: on a CPU that is most of it, so `distill.size` decides.
"""

from ssl_jax import settings

from . import presets, small, sop

VARIANTS = ("vits16", "imagenette96")
_TAKEN = ("data", "views", "model", "optim", "teacher", "checkpoint", "log", "evals", "sop")


def get_config(variant: str = "vits16"):
    if variant == "imagenette96":
        other = small.recipe("sop", variant)
        teacher = dict(size=98, assumed="s")  # 7 x 7 patches of 14 pixels
    else:
        presets.start("sop", variant, VARIANTS)  # refuses other names
        other, teacher = sop.recipe("sop", variant), dict(size=224, assumed="l")
    config = settings.base_config("distill")
    config.update({name: other[name] for name in _TAKEN})
    config.distill.update(teacher)
    return config
