"""The supervised oracles of CrIBo (section C.9, table 11): objects and accepted neighbours from
the classes of segmentation masks.
"""

import jax
import jax.numpy as jnp

from ssl_jax import ops
from ssl_jax.methods.cribo.objects import VIEWS, WORDS
from ssl_jax.ops import devices, numerics

IGNORE = 255  # label of a patch without a class


def clusters(labels: jax.Array, num_clusters: int) -> jax.Array:
    """Assigns the patches of an image to objects by class, one object per class.

    Args:
      labels: [B, 2N] uint8, classes of the patches of view 1, then of view 2.
      num_clusters: K; if an image has more classes, those with the highest numbers are dropped.

    Returns:
      float32 [B, 2N, K], one-hot, in the order of the classes; zeros for patches without a class.
    """
    present = _one_hot(labels).any(axis=1)
    order = jnp.cumsum(present, axis=-1) - 1  # [B, 256]
    index = jnp.take_along_axis(order, labels.astype(jnp.int32), axis=-1)
    return jax.nn.one_hot(jnp.where(labels == IGNORE, num_clusters, index), num_clusters)


def class_sets(labels: jax.Array, assigned: jax.Array) -> jax.Array:
    """The set of classes of each object's patches, per view.

    Args:
      labels: [B, 2N] uint8. assigned: [B, 2N, K] >= 0; a patch belongs to its largest entry.

    Returns:
      uint32 [B, 2, K, WORDS]; bit c % 32 of word c // 32 stands for class c.
    """
    batch, count, num_clusters = assigned.shape
    member = (assigned > 0) & (assigned == assigned.max(axis=-1, keepdims=True))
    pairs = (x.reshape(batch, 2, count // 2, -1) for x in (member, _one_hot(labels)))
    # Counts of zeros and ones; only whether they exceed 0 matters.
    seen = numerics.product("bvnk,bvnc->bvkc", *(x.astype(jnp.float32) for x in pairs)) > 0
    bits = seen.reshape(batch, 2, num_clusters, WORDS, 32).astype(jnp.uint32)
    return (bits << jnp.arange(32, dtype=jnp.uint32)).sum(axis=-1, dtype=jnp.uint32)


def same_classes(sets: jax.Array, memory: ops.Memory, index: jax.Array) -> jax.Array:
    """Whether objects have the same set of classes as their neighbours, bool [2, B, K]; False for
    objects without classes.

    Args:
      sets: [B, 2, K, WORDS]. index: [2, B, K], memory rows of the neighbours in each view.
    """
    same = []
    for view, name in enumerate(VIEWS):
        rows = memory["rows"][f"{name}_classes"]
        theirs = devices.take(rows, index[view].reshape(-1), cut=True).reshape(sets[:, view].shape)
        same.append(((sets[:, view] == theirs).all(axis=-1)) & (theirs != 0).any(axis=-1))
    return jnp.stack(same)


def _one_hot(labels):
    """Bool [..., 256], all False for patches without a class."""
    classes = jnp.arange(32 * WORDS)
    return (labels[..., None] == classes) & (classes != IGNORE)
