"""t-SNE of image vectors, and the charts and point clouds that evaluations draw."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals import features, tsne
from ssl_jax.evals.pictures import Chart, Curve, Scatter, render
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_LABELS = np.arange(60) % 3
_ROWS = (6 * np.eye(3, 8)[_LABELS] + 0.3 * _RNG.normal(size=(60, 8))).astype(np.float32)


def _case(**changes):
    test = features.Extracted(_ROWS, None, _LABELS, None, np.arange(60), 3, ())
    return fakes.case("tsne", test, test, perplexity=8, **changes)


def test_groups_stay_together_and_the_seed_decides():
    points = tsne.embed(_ROWS, perplexity=8)
    assert points.shape == (60, 2)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (_LABELS[distance.argmin(axis=1)] == _LABELS).mean() > 0.95
    np.testing.assert_array_equal(points, tsne.embed(_ROWS, perplexity=8))
    with pytest.raises(InputError, match="60 images needs a perplexity below that, got 60"):
        tsne.embed(_ROWS, perplexity=60)


def test_the_score_is_that_of_the_picture():
    case = _case()
    scores = evals.TYPES["tsne"].run(case)
    assert 90 < scores["tsne"] <= 100
    (picture,) = evals.TYPES["tsne"].figures(case).values()
    (known,) = case.extracted.values()
    np.testing.assert_array_equal(picture.points, known)
    assert picture.legend == ((0, "0"), (1, "1"), (2, "2"))


def _drawn(picture, tmp_path):
    (path,) = render.draw(lambda: {"x": picture}, tmp_path, "what")
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def _has(image, color):
    rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(image - rgb).max(axis=-1) < 8).sum()


def test_curves_are_drawn_each_in_its_colour(tmp_path):
    x = np.arange(5)
    curves = (
        Curve("rises", x, x),
        Curve("falls", x, -x, dashed=True),
        Curve("none", x, x * np.nan),
    )
    image = _drawn(Chart("A chart", curves, x="pixels", y="change"), tmp_path)
    solid, dashed, none = (_has(image, color) for color in render.LINES[:3])
    assert solid > dashed > 50 and none == 0
    assert (image[[0, -1]] > 240).all() and (image[:, [0, -1]] > 240).all()
    assert render.draw(lambda: {"x": Chart("Empty", curves[2:])}, tmp_path, "what") == []
    assert "no finite point" in (tmp_path / "x.failed.txt").read_text()


@pytest.mark.parametrize("dimensions", [2, 3])
def test_points_have_the_colour_of_their_class(tmp_path, dimensions):
    points = _RNG.normal(size=(40, dimensions))
    labels = np.repeat([0, 1], 20)
    image = _drawn(Scatter("Points", points, labels, ((0, "cat"), (1, "dog"))), tmp_path)
    for color in render.class_colors(2):
        assert (np.abs(image - 255 * color).max(axis=-1) < 12).sum() > 100
    _drawn(Scatter("Points", points), tmp_path)
    with pytest.raises(ValueError, match="must be \\[n, 2 or 3\\]"):
        render.scatter(Scatter("Points", points[:, :1]), tmp_path, "y.png")
