"""The linear probe against scikit-learn, its determinism, and what the grid selects."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ssl_jax.config import InputError
from ssl_jax.evals import linear
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_CENTRES = 0.8 * _RNG.normal(size=(4, 24))


def _draw(count):
    labels = _RNG.integers(0, 4, count)
    return (_CENTRES[labels] + _RNG.normal(size=(count, 24))).astype(np.float32), labels


_TRAIN, _TRAIN_LABELS = _draw(600)
_TEST, _TEST_LABELS = _draw(400)


def _fit(key=0, **options):
    options = dict(num_classes=4, epochs=20, batch_size=64) | options
    return linear.fit(
        _TRAIN, _TRAIN_LABELS, _TEST, _TEST_LABELS, key=jax.random.key(key), **options
    )


@pytest.fixture(scope="module")
def probe():
    return _fit()


def test_close_to_scikit_learn(probe):
    inputs, tests = np.asarray(linear.whiten(_TRAIN)), np.asarray(linear.whiten(_TEST))
    oracle = LogisticRegression(max_iter=1000).fit(inputs, _TRAIN_LABELS).score(tests, _TEST_LABELS)
    assert 0.8 < oracle < 0.999  # neither trivial nor hopeless
    assert probe.accuracy == pytest.approx(oracle, abs=0.025)


def test_the_selected_rate_is_the_best_on_held_out_data(probe):
    chosen = linear.LEARNING_RATES.index(probe.learning_rate)
    assert probe.held_out[chosen] == probe.held_out.max()
    assert probe.accuracy == probe.test[chosen]
    assert (
        probe.held_out[0] < probe.held_out.max() - 0.1
    )  # 1e-5 learns nothing in 20 epochs: the grid is one of rates


def test_the_same_key_gives_the_same_bits(probe):
    again = _fit()
    for a, b in zip(jax.tree.leaves(probe), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    other = _fit(key=1)
    assert not np.array_equal(other.params["kernel"], probe.params["kernel"])


def test_held_out_rows_are_not_trained_on():
    """With labels that are pure chance the held-out accuracy must stay at chance however long it
    trains.
    """
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 150)).astype(np.float32), rng.integers(0, 2, 200)
    probe = linear.fit(
        x,
        y,
        x,
        y,
        num_classes=2,
        key=jax.random.key(0),
        learning_rates=(1e-2,),
        epochs=60,
        batch_size=32,
        held_out=0.5,
    )
    assert probe.held_out[0] < 0.65
    assert (
        0.7 < probe.accuracy < 0.85
    )  # "test" = train here: all of the learned half, half of the other


def test_parameters_give_the_reported_accuracy(probe):
    scores = np.asarray(linear.logits(probe.params, linear.whiten(_TEST)))
    p = {k: np.asarray(v, np.float64) for k, v in probe.params.items()}
    x = _TEST.astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    reference = (x * p["scale"] + p["shift"]) @ p["kernel"] + p["bias"]
    np.testing.assert_allclose(scores, reference, atol=2e-4)
    assert np.mean(reference.argmax(1) == _TEST_LABELS) == pytest.approx(probe.accuracy)


def test_a_batch_larger_than_the_set_still_trains():
    assert _fit(batch_size=10_000, epochs=40, learning_rates=(1e-2,)).accuracy > 0.6


def test_metrics_are_in_percent():
    train, test = (
        SimpleNamespace(image=x, labels=y)
        for x, y in ((_TRAIN, _TRAIN_LABELS), (_TEST, _TEST_LABELS))
    )
    changes = dict(lrs=(1e-3, 1e-2), epochs=5, batch=64)
    metrics = linear.run(fakes.case("linear", train, test, **changes))
    assert set(metrics) == {"linear", "linear_lr", "linear_held_out"}
    assert 50 < metrics["linear"] <= 100 and metrics["linear_lr"] in (1e-3, 1e-2)
    with pytest.raises(InputError, match="needs labels"):
        linear.run(fakes.case("linear", SimpleNamespace(image=_TRAIN, labels=None), test))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="held_out"):
        _fit(held_out=1.0)
    with pytest.raises(ValueError, match="labels"):
        _fit(num_classes=3)
