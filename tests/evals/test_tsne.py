"""t-SNE of image vectors: groups, the seed, and that the score is of the points that are drawn."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.features import extract
from ssl_jax.scores import tsne
from tests.convert import networks
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_LABELS = np.arange(60) % 3
_ROWS = (6 * np.eye(3, 8)[_LABELS] + 0.3 * _RNG.normal(size=(60, 8))).astype(np.float32)


def _case(**changes):
    test = extract.Extracted(_ROWS, None, _LABELS, None, np.arange(60), ())
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


def test_patches_are_drawn_block_by_block():
    """Of two images with masks, whose frame has no class."""
    encoder, masks = networks.network("plain"), np.full((4, 32, 32), 255, np.uint8)
    masks[:, 8:, :16], masks[:, 8:, 16:] = 0, 1
    test = fakes.Source(fakes.images(4, 32, 32), masks=masks, labels=[0, 1, 0, 1])
    section = evals.new("tsne", perplexity=2, patches=2)
    drawn = evals.TYPES["tsne"].figures(evals.Case(encoder, section, test, test, patch=8))
    assert list(drawn) == ["tsne", "tsne_0", "tsne_1", "tsne_2"]
    for name in ("tsne_0", "tsne_2"):
        assert drawn[name].points.shape == (2 * 3 * 4, 2)
        assert sorted(drawn[name].labels) == [0] * 12 + [1] * 12


def test_too_few_images_are_refused():
    with pytest.raises(ValueError):
        tsne.embed(_ROWS, perplexity=60)
    with pytest.raises(InputError, match="perplexity"):
        evals.TYPES["tsne"].run(_case(perplexity=60))
