"""Windows of an image put together, against naive loops."""

import itertools

import cv2
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.scores import windows


def test_windows_start_as_in_mmsegmentation():
    starts = [windows.starts(size, 512, 341) for size in (683, 512, 1024, 100)]
    assert starts == [[0, 171], [0], [0, 341, 512], [0]]


def test_labels_of_a_grid_are_the_nearest_of_torch():
    masks = np.arange(2 * 6 * 9).reshape(2, 6, 9)
    labels = windows.grid_labels(masks, (3, 2))
    np.testing.assert_array_equal(labels[1], masks[1, ::2][:, [0, 4]])


def _naive(logits, corners, window, size, target):
    """Class of each pixel [networks, H, W]: loops over windows, OpenCV's bilinear resampling."""
    out = []
    for of_one in logits.swapaxes(0, 1):
        total, seen = np.zeros((64, 64, logits.shape[-1])), np.zeros((64, 64, 1))
        for part, (y, x) in zip(of_one, corners):
            large = cv2.resize(part.astype(np.float64), window[::-1])
            for i, j in np.ndindex(*window):
                total[y + i, x + j] += large[i, j]
                seen[y + i, x + j] += 1
        mean = (total / np.maximum(seen, 1))[: size[0], : size[1]]
        out.append(cv2.resize(mean, target[::-1]).argmax(axis=-1))
    return np.stack(out)


@pytest.mark.parametrize(
    ("size", "window", "target"),
    [((26, 40), (16, 16), (39, 61)), ((10, 30), (16, 16), (20, 60)), ((12, 20), (12, 20), (9, 33))],
    ids=["slide", "narrower than a window", "whole"],
)
def test_windows_join_as_in_a_naive_loop(size, window, target):
    starts = [windows.starts(s, w, 10) for s, w in zip(size, window)]
    corners = list(itertools.product(*starts))
    grid = window[0] // 4, window[1] // 4
    logits = np.random.default_rng(0).normal(size=(len(corners), 2, *grid, 5)).astype(np.float32)
    found = windows.join(jnp.asarray(logits), corners, window, size, target)
    assert found.shape == (2, *target) and found.dtype == np.uint8
    expected = _naive(logits, corners, window, size, target)
    assert (found == expected).mean() > 0.999  # but for ties in float32
