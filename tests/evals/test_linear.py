"""The linear probe as an evaluation: its scores, its random crops, the papers' settings."""

from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.data import arrays
from ssl_jax.evals import linear
from tests.evals import fakes


def test_crops_are_encoded_anew_and_the_picture_is_of_the_probe_that_was_scored(monkeypatch):
    source, seen = fakes.Source(fakes.images(40), labels=np.arange(40) % 3), []
    crops = dict(crop_scale=(0.3, 0.6), data=dict(size=8))
    config = evals.new("linear", lrs=(1e-2,), epochs=3, batch=8, held_out=0.0, **crops)

    def network(images):
        seen.append(np.asarray(images))
        return evals.raw_pixels(4)(images)

    case = evals.Case(network, config, source, source, patch=4, batch_size=40)
    right = evals.TYPES["linear"].run(case)["linear"]
    epochs = np.concatenate(seen)[-3 * 40 :]  # after the test images
    assert len(np.unique(epochs, axis=0)) > 110  # of 3 * 40, and of 8 x 8 pixels
    with monkeypatch.context() as patched:
        patched.setattr(linear, "fit", None)  # it is not trained again
        shares = evals.TYPES["linear"].figures(case)["linear_classes"].values[np.arange(40) % 3]
    assert 100 * np.mean(shares) == pytest.approx(right)
    fields = dict(crops, bilinear_crops=True, every_epoch=True)
    config = evals.new("linear", lrs=(1e-2,), epochs=3, batch=8, held_out=0.0, **fields)
    case = evals.Case(network, config, source, source, patch=4, batch_size=40)
    scores = evals.TYPES["linear"].run(case)
    assert scores["linear_best_of_epochs"] >= scores["linear"]
    bilinear = np.concatenate(seen)[-3 * 40 :]
    assert 0 < np.abs(bilinear - epochs).max() < 0.3  # the same crops
    with pytest.raises(InputError, match="crop_scale"):
        evals.TYPES["linear"].run(fakes.case("linear", None, None, crop_scale=(1.0, 0.5)))


def test_random_crops_come_with_their_images():
    """Classes are colours, which crops keep."""
    rng = np.random.default_rng(3)
    labels = np.arange(60) % 3
    images = rng.integers(0, 60, (60, 16, 16, 3)).astype(np.uint8)
    images[np.arange(60), :, :, labels] += 120
    source = arrays.ArraySource(images, labels)
    found = list(
        linear.crops.batches(
            source, np.arange(10, 40), size=8, scale=(0.3, 0.6), batch_size=7, epochs=2, seed=1
        )
    )
    assert len(found) == 2 * (30 // 7)
    which = np.concatenate([rows for _, rows in found[:4]])
    assert len(set(which)) == 28 and which.max() < 30
    for crops, rows in found:
        assert crops.shape == (7, 8, 8, 3) and 0 <= crops.min() and crops.max() <= 1
        np.testing.assert_array_equal(crops.mean((1, 2)).argmax(1), labels[10 + rows])


def test_a_diverged_classifier_is_named(capsys):
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2
    part = SimpleNamespace(
        image=rng.normal(size=(24, 4)).astype(np.float32), labels=labels, index=None
    )
    how = dict(lrs=(1e38, 1e-2), epochs=2, batch=8, optimizer="sgd")
    scores = evals.TYPES["linear"].run(fakes.case("linear", part, part, **how))
    assert scores["linear_lr"] == 1e-2 and "1 of 2 classifiers" in capsys.readouterr().out
