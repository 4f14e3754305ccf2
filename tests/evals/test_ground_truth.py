"""Ground truth of the retrieval benchmark: JSON, which a script makes of the pickle."""

import json
import pickle

import numpy as np
import pytest

from launch import revisited_json
from ssl_jax.config import InputError
from ssl_jax.evals.retrieval import ground_truth

CONTENT = {
    "imlist": ["a", "b", "c"],
    "qimlist": ["b", "c"],
    "gnd": [
        {"bbx": [1.5, 2, 30, 40], "easy": [0], "hard": [], "junk": [1]},
        {"bbx": [0, 0, 9, 9], "easy": [], "hard": [0, 1], "junk": [2]},
    ],
}


def test_the_pickle_as_json_is_read(tmp_path):
    entry = CONTENT["gnd"][0]
    arrays = {"bbx": np.float32(entry["bbx"]), "easy": np.array([0], ">i4"), "junk": np.array([1])}
    path = tmp_path / "gnd_roxford5k.pkl"
    gnd = [{**entry, **arrays}, CONTENT["gnd"][1]]
    path.write_bytes(pickle.dumps({**CONTENT, "gnd": gnd}, 2))
    with pytest.raises(InputError, match=f"revisited_json {path}"):
        ground_truth.read(path)
    assert json.loads(revisited_json.convert(path).read_text()) == CONTENT
    truth = ground_truth.read("gnd_roxford5k.json", tmp_path)
    assert truth.images == ("a", "b", "c") and truth.queries == ("b", "c")
    np.testing.assert_array_equal(truth.boxes, [[1.5, 2, 30, 40], [0, 0, 9, 9]])
    for name in ("easy", "hard", "junk"):
        for rows, entry in zip(getattr(truth, name), CONTENT["gnd"], strict=True):
            np.testing.assert_array_equal(rows, entry[name])
            assert rows.dtype == np.int64


@pytest.mark.parametrize(
    "content", [None, b"no pickle", pickle.dumps(CONTENT)], ids=["missing", "damaged", "made"]
)
def test_what_cannot_be_converted_is_one_line_and_changes_nothing(tmp_path, content, capsys):
    """No pickle, a damaged one, and one whose JSON is there."""
    path = tmp_path / "gnd.pkl"
    if content is not None:
        path.write_bytes(content)
    if content == pickle.dumps(CONTENT):
        path.with_suffix(".json").write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as ended:
        revisited_json.main([str(path)])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_pickle_that_names_a_function_runs_nothing(tmp_path):
    class Runs:
        def __reduce__(self):
            return (tmp_path / "ran").touch, ()

    path = tmp_path / "gnd_roxford5k.pkl"
    path.write_bytes(pickle.dumps({**CONTENT, "gnd": Runs()}))
    with pytest.raises(InputError, match="which is no array"):
        revisited_json.convert(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        dict(qimlist=["b"]),
        dict(imlist=["a", "b"]),
        dict(gnd=[{}, {}]),
        dict(gnd=[{**CONTENT["gnd"][0], "easy": [10**30]}, CONTENT["gnd"][1]]),
        dict(imlist=None),
    ],
)
def test_refuses_what_is_no_ground_truth(tmp_path, change):
    (tmp_path / "gnd.json").write_text(json.dumps(CONTENT | change))
    with pytest.raises(InputError, match="gnd.json"):
        ground_truth.read(tmp_path / "gnd.json")
