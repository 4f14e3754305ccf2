"""Modes of tokens in two views, by attention without parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.methods import multicrop
from ssl_jax.ops import numerics


class Modes(NamedTuple):
    """Sampled tokens of all student views and their modes, each [B, Q, d]."""

    tokens: jax.Array
    modes: jax.Array  # in the token's view
    teacher_modes: jax.Array  # in the teacher's view


def both_views(
    student: jax.Array,
    teacher: jax.Array,
    index: jax.Array,
    tau_sa: float | jax.Array,
    tau_ca: float | jax.Array,
) -> Modes:
    """One mean-shift step of student tokens over their own view (eq. 4) and over the teacher's
    (eq. 12).

    Args:
      student: [B, V, n, d], all tokens of the student's views.
      teacher: [B, T, N, d], all tokens of the teacher's views. Student view v is paired with
        teacher view (v + 1) mod T, so that with two it meets the OTHER augmentation of the crop.
      index: [B, V, q], indices of the query tokens.
      tau_sa, tau_ca: inverse temperatures.
    """
    tokens = multicrop.take(student, index)
    modes = ops.mean_shift(tokens, student, inverse_temperature=tau_sa)
    # The queries are the tokens, as in eq. 12; algorithm 1 has their modes instead.
    queries, keys = jax.lax.stop_gradient(tokens), partner(teacher, student.shape[1])
    teacher_modes = ops.mean_shift(queries, keys, inverse_temperature=tau_ca)
    batch, width = student.shape[0], student.shape[-1]
    return Modes(*(x.reshape(batch, -1, width) for x in (tokens, modes, teacher_modes)))


def partner(teacher: jax.Array, count: int) -> jax.Array:
    """[B, count, N, d]: the teacher view paired with each student view, from [B, T, N, d]."""
    return teacher[:, (np.arange(count) + 1) % teacher.shape[1]]


def attention_meters(
    student: jax.Array,
    teacher: jax.Array,
    index: jax.Array,
    tau_sa: float | jax.Array,
    tau_ca: float | jax.Array,
) -> dict[str, jax.Array]:
    """Sharpness of both attentions: mean entropy (nats) and mean largest weight of the rows, [B].

    Arguments as in `both_views`.
    """
    tokens = multicrop.take(student, index)
    keys = {"sa": (student, tau_sa), "ca": (partner(teacher, student.shape[1]), tau_ca)}
    meters = {}
    for name, (tokens_met, tau) in keys.items():
        scores = numerics.product("bvqd,bvnd->bvqn", tokens, tokens_met) * tau
        log_rows = jax.nn.log_softmax(jax.lax.stop_gradient(scores), axis=-1)
        meters[f"{name}_entropy"] = ops.entropy(log_probs=log_rows).mean(axis=(1, 2))
        meters[f"{name}_peak"] = jnp.exp(log_rows.max(axis=-1)).mean(axis=(1, 2))
    return meters
