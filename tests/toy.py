"""A method that only has a section of the config, for tests of the config's machinery."""

import types

import pytest

from ssl_jax import methods
from ssl_jax.config import key

METHOD = types.SimpleNamespace(
    name="toy",
    defaults=lambda: dict(
        temperature=key(0.1, "of the softmax", above=0),
        head=dict(width=key(64, "of the head", above=0, most=1024)),
        names=key(("a", "b"), "of its parts", choices=("a", "b", "c")),
    ),
)


@pytest.fixture
def registered(monkeypatch):
    """While the test runs, "toy" is one of the methods."""
    monkeypatch.setitem(methods.METHODS, "toy", METHOD)
