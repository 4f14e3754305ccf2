"""The evaluation `collapse`."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.scores import collapse
from tests.evals import fakes


def test_scores_of_a_case():
    """The training images are not looked at."""
    images = fakes.images(7, 16, 16)
    source, raw = fakes.Source(images), evals.raw_pixels(4)

    def run(**changes):
        section = evals.new("collapse", **changes)
        case = evals.Case(raw, section, None, source, patch=4, batch_size=3)
        return evals.TYPES["collapse"].run(case)

    scores = run()
    vectors = np.asarray(raw(images / np.float32(255)).image)
    assert scores["collapse"] == pytest.approx(100 * collapse.mean_cosine(vectors), abs=1e-3)
    assert scores["collapse_rank"] == pytest.approx(collapse.rank_me(vectors), rel=1e-4)
    assert 0 < scores["collapse_alignment"] < 2.5 and scores["collapse_patches"] <= 100
    names = ("deviation", "dead", "rank", "effective_rank", "uniformity", "alignment", "patches")
    assert scores.keys() == {"collapse", *(f"collapse_{name}" for name in names)}
    assert run(scale=(1.0, 1.0))["collapse_alignment"] == pytest.approx(0, abs=1e-6)
