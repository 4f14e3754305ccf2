"""Self-organizing prototypes (SOP): anchors of a memory, their members, and the members' shares.

A SOP is an anchor row of the memory with its nearest rows, its support embeddings; the module
`voting` predicts over SOPs.

Source: "Self-Organizing Visual Prototypes for Non-Parametric Representation Learning" (SOP),
section 2.2 and appendix A.1.
"""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer, Key

from ssl_jax.ops import devices
from ssl_jax.ops.arguments import require, require_inside
from ssl_jax.ops.checked import Count, Must, checked
from ssl_jax.ops.nearest import nearest
from ssl_jax.ops.numerics import Precision, wide

# Largest own share of a member that also votes for others; the smallest is 1 / K (equal votes).
MAX_SHARE = 1 - 1e-4


@checked
def sample_anchors(
    key: Key[Array, ""],
    size: Count,
    num_anchors: Count,
    *,
    num_tasks: Count = 1,
    strategy: Literal["random", "partition"] = "random",
) -> Int[Array, "T K"]:
    """Draws the memory rows that serve as anchors, anew for every task.

    Within a task all anchors are distinct and every row is equally likely. "random" draws the tasks
    independently (SOP section 2.2); "partition" makes them disjoint, so that num_tasks *
    num_anchors = size uses every row exactly once (MaSSL).

    Args:
      key: PRNG key. Use the same key on all devices, so that they build the same SOPs.
      size: N, rows of the memory.
      num_anchors: K, anchors per task.
      num_tasks: T, number of tasks.
      strategy: "random" or "partition".

    Returns:
      Row indices, int32 [T, K], in [0, N).

    Raises:
      ValueError: unknown strategy; a count below 1; K > N, or T * K > N with "partition".

    Example:
      >>> import jax
      >>> rows = sample_anchors(jax.random.key(0), 10, 5, num_tasks=2, strategy="partition")
      >>> sorted(rows.reshape(-1).tolist())
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    Reference: SOP section 2.2 and table C.7 (anchor selection strategies).
    """
    disjoint = num_anchors * (num_tasks if strategy == "partition" else 1)
    expected = f"at least {disjoint}, the number of distinct anchors drawn"
    require(disjoint <= size, "size", size, expected)
    if strategy == "partition":
        rows = jax.random.permutation(key, size)[:disjoint]
        return rows.reshape(num_tasks, num_anchors).astype(jnp.int32)
    # Rows with the largest random numbers: distinct by construction, and cheaper than a permutation
    # of all rows.
    bits = jax.random.bits(key, (num_tasks, size), jnp.uint32)
    return jax.lax.top_k(bits, num_anchors)[1].astype(jnp.int32)


