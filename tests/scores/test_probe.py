"""A grid of classifiers: against scikit-learn and float64, its determinism, what it selects."""

import chex
import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ssl_jax.scores.probe import LEARNING_RATES, fit, logits, predict, whiten

_RNG = np.random.default_rng(0)
_CENTRES = 0.8 * _RNG.normal(size=(4, 24))


def _draw(count):
    labels = _RNG.integers(0, 4, count)
    return (_CENTRES[labels] + _RNG.normal(size=(count, 24))).astype(np.float32), labels


_TRAIN, _TRAIN_LABELS = _draw(600)
_TEST, _TEST_LABELS = _draw(400)


def _fit(key=0, **options):
    options = dict(num_classes=4, epochs=20, batch_size=64) | options
    return fit(_TRAIN, _TRAIN_LABELS, _TEST, _TEST_LABELS, key=jax.random.key(key), **options)


@pytest.fixture(scope="module")
def probe():
    return _fit()


def test_close_to_scikit_learn(probe):
    inputs, tests = np.asarray(whiten(_TRAIN)), np.asarray(whiten(_TEST))
    oracle = LogisticRegression(max_iter=1000).fit(inputs, _TRAIN_LABELS).score(tests, _TEST_LABELS)
    assert 0.8 < oracle < 0.999  # neither trivial nor hopeless
    assert probe.accuracy == pytest.approx(oracle, abs=0.025)
    # The selected rate is the best on held-out data.
    chosen = LEARNING_RATES.index(probe.learning_rate)
    assert probe.held_out[chosen] == probe.held_out.max()
    assert probe.accuracy == probe.test[chosen]
    # 1e-5 learns nothing in 20 epochs: the grid is one of rates
    assert probe.held_out[0] < probe.held_out.max() - 0.1
    with pytest.raises(ValueError, match="labels"):
        _fit(num_classes=3)
    for labels in (_TRAIN_LABELS + 2**32, _TRAIN_LABELS + 0.5):
        with pytest.raises(ValueError, match="labels"):
            fit(_TRAIN, labels, _TEST, _TEST_LABELS, num_classes=4, key=jax.random.key(0))
    for parts in ((_TRAIN * np.nan, _TEST), (_TRAIN, _TEST * np.nan)):
        with pytest.raises(ValueError, match="features"):
            fit(
                parts[0],
                _TRAIN_LABELS,
                parts[1],
                _TEST_LABELS,
                num_classes=4,
                key=jax.random.key(0),
            )


def test_a_classifier_that_diverges_is_right_nowhere_and_rows_are_scored_in_pieces(monkeypatch):
    how = dict(optimizer="sgd", learning_rates=(1e38, 0.1), epochs=2)
    found = _fit(**how)
    assert found.diverged.tolist() == [True, False]
    assert found.test[0] == found.held_out[0] == 0 and found.accuracy == found.test[1] > 0.5
    monkeypatch.setattr("ssl_jax.scores.probe._LOGITS", 8 * 100)
    chex.assert_trees_all_equal(found, _fit(**how))


def test_the_same_key_gives_the_same_bits(probe):
    chex.assert_trees_all_equal(probe, _fit())
    # A batch larger than the set still trains.
    assert _fit(batch_size=10_000, epochs=40, learning_rates=(1e-2,)).accuracy > 0.6
    other = _fit(key=1)
    assert not np.array_equal(other.params["kernel"], probe.params["kernel"])


def test_held_out_rows_are_not_trained_on():
    """With labels that are pure chance the held-out accuracy must stay at chance however long it
    trains.
    """
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 150)).astype(np.float32), rng.integers(0, 2, 200)
    how = dict(learning_rates=(1e-2,), epochs=60, batch_size=32, held_out=0.5)
    probe = fit(x, y, x, y, num_classes=2, key=jax.random.key(0), **how)
    assert probe.held_out[0] < 0.65
    # "test" = train here: all of the learned half, half of the other
    assert 0.7 < probe.accuracy < 0.85


def test_parameters_give_the_reported_accuracy(probe):
    scores = np.asarray(logits(probe.params, whiten(_TEST)))
    p = {k: np.asarray(v, np.float64) for k, v in probe.params.items()}
    x = _TEST.astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    reference = (x * p["scale"] + p["shift"]) @ p["kernel"] + p["bias"]
    np.testing.assert_allclose(scores, reference, atol=2e-4)
    assert np.mean(reference.argmax(1) == _TEST_LABELS) == pytest.approx(probe.accuracy)


