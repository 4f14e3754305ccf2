"""The picture of how each class fared and what it is taken for."""

import matplotlib.figure
import numpy as np
import pytest

from ssl_jax.evals.pictures import confusion, render

COUNTS = np.array([[3, 1, 0], [0, 0, 0], [2, 0, 6]])


def test_values_are_the_shares_that_are_right_unless_others_are_given():
    picture = confusion.picture(COUNTS, names=["ant", "bee", "cat"])
    np.testing.assert_allclose(picture.values, [0.75, np.nan, 0.75])
    np.testing.assert_allclose(picture.shares, [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]])
    assert picture.names == ("ant", "bee", "cat")
    others = confusion.picture(COUNTS, np.array([0.5, np.nan, 1.0]), measure="IoU")
    np.testing.assert_allclose(others.values, [0.5, np.nan, 1.0])
    assert others.names == ("0", "1", "2") and others.measure == "IoU"


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """draw(picture) -> its axes (bars, matrix, scale), after it was written."""
    figures = []
    monkeypatch.setattr(
        render, "Figure", lambda **k: figures.append(matplotlib.figure.Figure(**k)) or figures[-1]
    )

    def draw(picture):
        path = render.one(picture, tmp_path, "classes.png")
        assert path.stat().st_size > 5000
        return figures[-1].axes

    return draw


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def test_bars_and_matrix_show_the_numbers(drawn):
    bars, matrix, _ = drawn(confusion.picture(COUNTS, names=["ant", "bee", "cat"]))
    assert [bar.get_width() for bar in bars.patches] == [75, 0, 75]
    assert [text.get_text().strip() for text in bars.texts] == ["75.0", "not there", "75.0"]
    assert labels(bars.yaxis) == labels(matrix.xaxis) == ["ant", "bee", "cat"]
    shown = matrix.images[0].get_array()
    np.testing.assert_allclose(shown, [[75, 25, 0], [0, 0, 0], [25, 0, 75]])
    assert bars.get_ylim() == matrix.get_ylim() == (2.5, -0.5)  # row by row, the first on top


@pytest.mark.parametrize("count, named", [(40, 40), (100, 34), (1000, 40)])
def test_of_many_classes_every_so_many_are_named(drawn, count, named):
    bars, matrix, _ = drawn(confusion.picture(np.diag(np.arange(count))))
    assert len(labels(bars.yaxis)) == len(labels(matrix.xaxis)) == named
    assert len(bars.patches) == count and len(bars.texts) == (count if count == named else 0)
    assert max(bars.figure.get_size_inches()) < 13
