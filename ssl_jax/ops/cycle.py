"""Cycle-consistent neighbours: objects whose nearest bank entry leads back to them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.ops import arguments
from ssl_jax.ops.nearest import nearest


class Cycle(NamedTuple):
    """What `cycle_consistent` finds, of the objects' leading shape."""

    consistent: jax.Array  # bool
    index: jax.Array  # int32, nearest row of the first bank with its leading axes flattened


def cycle_consistent(
    first,
    second,
    first_bank,
    second_bank,
    *,
    where=None,
    bank_where=None,
    inverse_norms=None,
    group_size: int | None = None,
) -> Cycle:
    """Which objects come back to themselves: nearest neighbour in the bank, its other view, nearest
      object of the batch.

        j = argmax_j cos(c_1[o], M_1[j]),    back = argmax_o' cos(M_2[j], c_2[o']),    O_1[o] =
        (back == o).

    O_2 is the same call with the two views and banks exchanged. Among equals the first is taken.

    Args:
      first: c_1 [n, ..., d], objects of one view (for instance [B, K, d]); all leading axes are
        searched together. Any float type (computed in float32 or wider).
      second: c_2 [n, ..., d], the same objects in the other view.
      first_bank: M_1 [m, ..., d], objects of earlier images in one view. Norms do not matter.
      second_bank: M_2 [m, ..., d], the same objects in the other view.
      where: bool [n, ...], objects that exist (in both views); the others are never consistent and
      never found. None: all. bank_where: bool [m, ...], rows that exist. None: all.
      inverse_norms: [m, ...], 1 / |M_1[j]| where the memory stores them. None: worked out here.
      group_size: the way back is searched among this many entries of the first axis of `second`
        (images) only, those that lie in one group with the object; None: among all. The official
        code's group is one device's batch.

    Returns:
      Cycle: consistent, bool [n, ...]; index, int32 [n, ...]: j in the flattened bank
      (`first_bank.reshape(-1, d)[index]` is the neighbour nn_1). Both are constants. With no
      existing bank row nothing is consistent and index is in range.

    Raises:
      ValueError: shapes that do not fit, group_size below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> first, second = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[0.9, 0.1], [0.1, 0.9]])
      >>> # wrongly paired rows
      >>> cycle = cycle_consistent(first, second, first_bank=first, second_bank=second[::-1])
      >>> print(cycle.index, cycle.consistent)
      [0 1] [False False]
      >>> print(cycle_consistent(first, second, first, second).consistent)
      [ True  True]

    Reference: CrIBo eq. 4 and section 3.3; the group: its official code.
    """
    arguments.require_shape("first", first, (..., None, None), "[n, ..., d]")
    *lead, width = shape = np.shape(first)
    arguments.require(
        np.shape(second) == shape, "the shape of second", np.shape(second), f"{shape} as first"
    )
    arguments.require_shape(
        "first_bank", first_bank, (..., None, width), f"[m, ..., {width}] as wide as first"
    )
    *bank_lead, _ = bank_shape = np.shape(first_bank)
    arguments.require(
        np.shape(second_bank) == bank_shape,
        "the shape of second_bank",
        np.shape(second_bank),
        f"{bank_shape} as first_bank",
    )
    if where is not None:
        arguments.require_shape("where", where, tuple(lead), f"{tuple(lead)}, one entry per object")
    if bank_where is not None:
        arguments.require_shape(
            "bank_where",
            bank_where,
            tuple(bank_lead),
            f"{tuple(bank_lead)}, one entry per bank row",
        )
    if inverse_norms is not None:
        arguments.require_shape(
            "inverse_norms",
            inverse_norms,
            tuple(bank_lead),
            f"{tuple(bank_lead)}, one entry per bank row",
        )
    if group_size is not None:
        arguments.require(group_size >= 1, "group_size", group_size, "at least 1")
        group_size = group_size * int(np.prod(lead[1:]))
    count, rows = int(np.prod(lead)), int(np.prod(bank_lead))
    if count == 0 or rows == 0:
        return Cycle(jnp.zeros(lead, bool), jnp.zeros(lead, jnp.int32))

    first, second, first_bank, second_bank = (
        jax.lax.stop_gradient(jnp.asarray(x)).reshape(-1, width)
        for x in (first, second, first_bank, second_bank)
    )
    where, bank_where, inverse_norms = (
        None if x is None else jnp.asarray(x).reshape(-1)
        for x in (where, bank_where, inverse_norms)
    )
    found, index = nearest(first, first_bank, where=bank_where, inverse_norms=inverse_norms)
    came, back = nearest(second_bank[index[:, 0]], second, where=where, group_size=group_size)
    # Values of -inf: there was no row to be found. An object that does not exist is never found
    # itself.
    consistent = (
        (back[:, 0] == jnp.arange(count)) & (found[:, 0] > -jnp.inf) & (came[:, 0] > -jnp.inf)
    )
    return Cycle(consistent.reshape(lead), index.reshape(lead))
