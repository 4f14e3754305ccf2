"""Losses of segmentation against float64 loops over places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses

_RNG = np.random.default_rng(0)
_LOGITS = 3 * _RNG.normal(size=(2, 5, 6, 4))
_LABELS = _RNG.integers(0, 3, (2, 5, 6))  # class 3 is not there
_LABELS[_RNG.random(_LABELS.shape) < 0.3] = 255


def _probs(logits):
    exp = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def _cross_entropy(logits, labels, average):
    total, count = 0.0, 0
    for place in np.ndindex(labels.shape):
        if labels[place] != 255:
            total -= np.log(_probs(logits)[place][labels[place]])
            count += 1
    return total / (labels.size if average == "all" else count)


def _dice(logits, labels):
    probs, values = _probs(logits), []
    for c in set(labels[labels != 255]):
        hit = both = 0.0
        for place in np.ndindex(labels.shape):
            if labels[place] != 255:
                there = labels[place] == c
                hit += probs[place][c] * there
                both += probs[place][c] + there
        values.append(1 - 2 * hit / both)
    return np.mean(values)


@pytest.mark.parametrize("average", ["labelled", "all"])
def test_cross_entropy(average):
    found = losses.pixel_cross_entropy(jnp.float32(_LOGITS), _LABELS, average=average)
    assert float(found) == pytest.approx(_cross_entropy(_LOGITS, _LABELS, average), rel=1e-5)


def test_dice():
    found = losses.dice(jnp.float32(_LOGITS), _LABELS)
    assert float(found) == pytest.approx(_dice(_LOGITS, _LABELS), rel=1e-5)
    right = 50 * jax.nn.one_hot(np.where(_LABELS == 255, 0, _LABELS), 4)
    assert float(losses.dice(right, _LABELS)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("loss", [losses.pixel_cross_entropy, losses.dice])
def test_ignored_places_and_empty_masks_have_no_gradient(loss):
    grad = jax.grad(lambda x: loss(x, _LABELS))(jnp.float32(_LOGITS))
    assert np.isfinite(grad).all() and np.abs(grad)[_LABELS != 255].max() > 0
    np.testing.assert_array_equal(np.asarray(grad)[_LABELS == 255], 0)
    nothing = np.full_like(_LABELS, 255)
    value, grad = jax.value_and_grad(lambda x: loss(x, nothing))(jnp.float32(_LOGITS))
    assert value == 0 and not np.asarray(grad).any()


def test_average_has_two_choices():
    with pytest.raises(ValueError, match='average is "some"'):
        losses.pixel_cross_entropy(jnp.float32(_LOGITS), _LABELS, average="some")
