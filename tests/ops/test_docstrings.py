"""Public functions of ops and losses: their examples run, and their docstrings say what a user
needs.
"""

import doctest
import inspect
import sys

import pytest

from ssl_jax import losses, ops

PUBLIC = [
    pytest.param(getattr(package, name), id=f"{package.__name__}.{name}")
    for package in (ops, losses)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
]


@pytest.mark.parametrize("function", PUBLIC)
def test_example_runs(function):
    module = sys.modules[function.__module__]
    tests = doctest.DocTestFinder(recurse=False).find(
        function, function.__name__, globs=dict(vars(module))
    )
    assert sum(len(test.examples) for test in tests) > 0, "no example"
    for test in tests:
        report = []
        failed, _ = doctest.DocTestRunner().run(test, out=report.append)
        assert not failed, "".join(report)


@pytest.mark.parametrize("function", PUBLIC)
def test_docstring_is_complete(function):
    text = inspect.getdoc(function)
    assert text.splitlines()[0].endswith(".")
    parameters = inspect.signature(function).parameters
    missing = [name for name in parameters if len(parameters) > 1 and f"{name}:" not in text]
    assert not missing, f"not described: {missing}"
    sections = (
        ("Args:", "Returns:", "Raises:", "Example:", "Reference:")
        if len(parameters) > 1
        else ("Example:",)
    )
    assert [section for section in sections if section not in text] == []
