"""The networks in zoo/: each loads and works, the list is theirs, experiments/zoo.py stores one."""

import importlib
import json

import jax
import numpy as np
import pytest

import ssl_jax
from ssl_jax import config as config_lib
from ssl_jax.convert import own
from ssl_jax.data.source import make_source
from ssl_jax.methods.encoder import Encoder
from tests import tiny


@pytest.fixture(scope="module")
def zoo():
    return importlib.import_module("experiments.zoo")


@pytest.fixture
def files(root):
    return sorted((root / "zoo").glob("*.safetensors"))


def test_the_list_is_that_of_the_files(zoo, root, files):
    assert files and sum(file.stat().st_size for file in files) < 30e6
    text = (root / "zoo" / "README.md").read_text()
    listed = text.split("<!-- networks -->\n")[1].split("<!-- end of networks -->")[0]
    assert listed == zoo.tables.markdown(zoo.table()), "run `python -m experiments zoo`"


@pytest.mark.slow
def test_each_network_tells_images_apart(files):
    """Noise from noise that fades; photographs by the nearest of 200 windows of their left parts,
    where chance is 6 of 100."""

    def windows(split, length):
        source = make_source(dict(kind="photos", split=split, length=length, size=32))
        records = [source[i] for i in range(length)]
        return (np.stack([record[key] for record in records]) for key in ("image", "label"))

    images, labels = windows("train", 200)
    queries, truth = windows("test", 100)
    noise = np.random.default_rng(0).random((3, 32, 32, 3), np.float32)
    noise[1] *= np.linspace(0, 1, 32)[:, None]
    asked = np.resize(np.concatenate([noise, queries / np.float32(255)]), images.shape)
    for file in files:
        encoder = ssl_jax.load(f"zoo/{file.stem}")
        bank, found = (np.asarray(encoder(x).image) for x in (images, asked))
        assert np.isfinite(bank).all() and np.isfinite(found).all()
        assert np.abs(found[0] - found[1]).max() > 2 * np.abs(found[0] - found[2]).max()
        bank, found = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, found[3:103]))
        assert (labels[(found @ bank.T).argmax(1)] == truth).sum() > 45, file


def test_files_say_where_they_come_from_and_nothing_of_the_machine(files):
    for file in files:
        stored = own.read(file)
        notes, config = stored.notes, config_lib.flatten(json.loads(stored.config))
        assert notes["scores"]["knn"] > notes["untrained"]["knn"] and notes["made"]
        assert notes["seed"] == config["seed"] and notes["command"]
        places = {key: value for key, value in config.items() if str(value).startswith("/")}
        assert not places


def test_a_run_becomes_a_file(zoo, tmp_path, monkeypatch):
    from ssl_jax import api
    from ssl_jax.train import loop, state

    config = tiny.config("dino")
    config.data.kind, config.data.dir = "folder", "/somewhere/images"
    config.data.list = config.evals.cache = config.gram.file = "/somewhere/else"
    run = api.prepare(config, tiny.float_source(tiny.config("dino").data))
    encoder = Encoder(run.config, state.weights(loop.fresh_state(run), run.config.model), None, 5)
    scores = {"trained": {"knn": 2.0}, "untrained": {"knn": 1.0}, "raw": {}, "minutes": 0.5}
    monkeypatch.setattr(zoo, "ZOO", tmp_path)
    monkeypatch.setattr(zoo.ssl_jax, "load", lambda folder: encoder)
    monkeypatch.setattr(zoo.runs, "read", lambda folder: scores)
    stored = own.read(zoo.keep(tmp_path / "tiny.safetensors", tmp_path, command="ssl-jax train"))
    values = config_lib.flatten(json.loads(stored.config))
    assert not [key for key, value in values.items() if "somewhere" in str(value)]
    assert stored.notes["scores"] == {"knn": 2.0} and stored.notes["step"] == 5
    for array in jax.tree.leaves(stored.params):
        assert array.dtype == "bfloat16"
    (_, row) = zoo.table()
    assert row[:2] == ["`zoo/tiny`", "dino"] and row[4:8] == ["2.0", "-", "-", "0"]
