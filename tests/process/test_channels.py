"""A run on images of five channels, from files to scores, with the crops cut on the host or on the
device."""

import csv

import numpy as np
import pytest

import ssl_jax
from ssl_jax import api, evals
from ssl_jax.config import InputError
from tests import bands, tiny

CHANGES = tiny.values("""
    data.kind=folder data.channels=5 data.range=(0,10000) model.in_channels=5
    model.mean=(0.5,0.5,0.5,0.5,0.5) model.std=(0.15,0.15,0.15,0.15,0.15)
    views.jitter=(0.4,0.4,0.0,0.0) views.gray_prob=0.0 views.local_count=0
    optim.steps=3
""")


@pytest.mark.slow
def test_from_files_to_scores(tmp_path, capsys):
    bands.write(tmp_path / "tiles", 4, 2)
    losses = []
    for cache in ("none", "device"):
        place = dict(data__dir=str(tmp_path / "tiles"), data__cache=cache)
        crop = dict(data__crop_on="host" if cache == "none" else "device")
        config = tiny.config("dino", **CHANGES | place | crop)
        evals.add(config, "knn", "linear", data=dict(kind="training"))
        config.evals.tasks = ("knn", "linear") if cache == "device" else ()
        assert api.train(config, tmp_path / cache) == 0
        with open(tmp_path / cache / "metrics.csv") as file:
            losses.append([float(row["loss"]) for row in csv.DictReader(file)])
    # The same draws, and crops that differ by rounding.
    np.testing.assert_allclose(*losses, rtol=1e-3)
    assert "raw pixels" in (tmp_path / "device" / "results.txt").read_text()
    encoder = ssl_jax.load(tmp_path / "device")
    vectors = api.embed(encoder, tmp_path / "tiles" / "test")
    assert vectors["image"].shape == (2 * bands.CLASSES, 16) and np.isfinite(vectors["image"]).all()
    with pytest.raises(InputError, match="model.in_channels"):
        api.embed(encoder, np.zeros((2, 24, 24, 3), np.uint8))
    config.model.in_channels = 4
    config.model.mean = config.model.std = (0.5,) * 4
    with pytest.raises(InputError, match="data.channels"):
        api.prepare(config)