def _rows(epochs, batch, seed=0):
    """Rows of the batches of a stream of its own, for all of the training set."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(_TRAIN)) for _ in range(epochs)])
    return order.reshape(-1, batch)


def _gradient(kernel, bias, x, y):
    scores = x @ kernel + bias
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y), p.mean(0)


def test_sgd_with_cosine_and_larger_batches_against_float64():
    """iBOT's form: momentum .9, the learning rate steps at each epoch, no norm; a classifier with
    three times the batch takes the mean gradient of three minibatches."""
    epochs, batch, rates, factors = 4, 100, (0.05, 0.5), (1, 3)
    rows = _rows(epochs, batch)
    how = dict(optimizer="sgd", schedule="cosine", norm=False, weight_decay=0.0, held_out=0.0)
    how |= dict(learning_rates=rates, batch_factors=factors, every_epoch=True)
    stream = lambda learn: ((_TRAIN[learn[r]], r) for r in rows)  # noqa: E731
    probe = _fit(epochs=epochs, batch_size=batch, stream=stream, **how)
    # The stream says which of `learn` it shows; with nothing held out these are all, shuffled.
    learn = np.asarray(jax.random.permutation(jax.random.split(jax.random.key(0), 3)[0], 600))
    start = 0.01 * np.asarray(jax.random.normal(jax.random.split(jax.random.key(0), 3)[1], (24, 4)))
    curves = []
    for factor in factors:
        for rate in rates:
            kernel, bias = start.astype(np.float64), np.zeros(4)
            speed, curve = [np.zeros_like(kernel), np.zeros(4)], []
            for update in range(len(rows) // factor):
                part = learn[rows[update * factor : (update + 1) * factor].ravel()]
                inputs = _TRAIN[part].astype(np.float64)
                found = _gradient(kernel, bias, inputs, _TRAIN_LABELS[part])
                epoch = update * factor // (600 // batch)
                now = rate * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
                speed = [0.9 * s + g for s, g in zip(speed, found)]
                kernel, bias = kernel - now * speed[0], bias - now * speed[1]
                if (update + 1) * factor % (600 // batch) == 0:
                    curve.append(np.mean((_TEST @ kernel + bias).argmax(1) == _TEST_LABELS))
            curves.append(curve)
            if (rate, factor) == (probe.learning_rate, probe.batch_size // batch):
                np.testing.assert_allclose(probe.params["kernel"], kernel, atol=1e-5)
                np.testing.assert_allclose(probe.params["bias"], bias, atol=1e-5)
    np.testing.assert_allclose(probe.by_epoch, np.transpose(curves), atol=1 / 400 + 1e-9)
    np.testing.assert_array_equal(probe.test, probe.by_epoch[-1])
    assert probe.accuracy == probe.test.max()  # nothing held out: the test set chose
    assert len(set(np.round(curves, 4).ravel())) > 4


def test_scores_after_every_epoch_do_not_change_the_training():
    once, watched = (_fit(epochs=3, every_epoch=each) for each in (False, True))
    assert once.by_epoch is None and watched.by_epoch.shape == (3, len(LEARNING_RATES))
    np.testing.assert_array_equal(watched.by_epoch[-1], watched.test)
    chex.assert_trees_all_close(once.params, watched.params, atol=1e-6)


def test_predictions_with_and_without_a_layer_norm():
    rng = np.random.default_rng(0)
    x, kernel, bias = rng.normal(size=(9, 6)) * 3 + 1, rng.normal(size=(6, 4)), rng.normal(size=4)
    scale, shift = rng.normal(size=6), rng.normal(size=6)
    head = {k: v.astype(np.float32) for k, v in dict(kernel=kernel, bias=bias).items()}
    np.testing.assert_array_equal(predict(head, x), (x @ kernel + bias).argmax(1))
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    head |= {k: v.astype(np.float32) for k, v in dict(scale=scale, shift=shift).items()}
    expected = ((normed * scale + shift) @ kernel + bias).argmax(1)
    np.testing.assert_array_equal(predict(head, x), expected)


@pytest.mark.slow
def test_lars_learns():
    assert _fit(optimizer="lars", learning_rates=(30.0,), schedule="cosine").accuracy > 0.7
