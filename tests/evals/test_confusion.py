"""The picture of what each class is taken for."""

import numpy as np
import pytest

from ssl_jax.evals.pictures import confusion

COUNTS = np.array([[3, 1, 0], [0, 0, 0], [2, 0, 6]])


def widths(picture, count):
    """Length of each class's bar, as a share, and the class it is coloured by."""
    bars = np.asarray(picture.rows[0][0].labels).reshape(count, -1, 120)
    lengths = [(bar >= 0).any(axis=0).sum() / 120 for bar in bars]
    return lengths, [{int(x) for x in np.unique(bar)} - {-1} for bar in bars]


def test_bars_and_shares():
    picture = confusion.picture(COUNTS, names=["ant", "bee", "cat"])
    lengths, colours = widths(picture, 3)
    assert lengths == [0.75, 0, 0.75] and colours == [{0}, set(), {2}]
    assert [text for _, text in picture.legend] == ["ant 75.0", "bee not there", "cat 75.0"]
    heat = np.asarray(picture.rows[0][1].heat)
    assert heat.shape == (36, 120)
    np.testing.assert_allclose(heat[::12, ::40], [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]])


def test_other_values_and_no_names():
    picture = confusion.picture(COUNTS, np.array([0.5, np.nan, 1.0]), measure="IoU")
    assert widths(picture, 3)[0] == [0.5, 0, 1.0]
    assert [text for _, text in picture.legend] == ["0 50.0", "1 not there", "2 100.0"]
    assert picture.legend_title == "IoU, percent"


@pytest.mark.parametrize("count", [40, 1000])
def test_many_classes_stay_small_and_the_largest_are_named(count):
    counts = np.diag(np.arange(count))
    picture = confusion.picture(counts)
    assert [label for label, _ in picture.legend] == list(range(count - 24, count))
    for panel in picture.rows[0]:
        shown = panel.labels if panel.heat is None else panel.heat
        assert shown.shape[0] <= 2000
