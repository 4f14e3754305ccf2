"""Every key of every config with every value that nobody should give: one clear line, or a config
that works. Never another error, never a wait.
"""

import random

import pytest

from ssl_jax import methods
from tests import fuzz, values_of_keys


def check(method: str, count: int, built: float, seed: str) -> values_of_keys.Tally:
    tally, wrong = values_of_keys.try_all(method, count, built, random.Random(seed))
    assert wrong == []
    return tally


@pytest.mark.parametrize("method", methods.METHODS)
def test_two_values_of_every_key(method):
    tally = check(method, 2, 0.0, method)
    assert tally.values == 2 * tally.keys and tally.refused > tally.accepted


@pytest.mark.nightly
@pytest.mark.parametrize("method", methods.METHODS)
def test_all_values_of_every_key(method):
    tally = check(method, len(values_of_keys.VALUES), 0.02, f"all {method}")
    assert tally.refused > tally.accepted > 0


def test_the_command_writes_its_tables(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fuzz -->\nold\n<!-- end of fuzz -->\nafter\n")
    monkeypatch.setattr(fuzz.methods, "METHODS", {"sove": methods.METHODS["sove"]})
    assert fuzz.main(["--values=1", "--images=3", f"--write={page}"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "`sove.*`" in text and "jpeg" in text
