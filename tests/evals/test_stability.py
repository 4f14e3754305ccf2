"""The evaluation `stability`, for networks whose answer is known."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.methods.base import Features
from tests.evals import fakes

_PATCH = 4


class Network:
    """Its tokens are the mean colour and its opposite, its maps the red and green of the image."""

    def __call__(self, images, *, extras=False):
        colour = np.asarray(images).mean(axis=(1, 2))
        maps = evals.raw_pixels(_PATCH)(images).patches
        tokens = np.stack([colour, -colour], axis=1)
        return Features(
            colour, None, maps, extras={"tokens": tokens, "localization": maps[..., :2]}
        )


def _case(encoder, count=7, **changes):
    section = evals.new("stability", **{"shifts": (0, 2, 4)} | changes)
    tints = np.linspace((0.2, 0.5, 1), (1, 0.6, 0.1), count)  # images differ in colour
    source = fakes.Source((tints[:, None, None] * fakes.images(count, 24, 24)).astype(np.uint8))
    return evals.Case(encoder, section, source, source, patch=_PATCH, batch_size=4)


@pytest.mark.parametrize("encoder", [Network(), evals.raw_pixels(_PATCH)], ids=["sparse", "raw"])
def test_scores_of_a_network_and_of_raw_pixels(encoder):
    """With a last batch that is not full; a window of 20 pixels without a crop."""
    case = _case(encoder)
    scores = evals.TYPES["stability"].run(case)
    assert scores["stability_what_0"] == pytest.approx(100, abs=1e-3)
    assert scores["stability_where_0"] == 0 < scores["stability_where_4"]
    assert scores["stability_follows"] == pytest.approx(0, abs=1e-3)
    mean = np.mean([scores["stability_what_2"], scores["stability_what_4"]])
    assert scores["stability"] == pytest.approx(mean)
    assert scores["stability_other"] < scores["stability"] <= 100.001
    chart = evals.TYPES["stability"].figures(case)["shifts"]
    assert list(chart.curves[0].x) == [0, 2, 4] and len(chart.curves) == 4


def test_too_few_and_too_small_images_are_refused():
    for case in (_case(evals.raw_pixels(_PATCH), shifts=(22,)), _case(Network(), count=1)):
        with pytest.raises(InputError):
            evals.TYPES["stability"].run(case)
