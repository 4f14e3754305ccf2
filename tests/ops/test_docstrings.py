"""Docstrings of ops and losses say what a user needs; their examples run as doctests."""

import inspect

import pytest

from ssl_jax import losses, ops

PUBLIC = [
    pytest.param(getattr(package, name), id=f"{package.__name__}.{name}")
    for package in (ops, losses)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
]


@pytest.mark.parametrize("function", PUBLIC)
def test_docstring_is_complete(function):
    text = inspect.getdoc(function)
    assert text.splitlines()[0].endswith(".")
    parameters = inspect.signature(function).parameters
    several = len(parameters) > 1
    assert [name for name in parameters if several and f"{name}:" not in text] == []
    sections = ("Args:", "Returns:", "Raises:", "Example:", "Reference:")
    assert [x for x in sections if (several or x == "Example:") and x not in text] == []
    assert ">>> " in text.partition("Example:")[2]
