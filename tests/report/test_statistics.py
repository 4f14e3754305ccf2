"""Mean and deviation of the channels of a set, and the settings that `ssl-jax stats` prints."""

import re

import numpy as np
import pytest

from ssl_jax import cli, settings
from ssl_jax.cli import arguments
from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.base import Source
from ssl_jax.data.decode import Unreadable
from ssl_jax.report.statistics import statistics


class Sized(Source):
    """Images of other sizes, the last of which cannot be read; numbers with a large mean."""

    images = [
        1e6 + np.random.default_rng(i).normal(0, 0.1, (3 + i, 4, 2)) * [1, 30] for i in range(40)
    ]

    def __len__(self):
        return len(self.images)

    def name(self, i):
        return str(i)

    def __getitem__(self, i):
        if i == 39:
            raise Unreadable("39", "broken on purpose")
        return {"image": self.images[i]}


def test_all_pixels_count_once(monkeypatch):
    with pytest.raises(InputError, match="max_unreadable"):
        statistics(Sized())
    readable = [image.reshape(-1, 2) for image in Sized.images[:39]]
    records = ArraySource(np.zeros((3, 4, 4, 2), np.uint8))
    assert statistics(records, 2).images == 2 and statistics(records).types == {"uint8"}
    monkeypatch.setattr(Sized, "__len__", lambda self: 39)
    of_all, pixels = statistics(Sized()), np.concatenate(readable)
    np.testing.assert_allclose(of_all.mean, pixels.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(of_all.std, pixels.std(axis=0), rtol=1e-8)
    np.testing.assert_array_equal(of_all.low, pixels.min(axis=0))
    np.testing.assert_array_equal(of_all.high, pixels.max(axis=0))


@pytest.mark.parametrize("kind, given", [("uint16", ""), ("uint16", "0,4000"), ("uint8", "")])
def test_the_settings_are_those_of_a_run(tmp_path, capsys, kind, given):
    """With or without a range: what is printed can be given to a config, and normalises."""
    most = dict(uint8=256, uint16=3000)[kind]
    images = np.random.default_rng(0).integers(0, most, (4, 6, 5, 5)).astype(kind)
    for i, image in enumerate(images):
        np.save(tmp_path / f"{i}.npy", image)
    flags = ["--config.data.channels=5", *[f"--config.data.range={given}"] * bool(given)]
    assert cli.main(["ssl-jax", "stats", str(tmp_path), *flags]) == 0
    printed = re.findall(r"--config\.[^ \n]+", capsys.readouterr().out)
    config = arguments.changed(settings.base_config("dino"), printed)
    assert (config.data.channels, config.model.in_channels) == (5, 5)
    low, high = config.data.range or (0, 255)
    assert (low, high) == {"uint8": (0, 255), "": (images.min(), images.max())}.get(
        kind if kind == "uint8" else given, (0, 4000)
    )
    pixels = ((images.astype(np.float64) - low) / (high - low)).reshape(-1, 5)
    np.testing.assert_allclose(config.model.mean, pixels.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(config.model.std, pixels.std(axis=0), rtol=1e-5)
    config.data.kind, config.data.dir = "folder", str(tmp_path)
    settings.validate(config, num_devices=1)
