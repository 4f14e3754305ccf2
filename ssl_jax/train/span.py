"""Runs several steps in one program if their results are not needed in between: starting every
step from Python would limit the speed of a small network."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

_SECONDS = 1.0  # longest time of a span; a signal waits for its end
_BYTES = 2**26  # of the batches that are stacked for a span, also for one of few steps


def spanned(train_step: Callable, most: int) -> Callable:
    """Builds (state, batches, count, images) -> (state, metrics), which runs `count` steps.

    batches: arrays [most, B, ...]; "row" [most, B], if any, indexes images [N, H, W, 3]. metrics:
    arrays [most, ...]; only the first `count` entries are valid.
    """

    def span(state, batches, count, images):
        def batch_of(i):
            batch = jax.tree.map(lambda x: x[i], batches)
            if "row" in batch:
                batch["source"] = images[batch.pop("row")]
            return batch

        # One trace gives both the program and the shapes of its metrics.
        traced, shapes = jax.make_jaxpr(train_step, return_shape=True)(state, batch_of(0))

        def body(i, carry):
            state, metrics = carry
            results = jaxpr_as_fun(traced)(*jax.tree.leaves((state, batch_of(i))))
            state, new = jax.tree.unflatten(jax.tree.structure(shapes), results)
            return state, jax.tree.map(lambda x, y: x.at[i].set(y), metrics, new)

        metrics = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), shapes[1])
        return jax.lax.fori_loop(0, count, body, (state, metrics))

    return span


def most_steps(batch: dict, most: int) -> int:
    """The largest number of steps of a span with such batches, at most `most`."""
    size = sum(np.asarray(x).nbytes for x in jax.tree.leaves(batch))
    return max(1, min(most, _BYTES // size))


def stacked(batches: list[dict], most: int) -> dict:
    """Stacks batches for `spanned`, padded to `most` with the last one."""
    return jax.tree.map(lambda *rows: np.stack(rows + rows[-1:] * (most - len(rows))), *batches)


class Length:
    """Chooses the number of steps of each span: up to the next step whose result is needed, and
    about one second at most.

    looked_at: periods in steps at which results are needed; 0 = never.
    """

    def __init__(self, most: int, total: int, looked_at: list[int]):
        self._most, self._total, self._looked_at = most, total, [n for n in looked_at if n]
        self._affordable = 1
        self._before: float | None = None

    def after(self, at: int) -> int:
        """The number of steps of the span after step `at`."""
        ends = [self._total, *(at + n - at % n for n in self._looked_at)]
        return min(self._affordable, self._most, min(ends) - at)

    def ended(self, now: float, steps: int) -> None:
        """Records that a span of `steps` steps ended after `now` seconds of training."""
        if self._before is not None:
            seconds = max(now - self._before, 1e-6)
            self._affordable = max(1, min(2 * self._affordable, int(_SECONDS * steps / seconds)))
        self._before = now
