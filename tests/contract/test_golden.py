"""The package computes what it did when golden.json was written, see tests/golden/__main__.py."""

import json

import numpy as np
import pytest

from tests import tiny
from tests.contract import steps

RTOL, ROUNDINGS = 1e-6, 6


@pytest.mark.parametrize("case", steps.cases([*steps.NAMES, *tiny.VARIANTS]), indirect=True)
def test_ten_losses_and_gradient_norms(case, root):
    golden = json.loads((root / "tests/golden/golden.json").read_text())[case.name]
    for key in ("loss", "grad_norm"):
        stored, noise = np.array(golden[key]), np.array(golden[f"{key}_noise"])
        limit = np.maximum(RTOL * np.abs(stored), ROUNDINGS * noise)
        values = np.array([row[key] for row in case.one[0]])
        assert (np.abs(values - stored) <= limit).all(), (key, values, stored, limit)
