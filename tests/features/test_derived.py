"""Rows that processes share."""

import numpy as np

from ssl_jax.features import derived


def test_a_process_without_rows_has_the_shape_of_the_others(monkeypatch):
    monkeypatch.setattr(derived.distributed, "told", lambda value: [value, [(2, [4, 3])]])
    monkeypatch.setattr(derived.distributed, "joined", lambda rows: rows)
    (rows,) = derived.joined([np.array([], np.float32)], True)
    assert rows.shape == (0, 4, 3)
