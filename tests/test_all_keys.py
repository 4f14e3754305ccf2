"""Every key with values that nobody should give: one clear line, or a config that works."""

import random

import pytest

from ssl_jax import methods
from tests import fuzz


@pytest.mark.parametrize(
    "count, built", [(2, 0.0), pytest.param(len(fuzz.VALUES), 0.02, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("method", methods.METHODS)
def test_values_of_every_key(method, count, built):
    tally, wrong = fuzz.try_all(method, count, built, random.Random(f"{method} {count}"))
    assert wrong == []
    assert tally["values"] == count * tally["keys"] and tally["refused"] > tally["accepted"]


def test_the_command_writes_its_tables(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fuzz -->\nold\n<!-- end of fuzz -->\nafter\n")
    monkeypatch.setattr(fuzz.methods, "METHODS", {"sove": methods.METHODS["sove"]})
    assert fuzz.main(["--values=1", "--images=3", f"--write={page}"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "`sove.*`" in text and "jpeg" in text
