"""Checksums of the arrays of a checkpoint, equal on every mesh and kind of device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_SEEDS = (0x243F6A88, 0x85A308D3)  # of two sums of 32 bits: any two, here the first digits of pi


def by_array(tree: Any) -> dict[str, str]:
    """{path: 16 hexadecimal digits} of a pytree of arrays, sharded or not.

    Each element's bits are mixed with its position and summed as integers. Neither the order of
    the additions nor the mesh changes the sum, and a flipped bit always does. The sums are computed
    on the arrays' devices; all processes must call this.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    sums = jax.device_get([_sums(array) for _, array in leaves])
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): bytes(checksum.astype(">u4")).hex()
        for (path, _), checksum in zip(leaves, map(np.asarray, sums), strict=True)
    }


@jax.jit
def _sums(array: jax.Array) -> jax.Array:
    bits = _bits(array)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis, size in enumerate(bits.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    mixed = bits ^ _mix(place)
    return jnp.stack([_mix(mixed + jnp.uint32(seed)).sum(dtype=jnp.uint32) for seed in _SEEDS])


def _bits(array):
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.dtype == bool:
        return array.astype(jnp.uint32)
    # A wider number becomes several 32-bit ones along a further axis.
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(array.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(array, kind).astype(jnp.uint32)


def _mix(x):
    """MurmurHash3's finaliser: a bijection of 32 bits in which each input bit affects all."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
