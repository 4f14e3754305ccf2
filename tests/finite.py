"""What the property tests try, counted: hypothesis cases of tests/ops and tests/losses, and the
values they computed.

A property test passes everything that must be finite to `assert_finite`. conftest.py counts the
cases in which that happened and prints the sums at the end of a run.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass
class Tally:
    cases: int = 0  # hypothesis cases that called assert_finite
    others: int = 0  # hypothesis cases that did not
    calls: int = 0  # of assert_finite
    values: int = 0  # floating-point numbers it got
    bad: int = 0  # of them not finite


tally = Tally()  # of the test that runs


def assert_finite(*trees) -> None:
    """Fails unless every floating-point number in some pytrees of arrays is finite."""
    leaves = [
        np.asarray(leaf)
        for leaf in jax.tree.leaves(trees)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    wrong = [int(leaf.size - np.isfinite(leaf).sum()) for leaf in leaves]
    tally.calls += 1
    tally.values += sum(leaf.size for leaf in leaves)
    tally.bad += sum(wrong)
    assert not any(wrong), (
        f"not finite, by array: {[f'{bad} of {leaf.shape}' for bad, leaf in zip(wrong, leaves)]}"
    )


def counted(test):
    """A property test's function of one case, so that `tally` counts every case it is
    called with.
    """
    if hasattr(test, "counted"):  # collected before, with other parameters
        return test

    @functools.wraps(test)
    def case(*arguments, **named):
        before = tally.calls
        try:
            return test(*arguments, **named)
        finally:
            if tally.calls > before:
                tally.cases += 1
            else:
                tally.others += 1

    case.counted = True
    return case
