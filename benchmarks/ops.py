"""Every op of cases.py at the sizes of the papers, beside the formula written plainly and beside
other libraries.

    python -m benchmarks ops                    some minutes
    python -m benchmarks ops --only nearest,sop_vote --rounds 9
    python -m benchmarks ops --small            in a moment: do the forms agree?

Times are medians of interleaved rounds, each call waited for; on one core (`taskset -c 0`) they are
the processor's seconds. "x ops" is a form's time over the op's; memory is what XLA allocates for
temporaries, and of other libraries by how much the process grew in their first call, less what they
returned; difference is to the second form, relative to its largest entry. The status is 1 if a form
that must agree does not. PyTorch and faiss are set up as one does who knows them; --as-installed
leaves them as they are.
"""

import importlib.util
import itertools
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import libraries, measure, report


class Library(NamedTuple):
    """A form of a library. make: (arguments of the case, the argument to differentiate by or None,
    weights of the outputs) -> the call to be timed."""

    module: str  # skipped unless it can be imported
    make: Callable
    gradient: bool = False  # whether it can be differentiated


class Case(NamedTuple):
    """One computation in several forms; the first of `forms` is the op, the second the reference of
    all others."""

    size: str
    arguments: tuple
    forms: dict[str, Callable]  # jax functions of the arguments
    libraries: dict[str, Library] = {}
    gradient: int | None = None  # the argument to differentiate by; None: forward only
    # Of the largest difference, relative to the largest entry; None: recall counts instead.
    tolerance: float | None = 1e-4
    # What of the output the forms must agree on.
    compared: Callable[[Any], Any] = lambda output: output


def main(argv=None) -> int:
    from benchmarks.cases import CASES

    chosen = report.options(__doc__, argv, CASES, peers=True)
    peers = libraries.setup("faiss", "torch", installed=chosen.as_installed)
    key, rows = jax.random.key(chosen.seed), []
    for name in chosen.only:
        own = jax.random.fold_in(key, zlib.crc32(name.encode()) >> 1)
        mine = [
            dict(op=name, **row) for row in times(CASES[name](not chosen.small, own), chosen.rounds)
        ]
        for row in mine:
            print(" | ".join(report.cells([row], COLUMNS)[1]), flush=True)
        rows += mine
        report.keep("ops", chosen, rows, peers=peers)  # a run cut short keeps what it has measured
    report.publish("ops", chosen, rows, beside_libraries(rows), peers)
    wrong = [row for row in rows if row["agrees"] is False]
    for row in wrong:
        print(f"DISAGREES: {row['op']} ({row['direction']}): {row['form']}", file=sys.stderr)
    return 1 if wrong else 0


COLUMNS = {
    "op": ("op", ""),
    "size": ("size", ""),
    "direction": ("direction", ""),
    "form": ("form", ""),
    "ms": ("ms", ".2f"),
    "x ops": ("times_ops", ".2f"),
    "temporary MiB": ("mib", ".1f"),
    "difference": ("difference", ".1e"),
    "recall": ("recall", ".3f"),
}


def cotangent(shape):
    """Weights of the outputs in the gradient that is measured: of both signs, none special."""
    return jnp.cos(jnp.arange(np.prod(shape), dtype=jnp.float32)).reshape(shape)


def times(case: Case, rounds: int) -> list[dict]:
    """One row per form and direction; keys as in COLUMNS, and agrees, library."""
    rows = []
    for gradient in (False, True)[: 1 + (case.gradient is not None)]:
        calls, memory, argument = {}, {}, case.gradient if gradient else None
        for name, form in case.forms.items():
            function = form if argument is None else _gradient(form, argument)
            compiled = jax.jit(function).lower(*case.arguments).compile()
            used = compiled.memory_analysis()
            memory[name] = None if used is None else used.temp_size_in_bytes
            calls[name] = lambda compiled=compiled: jax.block_until_ready(compiled(*case.arguments))
        output = jax.tree.leaves(jax.eval_shape(next(iter(case.forms.values())), *case.arguments))[
            0
        ]
        for name, library in case.libraries.items():
            if importlib.util.find_spec(library.module) is None:
                print(f"  skipped: {name} ({library.module} is not installed)", flush=True)
            elif library.gradient or not gradient:
                weights = cotangent(output.shape) if gradient else None
                calls[name] = library.make(case.arguments, argument, weights)
        rows += _compare(case, gradient, calls, memory, rounds)
    return rows


def _gradient(form, argument: int):
    def weighted(*arguments):
        first = jax.tree.leaves(form(*arguments))[0]
        return jnp.sum(first * cotangent(first.shape))

    return jax.grad(weighted, argnums=argument)


def _compare(case: Case, gradient: bool, calls: dict, memory: dict, rounds: int) -> list[dict]:
    ours, reference = list(case.forms)[:2]

    def held(output):
        seen = output if gradient or output is None else case.compared(output)
        return None if seen is None else jax.tree.map(np.asarray, seen)

    wanted = held(calls[reference]())
    judged = {reference: _judge(case, wanted, wanted) | dict(difference=None, agrees=None)}
    for name in calls.keys() - {reference}:
        output, rise = measure.memory_rise(calls[name])  # the first call also warms up
        memory.setdefault(name, rise)
        judged[name] = _judge(case, held(output), wanted)
        del output
    del wanted
    seconds = measure.medians(calls, rounds)
    direction = "gradient" if gradient else "forward"
    return [
        dict(size=case.size, direction=direction, form=name, library=name in case.libraries)
        | dict(ms=1e3 * seconds[name], times_ops=seconds[name] / seconds[ours])
        | dict(mib=None if memory[name] is None else memory[name] / 2**20)
        | judged[name]
        for name in calls
    ]


def _judge(case: Case, got, wanted) -> dict:
    if got is None:
        return dict(difference=None, recall=None, agrees=None)
    if case.tolerance is None:
        hits = (got[1][:, :, None] == wanted[1][:, None, :]).any(axis=1)
        return dict(difference=None, recall=float(hits.mean()), agrees=None)
    gap = measure.difference(got, wanted)
    return dict(difference=gap, recall=None, agrees=bool(gap <= case.tolerance))


def beside_libraries(rows: list[dict]) -> list[tuple]:
    """A table of the ops that another library has too, a line for each direction."""
    table = [("op", "ms", "MiB", "other forms take x times as long")]
    known = {row["op"] for row in rows if row["library"]}
    keys = ("op", "size", "direction")
    for (name, size, direction), group in itertools.groupby(rows, lambda r: [r[k] for k in keys]):
        ours, *others = group
        if name in known:
            forms = "; ".join(f"{row['form']}: {row['times_ops']:.3g}" for row in others)
            what = f"{name}: {size}, {direction}"
            table.append((what, f"{ours['ms']:.1f}", f"{ours['mib']:.0f}", forms))
    return table
