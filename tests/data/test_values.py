"""values.py: float images outside [0, 1] are refused by name, with what would bring them there."""

import re

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.values import check_range
from tests.data.test_loader import IMAGES, take

GOOD = (IMAGES / 255).astype(np.float32)


@pytest.mark.parametrize(
    "image",
    [
        IMAGES[0],
        GOOD[0],
        GOOD[0] + np.float32(0.0015),  # rounding of a resampling
        np.full((4, 4, 3), np.nan, np.float32),
        np.full((4, 4, 3), [np.inf, -np.inf, 0.5], np.float32),
        np.full((4, 4, 3), np.inf, np.float32),
    ],
)
def test_right_ones_pass(image):
    check_range(image, "a")


@pytest.mark.parametrize(
    "image, said",
    [
        (IMAGES[0].astype(np.float32), "a has float values from . to 25.,.*divide them by 255"),
        ((GOOD[0] - 0.45) / 0.22, r"from -2\.\d+ to 2\.\d+, .* undo a normalisation"),
        (GOOD[0] * 2 - 1, r"from -1 to 1, .* undo a normalisation"),
        (GOOD[0] * 1.05, r"from .* to 1.0\d+, .*np.clip"),
        (np.array([[[np.nan, np.inf, 3.0]]], np.float32), "from 3 to 3"),
        (GOOD[0] * np.float32(65535), "undo"),
    ],
)
def test_others_are_named(image, said):
    with pytest.raises(InputError, match=said):
        check_range(image, "a")


def test_training_names_the_record():
    images = GOOD.copy()
    images[[4, 11]] *= 255
    with pytest.raises(InputError, match="array/(4|11) has float values from .*must lie in") as e:
        take(8, ArraySource(images), crop_on="device")
    assert "\n" not in str(e.value) and re.search(r"from [\d.]+ to 25[345]", str(e.value))
