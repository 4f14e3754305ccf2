"""Small vision transformers whose every weight counts, and how timm and transformers build the same
shapes."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np

from ssl_jax import trees
from ssl_jax.methods import encoder as encoder_lib
from ssl_jax.models import vit

PLAIN = vit.ViTConfig(width=32, depth=2, heads=4, patch=8, image_size=32)
TIMMS = dict(resize_kernel="antialias-0.5")  # timm's rule for other sizes
# Name: what differs from PLAIN. Means and deviations are those of nobody.
CHANGES = {
    "plain": {},
    "timm_rule": dict(**TIMMS, mean=(0.5, 0.4, 0.3), std=(0.3, 0.2, 0.1)),
    "dino_rule": dict(position_resize="dino_offset", mlp_ratio=3.0),
    "sincos": dict(position="sincos", gelu="tanh", norm_eps=1e-8),
    "patches_alone": dict(cls=False, position="sincos"),  # FLSL
    "queries": dict(queries=3, **TIMMS),  # STELLAR
    "layer_scale": dict(layer_scale=0.1),  # DINOv2
    "registers": dict(registers=2, layer_scale=0.1, **TIMMS),
    "rope": dict(position="rope", qkv_bias="qv", registers=2, layer_scale=0.1, norm_eps=1e-5),
    "rope_gated": dict(
        position="rope", qkv_bias="none", mlp="swiglu", mlp_ratio=2.25, queries=1, norm_eps=1e-5
    ),
    "all": dict(registers=2, queries=3, cls=False, layer_scale=0.1, **TIMMS),
}
# transformers has LayerScale and registers only beside a class token.
HF = [name for name in CHANGES if name != "all"]
GOLDEN = Path(__file__).parent / "library_names.json"


def config(name: str) -> vit.ViTConfig:
    return dataclasses.replace(PLAIN, **CHANGES[name])


def network(name: str, image: str = "") -> encoder_lib.Encoder:
    """An encoder of that name with random weights; image: see `encoder.published`."""
    return of(config(name), image)


def of(shape: vit.ViTConfig, image: str = "") -> encoder_lib.Encoder:
    """The same of any shape."""
    rng = np.random.default_rng(1)

    def leaf(path, x):
        return np.float32(path.endswith(("scale", "gamma")) + 0.1 * rng.standard_normal(x.shape))

    params = trees.map_with_path(leaf, shapes_of(shape))
    return encoder_lib.published(shape, params, "random", image)


def shapes_of(shape: vit.ViTConfig):
    """The tree of its weights, as shapes."""
    return jax.eval_shape(vit.vit(shape).init, jax.random.key(0))


def pictures(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).random((2, *size, 3), np.float32)


def tokens(encoder: encoder_lib.Encoder, images: np.ndarray) -> np.ndarray:
    """All that an export shows, [B, class token + patches, d]."""
    seen = jax.jit(encoder.apply)(encoder.backbone, images)
    parts = ([] if seen.cls is None else [seen.cls[:, None]]) + [seen.patches]
    return np.concatenate(parts, axis=1)


def with_rule(encoder: encoder_lib.Encoder, **rule: str) -> encoder_lib.Encoder:
    """The same weights with another rule for position embeddings at other sizes."""
    shape = dataclasses.replace(encoder.shape, **rule)
    return encoder_lib.published(shape, encoder.backbone, "random")


def shapes(tensors) -> dict[str, list[int]]:
    return {name: list(tensors[name].shape) for name in sorted(tensors)}


def golden() -> dict[str, dict[str, dict[str, list[int]]]]:
    """{"timm" or "hf": {name of a network: {name of a tensor: shape}}}."""
    return json.loads(GOLDEN.read_text())
