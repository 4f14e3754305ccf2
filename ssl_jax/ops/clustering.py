"""Clustering of the tokens of two views into objects, by content and position."""

import functools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Key

from ssl_jax.ops import devices
from ssl_jax.ops.arguments import is_concrete, require, require_inside
from ssl_jax.ops.checked import Count, Must, NotNegative, Positive, checked
from ssl_jax.ops.numerics import Precision, log_sum_exp, product, sharpen, wide
from ssl_jax.ops.transport import scale_rows
from ssl_jax.ops.vectors import unit

_SMOOTHING = 0.01  # added to the size of every cluster, so that an empty one keeps a share


@checked
def joint_view_clustering(
    tokens: Float[Array, "*b 2N d"],
    positions: Float[Array, "*b 2N p"],
    *,
    num_clusters: int,
    seeds: Integer[Array, "*b K"] | Key[Array, ""] | Key[Array, "*b"],
    position_weight: NotNegative = 1.0,
    temperature: Positive = 0.05,
    num_iters: Count = 5,
    sinkhorn_iters: Annotated[int, Must("0 or more", lambda x: x >= 0)] = 5,
    normalize: Literal["image", "batch"] = "image",
    update_marginals: bool = True,
    hard: bool = True,
    precision: Precision = None,
) -> Float[Array, "*b 2N K"]:
    """Assigns the tokens of both views of an image to K clusters, by content and position.

    num_iters times, from centroids that are the seed tokens, each alone in its cluster, and
    c = 1 / K (t_n is token n divided by its norm, E_n its position):

        s[n, k] = <t_n, centroid_k>
        g[n, k] = min over members l of k with |E_n - E_l| > 0 of |E_n - E_l|       (CrIBo eq. 17)
        T       = position_weight g / max g - s, brought to [0, 1] by its minimum and maximum
        P       = plan of the cost T with rows 1 / 2N and columns c: exp(-T / temperature), scaled
                  sinkhorn_iters times
        A[n]    = one-hot of the largest P[n, k] (the first of equals)
        c       = (tokens per cluster + 0.01), normalised to 1 (with update_marginals)
        centroid_k = sum_n A[n, k] t_n / its norm                  (zero if the cluster is empty)

    Where no such member exists (empty cluster, or n alone in it), g is the mean of g over all n, k,
    counted as 0 there. The minimum is taken over cluster labels: [2N, 2N] distances are held, never
    [2N, 2N, K].

    Args:
      tokens: [..., 2N, d], tokens of view 1, then of view 2; any float type (computed in float32 or
        wider).
      positions: E [..., 2N, 2] (any number of coordinates), in the frame of the original image; the
        unit does not matter.
      num_clusters: K, 1 <= K <= 2N.
      seeds: int [..., K], distinct token indices; or a PRNG key, one for all ([]) or one per image
        ([...]), with which they are drawn.
      position_weight: lambda_pos >= 0; a number or a traced scalar, as is temperature.
      temperature: 1 / lambda > 0.
      num_iters: rounds of assignment and update, at least 1.
      sinkhorn_iters: scalings per round. 0: none, so that a token goes to its cheapest cluster and
        c plays no part; with position_weight = 0 that is k-means of unit vectors, CrIBo's ablation
        of the clustering.
      normalize: minimum and maximum of T over the "image", or over the "batch" of all images as the
        official code does: then an assignment depends on the images beside it. An image (or batch)
        of equal costs has T = 0.
      update_marginals: False keeps c = 1 / K (the paper; the published runs update).
      hard: return A, or False: the last plan P divided by its row sums. The iterations are the
        same.
      precision: of the products with centroids; None: see `numerics.product`.

    Returns:
      [..., 2N, K], float32 or wider, rows sum to 1. A constant: no gradient flows.

    Raises:
      ValueError: shapes that do not fit, K or seeds out of range, repeated seeds, unknown
        normalize, temperature <= 0, position_weight < 0 (values checked where they are known).

    Example:
      >>> import jax.numpy as jnp
      >>> # two views of two tokens
      >>> tokens = jnp.array([[1.0, 0.1], [0.1, 1.0], [0.9, 0.0], [0.0, 1.1]])
      >>> positions = jnp.array([[0.0, 0.0], [16.0, 0.0], [1.0, 0.0], [17.0, 0.0]])
      >>> print(joint_view_clustering(tokens, positions, num_clusters=2, seeds=jnp.array([0, 1])))
      [[1. 0.]
       [0. 1.]
       [1. 0.]
       [0. 1.]]

    Reference: CrIBo section 3.2.1 and appendix B (eq. 14 to 17); marginals, empty clusters and the
    two scalings: its official code.
    """
    *batch, count, width = tokens.shape
    fits = 1 <= num_clusters <= count
    require(fits, "num_clusters", num_clusters, f"between 1 and {count}, the number of tokens")
    seeds = _seeds(seeds, tuple(batch), count, num_clusters).reshape(-1, num_clusters)
    tokens, positions = jax.lax.stop_gradient(wide(tokens, positions))
    position_weight, temperature = jax.lax.stop_gradient((position_weight, temperature))
    dtype = tokens.dtype
    tokens = unit(tokens.reshape(-1, count, width))
    positions = positions.reshape(-1, count, positions.shape[-1])
    distances = _distances(positions)
    extent = (1, 2) if normalize == "image" else (0, 1, 2)
    rows = jnp.full((), -jnp.log(count), dtype)
    images = tokens.shape[0]
    require(images > 0 or normalize == "image", "the number of images", 0, "at least 1")

    def step(state, _):
        labels, centroids, columns, _ = state
        similarity = product("bnd,bkd->bnk", tokens, centroids, precision=precision)
        weight = jnp.asarray(position_weight).astype(dtype)
        cost = weight * _positional_cost(distances, labels, num_clusters) - similarity
        low, high = jnp.min(cost, extent, keepdims=True), jnp.max(cost, extent, keepdims=True)
        cost = (cost - low) / jnp.where(high > low, high - low, 1)
        log_plan = _log_plan(sharpen(-cost, temperature), rows, columns[:, None], sinkhorn_iters)
        labels = jnp.argmax(log_plan, axis=-1).astype(jnp.int32)
        members = jax.nn.one_hot(labels, num_clusters, dtype=dtype)
        if update_marginals:
            sizes = jnp.sum(members, axis=1) + _SMOOTHING
            columns = jnp.log(sizes / jnp.sum(sizes, axis=-1, keepdims=True))
        centroids = unit(product("bnk,bnd->bkd", members, tokens, precision=precision))
        return (labels, centroids, columns, log_plan), None

    start = (
        _first_labels(seeds, count),
        jnp.take_along_axis(tokens, seeds[..., None], axis=1),
        jnp.full((images, num_clusters), -jnp.log(num_clusters), dtype),
        jnp.zeros((images, count, num_clusters), dtype),
    )
    start = devices.varying(start, (tokens, distances, seeds, position_weight, temperature))
    (labels, _, _, log_plan), _ = jax.lax.scan(step, start, length=num_iters)
    if hard:
        assignments = jax.nn.one_hot(labels, num_clusters, dtype=dtype)
    else:
        assignments = jax.nn.softmax(log_plan, axis=-1)
    return assignments.reshape(*batch, count, num_clusters)


