"""Times calls in turns, and measures the memory of a call and how far outputs are apart."""

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import tables


def clock() -> float:
    """Seconds: of the wall; of the processor where this process has but one, so that other work on
    it does not count."""
    alone = tables.cores() == 1 and jax.default_backend() == "cpu"
    return time.process_time() if alone else time.perf_counter()


def in_rounds(calls: dict, rounds: int, *, skip: int = 0, now=clock) -> dict[Any, list[float]]:
    """Seconds of each call in each round. A round runs all calls, each round starting with another:
    drift hits all alike. skip: rounds that are run before and do not count."""
    names = list(calls)
    seconds: dict[Any, list[float]] = {name: [] for name in names}
    for number in range(skip + rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = now()
            calls[name]()
            seconds[name].append(now() - start)
    return {name: values[skip:] for name, values in seconds.items()}


def medians(calls: dict, rounds: int, **options) -> dict[Any, float]:
    """Median seconds of each call; see `in_rounds`."""
    every = in_rounds(calls, rounds, **options)
    return {name: float(np.median(values)) for name, values in every.items()}


def compared(case: str, seconds: dict) -> list[dict]:
    """A row per form of a case: case, form, seconds, x (seconds relative to the first form)."""
    first = next(iter(seconds.values()))
    return [dict(case=case, form=form, seconds=s, x=s / first) for form, s in seconds.items()]


def memory_rise(call) -> tuple[Any, int | None]:
    """What a call returns, and by how many bytes the process grew at its highest, less what is
    returned; None outside Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
    except OSError:
        return call(), None
    output = call()
    returned = sum(x.nbytes for x in jax.tree.leaves(output) if hasattr(x, "nbytes"))
    return output, max(_status("VmHWM") - before - returned, 0)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def difference(got, wanted) -> float:
    """The largest over all arrays: of floats |got - wanted| over the largest |wanted|, else the
    share that differs."""
    worst = 0.0
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        if one.shape != other.shape:
            return float("inf")
        pairs = list(zip(_pieces(one), _pieces(other)))
        if np.issubdtype(other.dtype, np.floating):
            gap = _largest(a - b for a, b in pairs) / max(_largest(_pieces(other)), 1e-30)
            worst = max(worst, gap if np.isfinite(gap) else float("inf"))
        else:
            worst = max(worst, sum(np.count_nonzero(a != b) for a, b in pairs) / other.size)
    return worst


def _pieces(array):
    """Along the first axis, so that comparing arrays of gigabytes needs no copies of that size."""
    return np.array_split(array, min(len(array), 64)) if array.ndim and len(array) else [array]


def _largest(pieces) -> float:
    return float(np.max([np.max(np.abs(piece), initial=0) for piece in pieces]))


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Share of the neighbours [q, k] of one search that the other found too, in any order."""
    pairs = zip(np.sort(one, axis=1), np.sort(other, axis=1))
    return float(np.mean([np.isin(a, b, assume_unique=True).mean() for a, b in pairs]))
