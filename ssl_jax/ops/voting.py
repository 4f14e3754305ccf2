"""Voting of self-organizing prototypes (SOP): the prediction of an embedding over the anchors.

Notation: K anchors, M members per anchor (the anchor included). Member j of SOP i votes with share
s_j for its own SOP and with (1 - s_j) / (K - 1) for each other one; these shares are the rows of
the contribution matrix Y [K*M, K], which is never built.

Source: "Self-Organizing Visual Prototypes for Non-Parametric Representation Learning" (SOP),
section 2.2 and appendix A.1.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ssl_jax.ops import devices
from ssl_jax.ops.checked import Positive, checked
from ssl_jax.ops.numerics import Precision, float_type, product, wide
from ssl_jax.ops.sops import MAX_SHARE


@checked
def sop_vote(
    queries: Float[Array, "*b d"],
    members: Float[Array, "K M d"],
    weights: Float[Array, "K M"],
    *,
    temperature: Positive,
    precision: Precision = None,
) -> Float[Array, "*b K"]:
    """Log-probability of every SOP: the softmax over all members, added up by their shares.

    P = softmax_{K*M}(u D^T / tau) Y, of which log P is returned. With p the softmax, s the shares
    and c_j = (K s_j - 1) / (K - 1):

        P_i = sum_{j in SOP i} p_j c_j + sum_{all j} p_j (1 - s_j) / (K - 1)

    which equals the product with Y exactly and has no negative term. It streams over the M member
    slots with two sums and a running maximum of shape [..., K]: the [K*M, K] matrix is never held,
    nor are the [..., K*M] logits, but on a GPU a pass takes as many slots as give it 2^27 logits,
    one at least. The backward pass recomputes the logits pass by pass.

    Args:
      queries: u [..., d], unit vectors as a rule; any float type (computed in float32 or wider),
        any leading axes.
      members: D [K, M, d].
      weights: s [K, M] of `sop_weights`. All 1 (one-hot), or else used clipped to [1/K, 1 - 1e-4].
      temperature: tau > 0, a number or a traced scalar.
      precision: of the logits and their gradient; None: see `numerics.product`.

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
    sops = prepare(members, weights, once=True)
    return vote(scaled(queries, temperature, sops), sops, precision)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sops:
    """SOPs in the form that the stream reads: slot by slot. Made once and used for many queries."""

    slots: Float[Array, "M K d"] | Float[Array, "K M d"]
    own: Float[Array, "M K"]  # c_j = (K s_j - 1) / (K - 1), in [0, 1]
    shared: Float[Array, "M K"]  # 1 - s_j: 0 for every member, or at least 1e-4 for every member
    axis: int = dataclasses.field(default=0, metadata=dict(static=True))  # of `slots`: that of M


def prepare(
    members: Float[Array, "K M d"], weights: Float[Array, "K M"], *, once: bool = False
) -> Sops:
    """Brings members [K, M, d] and weights [K, M] into slot order; stops gradients.

    once: of a single vote. A CPU then copies one slot after another as it reads them, which takes
    less than a copy of all of them in order.

    Unless all weights are 1, they are clipped below 1: then either nothing is shared, or P_i >=
    1e-4 / (K - 1) everywhere, and the backward pass divides by P without care.
    """
    members, weights = jax.lax.stop_gradient((members, weights))
    # Devices share the queries out, and each needs all members.
    axis, count = int(once and devices.platform() == "cpu"), members.shape[0]
    slots = wide(members) if axis else jnp.swapaxes(wide(members), 0, 1)
    slots, share = devices.whole((slots, jnp.asarray(weights).T))
    share = share.astype(slots.dtype)
    if count == 1:
        return Sops(slots, jnp.ones_like(share), jnp.zeros_like(share), axis)
    share = jnp.where(jnp.all(share >= 1), 1, jnp.clip(share, 1 / count, MAX_SHARE))
    own = jnp.maximum(count * share - 1, 0) / (count - 1)  # K * (1 / K) may round to less than 1
    return Sops(slots, own, 1 - share, axis)


def scaled(
    queries: Float[Array, "*b d"], temperature: Positive, sops: Sops
) -> Float[Array, "*b d"]:
    """u / tau in the type of the computation."""
    dtype = float_type(queries, sops.slots)
    scaled = jnp.asarray(queries).astype(dtype) / jnp.asarray(temperature).astype(dtype)
    return devices.varying(scaled, sops)