@checked
def build_sops(
    memory: Float[Array, "N d"],
    anchors: Integer[Array, " K"] | Float[Array, "K d"],
    *,
    num_members: Annotated[int, Must("at least 1 (the anchor)", lambda x: x >= 1)],
    pool: Literal["exclude_anchors", "self"] = "exclude_anchors",
    chunk: Count | None = None,
    precision: Precision = None,
) -> tuple[Float[Array, "K M d"], Float[Array, "K M"]]:
    """Joins every anchor with its nearest memory rows (support embeddings): one SOP per anchor.

    SOP i = {the M - 1 rows e of the pool with the largest <a_i, e>} and the anchor a_i itself as
    member M - 1 (the last). A row may serve several SOPs. With pool "exclude_anchors" (the official
    code) no anchor of this task supports another; with "self" (the pseudo-code, appendix A.1) all
    rows but the anchor itself may: for unit rows that is the top M of the memory, of which an
    anchor is its own first hit.

    Args:
      memory: [N, d], unit rows (any float type; computed in float32 or wider). One task: map over
        anchors for several.
      anchors: [K] row indices, distinct; or [K, d] vectors that are no rows
        of the memory: then all rows are candidates and `pool` changes nothing.
      num_members: M >= 1, anchor included.
      pool: "exclude_anchors" or "self".
      chunk: anchors searched at a time; None: as `nearest` chooses. The search is exact.
      precision: of the similarities; None: see `numerics.product`.

    Returns:
      members [K, M, d] and similarity [K, M] = <member, anchor>. Neither carries a gradient.

    Raises:
      ValueError: wrong shapes, unknown pool, or fewer than M - 1 candidates.

    Example:
      >>> import jax.numpy as jnp
      >>> memory = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
      >>> members, similarity = build_sops(memory, jnp.array([0, 3]), num_members=2)
      >>> print(members[:, 0])  # row 2 supports anchor 0, row 1 supports anchor 3
      [[0.8 0.6]
       [0.6 0.8]]
      >>> print(similarity)
      [[0.8 1. ]
       [0.8 1. ]]

    Reference: SOP section 2.2; which rows may support: the two readings in the text above.
    """
    size, count, extra = memory.shape[0], anchors.shape[0], num_members - 1
    by_index = jnp.issubdtype(anchors.dtype, jnp.integer)
    if by_index:
        require_inside("an index in anchors", anchors, "memory", size)
    candidates = size - (0 if not by_index else count if pool == "exclude_anchors" else 1)
    expected = f"at most {candidates + 1}, as the pool has {candidates} rows"
    require(extra <= candidates, "num_members", num_members, expected)

    memory, anchors = jax.lax.stop_gradient((wide(memory), anchors))
    # Devices share the search out, but each needs all SOPs. It has the memory, so that nothing but
    # the results of the search has to be sent.
    vectors = devices.whole(memory[anchors] if by_index else anchors.astype(memory.dtype))
    self_similarity = jnp.sum(vectors * vectors, axis=-1, keepdims=True)
    if extra == 0:
        return vectors[:, None], self_similarity
    search: dict[str, Any] = dict(metric="dot", chunk=chunk, precision=precision)
    if not by_index:
        similarity, index = nearest(vectors, memory, k=extra, **search)
    elif pool == "exclude_anchors":
        supports = jnp.ones(size, bool).at[anchors].set(False)
        similarity, index = nearest(vectors, memory, k=extra, where=supports, **search)
    else:
        # One hit more than needed, then drop the anchor itself (or the last hit, if duplicates
        # pushed the anchor out).
        similarity, index = nearest(vectors, memory, k=extra + 1, **search)
        own_row = anchors[:, None].astype(index.dtype)
        order = jnp.argsort(index == own_row, axis=-1, stable=True)[:, :extra]
        similarity, index = (jnp.take_along_axis(x, order, axis=-1) for x in (similarity, index))
    similarity, index = devices.whole((similarity, index))
    members = devices.whole(jnp.concatenate([memory[index], vectors[:, None]], axis=1))
    return members, jnp.concatenate([similarity, self_similarity], axis=1)


@checked
def sop_weights(
    similarity: Float[Array, "*b K M"],
    *,
    rule: Literal["similarity", "smoothed", "onehot"] = "similarity",
    smoothing: Annotated[float, Must("in [0, 1)", lambda x: 0 <= x < 1)] = 0.1,
) -> Float[Array, "*b K M"]:
    """Share s_j of its vote that each member gives to its own SOP.

    The rest is spread evenly over the other K - 1.

    "similarity" (official code): s_j = <e_j, a_i> for supports and 1 - smoothing for the anchor
    (the last member); "smoothed" (pseudo-code): s_j = 1 - smoothing for all; "onehot": s_j = 1.
    The first two are clipped to [1/K, 1 - 1e-4], so that a contribution is never negative and log P
    stays finite. With a single SOP (K = 1) every share is 1.

    Args:
      similarity: [..., K, M] of `build_sops`.
      rule: "similarity", "smoothed" or "onehot".
      smoothing: eps in [0, 1).

    Returns:
      [..., K, M], float32 or wider, in [1/K, 1]; without gradient.

    Raises:
      ValueError: unknown rule, eps out of range, or fewer than 2 axes.

    Example:
      >>> import jax.numpy as jnp
      >>> similarity = jnp.array([[0.75, 1.0], [0.25, 1.0]])  # 2 SOPs of 2 members
      >>> print(sop_weights(similarity))  # 0.25 would be below 1 / K
      [[0.75 0.9 ]
       [0.5  0.9 ]]

    Reference: SOP section 2.2 (contributions Y), appendix A.1, and table 9.
    """
    similarity = jax.lax.stop_gradient(wide(similarity))
    num_anchors = similarity.shape[-2]
    if rule == "onehot" or num_anchors == 1:
        return jnp.ones_like(similarity)
    shares = jnp.full_like(similarity, 1 - smoothing)
    if rule == "similarity":
        shares = jnp.concatenate([similarity[..., :-1], shares[..., -1:]], axis=-1)
    return jnp.clip(shares, 1 / num_anchors, MAX_SHARE)
