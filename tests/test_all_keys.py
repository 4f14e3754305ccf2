"""Every key with values that nobody should give: one clear line, or a config that works."""

import random

import pytest

from ssl_jax import evals, methods, settings
from ssl_jax.config import InputError
from tests import fuzz, tiny


@pytest.mark.parametrize(
    "count, built", [(1, 0.0), pytest.param(len(fuzz.VALUES), 0.02, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("method", methods.METHODS)
def test_values_of_every_key(method, count, built):
    tally, wrong = fuzz.try_all(method, count, built, random.Random(f"{method} {count}"))
    assert wrong == []
    assert tally["values"] == count * tally["keys"] and tally["refused"] > tally["accepted"]


def test_what_a_strangers_config_may_do():
    """Every key that takes people's own words says whether they act; those that do are refused in a
    config that came with a network, unless the user gives them."""
    declared = {k: v for method in ("", *methods.METHODS) for k, v in settings.keys(method).items()}
    config = tiny.config("dino")
    for type in evals.TYPES:
        config.evals[type] = evals.new(type)
    declared |= evals.keys(config)
    assert [k for k, v in declared.items() if v.is_open_text() and v.acts is None] == []
    acting = {name for name, entry in declared.items() if entry.acts}
    log = {"log.tensorboard", "log.wandb", "log.trackio"}  # of training alone
    kinds = {f"evals.{type}.data.kind" for type in evals.TYPES}
    assert acting == {"imports", "data.kind", "evals.cache", *kinds, *log}
    for name in acting:
        changed, kind = config.copy_and_resolve_references(), declared[name].default.__class__
        value = {bool: True, tuple: ("x",)}.get(kind, "python:x.y")
        changed.update_from_flattened_dict({name: value})
        with pytest.raises(InputError, match=name):
            settings.check_stored(changed, (name,))
        settings.check_stored(changed, (name,), given=[name])
        settings.check_stored(config, (name,))


def test_the_command_writes_its_tables(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fuzz -->\nold\n<!-- end of fuzz -->\nafter\n")
    monkeypatch.setattr(fuzz.methods, "METHODS", {"sove": methods.METHODS["sove"]})
    assert fuzz.main(["--values=1", "--images=3", f"--write={page}"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "`sove.*`" in text and "jpeg" in text
