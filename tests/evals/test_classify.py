"""classify.py: accuracies against a count by hand, and what it refuses."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals import case as case_lib
from ssl_jax.evals import classify
from tests.evals import fakes

LABELS = np.arange(11) % 7


def test_accuracies_count_the_best_scores():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 12)), rng.integers(0, 12, 200)
    ranked = np.argsort(-scores, axis=1)
    for k in (1, 3, 12):
        by_hand = np.mean([label in row[:k] for label, row in zip(labels, ranked)])
        assert classify.accuracies(scores, labels, (k,)) == [pytest.approx(by_hand)]


def test_equal_scores_are_at_chance():
    labels = np.arange(20) % 10
    assert classify.accuracies(np.zeros((20, 10)), labels) == [pytest.approx(0.1), 0.5]
    # Of a first and two equal second ones, the label is among the best two half of the time.
    assert classify.accuracies([[3.0, 1.0, 1.0, 0.0]], [2], (1, 2, 3)) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [((2, 3), [0, 3], "lie in"), ((2, 3), [0, -1], "lie in"), ((2, 3), [0], "do not fit")],
)
def test_labels_that_do_not_fit(shape, labels, message):
    with pytest.raises(ValueError, match=message):
        classify.accuracies(np.zeros(shape), labels)


def knows(pixels, wrong=(), classes=7):
    """A network that has seen all images and is wrong about some: there the truth is third."""

    def encoder(images, *, extras):
        assert extras
        found = [int(np.abs(pixels - x * 255).sum(axis=(1, 2, 3)).argmin()) for x in images]
        scores = np.zeros((len(images), classes), np.float32)
        for row, i in zip(scores, found):
            row[(LABELS[i] + 1) % 7], row[(LABELS[i] + 2) % 7] = 2.0, 1.5
            row[LABELS[i]] = 1.0 if i in wrong else 3.0
        return SimpleNamespace(extras={"logits": jnp.asarray(scores)})

    return encoder


def says(extras):
    """A network that has these extras for every image."""

    def encoder(images, **_):
        rows = {name: jnp.tile(row, (len(images), 1)) for name, row in extras.items()}
        return SimpleNamespace(extras=rows)

    return encoder


def run(encoder, source, **options):
    section = evals.new("classify", **options)
    return classify.run(case_lib.Case(encoder, section, source, source, batch_size=4))


def test_scores_of_a_network_in_percent():
    pixels = fakes.images(11)
    source = fakes.Source(pixels, labels=LABELS)
    scores = run(knows(pixels, wrong=(0, 5, 9)), source)
    assert scores == {"classify": pytest.approx(100 * 8 / 11), "classify_top5": 100.0}
    case = case_lib.Case(
        knows(pixels, wrong=(0, 5, 9)), evals.new("classify"), source, source, batch_size=4
    )
    values = classify.figures(case)["classify_classes"].values
    for label in range(7):
        right = np.mean([i not in (0, 5, 9) for i in np.flatnonzero(LABELS == label)])
        assert values[label] == pytest.approx(right)
    # Unreadable records are left out; with five classes or fewer the top 5 say nothing.
    broken = fakes.Source(pixels, labels=LABELS, broken=(1,))
    assert run(knows(pixels, wrong=(0, 5, 9)), broken)["classify"] == pytest.approx(100 * 7 / 10)
    few = fakes.Source(pixels, labels=LABELS % 5)
    assert set(run(says({"logits": jnp.zeros(5)}), few)) == {"classify"}


def test_what_it_cannot_score():
    pixels = fakes.images(11)
    with pytest.raises(InputError, match="needs labels"):
        run(knows(pixels), fakes.Source(pixels))
    with pytest.raises(InputError, match="labels 0 to 6, but the network was trained for 0 to 5"):
        run(says({"logits": jnp.zeros(6)}), fakes.Source(pixels, labels=LABELS))
    with pytest.raises(InputError, match="network with a classifier"):
        run(says({}), fakes.Source(pixels, labels=LABELS))


def test_the_protocol_is_the_usual_crop():
    section = evals.new("classify", protocol="imagenet")
    assert (section.data.size, section.crop) == (256, 224)
    assert section.crop / section.data.size == 0.875
    assert (section.data.name, section.data.test_split) == ("imagenet2012", "validation")
