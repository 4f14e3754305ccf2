"""Voting of self-organizing prototypes (SOP): anchors, their members, and the prediction over
  anchors.

Notation: K anchors, M members per anchor (the anchor included), N rows of memory of width d. Member
j of SOP i votes with share s_j for its own SOP and with (1 - s_j) / (K - 1) for each other one;
these shares are the rows of the contribution matrix Y [K*M, K], which is never built.

Source: "Self-Organizing Visual Prototypes for Non-Parametric Representation Learning" (SOP),
section 2.2 and appendix A.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.ops import arguments
from ssl_jax.ops.nearest import nearest

# Largest own share of a member that also votes for others; the smallest is 1 / K (equal votes for
# all).
MAX_SHARE = 1 - 1e-4


def sample_anchors(
    key, size: int, num_anchors: int, *, num_tasks: int = 1, strategy: str = "random"
):
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

    Reference: SOP section 2.2, table 6 (random against fixed anchors).
    """
    arguments.require(
        strategy in ("random", "partition"), "strategy", repr(strategy), '"random" or "partition"'
    )
    for name, value in (("size", size), ("num_anchors", num_anchors), ("num_tasks", num_tasks)):
        arguments.require(value >= 1, name, value, "at least 1")
    disjoint = num_anchors * (num_tasks if strategy == "partition" else 1)
    arguments.require(
        disjoint <= size, "size", size, f"at least {disjoint}, the number of distinct anchors drawn"
    )
    if strategy == "partition":
        return (
            jax.random.permutation(key, size)[:disjoint]
            .reshape(num_tasks, num_anchors)
            .astype(jnp.int32)
        )
    # Rows with the largest random numbers: distinct by construction, and cheaper than a permutation
    # of all rows.
    return jax.lax.top_k(jax.random.bits(key, (num_tasks, size)), num_anchors)[1].astype(jnp.int32)


