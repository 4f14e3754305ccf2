"""Pictures of MAE: masked patches and their reconstruction."""

import jax.numpy as jnp
import numpy as np

from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures.base import Panel, Picture, register
from ssl_jax.ops import patchify, unpatchify


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"reconstructions": image, masked image, and image with predictions in its gaps}."""
    features = encoder(images, extras=True)
    assert features.extras is not None
    patch, (h, w) = encoder.config.model.patch, features.patches.shape[1:3]
    hidden = np.asarray(features.extras["hidden"])
    images = np.asarray(images, np.float32)
    pixels = np.asarray(patchify(jnp.asarray(images), patch))

    def filled(values):
        return np.asarray(unpatchify(jnp.where(hidden[..., None], values, pixels), patch, (h, w)))

    columns = {
        "image": images,
        f"{100 * hidden.mean():.0f} % masked": filled(0.5),
        "reconstruction": filled(np.asarray(features.extras["reconstruction"])),
    }
    rows = tuple(
        tuple(Panel(image, title=title) for image, title in zip(row, columns))
        for row in zip(*columns.values())
    )
    normalized = encoder.config.mae.normalize_pixels
    note = ", given the mean and contrast of each patch" if normalized else ""
    return {"reconstructions": Picture(f"Masked patches reconstructed{note}", rows)}


register("mae", draw)
