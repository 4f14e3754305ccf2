"""YOLOS (Fang et al. 2021): a vision transformer whose query tokens predict objects."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import layers as layers_lib
from ssl_jax.models import position as position_lib
from ssl_jax.models import vit
from ssl_jax.models.functional import Model, functional

_STD = 0.02  # initial std of detection tokens and position embeddings, as in the authors' code
_LAYERS = 3  # layers of each head
Size = tuple[int, int]  # height, width


@functools.cache
def yolos(
    shape: vit.ViTConfig, classes: int, position: Size = (0, 0), middle: Size = (0, 0)
) -> Model:
    """The detector as init(key) -> params and apply(params, images) -> (logits, boxes).

    images: float [B, H, W, channels] in [0, 1]; H and W multiples of the patch.
    logits: [B, q, classes + 1] float32, "no object" last. boxes: [B, q, 4] float32 in (0, 1):
      centre row, centre column, height, width as shares of the image.
    Parameters: "encoder" as in `vit.vit(shape)`, whose queries are the detection tokens; "classes"
      and "boxes", each three linear layers with ReLU between them; "middle" with `middle` > 0.

    Args:
      shape: with `queries` > 0. classes: number of object classes.
      position: (height, width) of the images in pixels for which the encoder's learned position
        embeddings exist; (0, 0) = squares of shape.image_size.
      middle: the same of learned position embeddings that are added after every block but the last,
        resized to other images like the input's; (0, 0) = none.

    Raises:
      ValueError: no query, or no class.
    """
    if shape.queries < 1 or classes < 1:
        raise ValueError(f"a detector needs queries and classes, got {shape.queries} and {classes}")
    first, later = (_grid(size, shape) for size in (position, middle))
    return functional(_Yolos, shape=shape, classes=classes, first=first, later=later)


def _grid(size: Size, shape: vit.ViTConfig) -> Size:
    return size[0] // shape.patch, size[1] // shape.patch


def pretrained(
    params: dict[str, Any], shape: vit.ViTConfig, encoder: dict[str, Any], position: Size = (0, 0)
) -> dict[str, Any]:
    """`params` of a detector with a pretrained encoder's weights; detection tokens, heads and
    middle codes are unchanged.

    Args:
      shape, position: of `yolos`; to `position`, learned position embeddings are resized.
      encoder: parameters of a `vit.vit`, whose shape may differ in queries and mask token.

    Raises:
      ValueError: a weight is missing or has another shape.
    """
    weights = {
        name: leaf for name, leaf in encoder.items() if name not in ("queries", "mask_token")
    }
    if any(position):
        codes, first = weights["position"], int(shape.cls)
        resized = position_lib.resize_codes(
            codes[first:],
            shape.grid,
            _grid(position, shape),
            rule=shape.position_resize,
            kernel=shape.resize_kernel,
        )
        weights["position"] = jnp.concatenate([codes[:first], resized])
    result = {**params, "encoder": {**params["encoder"], **weights}}
    if jax.tree.map(jnp.shape, result) != jax.tree.map(jnp.shape, params):
        raise ValueError("the encoder's weights are of another shape than the detector's")
    return result


class _Yolos(nnx.Module):
    def __init__(self, key, shape: vit.ViTConfig, classes: int, first: Size, later: Size):
        keys = jax.random.split(key, 5)
        self.shape, self.later = shape, later  # (h, w) of the middle codes
        self.encoder = vit.module(dataclasses.replace(shape, mask_token=False), keys[0])
        if any(first):
            codes = (shape.cls + math.prod(first), shape.width)
            self.encoder.native = first
            self.encoder.position = nnx.Param(layers_lib.normal(keys[0], codes, _STD))
        self.encoder.queries = nnx.Param(
            layers_lib.normal(keys[1], (shape.queries, shape.width), _STD)
        )
        self.classes = _head(keys[2], shape.width, classes + 1)
        self.boxes = _head(keys[3], shape.width, 4)
        if any(later) and shape.depth > 1:
            tokens = shape.cls + math.prod(later) + shape.queries
            size = (shape.depth - 1, tokens, shape.width)
            self.middle = nnx.Param(layers_lib.normal(keys[4], size, _STD))

    def __call__(self, images):
        tokens = self.encoder.queries_after(images, self._middle(images.shape))
        logits = _run(self.classes, tokens)
        return logits, jax.nn.sigmoid(_run(self.boxes, tokens))

    def _middle(self, shape):
        """Codes [depth - 1, tokens, d] for images of this shape, in the encoder's token order; None
        if the detector has none."""
        if not hasattr(self, "middle"):
            return None
        c, codes = self.shape, self.middle[...]
        first, last = int(c.cls), codes.shape[1] - c.queries
        resize = functools.partial(
            position_lib.resize_codes,
            native=self.later,
            target=(shape[1] // c.patch, shape[2] // c.patch),
            rule=c.position_resize,
            kernel=c.resize_kernel,
        )
        registers = jnp.zeros((len(codes), c.registers, c.width))
        patches = jax.vmap(resize)(codes[:, first:last])
        return jnp.concatenate([codes[:, :first], registers, patches, codes[:, last:]], axis=1)


def _head(key, width: int, out: int):
    """Three linear layers with torch's initial kernels."""
    keys, sizes = jax.random.split(key, _LAYERS), (width,) * _LAYERS + (out,)
    kernels = [layers_lib.uniform(k, pair) for k, pair in zip(keys, zip(sizes, sizes[1:]))]
    return nnx.List([layers_lib.linear(kernel, "float32") for kernel in kernels])


def _run(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(layer(x))
    return layers[-1](x)
