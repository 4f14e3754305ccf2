"""Stacks of transformer blocks: one module with parameters [depth, ...], scanned or unrolled."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import rope
from ssl_jax.models.layers import Block

Module = TypeVar("Module", bound=nnx.Module)  # a block
REMAT = ("none", "dots", "block")  # how much of a block is rematerialised


def stacked(build: Callable[[jax.Array], Module], key: jax.Array, depth: int) -> Module:
    """One module with parameters [depth, ...], whose block i is initialised as build(fold_in(key,
    i)). Use it only through `run` and `block_of`."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(depth))
    graphdef = nnx.split(nnx.eval_shape(build, keys[0], graph=True), graph=True)[0]
    return nnx.merge(graphdef, jax.vmap(lambda key: nnx.split(build(key), graph=True)[1])(keys))


def block_of(blocks: Block, i: int) -> Block:
    """Block i of a stack."""
    graphdef, state = nnx.split(blocks, graph=True)
    return nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[i], state))


def run(
    blocks: Block,
    x: jax.Array,
    scales: jax.Array | None = None,
    codes: jax.Array | None = None,
    *,
    rotation: rope.Rotation | None = None,
    start: int = 0,
    stop: int | None = None,
    scan: bool = False,
    remat: str = "none",
) -> jax.Array:
    """x after blocks start .. stop - 1 of a stack (stop None: to the end).

    scales: drop-path factors [depth, 2, B] or None. codes: [depth, N, width], added to the tokens
      after each block, or None. rotation: of queries and keys in all blocks, or None. scan: whether
      to scan one compiled block. remat: see `recomputed`.
    """
    graphdef, state = nnx.split(blocks, graph=True)
    inputs = (state, scales, codes)
    depth = jax.tree.leaves(inputs)[0].shape[0]
    stop = depth if stop is None else stop
    tokens = x.shape[1]
    # Pad once for all blocks: padding and slicing in every block would copy all tokens.
    if extra := blocks.attn.padding(tokens):
        x = jnp.pad(x, ((0, 0), (0, extra), (0, 0)))
        codes = None if codes is None else jnp.pad(codes, ((0, 0), (0, extra), (0, 0)))
        rotation = None if rotation is None else rope.among(rotation, 0, extra)
        inputs = (state, scales, codes)

    def body(x, inputs):
        state, scale, code = inputs
        x, _ = nnx.merge(graphdef, state)(x, scale, rotation, seen=tokens)
        return x if code is None else x + code, None

    body = recomputed(body, remat, in_scan=scan)
    if scan:
        part = jax.tree.map(lambda leaf: leaf[start:stop], inputs)
        x = jax.lax.scan(body, x, part)[0]
    else:
        for row in apart(inputs, depth)[start:stop]:
            x, _ = body(x, row)
    return x[:, :tokens]


def apart(tree: Any, depth: int) -> list:
    """The `depth` rows of a tree of stacked arrays. One split per array lets the gradient be
    concatenated instead of summed from padded arrays."""
    leaves, structure = jax.tree.flatten(tree)
    rows = zip(*(jax.lax.split(leaf, (1,) * depth) for leaf in leaves), strict=True)
    return [jax.tree.unflatten(structure, [leaf[0] for leaf in row]) for row in rows]


def recomputed(body: Callable, remat: str, *, in_scan: bool = False) -> Callable:
    """Rematerialises `body` in the backward pass, according to `remat`, one of REMAT.

    "dots" stores the results of linear layers, which take most of the time, and recomputes
    attention scores, norms and activations.
    """
    if remat == "none":
        return body
    keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return jax.checkpoint(body, prevent_cse=not in_scan, policy=keep)


def drop_path_scales(keys: jax.Array, rate: float, depth: int) -> jax.Array:
    """Per-example branch factors of stochastic depth (Huang et al. 2016): 0 with probability r_i,
    else 1 / (1 - r_i).

    r_i rises linearly from 0 at the first block to `rate` at the last. Each draw depends only on
    the example's key, the block and the branch, and hence neither on the rest of the batch nor on
    chunking.

    Args:
      keys: [B] typed PRNG keys.

    Returns:
      float32 [depth, 2, B].
    """
    rates = jnp.linspace(0.0, rate, depth)[:, None, None]
    branches = jnp.arange(2 * depth).reshape(depth, 2)

    def draw(key, branch):
        return jax.random.uniform(jax.random.fold_in(key, branch), dtype=jnp.float32)

    over_batch = jax.vmap(draw, in_axes=(0, None))
    uniforms = jax.vmap(jax.vmap(over_batch, in_axes=(None, 0)), in_axes=(None, 0))(keys, branches)
    return jnp.where(uniforms >= rates, 1 / (1 - rates), 0.0)
