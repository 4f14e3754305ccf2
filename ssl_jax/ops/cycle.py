"""Cycle-consistent neighbours: objects whose nearest bank entry leads back to them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ssl_jax.ops import devices
from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Count, checked
from ssl_jax.ops.nearest import nearest
from ssl_jax.ops.numerics import Precision


class Cycle(NamedTuple):
    """What `cycle_consistent` finds, of the objects' leading shape."""

    consistent: Bool[Array, "*n"]
    # Nearest row of the first bank with its leading axes flattened.
    index: Int[Array, "*n"]  # type: ignore[assignment]  # hides tuple.index


@checked
def cycle_consistent(
    first: Float[Array, "*n d"],
    second: Float[Array, "*n d"],
    first_bank: Float[Array, "*m d"],
    second_bank: Float[Array, "*m d"],
    *,
    where: Bool[Array, "*n"] | None = None,
    bank_where: Bool[Array, "*m"] | None = None,
    inverse_norms: Float[Array, "*m"] | None = None,
    group_size: Count | None = None,
    precision: Precision = None,
    cut_bank: bool = False,
) -> Cycle:
    """Which objects come back to themselves by way of their nearest neighbour in the bank.

    From an object to its nearest row of the bank, to the other view of that row, to the nearest
    object of the batch:

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
      never found. None: all.
      bank_where: bool [m, ...], rows that exist. None: all.
      inverse_norms: [m, ...], 1 / |M_1[j]| where the memory stores them. None: worked out here.
      group_size: the way back is searched among this many entries of the first axis of `second`
        (images) only, those that lie in one group with the object; None: among all. The official
        code's group is one device's batch.
      precision: of the cosines; None: see `numerics.product`.
      cut_bank: as in `nearest`.

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

    Reference: CrIBo eq. 4 and section 3.2.2; the group: its official code.
    """
    *lead, width = first.shape
    require(lead != [], "the shape of first", first.shape, "[n, ..., d]")
    *bank_lead, _ = first_bank.shape
    if group_size is not None:
        group_size = group_size * int(np.prod(lead[1:]))
    count, rows = int(np.prod(lead)), int(np.prod(bank_lead))
    if count == 0 or rows == 0:
        return Cycle(jnp.zeros(lead, bool), jnp.zeros(lead, jnp.int32))

    first, second, first_bank, second_bank = (
        jax.lax.stop_gradient(x).reshape(-1, width)
        for x in (first, second, first_bank, second_bank)
    )
    where, bank_where, inverse_norms = (
        None if x is None else x.reshape(-1) for x in (where, bank_where, inverse_norms)
    )
    forward, index = nearest(
        first,
        first_bank,
        where=bank_where,
        inverse_norms=inverse_norms,
        precision=precision,
        cut_bank=cut_bank,
    )
    matches = devices.take(second_bank, index[:, 0], cut=cut_bank)
    back, home = nearest(matches, second, where=where, group_size=group_size, precision=precision)
    # Values of -inf: there was no row to be found. An object that does not exist is never found
    # itself.
    consistent = (
        (home[:, 0] == jnp.arange(count, dtype=home.dtype))
        & (forward[:, 0] > -jnp.inf)
        & (back[:, 0] > -jnp.inf)
    )
    return Cycle(consistent.reshape(lead), index.reshape(lead))