@checked
def object_tokens(
    tokens: Float[Array, "*#b 2N d"], assignments: Float[Array, "*#b 2N K"]
) -> tuple[Float[Array, "*b 2 K d"], Bool[Array, "*b K"]]:
    """Mean token of every cluster in each of the two views, and which clusters both views have.

    c_v^k = sum_n Q_v[n, k] z_v^n / sum_n Q_v[n, k], over the tokens n of view v only; 0 where the
    sum is 0.

    Args:
      tokens: z [..., 2N, d], tokens of view 1, then of view 2, not normalised (the teacher's or the
        student's); any float type (computed in float32 or wider).
      assignments: Q [..., 2N, K], >= 0, as `joint_view_clustering` returns; leading axes broadcast.

    Returns:
      objects [..., 2, K, d] (axis -3: the view) and valid, bool [..., K]: the cluster has tokens in
      BOTH views. Objects that are not valid are finite. Gradients reach tokens and assignments.

    Raises:
      ValueError: shapes that do not fit, or an odd number of tokens.

    Example:
      >>> import jax.numpy as jnp
      >>> tokens = jnp.array([[1.0], [3.0], [5.0], [7.0]])  # two tokens per view
      >>> objects, valid = object_tokens(
      ...     tokens, jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
      ... )
      >>> print(objects[..., 0], valid)  # cluster 1 is in view 2 only
      [[2. 0.]
       [5. 7.]] [ True False]

    Reference: CrIBo eq. 1 and section 3.2.1.
    """
    count = tokens.shape[-2]
    require(count % 2 == 0, "the number of tokens", count, "even: N of each view")
    tokens, assignments = (
        x.reshape(*x.shape[:-2], 2, count // 2, x.shape[-1]) for x in wide(tokens, assignments)
    )
    mass = jnp.sum(assignments, axis=-2)
    shares = assignments / jnp.where(mass > 0, mass, 1)[..., None, :]
    objects = product("...nk,...nd->...kd", shares, tokens)
    valid = jnp.all(mass > 0, axis=-2)
    return objects, jnp.broadcast_to(valid, (*objects.shape[:-3], objects.shape[-2]))


def _seeds(seeds, batch: tuple, count: int, num_clusters: int):
    """Distinct token indices [*batch, K] from indices or keys."""
    if jnp.issubdtype(seeds.dtype, jax.dtypes.prng_key):
        if seeds.shape == ():
            bits = jax.random.bits(seeds, (*batch, count), jnp.uint32)
        else:
            draw = functools.partial(jax.random.bits, shape=(count,), dtype=jnp.uint32)
            bits = jax.vmap(draw)(seeds.reshape(-1))
        # The largest random numbers: distinct by construction.
        return jax.lax.top_k(bits.reshape(*batch, count), num_clusters)[1]
    shape = (*batch, num_clusters)
    expected = f"{[*shape]}, num_clusters tokens per image"
    signed = jnp.issubdtype(seeds.dtype, jnp.signedinteger)  # jax.random.PRNGKey is unsigned
    require(signed, "the type of seeds", seeds.dtype, "signed integers, or a key of jax.random.key")
    require(seeds.shape == shape, "the shape of seeds", seeds.shape, expected)
    require_inside("an index in seeds", seeds, "tokens", count)
    if is_concrete(seeds):
        distinct = bool(np.all(np.diff(np.sort(np.asarray(seeds), axis=-1)) > 0))
        require(distinct, "an index in seeds", "repeated", "distinct within an image")
    return seeds.astype(jnp.int32)


def _first_labels(seeds, count: int):
    """[B, count] int32: the number of the cluster whose seed a token is; K = in no cluster yet."""
    images, num_clusters = seeds.shape
    none = jnp.full((images, count), num_clusters, jnp.int32)
    return jax.vmap(
        lambda label, seed: label.at[seed].set(jnp.arange(num_clusters, dtype=jnp.int32))
    )(none, seeds)


def _distances(positions):
    """[b, n, n] distances between places, inf where they coincide: a token is not its own
    neighbour.
    """
    axes = jnp.moveaxis(positions, -1, 0)  # a sum over a last axis of two would be slow
    square = sum(jnp.square(x[:, :, None] - x[:, None]) for x in axes)
    return jnp.where(square > 0, jnp.sqrt(square), jnp.inf)


def _positional_cost(distances, labels, num_clusters: int):
    """g / max g, [b, n, K], of distances [b, n, n] (inf: never nearest) and labels [b, n] (K: in no
    cluster).
    """
    nearest = jax.lax.platform_dependent(
        distances,
        labels,
        cpu=functools.partial(_nearest_by_label, num_clusters=num_clusters),
        default=functools.partial(_nearest_by_cluster, num_clusters=num_clusters),
    )
    exists = jnp.isfinite(nearest)
    finite = jnp.where(exists, nearest, 0)
    cost = jnp.where(exists, finite, jnp.mean(finite, axis=(1, 2), keepdims=True))
    largest = jnp.max(cost, axis=(1, 2), keepdims=True)
    return cost / jnp.where(largest > 0, largest, 1)


def _nearest_by_label(distances, labels, num_clusters: int):
    """Distance [b, n, K] of every token to the nearest member of every cluster, inf if there is
    none: one pass over rows.

    Distances are symmetric, so that whole rows are scattered.
    """
    by_label = jax.vmap(lambda rows, label: jax.ops.segment_min(rows, label, num_clusters))(
        distances, labels
    )
    return jnp.swapaxes(by_label, 1, 2)


def _nearest_by_cluster(distances, labels, num_clusters: int):
    """Computes `_nearest_by_label` cluster by cluster: more arithmetic, but no scatter, which is
    slow and sequential on accelerators.
    """

    def one(_, cluster):
        members = (labels == cluster)[:, :, None]
        return None, jnp.min(jnp.where(members, distances, jnp.inf), axis=1)

    clusters = jnp.arange(num_clusters, dtype=jnp.int32)
    # Eight clusters become one pass over the distances.
    return jnp.moveaxis(jax.lax.scan(one, None, clusters, unroll=8)[1], 0, 2)


def _log_plan(scores, log_rows, log_columns, num_iters: int):
    """log P of P = diag(u) exp(scores) diag(v) after num_iters scalings of rows, then columns.

    The scores themselves if num_iters is 0.
    """
    if num_iters == 0:
        return scores
    scores = scale_rows(scores, log_rows, log_columns, num_iters)
    return scores + log_columns - log_sum_exp(scores, -2)
