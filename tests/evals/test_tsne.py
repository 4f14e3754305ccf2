"""t-SNE of image vectors: groups, the seed, and that the score is of the points that are drawn."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.features import extract
from ssl_jax.scores import tsne
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_LABELS = np.arange(60) % 3
_ROWS = (6 * np.eye(3, 8)[_LABELS] + 0.3 * _RNG.normal(size=(60, 8))).astype(np.float32)


def _case(**changes):
    test = extract.Extracted(_ROWS, None, _LABELS, None, np.arange(60), 3, ())
    return fakes.case("tsne", test, test, **{"perplexity": 8} | changes)


@pytest.mark.slow
def test_groups_stay_together_and_the_seed_decides():
    points = tsne.embed(_ROWS, perplexity=8)
    assert points.shape == (60, 2)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (_LABELS[distance.argmin(axis=1)] == _LABELS).mean() > 0.95
    (picture,) = evals.TYPES["tsne"].figures(_case()).values()
    np.testing.assert_array_equal(picture.points, points)
    assert picture.legend == ((0, "0"), (1, "1"), (2, "2"))


def test_too_few_images_are_refused():
    with pytest.raises(ValueError):
        tsne.embed(_ROWS, perplexity=60)
    with pytest.raises(InputError, match="perplexity"):
        evals.TYPES["tsne"].run(_case(perplexity=60))
