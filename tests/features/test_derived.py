"""Rows that processes share."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.features import derived, feed, windows
from ssl_jax.features.network import Network
from ssl_jax.methods.base import Features
from tests.evals import fakes


def test_features_that_are_not_finite_are_refused():
    network = Network(lambda images: Features(images[:, 0, 0] * np.nan, None, images, {}))
    source = fakes.Source(fakes.images(2))

    def cut(row, record):
        yield feed.View(row, windows.unit(record["image"]))

    with pytest.raises(InputError, match="finite"):
        list(derived.encoded(network, source, range(2), cut, kind="image", batch_size=2))


def test_a_process_without_rows_has_the_shape_of_the_others(monkeypatch):
    monkeypatch.setattr(derived.distributed, "gather_json", lambda value: [value, [(2, [4, 3])]])
    monkeypatch.setattr(derived.distributed, "gather_rows", lambda rows: rows)
    (rows,) = derived.gather_rows([np.array([], np.float32)], True)
    assert rows.shape == (0, 4, 3)
