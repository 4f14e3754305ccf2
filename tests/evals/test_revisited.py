"""Ground truth of the retrieval benchmark: read without running what a pickle says."""

import codecs
import json
import os
import pickle

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals import revisited

CONTENT = {
    "imlist": ["a", "b", "c"],
    "qimlist": ["b", "c"],
    "gnd": [
        {"bbx": [1.5, 2, 30, 40], "easy": [0], "hard": [], "junk": [1]},
        {"bbx": [0, 0, 9, 9], "easy": [], "hard": [0, 1], "junk": [2]},
    ],
}


def _with_arrays(dtype):
    gnd = [
        {k: np.array(v, float if k == "bbx" else dtype) for k, v in entry.items()}
        for entry in CONTENT["gnd"]
    ]
    return {**CONTENT, "gnd": gnd}


def _same(truth):
    assert truth.images == ("a", "b", "c") and truth.queries == ("b", "c")
    np.testing.assert_array_equal(truth.boxes, [[1.5, 2, 30, 40], [0, 0, 9, 9]])
    for name in ("easy", "hard", "junk"):
        for rows, entry in zip(getattr(truth, name), CONTENT["gnd"], strict=True):
            np.testing.assert_array_equal(rows, entry[name])
            assert rows.dtype == np.int64


_SCALARS = {**CONTENT["gnd"][0], "bbx": [np.float32(1.5), np.int64(2), 30, 40]}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "content",
    [CONTENT, _with_arrays(">i4"), {**CONTENT, "gnd": [_SCALARS, CONTENT["gnd"][1]]}],
    ids=["lists", "big-endian", "scalars"],
)
def test_reads_pickles_and_json(tmp_path, content, protocol):
    path = tmp_path / "gnd_roxford5k.pkl"
    data = pickle.dumps(content, protocol)
    path.write_bytes(data)
    _same(revisited.read(path))
    if protocol == 2:  # as an older NumPy wrote it
        path.write_bytes(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
        _same(revisited.read(path))
    (tmp_path / "gnd.json").write_text(json.dumps(CONTENT))
    _same(revisited.read(tmp_path / "gnd.json"))


class _Runs:
    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize(
    "what, named",
    [
        ((os.mkdir, ("RAN",)), "mkdir"),
        ((eval, ("1 + 1",)), "eval"),
        ((np.load, ("x",)), "numpy"),
        ((codecs.decode, (b"78", "hex")), "decode"),
    ],
)
def test_runs_nothing(tmp_path, monkeypatch, what, named):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gnd.pkl"
    path.write_bytes(pickle.dumps({**CONTENT, "qimlist": _Runs(what)}))
    with pytest.raises(InputError, match=named):
        revisited.read(path)
    assert not (tmp_path / "RAN").exists()


_OBJECTS = pickle.dumps({**CONTENT, "imlist": np.array(["a", None], object)}, 2)


@pytest.mark.parametrize(
    "name, data",
    [
        ("gnd.pkl", _OBJECTS),
        ("gnd.pkl", pickle.dumps(CONTENT)[:40]),
        ("gnd.json", json.dumps(CONTENT | dict(qimlist=["b"])).encode()),
        ("gnd.json", json.dumps(CONTENT | dict(imlist=["a", "b"])).encode()),
        ("gnd.json", json.dumps(CONTENT | dict(gnd=[{}, {}])).encode()),
    ],
)
def test_refuses_what_is_no_ground_truth(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=name):
        revisited.read(tmp_path / name)
