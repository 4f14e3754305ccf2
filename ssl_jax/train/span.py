"""Several steps in one program, where nothing looks between them: a small network is then not
bound by Python, which starts every step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

_SECONDS = 1.0  # a span may take, since a signal waits for its end


def spanned(train_step: Callable, most: int) -> Callable:
    """(state, batches, count, images) -> (state, metrics) of the first `count` of `most` batches.

    batches: arrays [most, B, ...]; "row" [most, B] are rows of images [N, H, W, 3]. metrics: arrays
    [most, ...], of which those of the steps that were made count.
    """

    def span(state, batches, count, images):
        def batch_of(i):
            batch = jax.tree.map(lambda x: x[i], batches)
            batch["source"] = images[batch.pop("row")]
            return batch

        # Traced once, for its program and for the shapes of its metrics.
        traced, shapes = jax.make_jaxpr(train_step, return_shape=True)(state, batch_of(0))

        def body(i, both):
            state, metrics = both
            results = jaxpr_as_fun(traced)(*jax.tree.leaves((state, batch_of(i))))
            state, new = jax.tree.unflatten(jax.tree.structure(shapes), results)
            return state, jax.tree.map(lambda x, y: x.at[i].set(y), metrics, new)

        metrics = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), shapes[1])
        return jax.lax.fori_loop(0, count, body, (state, metrics))

    return span


def stacked(batches: list[dict], most: int) -> dict:
    """Batches as one for `spanned`; the last stands in for those that are missing."""
    return jax.tree.map(lambda *rows: np.stack(rows + rows[-1:] * (most - len(rows))), *batches)


class Length:
    """Chooses how many steps the next span has: up to the next one that something looks at, and
    about a second's worth at most.

    looked_at: periods in steps; 0: never.
    """

    def __init__(self, most: int, total: int, looked_at: list[int]):
        self._most, self._total, self._looked_at = most, total, [n for n in looked_at if n]
        self._affordable = 1
        self._before: float | None = None

    def after(self, at: int) -> int:
        """The number of steps of the span that follows step `at`."""
        ends = [self._total, *(at + n - at % n for n in self._looked_at)]
        return min(self._affordable, self._most, min(ends) - at)

    def ended(self, now: float, steps: int) -> None:
        """A span of so many steps ended at this second of training."""
        if self._before is not None:
            seconds = max(now - self._before, 1e-6)
            self._affordable = max(1, min(2 * self._affordable, int(_SECONDS * steps / seconds)))
        self._before = now