def build_sops(
    memory, anchors, *, num_members: int, pool: str = "exclude_anchors", chunk: int | None = None
):
    """Joins every anchor with its nearest memory rows (support embeddings): one SOP per anchor.

    SOP i = {the M - 1 rows e of the pool with the largest <a_i, e>} and the anchor a_i itself as
    member M - 1 (the last). A row may serve several SOPs. With pool "exclude_anchors" (the official
    code) no anchor of this task supports another; with "self" (the pseudo-code, appendix A.1) all
    rows but the anchor itself may: for unit rows that is the top M of the memory, of which an
    anchor is its own first hit.

    Args:
      memory: [N, d], unit rows (any float type; computed in float32 or wider). One task: map over
        anchors for several. anchors: [K] row indices, distinct; or [K, d] vectors that are no rows
        of the memory: then all rows are candidates and `pool` changes nothing.
      num_members: M >= 1, anchor included.
      pool: "exclude_anchors" or "self".
      chunk: anchors searched at a time; None: as `nearest` chooses. The search is exact.

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
    arguments.require_shape("memory", memory, (None, None), "[N, d]")
    arguments.require(
        pool in ("exclude_anchors", "self"), "pool", repr(pool), '"exclude_anchors" or "self"'
    )
    arguments.require(num_members >= 1, "num_members", num_members, "at least 1 (the anchor)")
    memory, anchors = jax.lax.stop_gradient((jnp.asarray(memory), jnp.asarray(anchors)))
    size, width = memory.shape
    by_index = jnp.issubdtype(anchors.dtype, jnp.integer)
    if by_index:
        arguments.require_shape("anchors", anchors, (None,), "[K] for indices, [K, d] for vectors")
        if arguments.known(anchors):
            inside = bool(np.all((np.asarray(anchors) >= 0) & (np.asarray(anchors) < size)))
            arguments.require(
                inside, "an index in anchors", "outside the memory", f"in [0, {size})"
            )
    else:
        arguments.require_shape(
            "anchors", anchors, (None, width), f"[K] for indices, [K, {width}] for vectors"
        )
    count, extra = anchors.shape[0], num_members - 1
    candidates = size - (0 if not by_index else count if pool == "exclude_anchors" else 1)
    wanted = f"at most {candidates + 1}, as the pool has {candidates} rows"
    arguments.require(extra <= candidates, "num_members", num_members, wanted)

    memory = memory.astype(jnp.promote_types(memory.dtype, jnp.float32))
    vectors = memory[anchors] if by_index else anchors.astype(memory.dtype)
    own = jnp.sum(vectors * vectors, axis=-1, keepdims=True)
    if extra == 0:
        return vectors[:, None], own
    search = dict(metric="dot", chunk=chunk)
    if not by_index:
        similarity, index = nearest(vectors, memory, k=extra, **search)
    elif pool == "exclude_anchors":
        supports = jnp.ones(size, bool).at[anchors].set(False)
        similarity, index = nearest(vectors, memory, k=extra, where=supports, **search)
    else:
        # One hit more than needed, then drop the anchor itself (or the last hit, if duplicates
        # pushed the anchor out).
        similarity, index = nearest(vectors, memory, k=extra + 1, **search)
        order = jnp.argsort(index == anchors[:, None], axis=-1, stable=True)[:, :extra]
        similarity, index = (jnp.take_along_axis(x, order, axis=-1) for x in (similarity, index))
    return jnp.concatenate([memory[index], vectors[:, None]], axis=1), jnp.concatenate(
        [similarity, own], axis=1
    )


def sop_weights(similarity, *, rule: str = "similarity", smoothing: float = 0.1):
    """Share s_j of its vote that each member gives to its own SOP; the rest is spread evenly over
    the other K - 1.

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

    Reference: SOP section 2.2 (contributions Y), appendix A.1, and the row "one-hot" of the
    ablation.
    """
    arguments.require_shape("similarity", similarity, (..., None, None), "[..., K, M]")
    known_rules = ("similarity", "smoothed", "onehot")
    arguments.require(rule in known_rules, "rule", repr(rule), f"one of {known_rules}")
    if arguments.known(smoothing):
        arguments.require(bool(0 <= smoothing < 1), "smoothing", smoothing, "in [0, 1)")
    similarity = jax.lax.stop_gradient(jnp.asarray(similarity))
    similarity = similarity.astype(jnp.promote_types(similarity.dtype, jnp.float32))
    num_anchors = similarity.shape[-2]
    if rule == "onehot" or num_anchors == 1:
        return jnp.ones_like(similarity)
    shares = jnp.full_like(similarity, 1 - smoothing)
    if rule == "similarity":
        shares = jnp.concatenate([similarity[..., :-1], shares[..., -1:]], axis=-1)
    return jnp.clip(shares, 1 / num_anchors, MAX_SHARE)


def sop_vote(queries, members, weights, *, temperature):
    """Log-probability of every SOP: an embedding's softmax over all K*M members, passed on by their
      contributions.

    P = softmax_{K*M}(u D^T / tau) Y,  log P returned.  With p the softmax, s the shares, c_j = (K
    s_j - 1) / (K - 1):

        P_i = sum_{j in SOP i} p_j c_j + sum_{all j} p_j (1 - s_j) / (K - 1)

    which equals the product with Y exactly and has no negative term. It streams over the M member
    slots with two sums and a running maximum of shape [..., K]: neither the [K*M, K] matrix nor the
    [..., K*M] logits are ever held, and the backward pass recomputes the logits slot by slot.

    Args:
      queries: u [..., d], unit vectors as a rule; any float type (computed in float32 or wider),
      any leading axes. members: D [K, M, d].
      weights: s [K, M] of `sop_weights`. All 1 (one-hot), or else used clipped to [1/K, 1 - 1e-4].
      temperature: tau > 0, a number or a traced scalar.

    Returns:
      log P [..., K], finite for finite logits; exp of it sums to 1. Reverse-mode gradients reach
      queries and temperature, while members and weights are constants (their gradient is 0). Under
      a sharded batch keep members replicated: no communication is needed.

    Raises:
      ValueError: shapes that do not fit, tau <= 0 (where its value is known).

    Example:
      >>> import jax.numpy as jnp
      >>> members = jnp.eye(2)[:, None]  # 2 SOPs, each only its anchor
      >>> log_p = sop_vote(
      ...     jnp.array([1.0, 0.0]), members, jnp.array([[0.9], [0.9]]), temperature=0.5
      ... )
      >>> print(log_p.round(2))  # log of 0.9 * 0.88 + 0.1 * 0.12 = 0.805, and of the rest
      [-0.22 -1.63]

    Reference: SOP section 2.2, eq. 1 and appendix A.1.
    """
    _check_vote(queries, members, weights)
    arguments.require_positive("temperature", temperature)
    sops = prepare(members, weights)
    return vote(scaled(queries, temperature, sops), sops)


def _check_vote(queries, members, weights) -> None:
    """Raises ValueError unless queries [..., d], members [K, M, d] and weights [K, M] fit
    together.
    """
    arguments.require_shape("members", members, (None, None, None), "[K, M, d]")
    num_anchors, slots, width = np.shape(members)
    arguments.require(
        num_anchors * slots > 0,
        "the shape of members",
        np.shape(members),
        "[K, M, d] with K, M >= 1",
    )
    arguments.require_shape(
        "weights", weights, (num_anchors, slots), f"[{num_anchors}, {slots}] as members"
    )
    arguments.require_shape("queries", queries, (..., width), f"[..., {width}] as wide as members")


class Sops(NamedTuple):
    """SOPs in the form that the stream reads: slot by slot. Made once and used for many queries."""

    slots: jax.Array  # [M, K, d]
    own: jax.Array  # [M, K], c_j = (K s_j - 1) / (K - 1), in [0, 1]
    shared: jax.Array  # [M, K], 1 - s_j: 0 for every member, or at least 1e-4 for every member


def prepare(members, weights) -> Sops:
    """Brings members [K, M, d] and weights [K, M] into slot order; stops gradients.

    Unless all weights are 1, they are clipped below 1: then either nothing is shared, or P_i >=
    1e-4 / (K - 1) everywhere, and the backward pass divides by P without care.
    """
    members, weights = jax.lax.stop_gradient((jnp.asarray(members), jnp.asarray(weights)))
    dtype = jnp.promote_types(members.dtype, jnp.float32)
    share = weights.astype(dtype).T
    count = members.shape[0]
    slots = jnp.swapaxes(members, 0, 1).astype(dtype)
    if count == 1:
        return Sops(slots, jnp.ones_like(share), jnp.zeros_like(share))
    share = jnp.where(jnp.all(share >= 1), 1, jnp.clip(share, 1 / count, MAX_SHARE))
    own = jnp.maximum(count * share - 1, 0) / (count - 1)  # K * (1 / K) may round to less than 1
    return Sops(slots, own, 1 - share)


def scaled(queries, temperature, sops: Sops):
    """u / tau in the type of the computation."""
    dtype = jnp.promote_types(jnp.asarray(queries).dtype, sops.slots.dtype)
    return jnp.asarray(queries).astype(dtype) / jnp.asarray(temperature).astype(dtype)


def _logits(queries, slot):
    # Full float32 on accelerators too: logits are divided by temperatures of a few percent.
    return jnp.einsum("...d,kd->...k", queries, slot, precision=jax.lax.Precision.HIGHEST)


def _forward(queries, sops: Sops):
    """log P [..., K], and for the backward pass the largest logit and the log sum exp above it,
    both [..., 1].
    """
    shape = (*queries.shape[:-1], sops.slots.shape[1])
    dtype = jnp.result_type(queries, sops.slots)

    def step(carry, member):
        top, own_sum, shared_sum = carry
        slot, own, shared = member
        logits = _logits(queries, slot)
        # Of exp(top - new_top) and exp(logits - new_top) one is always 1.
        below = jnp.exp(-jnp.abs(logits - top))
        higher = logits > top
        keep, add = jnp.where(higher, below, 1), jnp.where(higher, 1, below)
        return (
            jnp.maximum(top, logits),
            own_sum * keep + own * add,
            shared_sum * keep + shared * add,
        ), None

    start = (
        jnp.full(shape, jnp.finfo(dtype).min, dtype),
        jnp.zeros(shape, dtype),
        jnp.zeros(shape, dtype),
    )
    (block_top, own_sum, shared_sum), _ = jax.lax.scan(step, start, sops)

    count = shape[-1]
    top = jnp.max(block_top, axis=-1, keepdims=True)
    scale = jnp.exp(block_top - top)
    shared_total = jnp.sum(shared_sum * scale, axis=-1, keepdims=True)
    # 1 = c_j + (1 - s_j) K / (K - 1): the normaliser from the same two sums, without cancellation.
    log_total = jnp.log(
        jnp.sum(own_sum * scale, axis=-1, keepdims=True)
        + shared_total * (count / max(count - 1, 1))
    )
    log_own = (block_top - top) + jnp.log(own_sum)
    log_p = jnp.logaddexp(log_own, jnp.log(shared_total / max(count - 1, 1))) - log_total
    return log_p, (top, log_total)


def _backward(queries, sops: Sops, log_p, normaliser, cotangent):
    """Gradient [..., d] of sum(cotangent * log P) by the scaled queries, the logits recomputed slot
    by slot.

    d log P_i / d logit_j = p_j ([j in SOP i] c_j / P_i + (1 - s_j) / ((K - 1) P_i) - 1). With e_j =
    p_j / P_block(j), which is at most 2 (K - 1) however far the logits spread, the sum over all i,
    weighted with cotangents g, is

        e_j (c_j g_i + P_i ((1 - s_j) V - G))  with i = block(j),  G = sum g,  V = sum g / P / (K -
        1).
    """
    top, log_total = normaliser
    count = log_p.shape[-1]
    p = jnp.exp(log_p)
    total = jnp.sum(cotangent, axis=-1, keepdims=True)
    votes = jnp.sum(cotangent * jnp.exp(-log_p), axis=-1, keepdims=True) / max(count - 1, 1)
    votes = jnp.where(
        jnp.any(sops.shared > 0), votes, 0
    )  # one-hot: P may underflow, and nothing is shared
    offset = log_total + log_p
    limit = float(np.log(2 * count))  # only rounding of huge logits can pass it

    def step(grad, member):
        slot, own, shared = member
        ratio = jnp.exp(jnp.minimum((_logits(queries, slot) - top) - offset, limit))
        by_logit = ratio * (own * cotangent + p * (shared * votes - total))
        return (
            grad + jnp.einsum("...k,kd->...d", by_logit, slot, precision=jax.lax.Precision.HIGHEST),
            None,
        )

    return jax.lax.scan(step, jnp.zeros_like(queries), sops)[0]


@jax.custom_vjp
def vote(queries, sops: Sops):
    """log P [..., K] of scaled queries u / tau [..., d]; saves log P and recomputes the logits for
    the gradient.
    """
    return _forward(queries, sops)[0]


def _vote_forward(queries, sops):
    log_p, normaliser = _forward(queries, sops)
    return log_p, (queries, sops, log_p, normaliser)


def _vote_backward(saved, cotangent):
    return _backward(*saved, cotangent), None


vote.defvjp(_vote_forward, _vote_backward)


@jax.custom_vjp
def vote_cross_entropy(queries, target, sops: Sops):
    """- sum_i Q_i log P_i per scaled query: queries [..., d] and target Q [..., K] (a constant) ->
      [...].

    Its gradient is worked out together with its value, because then only [..., d] has to be kept
    until the backward pass: with many views and tasks, [..., K] for each would be the largest
    arrays of a step.
    """
    return _cross_entropy(_forward(queries, sops)[0], target)


def _cross_entropy(log_p, target):
    return -jnp.sum(target * log_p, axis=-1)


def _cross_entropy_forward(queries, target, sops):
    log_p, normaliser = _forward(queries, sops)
    return _cross_entropy(log_p, target), _backward(queries, sops, log_p, normaliser, -target)


def _cross_entropy_backward(by_query, cotangent):
    return cotangent[..., None] * by_query, None, None


vote_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
