"""Evaluations on eight devices predict what they do on one. Extraction, segmentation heads and
detectors have such tests of their own."""

import jax
import pytest

from ssl_jax import evals, methods, settings
from ssl_jax.methods.encoder import Encoder
from tests import tiny

_FEW = dict(train_examples=48, test_examples=30)
# type -> settings, and by how much a score may move: one prediction on the border of two.
_TYPES = {
    "knn": (dict(k=(5,)), 100 / 30),
    "linear": (dict(epochs=3, batch=16, lrs=(1e-2,), crop_scale=(0.5, 1.0)), 100 / 30),
    "retrieval": ({}, 0.5),
    "dense": (dict(k=5, data=dict(kind="photo_collages", size=16)), 0.5),
    "box_knn": (dict(k=(5,), data=dict(kind="photo_collages", size=16)), 2.0),
    "davis": (dict(data=dict(kind="moving_shapes", length=32, size=16)), 0.5),
    "purity": (dict(data=dict(kind="photo_collages", size=16)), 0.5),
    "collapse": ({}, 0.01),
    "decode": (dict(epochs=1, batch=8, width=16, depth=1, heads=2), 0.05),
}


@pytest.fixture(scope="module")
def encoder():
    config = settings.resolve(tiny.config("sop"), num_records=100, num_devices=1)
    params, _ = methods.make(config).init(jax.random.key(0))
    return Encoder(config, params)


@pytest.mark.parametrize("type", _TYPES)
def test_scores_on_eight_devices_are_those_on_one(type, encoder, monkeypatch):
    changes, tolerance = _TYPES[type]
    config = settings.base_config("sop")
    config.model.patch = encoder.config.model.patch
    config.evals.batch_size = 16
    data = dict(kind="photos", size=16) | changes.get("data", {})
    evals.add(config, type, **_FEW, **{**changes, "data": data})
    assert len(jax.local_devices()) == 8
    many = evals.evaluate(encoder, config, tasks=(type,))
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    one = evals.evaluate(encoder, config, tasks=(type,))
    assert many.keys() == one.keys() and many[type] == pytest.approx(one[type], abs=tolerance)
