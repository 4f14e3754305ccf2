"""The count of property tests at the end of a run tells what happened."""

import os
import re
import shutil
import subprocess
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests import finite

PROPERTIES = """
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from tests.finite import assert_finite

settings = hypothesis.settings(max_examples=3, database=None, derandomize=True)

@pytest.mark.parametrize("shape", [(2,), (5, 1)])
@settings
@hypothesis.given(x=st.sampled_from((1.0, 2.0, 3.0)))
def test_finite(shape, x):
    assert_finite({"a": np.full(shape, x)}, None)

@settings
@hypothesis.given(x=st.sampled_from((1.0, 2.0, 3.0)))
def test_without(x):
    assert x > 0

def test_no_property():
    assert_finite(np.ones(1000))
"""
INFINITE = """

@hypothesis.settings(max_examples=1, database=None, phases=[hypothesis.Phase.generate])
@hypothesis.given(x=st.just(np.inf))
def test_infinite(x):
    assert_finite(np.full(7, x))
"""


def run(root, folder, *options) -> str:
    """What pytest prints for the properties above, as if they were tests of ops."""
    (folder / "tests" / "ops").mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "pyproject.toml", folder)
    for path in (root / "tests").glob("*.py"):  # conftest.py and what it imports
        if not path.name.startswith("test_"):
            shutil.copy(path, folder / "tests")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder}",
        "tests/ops",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode != 4, done.stderr  # pytest could not be started
    return done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_summary(root, tmp_path, options):
    if options:
        pytest.importorskip("xdist")
    (tmp_path / "tests" / "ops").mkdir(parents=True)
    test = tmp_path / "tests" / "ops" / "test_toy.py"
    test.write_text(PROPERTIES)
    printed = run(root, tmp_path, *options)
    assert re.search(
        r"^property tests: 6 cases, 21 values, 0 of them not finite$", printed, re.MULTILINE
    ), printed
    assert re.search(
        r"^  not in this count: 3 cases of tests/ops/test_toy.py::test_without, ",
        printed,
        re.MULTILINE,
    ), printed
    if not options:
        test.write_text(PROPERTIES + INFINITE)
        printed = run(root, tmp_path)
        bad = re.search(
            r"^property tests: \d cases, \d+ values, (\d+) of them not finite$",
            printed,
            re.MULTILINE,
        )
        assert bad and int(bad[1]) >= 7 and "1 failed" in printed, printed


def test_assert_finite_sees_every_type():
    good = [
        np.ones(3, dtype)
        for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, bool, int)
    ]
    finite.assert_finite(good, jnp.ones(2, jnp.bfloat16), np.float32(1), None)
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        for value in (np.nan, np.inf, -np.inf):
            with pytest.raises(AssertionError, match=r"1 of \(2, 2\)"):
                finite.assert_finite(good, np.array([[1, value], [0, 0]], dtype))