def _passes(queries, sops: Sops):
    """Returns how many slots s are read in a pass; what a scan runs over, of which the last two are
    the shares [s K] of a pass; and the function of the first that gives its slots [s K, d].
    """
    slots, count = sops.own.shape
    if sops.axis:
        numbers = jnp.arange(slots)
        take = functools.partial(jax.lax.dynamic_index_in_dim, sops.slots, axis=1, keepdims=False)
        return 1, (numbers, sops.own, sops.shared), take
    together = devices.at_once(slots, queries.size // sops.slots.shape[-1] * count)
    parts = (sops.slots, sops.own, sops.shared)
    passes = (x.reshape(slots // together, together * count, *x.shape[2:]) for x in parts)
    return together, tuple(passes), lambda slots: slots


def _logits(queries, slots, precision):
    return product("...d,kd->...k", queries, slots, precision=precision)


def _summed(together: int, logits, own, shared):
    """Reduces the slots [..., s K] of a pass to the largest logit [..., K] and the two sums above
    it."""
    if together == 1:  # a sum has one term, exp(0)
        return logits, own, shared
    logits, own, shared = (x.reshape(*x.shape[:-1], together, -1) for x in (logits, own, shared))
    top = jnp.max(logits, axis=-2, keepdims=True)
    terms = jnp.exp(logits - top)
    return top[..., 0, :], jnp.sum(own * terms, axis=-2), jnp.sum(shared * terms, axis=-2)


def _forward(queries, sops: Sops, precision):
    """log P [..., K], and for the backward pass the largest logit and the log sum exp above it,
    both [..., 1].
    """
    shape = (*queries.shape[:-1], sops.own.shape[1])
    dtype = queries.dtype
    together, passes, take = _passes(queries, sops)

    def step(carry, members):
        top, own_sum, shared_sum = carry
        slots, *parts = members
        slots = take(slots)
        logits = _logits(queries, slots, precision)
        own, shared = (jnp.broadcast_to(x, logits.shape) for x in parts)
        highest, own, shared = _summed(together, logits, own, shared)
        # Of exp(top - new_top) and exp(highest - new_top) one is always 1. The same side is chosen
        # everywhere, so that derivatives are right where both are equal.
        higher = highest > top
        below = jnp.exp(jnp.where(higher, top - highest, highest - top))
        keep, add = jnp.where(higher, below, 1), jnp.where(higher, 1, below)
        return (
            jnp.where(higher, highest, top),
            own_sum * keep + own * add,
            shared_sum * keep + shared * add,
        ), None

    start = (
        jnp.full(shape, jnp.finfo(dtype).min, dtype),
        jnp.zeros(shape, dtype),
        jnp.zeros(shape, dtype),
    )
    start = devices.varying(start, (queries, sops))
    (block_top, own_sum, shared_sum), _ = jax.lax.scan(step, start, passes)

    count = shape[-1]
    top = jnp.max(block_top, axis=-1, keepdims=True)
    scale = jnp.exp(block_top - top)
    shared_total = jnp.sum(shared_sum * scale, axis=-1, keepdims=True)
    # 1 = c_j + (1 - s_j) K / (K - 1): the normaliser from the same two sums, without cancellation.
    log_total = jnp.log(
        jnp.sum(own_sum * scale, axis=-1, keepdims=True)
        + shared_total * (count / max(count - 1, 1))
    )
    log_own = (block_top - top) + _log(own_sum)
    log_p = jnp.logaddexp(log_own, _log(shared_total / max(count - 1, 1))) - log_total
    return log_p, (top, log_total)


def _log(x: jax.Array) -> jax.Array:
    """log x, -inf at 0, where its derivative is 0 and not NaN."""
    there = x > 0
    return jnp.where(there, jnp.log(jnp.where(there, x, 1)), -jnp.inf)


def _backward(precision, queries, sops: Sops, log_p, normaliser, cotangent):
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
    # One-hot: P may underflow, and nothing is shared.
    votes = jnp.where(jnp.any(sops.shared > 0), votes, 0)
    offset = log_total + log_p
    limit = float(np.log(2 * count))  # only rounding of huge logits can pass it

    together, passes, take = _passes(queries, sops)
    beside = functools.partial(jnp.tile, reps=together)  # [..., K] for slots [..., s K]

    def step(grad, members):
        slots, *parts = members
        slots = take(slots)
        logits = _logits(queries, slots, precision)
        own, shared = (jnp.broadcast_to(x, logits.shape) for x in parts)
        ratio = jnp.exp(jnp.minimum((logits - top) - beside(offset), limit))
        by_logit = ratio * (own * beside(cotangent) + beside(p) * (shared * votes - total))
        return grad + product("...k,kd->...d", by_logit, slots, precision=precision), None

    return jax.lax.scan(step, jnp.zeros_like(queries), passes)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def vote(
    queries: Float[Array, "*b d"], sops: Sops, precision: Precision = None
) -> Float[Array, "*b K"]:
    """log P [..., K] of scaled queries u / tau [..., d].

    Keeps log P and recomputes the logits for the gradient.
    """
    return _forward(queries, sops, precision)[0]


def _vote_forward(queries, sops, precision):
    log_p, normaliser = _forward(queries, sops, precision)
    return log_p, (queries, sops, log_p, normaliser)


def _vote_backward(precision, saved, cotangent):
    queries, sops, log_p, normaliser = saved
    return _backward(precision, queries, sops, log_p, normaliser, cotangent), None


vote.defvjp(_vote_forward, _vote_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def vote_cross_entropy(
    queries: Float[Array, "*b d"],
    target: Float[Array, "*b K"],
    sops: Sops,
    precision: Precision = None,
) -> Float[Array, "*b"]:
    """- sum_i Q_i log P_i of scaled queries [..., d] and targets Q [..., K], constants: [...].

    Its gradient is worked out together with its value, because then only [..., d] has to be kept
    until the backward pass: with many views and tasks, [..., K] for each would be the largest
    arrays of a step.
    """
    return _cross_entropy(_forward(queries, sops, precision)[0], target)


def _cross_entropy(log_p, target):
    return -jnp.sum(target * log_p, axis=-1)


def _cross_entropy_forward(queries, target, sops, precision):
    log_p, normaliser = _forward(queries, sops, precision)
    loss = _cross_entropy(log_p, target)
    return loss, _backward(precision, queries, sops, log_p, normaliser, -target)


def _cross_entropy_backward(_, by_query, cotangent):
    return cotangent[..., None] * by_query, None, None


vote_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
