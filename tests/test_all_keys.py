"""Every key of every config with every value that nobody should give: one clear line, or a config
that works. Never another error, never a wait.
"""

import dataclasses
import random

import pytest

from ssl_jax import methods
from tests.values_of_keys import VALUES, Tally, counts, try_all


@pytest.mark.parametrize("method", methods.METHODS)
def test_some_values_of_every_key(method, record_property):
    chance = random.Random(method)
    tally, wrong = try_all(method, lambda key: chance.sample(VALUES, 2), 0.0, chance)
    record_property("tried_values", dataclasses.asdict(tally))
    assert wrong == []
    assert tally.values == 2 * tally.keys and tally.refused > tally.accepted


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.METHODS)
def test_all_values_of_every_key(method, record_property):
    """Of the many keys that belong to no method, which "dino" stands for, some values."""
    chance = random.Random(f"all {method}")
    count = 4 if method == "dino" else len(VALUES)
    tally, wrong = try_all(method, lambda key: chance.sample(VALUES, count), 0.02, chance)
    record_property("tried_values", dataclasses.asdict(tally))
    assert wrong == []
    assert tally.refused > tally.accepted > 0


def test_the_counts_are_added_up():
    tallies = [dataclasses.asdict(Tally(*range(start, start + 7))) for start in (0, 7)]
    assert counts(tallies) == (
        "keys: 7 with 9 values, 11 refused, 13 accepted (15 of them built), 17 other errors, 19"
        " hangs"
    )
