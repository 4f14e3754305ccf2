"""The package computes what it did when tests/golden/*.npz were written (see README.md there)."""

import pytest

from tests.golden import measure

QUICK = ("dino", "mae", "sop", "stellar")
SHOWN = 12


def check(name, differences):
    assert differences
    beyond = measure.failures(differences)
    lines = "\n  ".join(map(str, beyond[:SHOWN]))
    assert not beyond, f"{name}: {len(beyond)} of {len(differences)} numbers differ\n  {lines}"


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in measure.CASES]
)
def test_steps_and_features(name):
    check(name, measure.compare(name))


def test_views():
    check("views", measure.compare_views())
