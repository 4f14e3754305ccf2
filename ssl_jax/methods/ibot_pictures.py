"""Pictures of iBOT and DINOv2: the prototype of each patch."""

import numpy as np

from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures.base import Panel, Picture, register


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"patch_prototypes": the most likely prototype of each patch, in one colour over all images};
    {} without a patch objective."""
    extras = encoder(images, extras=True).extras
    assert extras is not None
    if "patch_prototype" not in extras:
        return {}
    nearest = np.asarray(extras["patch_prototype"])
    used, labels = np.unique(nearest, return_inverse=True)
    rows = tuple(
        (
            Panel(image, title="image"),
            Panel(image, labels=groups, title=f"{len(np.unique(groups))} prototypes"),
        )
        for image, groups in zip(np.asarray(images), labels.reshape(nearest.shape))
    )
    c = encoder.config[encoder.config.method]
    number = c.patch.prototypes or c.cls.prototypes
    title = f"Patches by their prototype ({len(used)} of {number} in use)"
    return {"patch_prototypes": Picture(title, rows)}


register("ibot", draw)
register("dinov2", draw)
