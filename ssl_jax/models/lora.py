"""Low-rank adapters (Hu et al. 2021, "LoRA: low-rank adaptation of large language models", section
4.1): a frozen kernel W [in, out] becomes W + alpha / r A B, and only A [in, r] and B [r, out] are
trained.

The parameter tree stores each pair next to its kernel, as "lora_a" and "lora_b". `network` adds the
products to the kernels before the tree reaches the layers.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import trees
from ssl_jax.config import InputError, key
from ssl_jax.ops import numerics

A, B = "lora_a", "lora_b"
# Frozen parameters: the encoder's, except adapters and tokens of a method (mask token, queries),
# which published weights rarely have.
FROZEN = rf"backbone/(?:.*/)?(?!(?:{A}|{B}|mask_token|queries)$)[^/]+"


def defaults() -> dict:
    """The keys of adapters in the section `model` of the config."""
    return dict(
        lora=key(
            0,
            "rank of low-rank adapters of the encoder (Hu et al. 2021), whose other weights stay"
            " those of init_from; 0 = no adapters, all weights are trained",
            least=0,
            most=65536,
        ),
        lora_on=key(
            ("qkv", "proj", "fc1", "fc2"),
            "linear layers of each block that get adapters",
            choices=("qkv", "proj", "fc1", "fc2"),
        ),
        lora_alpha=key(
            16.0, "the adapters' product is added with the factor lora_alpha / lora", above=0
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for adapters on random weights or without a layer."""
    m = config.model
    if m.lora and not m.lora_on:
        raise InputError(f"model.lora is {m.lora} but model.lora_on is (); name a layer: ('qkv',)")
    if m.lora and not config.init_from:
        raise InputError(
            f'model.lora is {m.lora} but init_from is "": the encoder would stay random; set'
            " init_from to the weights to adapt, or model.lora=0"
        )


def init(backbone: Mapping, model: ConfigDict, rng: jax.Array) -> dict:
    """The parameters of an encoder with adapters: A ~ N(0, 1 / in), B = 0.

    Raises InputError for a name in `model.lora_on` that no layer has.
    """
    flat = trees.flatten(backbone)
    layers = [path.rpartition("/")[0] for path in flat if path.endswith("/kernel")]
    for name in model.lora_on:
        if not any(layer.endswith(f"/{name}") for layer in layers):
            raise InputError(f'model.lora_on has "{name}", but this encoder has no such layer')
    for i, layer in enumerate(layers):
        if layer.rpartition("/")[2] in model.lora_on:
            *blocks, width, out = flat[f"{layer}/kernel"].shape
            shape, draw = (*blocks, width, model.lora), jax.random.fold_in(rng, i)
            flat[f"{layer}/{A}"] = jax.random.normal(draw, shape, jnp.float32) / width**0.5
            flat[f"{layer}/{B}"] = jnp.zeros((*blocks, model.lora, out), jnp.float32)
    return trees.nest(flat)


def network(params: Mapping, teacher: Mapping | None, model: Any) -> Any:
    """The teacher's weights (the student's without a teacher) with adapters merged into kernels.

    params: the student's tree; a teacher's tree omits the frozen weights, which are shared. model:
    the section of the config, a mapping; without adapters the tree is returned unchanged.
    """
    if not model.get("lora", 0):
        return params if teacher is None else teacher
    frozen, trained = trees.split(params, FROZEN)
    flat = trained if teacher is None else trees.flatten(teacher)
    return trees.nest(_merged(frozen, flat, model.lora_alpha / model.lora))


def adapters(tree: Mapping) -> dict:
    """The adapters of a parameter tree; {} if it has none."""
    return trees.nest(trees.split(tree, rf".*/(?:{A}|{B})")[0])


@functools.partial(jax.jit, static_argnums=2)
def _merged(frozen, trained, scale):
    """Adds adapters to kernels; no gradient reaches frozen weights."""
    flat = jax.lax.stop_gradient(frozen) | trained
    for path in [path for path in trained if path.endswith(f"/{A}")]:
        kernel, b = (f"{path.removesuffix(A)}{name}" for name in ("kernel", B))
        product = numerics.product("...ir,...ro->...io", flat.pop(path), flat.pop(b))
        flat[kernel] = flat[kernel] + scale * product
    return flat
