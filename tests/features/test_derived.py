"""Rows that processes share."""

import numpy as np

from ssl_jax.features import derived


def test_a_process_without_rows_has_the_shape_of_the_others(monkeypatch):
    monkeypatch.setattr(derived.distributed, "gather_json", lambda value: [value, [(2, [4, 3])]])
    monkeypatch.setattr(derived.distributed, "gather_rows", lambda rows: rows)
    (rows,) = derived.gather_rows([np.array([], np.float32)], True)
    assert rows.shape == (0, 4, 3)
