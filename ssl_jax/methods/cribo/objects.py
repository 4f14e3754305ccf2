"""Finds, stores and retrieves the objects of CrIBo."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import ops
from ssl_jax.methods import base
from ssl_jax.ops import devices, numerics
from ssl_jax.views import boxes

CLUSTERS = 12  # most clusters of a single image, as in the figures of the paper
WORDS = 8  # 32-bit words of a class set, with one bit for each of the 256 values of a mask
VIEWS = ("first", "second")  # names of the two halves of the memory


def clustering(section: ConfigDict, num_clusters: int) -> Callable:
    """The clustering of tokens by the settings of a config section `cribo` (appendix B).

    Returns:
      assign(tokens [B, n, d], positions [B, n, 2], seeds [B] keys, position_weight) -> assignments
      [B, n, K] to K = num_clusters objects. position_weight is lambda_pos, a number or a traced
      scalar. K-means (table 12) uses neither balance nor positions. clustering="masks" clusters
      as "sinkhorn" here, for images without masks.
    """
    kmeans = section.clustering == "kmeans"

    def assign(tokens, positions, seeds, position_weight):
        return ops.joint_view_clustering(
            tokens,
            positions,
            num_clusters=num_clusters,
            seeds=seeds,
            position_weight=0.0 if kmeans else position_weight,
            temperature=section.cluster_temperature,
            num_iters=section.cluster_iters,
            sinkhorn_iters=0 if kmeans else section.sinkhorn_iters,
            normalize=section.normalize,
            update_marginals=section.update_marginals,
            hard=section.hard,
        )

    return assign


def empty_memory(size: int, width: int, *, class_sets: bool = False) -> ops.Memory:
    """A memory of `size` objects.

    A row holds an object in both views, so that they stay paired, its validity, and the inverse
    norms for the search. class_sets: whether it also holds class sets, see `oracle.class_sets`.
    """
    spec = dict.fromkeys(VIEWS, ((width,), jnp.float32)) | {
        f"{name}_inverse_norm": ((), jnp.float32) for name in VIEWS
    }
    if class_sets:
        spec |= {f"{name}_classes": ((WORDS,), jnp.uint32) for name in VIEWS}
    return ops.memory_init(spec | {"valid": ((), jnp.bool_)}, size)


def retrieve(
    objects: jax.Array, valid: jax.Array, memory: ops.Memory, *, group: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Nearest neighbours in the memory (eq. 2) and their cycle consistency (eq. 4).

    Args:
      objects: [B, 2, K, d], the teacher's.
      valid: [B, K] bool.
      memory: the memory before these objects are pushed.
      group: number of images in which the way back is searched; 0 = all.

    Returns:
      neighbours [B, 2, K, d], raw rows of the memory; index [2, B, K] of these rows; consistent
      [2, B, K] bool; exists, bool: whether the memory holds any object.
    """
    rows, exists = memory["rows"], ops.memory_valid(memory) & memory["rows"]["valid"]
    neighbours, indices, consistent = [], [], []
    for view, (name, other) in enumerate((VIEWS, VIEWS[::-1])):
        cycle = ops.cycle_consistent(
            objects[:, view],
            objects[:, 1 - view],
            rows[name],
            rows[other],
            where=valid,
            bank_where=exists,
            inverse_norms=rows[f"{name}_inverse_norm"],
            group_size=group or None,
            cut_bank=True,
        )
        nearest = devices.take(rows[name], cycle.index.reshape(-1), cut=True)
        neighbours.append(nearest.reshape(*cycle.index.shape, -1))
        indices.append(cycle.index)
        consistent.append(cycle.consistent)
    nearest = jnp.stack(neighbours, axis=1)
    return nearest, jnp.stack(indices), jnp.stack(consistent), exists.any()


def remembered(
    objects: jax.Array, valid: jax.Array, class_sets: jax.Array | None = None
) -> base.Push:
    """Memory rows of objects [B, 2, K, d] with validity [B, K] and optionally class sets
    [B, 2, K, WORDS]: K rows per image, so that the oldest images are replaced first.
    """
    rows = {"valid": valid.reshape(-1)}
    for view, name in enumerate(VIEWS):
        # Replicated like the objects: XLA would shard the rows and gather them again.
        rows[name] = devices.whole(objects[:, view].reshape(-1, objects.shape[-1]))
        square = jnp.square(rows[name]).sum(axis=-1)
        rows[f"{name}_inverse_norm"] = jax.lax.rsqrt(jnp.where(square > 0, square, 1))
        if class_sets is not None:
            rows[f"{name}_classes"] = class_sets[:, view].reshape(-1, WORDS)
    return base.Push(rows)


def bootstrapping(consistent: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
    """Z_1, Z_2 and the share of closed cycles, among valid objects and among all B K candidates
    (fig. 6).
    """
    cycles = consistent.sum(axis=(1, 2)).astype(jnp.float32)
    ratio, share = (cycles.sum() / (2 * n) for n in (jnp.maximum(1, valid.sum()), valid.size))
    return {
        "cycles_first": cycles[0],
        "cycles_second": cycles[1],
        "bootstrapping_ratio": ratio,
        "bootstrapping_share": share,
    }


def find(
    size: tuple[int, int], patches: jax.Array, section: ConfigDict, *, seed: int
) -> dict[str, jax.Array]:
    """Objects of single images with patches [B, h, w, d].

    Returns "clusters" [B, h, w] int32, the cluster of each patch; "objects" [B, K, d], their mean
    patches; "exist" [B, K] bool, whether a cluster has patches.

    size: (height, width) of the images in pixels.
    """
    count, rows, columns, width = patches.shape
    num_clusters = min(CLUSTERS, section.clusters, rows * columns)
    tokens = patches.reshape(count, -1, width)
    frames = jnp.tile(jnp.array([0.0, 0.0, *size]), (count, 1))
    positions = boxes.patch_positions(frames, jnp.zeros(count, bool), (rows, columns))
    assign = clustering(section, num_clusters)
    seeds = jax.random.split(numerics.key(seed), count)
    labels = assign(tokens, positions, seeds, section.position_weight).argmax(axis=-1)
    assigned = jax.nn.one_hot(labels, num_clusters)
    # The image serves as both views.
    means, valid = ops.object_tokens(*(jnp.concatenate([x, x], axis=1) for x in (tokens, assigned)))
    clusters = labels.reshape(count, rows, columns)
    return {"clusters": clusters, "objects": means[:, 0], "exist": valid}
