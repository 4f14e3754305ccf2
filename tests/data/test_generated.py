"""Embedded sets: a picture is a function of (seed, split, index); bad arguments are refused."""

import subprocess
import sys

import numpy as np
import pytest

from ssl_jax.data import generated, photos

MAKERS = (photos.photos, photos.photo_collages)


@pytest.mark.parametrize("make", MAKERS)
def test_pure_function_of_seed_split_and_index(make):
    first = make(3, "train", 12345678901, 48)
    make(0, "test", 1, 32)
    again = make(3, "train", 12345678901, 48)
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
    for other in (
        make(4, "train", 12345678901, 48),
        make(3, "test", 12345678901, 48),
        make(3, "train", 12345678902, 48),
    ):
        assert (first["image"] != other["image"]).mean() > 0.5


@pytest.mark.parametrize("make", MAKERS)
def test_same_in_a_fresh_process(make):
    code = (
        f"from {make.__module__} import {make.__name__} as make;"
        " print(make(1, 'test', 7, 32)['image'].astype(int).sum())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) == make(1, "test", 7, 32)["image"].astype(int).sum()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "arguments",
    [(0, "valid", 0), (-1, "train", 0), (2**48, "train", 0), (0, "train", -1), (0, "train", 0, 8)],
)
def test_bad_arguments_are_refused(make, arguments):
    with pytest.raises(ValueError, match="must be"):
        make(*arguments)


def test_a_box_of_nothing_is_empty():
    assert generated.bounding_box(np.zeros((4, 4), bool)) == (0, 0, 0, 0)
