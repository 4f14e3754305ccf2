"""Ground truth of the retrieval benchmark: read without running what a pickle says."""

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


def _with_arrays(dtype="<i8"):
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


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("content", [CONTENT, _with_arrays(), _with_arrays(">i4")])
def test_reads_pickles_of_lists_and_of_arrays(tmp_path, content, protocol):
    path = tmp_path / "gnd_roxford5k.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    _same(revisited.read(path))


def test_reads_what_an_older_numpy_wrote(tmp_path):
    path = tmp_path / "gnd.pkl"
    data = pickle.dumps(_with_arrays(), 2)
    path.write_bytes(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    _same(revisited.read(path))


def test_reads_numpy_scalars(tmp_path):
    path = tmp_path / "gnd.pkl"
    first = {**CONTENT["gnd"][0], "bbx": [np.float32(1.5), np.int64(2), 30, 40]}
    path.write_bytes(pickle.dumps({**CONTENT, "gnd": [first, CONTENT["gnd"][1]]}))
    _same(revisited.read(path))


def test_reads_json(tmp_path):
    path = tmp_path / "gnd.json"
    path.write_text(json.dumps(CONTENT))
    _same(revisited.read(path))


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
        ((__import__("codecs").decode, (b"78", "hex")), "decode"),
    ],
)
def test_runs_nothing(tmp_path, monkeypatch, what, named):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gnd.pkl"
    path.write_bytes(pickle.dumps({**CONTENT, "qimlist": _Runs(what)}))
    with pytest.raises(InputError, match=f"no ground truth.*{named}"):
        revisited.read(path)
    assert not (tmp_path / "RAN").exists()


def test_refuses_arrays_of_objects_and_other_encodings(tmp_path):
    path = tmp_path / "gnd.pkl"
    path.write_bytes(pickle.dumps({**CONTENT, "imlist": np.array(["a", None], object)}, 2))
    with pytest.raises(InputError, match="no ground truth"):
        revisited.read(path)


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(qimlist=["b"]), "1 queries but 2 entries"),
        (dict(imlist=["a", "b"]), "rows 2..2 of 2 images"),
        (dict(gnd=[{}, {}]), "bbx|easy"),
    ],
)
def test_refuses_another_content(tmp_path, change, said):
    path = tmp_path / "gnd.json"
    path.write_text(json.dumps(CONTENT | change))
    with pytest.raises(InputError, match=said):
        revisited.read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="gnd_roxford5k.pkl"):
        revisited.read(tmp_path / "gnd.pkl")
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps(CONTENT)[:40])
    with pytest.raises(InputError, match="no ground truth"):
        revisited.read(tmp_path / "cut.pkl")


def test_arrays_keep_the_order_of_their_axes():
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    for protocol in (2, 4):
        np.testing.assert_array_equal(revisited._plain(pickle.dumps([array], protocol))[0], array)
