"""The objects of CrIBo: finding them, remembering them, retrieving them, showing them."""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.methods import base
from ssl_jax.views import boxes

_VIEWS = ("first", "second")  # names of the two halves of the memory


def assign(tokens, positions, seeds, c, *, clusters: int, weight):
    """The assignments [B, 2N, K] of the teacher's tokens to K objects (CrIBo, appendix B).

    Args:
      tokens: [B, 2N, d]; positions: [B, 2N, 2]; seeds: [B] keys.
      c: the section `cribo` of the config. Its k-means (table 12) has neither balance nor places.
      clusters: K; weight: lambda_pos, a number or a traced scalar.
    """
    kmeans = c.clustering == "kmeans"
    return ops.joint_view_clustering(
        tokens,
        positions,
        num_clusters=clusters,
        seeds=seeds,
        position_weight=0.0 if kmeans else weight,
        temperature=c.cluster_temperature,
        num_iters=c.cluster_iters,
        sinkhorn_iters=0 if kmeans else c.sinkhorn_iters,
        normalize=c.normalize,
        update_marginals=c.update_marginals,
        hard=c.hard,
    )


def empty_memory(size: int, width: int) -> ops.Memory:
    """A memory of `size` objects.

    A row is an object in both views, so that they stay paired, whether it is valid, and the inverse
    norms that the search needs."""
    spec = dict.fromkeys(_VIEWS, ((width,), jnp.float32)) | {
        f"{name}_inverse_norm": ((), jnp.float32) for name in _VIEWS
    }
    return ops.memory_init(spec | {"valid": ((), jnp.bool_)}, size)


def retrieve(objects, valid, memory, *, group: int):
    """Nearest neighbours in the memory (eq. 2) and whether the way back leads to the object again
    (eq. 4).

    Args:
      objects: the teacher's [B, 2, K, d]; valid: [B, K] bool. memory: as it is before it takes
        these objects.
      group: images among which the way back is searched; 0 = all.

    Returns:
      neighbours [2, B, K, d], raw rows of the memory; consistent [2, B, K] bool; exists, bool:
      whether the memory holds any object.
    """
    rows, exists = memory["rows"], ops.memory_valid(memory) & memory["rows"]["valid"]
    neighbours, consistent = [], []
    for view, (own, other) in enumerate((_VIEWS, _VIEWS[::-1])):
        found = ops.cycle_consistent(
            objects[:, view],
            objects[:, 1 - view],
            rows[own],
            rows[other],
            where=valid,
            bank_where=exists,
            inverse_norms=rows[f"{own}_inverse_norm"],
            group_size=group or None,
        )
        neighbours.append(rows[own][found.index])
        consistent.append(found.consistent)
    return jnp.stack(neighbours), jnp.stack(consistent), exists.any()


def remember(memory, objects, valid) -> ops.Memory:
    """The memory after objects [B, 2, K, d] with their validity [B, K]: K rows an image, so that
    the oldest images go first.
    """
    rows = {"valid": valid.reshape(-1)}
    for view, name in enumerate(_VIEWS):
        rows[name] = objects[:, view].reshape(-1, objects.shape[-1])
        square = jnp.square(rows[name]).sum(axis=-1)
        rows[f"{name}_inverse_norm"] = jax.lax.rsqrt(jnp.where(square > 0, square, 1))
    return ops.memory_push(memory, rows)


def bootstrapping(consistent, valid) -> dict:
    """Z_1, Z_2 and the share of cycles that close, of the valid objects and of all B K candidates
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


def pictures(images, patches, c, *, seed: int, clusters: int) -> dict[str, base.Picture]:
    """Objects beside their nearest neighbours in the other images: the four largest objects of each
    of up to six images.

    Args:
      images: [B, H, W, 3]; patches: their features [B, h, w, d]. c: the section `cribo` of the
        config.
      clusters: K, at most the number of patches. With a single image there is nothing to show.
    """
    count, rows, columns, width = patches.shape
    if count < 2:
        return {}
    tokens, clusters = patches.reshape(count, -1, width), min(clusters, rows * columns)
    frames = jnp.tile(jnp.array([0.0, 0.0, *images.shape[1:3]]), (count, 1))
    places = boxes.patch_positions(frames, jnp.zeros(count, bool), (rows, columns))
    seeds = jax.random.split(jax.random.key(seed), count)
    labels = assign(tokens, places, seeds, c, clusters=clusters, weight=c.position_weight).argmax(
        axis=-1
    )
    twice = lambda x: jnp.concatenate([x, x], axis=1)  # noqa: E731  # the image as both of its views
    objects, valid = ops.object_tokens(twice(tokens), twice(jax.nn.one_hot(labels, clusters)))
    objects, images, labels = (
        objects[:, 0],
        np.asarray(images),
        np.asarray(labels).reshape(count, rows, columns),
    )
    grid = []
    for i in range(min(count, 6)):
        elsewhere = valid & (jnp.arange(count) != i)[:, None]
        cosine, found = (
            np.asarray(x)[:, 0]
            for x in ops.nearest(
                objects[i], objects.reshape(-1, width), where=elsewhere.reshape(-1)
            )
        )
        sizes = np.bincount(labels[i].reshape(-1), minlength=clusters)
        panels = [base.Panel(images[i], labels=labels[i], title="objects")]
        for k in np.argsort(-sizes, kind="stable")[:4]:
            if sizes[k]:
                j, match = divmod(int(found[k]), clusters)
                panels.append(
                    base.Panel(
                        images[i], labels=np.where(labels[i] == k, k, -1), title=f"object {k}"
                    )
                )
                title = f"nearest, cosine {cosine[k]:.2f}"
                panels.append(
                    base.Panel(images[j], labels=np.where(labels[j] == match, k, -1), title=title)
                )
        grid.append(tuple(panels))
    return {
        "matches": base.Picture("Objects and their nearest neighbours in other images", tuple(grid))
    }
