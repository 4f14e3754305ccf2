"""The exact one-to-one assignment of least total cost.

Sources: Kuhn 1955, "The Hungarian method"; Jonker and Volgenant 1987 (shortest augmenting paths).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from ssl_jax.ops import devices


def assignment(cost: Float[Array, "n m"]) -> Int32[Array, " n"]:
    """Target of every row of cost [n, m], n <= m, by shortest augmenting paths: int32 [n].

    Rows enter one by one. The search from a new row grows a tree of columns by the least reduced
    cost, shifting the potentials of the tree so that reduced costs stay >= 0, until it meets a free
    column; then the matches along the path are exchanged. Column 0 is a root that stands for the
    new row; an unmatched column has row -1.
    """
    rows, columns = cost.shape
    big = jnp.asarray(1e30, cost.dtype)
    cost = jnp.clip(jnp.nan_to_num(cost, nan=1e30), -big, big)
    ids = jnp.arange(columns + 1)

    def put(array, position, value):  # as a comparison: faster than a scatter for small sets
        return jnp.where(ids == position, value, array)

    def enter(row, state):
        # Of each column: its row, that row's potential, its own.
        matched, row_shift, column_shift = state

        def searching(search):
            return search[-1] >= 0

        def grow(search):
            row_shift, column_shift, least, parent, used, column, current = search
            used = put(used, column, True)
            reduced = jnp.concatenate([big[None], cost[current]]) - row_shift[column] - column_shift
            closer = ~used & (reduced < least)
            least, parent = jnp.where(closer, reduced, least), jnp.where(closer, column, parent)
            following = jnp.argmin(jnp.where(used, jnp.inf, least))
            delta = least[following]
            row_shift = jnp.where(used, row_shift + delta, row_shift)
            column_shift = jnp.where(used, column_shift - delta, column_shift)
            least = jnp.where(used, least, least - delta)
            return row_shift, column_shift, least, parent, used, following, matched[following]

        matched = put(matched, 0, row)
        row_shift = put(row_shift, 0, 0)
        least = jnp.full(columns + 1, jnp.finfo(cost.dtype).max, cost.dtype)
        parent, used = jnp.zeros_like(ids), ids < 0
        search = (row_shift, column_shift, least, parent, used, jnp.zeros_like(row), row)
        search = devices.varying(search, cost)
        row_shift, column_shift, _, parent, _, column, _ = jax.lax.while_loop(
            searching, grow, search
        )

        def exchange(path):
            matched, row_shift, column = path
            before = parent[column]
            return (
                put(matched, column, matched[before]),
                put(row_shift, column, row_shift[before]),
                before,
            )

        path = (matched, row_shift, column)
        matched, row_shift, _ = jax.lax.while_loop(lambda path: path[-1] > 0, exchange, path)
        return matched, row_shift, column_shift

    start = (
        jnp.full(columns + 1, -1, ids.dtype),
        jnp.zeros(columns + 1, cost.dtype),
        jnp.zeros(columns + 1, cost.dtype),
    )
    matched, _, _ = jax.lax.fori_loop(0, rows, enter, devices.varying(start, cost))
    is_mine = matched[None, 1:] == jnp.arange(rows)[:, None]
    return jnp.argmax(is_mine, axis=-1).astype(jnp.int32)
