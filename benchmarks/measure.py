"""Times forms of one computation side by side, and compares what they return."""

import importlib.util
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import tables


class Library(NamedTuple):
    module: str  # skipped unless it can be imported
    make: Callable  # of no arguments; returns the call to be timed
    make_gradient: Callable | None = None


class Case(NamedTuple):
    """One computation in several forms; the first of `forms` is the op, the second the reference of
    all others.
    """

    size: str
    arguments: tuple
    forms: dict[str, Callable]  # jax functions of the arguments
    libraries: dict[str, Library] = {}
    gradient: int | None = None  # the argument to differentiate by; None: forward only
    # Of the largest difference, relative to the largest entry; None: recall counts instead.
    tolerance: float | None = 1e-4
    # What of the output the forms must agree on.
    compared: Callable[[Any], Any] = lambda output: output


def cotangent(shape):
    """Weights of the outputs in the gradient that is measured: of both signs, none special."""
    return jnp.cos(jnp.arange(np.prod(shape), dtype=jnp.float32)).reshape(shape)


def measure(case: Case, rounds: int) -> tuple[list[dict], list[str]]:
    """One row per form and direction, and a line for every library that is missing."""
    rows, skipped = [], []
    for direction in ("forward", "gradient"):
        if direction == "gradient" and case.gradient is None:
            continue
        calls, memory = {}, {}
        for name, form in case.forms.items():
            function = form if direction == "forward" else _gradient(form, case.gradient)
            compiled = jax.jit(function).lower(*case.arguments).compile()
            memory[name] = compiled.memory_analysis().temp_size_in_bytes
            calls[name] = lambda compiled=compiled: jax.block_until_ready(compiled(*case.arguments))
        for name, library in case.libraries.items():
            make = library.make if direction == "forward" else library.make_gradient
            if importlib.util.find_spec(library.module) is None:
                if direction == "forward":
                    skipped.append(f"skipped: {name} ({library.module} is not installed)")
            elif make is not None:
                calls[name] = make()
        rows += _compare(case, direction, calls, memory, rounds)
    return rows, skipped


def _gradient(form, argument: int):
    def weighted(*arguments):
        output = form(*arguments)
        first = jax.tree.leaves(output)[0]
        return jnp.sum(first * cotangent(first.shape))

    return jax.grad(weighted, argnums=argument)


def _compare(case: Case, direction: str, calls: dict, memory: dict, rounds: int) -> list[dict]:
    ours, plain = list(case.forms)[:2]
    view = case.compared if direction == "forward" else (lambda output: output)
    wanted = _hold(view, calls[plain]())
    judged = {plain: _judge(case, wanted, wanted, True)}
    for name in calls.keys() - {plain}:
        output, rise = memory_rise(calls[name])  # the first call also warms up
        memory.setdefault(name, rise)
        judged[name] = _judge(case, _hold(view, output), wanted, False)
        del output
    del wanted
    seconds = time_interleaved(calls, rounds)
    rows = []
    for name in calls:
        row = dict(size=case.size, direction=direction, form=name, library=name in case.libraries)
        row |= dict(
            ms=1e3 * seconds[name],
            times_ops=seconds[name] / seconds[ours],
            temporary_bytes=memory.get(name),
        )
        row |= judged[name]
        rows.append(row)
    return rows


def _judge(case: Case, got, wanted, is_reference: bool) -> dict:
    judgement = dict(difference=None, recall=None, agrees=None)
    if got is not None and case.tolerance is None:
        judgement["recall"] = _recall(got, wanted)
    elif got is not None and not is_reference:
        judgement["difference"] = difference(got, wanted)
        judgement["agrees"] = bool(judgement["difference"] <= case.tolerance)
    return judgement


def _hold(view, output):
    return None if output is None else jax.tree.map(np.asarray, view(output))


def time_interleaved(calls: dict, rounds: int, *, skip: int = 0) -> dict[str, float]:
    """Median seconds per call; see `in_rounds`."""
    seconds = in_rounds(calls, rounds, skip=skip)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def in_rounds(calls: dict, rounds: int, *, skip: int = 0) -> dict[str, list[float]]:
    """Seconds of each call in each round. A round runs all calls, each round starting with another:
    drift hits all alike. skip: rounds that do not count.
    """
    seconds, names = {name: [] for name in calls}, list(calls)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = clock()
            calls[name]()
            seconds[name].append(clock() - start)
    return {name: values[skip:] for name, values in seconds.items()}


def clock() -> float:
    """Seconds: of the wall; of the processor where this process has but one, so that other work on
    it does not count."""
    alone = tables.cores() == 1 and jax.default_backend() == "cpu"
    return time.process_time() if alone else time.perf_counter()


def memory_rise(call) -> tuple[Any, int | None]:
    """What a call returns, and by how many bytes the process grew at its highest, less what is
    returned; None outside Linux.
    """
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
    except OSError:
        return call(), None
    output = call()
    rise = (
        _status("VmHWM")
        - before
        - sum(leaf.nbytes for leaf in jax.tree.leaves(output) if hasattr(leaf, "nbytes"))
    )
    return output, max(rise, 0)


def _status(field: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def difference(got, wanted) -> float:
    """The largest over all arrays: of floats |got - wanted| over the largest |wanted|, else the
    share that differs.
    """
    worst = 0.0
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        if one.shape != other.shape:
            return float("inf")
        pairs = list(zip(_pieces(one), _pieces(other)))
        if np.issubdtype(other.dtype, np.floating):
            gap = np.max([np.max(np.abs(a - b), initial=0) for a, b in pairs]) / max(
                _largest(other), 1e-30
            )
            worst = max(worst, float(gap) if np.isfinite(gap) else float("inf"))
        else:
            worst = max(worst, sum(np.count_nonzero(a != b) for a, b in pairs) / other.size)
    return worst


def _pieces(array):
    """Along the first axis, so that comparing arrays of gigabytes needs no copies of that size."""
    return np.array_split(array, min(len(array), 64)) if array.ndim and len(array) else [array]


def _largest(array) -> float:
    return float(np.max([np.max(np.abs(piece), initial=0) for piece in _pieces(array)]))


def _recall(got, wanted) -> float:
    """Share of the wanted neighbours that are there: (values, index [q, k])."""
    hits = (got[1][:, :, None] == wanted[1][:, None, :]).any(axis=1)
    return float(hits.mean())
