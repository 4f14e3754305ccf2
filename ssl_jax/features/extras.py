"""What a method has to show beside its features."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def with_extras(network: Any, images: np.ndarray) -> tuple[Any, Mapping[str, jax.Array]]:
    """Features of images [B, H, W, 3] and the method's extras by name, see `methods.Features`; a
    function that has none, such as raw pixels, has {}."""
    try:
        features = network(images, extras=True)
    except TypeError:
        features = network(images)
    return features, getattr(features, "extras", None) or {}


def names(network: Any, shape: tuple[int, ...]) -> set[str]:
    """Names of the extras of images of that shape [B, H, W, 3]; nothing is computed."""
    images = jax.ShapeDtypeStruct(shape, np.float32)
    return set(jax.eval_shape(lambda x: with_extras(network, x)[1], images))
