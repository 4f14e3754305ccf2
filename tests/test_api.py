"""What people do with the package: load what a run learned, and train a method of their own."""

import functools
import json
import sys

import chex
import jax
import numpy as np
import pytest
import safetensors.numpy

import ssl_jax
from ssl_jax import api, cli, evals, methods
from ssl_jax.config import InputError
from ssl_jax.convert import own, places
from ssl_jax.methods.encoder import Encoder
from ssl_jax.train import checkpoint, log, loop, optim, resume, start
from tests import tiny

OUTSIDE = """
import ssl_jax
from ml_collections import FrozenConfigDict
from ssl_jax.config import key
from ssl_jax.methods import dino


def defaults():
    return dino.defaults() | {"loss_scale": key(1.0, "factor on the loss", above=0)}


def make(config):
    method = dino.make(FrozenConfigDict(config.to_dict() | {"dino": config.mine.to_dict()}))

    def objective(*arguments):
        loss, output = method.objective(*arguments)
        return config.mine.loss_scale * loss, output

    return method._replace(objective=objective)


ssl_jax.register("mine", make, defaults, lambda config: None)
"""

CONFIG = """
from ssl_jax import evals, settings
from tests import tiny


def get_config():
    source, config = tiny.config("dino", small=True), settings.base_config("mine")
    for name in ("data", "views", "model", "optim", "log"):
        config[name].update(source[name])
    config.mine.update(source.dino)
    config.checkpoint.every_steps, config.optim.steps = 2, 4
    images = dict(kind="photos", size=24)
    evals.add(config, "knn", data=images, train_examples=40, test_examples=20)
    return config
"""


@pytest.fixture
def saved(tmp_path):
    """A run folder with one checkpoint of a fresh DINO, and its state."""
    run = api.prepare(tiny.config("dino"))
    state = loop.fresh_state(run)
    store = checkpoint.Checkpoints(tmp_path / "run" / "checkpoints")
    store.save(state._replace(step=state.step + 7), resume.meta(run.config, 7))
    store.wait()
    store.close()
    return tmp_path / "run", run, state


def test_load_gives_the_teacher_without_an_optimizer(saved, monkeypatch):
    folder, run, state = saved
    monkeypatch.setattr(optim, "make", None)
    encoder = ssl_jax.load(folder)
    assert encoder.step == 7 and repr(encoder) == "dino, step 7"
    assert tiny.identical(encoder.params, state.teacher)
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    features = encoder(images, attention=True, layers=(0,))
    want = run.method.features(state.teacher, np.float32(images) / 255, attention=True)
    np.testing.assert_allclose(features.image, want.image, rtol=1e-5, atol=1e-6)
    assert features.patches.shape == (2, 4, 4, 16) and set(features.layers) == {0}
    other = ssl_jax.load(folder / "checkpoints" / "7")
    assert tiny.identical(other.params, encoder.params)
    assert other._features is encoder._features  # what is compiled is shared


@pytest.mark.slow
def test_a_method_from_outside_trains_resumes_evaluates_and_loads(tmp_path, monkeypatch, capsys):
    (tmp_path / "outside_method.py").write_text(OUTSIDE)
    (tmp_path / "outside_config.py").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    arguments = [
        "--import=outside_method",
        f"--config={tmp_path / 'outside_config.py'}",
        f"--workdir={tmp_path / 'run'}",
        "--config.mine.loss_scale=2.0",
    ]
    assert cli.main(["ssl-jax", "train", *arguments]) == 0
    # Again with its last two steps undone: it goes on where the checkpoint of step 2 stands.
    rows = log.read_rows(tmp_path / "run" / "metrics.jsonl")
    last = jax.device_get(ssl_jax.load(tmp_path / "run").params)
    (tmp_path / "run" / "checkpoints" / "4").rename(tmp_path / "undone")
    assert cli.main(["ssl-jax", "train", *arguments]) == 0
    again = log.read_rows(tmp_path / "run" / "metrics.jsonl")
    assert "resuming from step 2" in capsys.readouterr().out
    assert [row["loss"] for row in again] == [row["loss"] for row in rows]
    # In a process that has not imported it yet.
    methods.METHODS.pop("mine")
    monkeypatch.delitem(sys.modules, "outside_method")
    with pytest.raises(InputError, match="outside_method"):
        ssl_jax.load(tmp_path / "run")
    encoder = ssl_jax.load(tmp_path / "run", trust=True)
    assert encoder.config.imports == ("outside_method",) and "mine" in methods.METHODS
    assert tiny.identical(jax.device_get(encoder.params), last)
    assert cli.main(["ssl-jax", "eval", str(tmp_path / "run"), "--task=knn"]) == 0
    assert "k-NN" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["network.safetensors", "network.npz"])
def test_a_saved_network_is_loaded_as_it_was(saved, tmp_path, name):
    encoder, file = ssl_jax.load(saved[0]), tmp_path / "new" / name
    ssl_jax.save(encoder, file, scores={"knn": 71.5})
    again = ssl_jax.load(file)
    assert again.config == encoder.config and again.step == encoder.step == 7
    assert tiny.identical(again.params, encoder.params)
    assert own.read(file).notes == {"step": 7, "scores": {"knn": 71.5}}
    (ordinary := tmp_path / "ordinary").touch()
    assert file.stat().st_mode == ordinary.stat().st_mode  # others may read it
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    np.testing.assert_array_equal(again(images).image, encoder(images).image)
    content = file.read_bytes()
    for place in np.linspace(0.5, 0.9, 12) * len(content):
        flipped = bytearray(content)
        flipped[int(place)] ^= 1 << int(place) % 8
        file.write_bytes(flipped)
        with pytest.raises(InputError, match=name):
            own.read(file)
    file.write_bytes(content[:100])
    with pytest.raises(InputError, match=name):
        ssl_jax.load(file)


def rewritten(file, changes, notes='{"step": 7}'):
    """A saved network as a stranger makes it: {key: value of its config}, no checksum."""
    with safetensors.safe_open(file, "numpy") as opened:
        config = json.loads(opened.metadata()["ssl_jax.config"])
    for key, value in changes.items():
        *path, last = key.split(".")
        functools.reduce(dict.__getitem__, path, config)[last] = value
    text = json.dumps({key: value for key, value in config.items() if value != "gone"})
    metadata = {"ssl_jax.config": text, "ssl_jax.notes": notes}
    strange = file.with_name(f"s{file.name}")
    safetensors.numpy.save_file(safetensors.numpy.load_file(file), strange, metadata=metadata)
    return strange


@pytest.mark.parametrize(
    "key, value, command",
    [
        ("imports", ["stranger"], "export --to=npz --out=OUT.npz"),
        ("imports", ["stranger"], "embed --out=OUT.npz"),
        ("data.kind", "python:stranger.images", "embed --out=OUT.npz"),
        ("evals.knn.data.kind", "python:stranger.images", "eval --add=rank --task=knn,rank"),
        ("evals.cache", "PLACE", "eval --add=rank"),
        ("method", "mine", "export --to=npz --out=OUT.npz"),
    ],
)
def test_a_stranger_runs_nothing(saved, tmp_path, monkeypatch, capsys, key, value, command):
    ssl_jax.save(ssl_jax.load(saved[0]), file := tmp_path / "a.safetensors")
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    file = rewritten(file, {"evals.knn": evals.new("knn").to_dict(), key: value})
    name, *rest = command.replace("OUT", str(tmp_path / "out")).split()
    assert cli.main(["ssl-jax", name, str(file), *rest]) == 2
    assert key in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and "stranger" not in sys.modules
    assert [path for path in tmp_path.iterdir() if path.name.startswith(("out", "PLACE"))] == []
    if key == "imports" and name == "export":
        assert cli.main(["ssl-jax", name, str(file), "--import=stranger", *rest]) == 0
        assert (tmp_path / "ran").exists() and sys.modules.pop("stranger")


def test_configs_and_notes_of_strangers_are_checked(saved, tmp_path):
    ssl_jax.save(ssl_jax.load(saved[0]), file := tmp_path / "a.safetensors")
    changes = [("method", "gone"), ("model.width", "x"), ("model.depth", 10**9), ("imports", [1])]
    changes += [("optim.lr", 10**400), ("evals.knn", {"k": [1]}), ("evals.tasks", {"type": "knn"})]
    for change in changes:
        with pytest.raises(InputError):
            ssl_jax.load(rewritten(file, dict([change])))
    for notes in ("[1]", "{", '{"scores": 1}', '{"step": "x"}'):
        with pytest.raises(InputError, match="sa.safetensors"):
            ssl_jax.load(rewritten(file, {}, notes))
    # What versions without a checksum wrote.
    assert ssl_jax.load(rewritten(file, {"run": [], "evals": 3})).step == 7
    safetensors.numpy.save_file({"a/b": np.ones(1)}, file, {"ssl_jax.config": "{}"})
    with pytest.raises(InputError, match="params"):
        ssl_jax.load(file)


def test_a_network_saved_in_bfloat16_is_half_the_size_and_nearly_the_same(saved, tmp_path):
    encoder, files = ssl_jax.load(saved[0]), [tmp_path / f"{n}.safetensors" for n in "ab"]
    ssl_jax.save(encoder, files[0])
    ssl_jax.save(encoder, files[1], dtype="bfloat16")
    metadata = len(own.read(files[0]).config)
    large, small = (file.stat().st_size - metadata for file in files)
    assert small < 0.7 * large
    again = ssl_jax.load(files[1])
    assert {leaf.dtype for leaf in jax.tree.leaves(again.params)} == {np.dtype("float32")}
    chex.assert_trees_all_close(again.params, encoder.params, rtol=2**-8, atol=1e-30)


def test_constants_are_saved_too(tmp_path):
    run = api.prepare(tiny.config("stellar"))
    constants, (params, _) = run.method.constants(), run.method.init(jax.random.key(0))
    encoder = Encoder(run.config, params, constants)
    ssl_jax.save(encoder, tmp_path / "a.safetensors")
    assert tiny.identical(ssl_jax.load(tmp_path / "a.safetensors").constants, constants)
    for name, dtype, named in (
        ("a.pth", "float32", r"\.npz"),
        ("a.npz", "bfloat16", r"\.npz"),  # which cannot hold it
        ("b.npz", "int8", "dtype.*float16"),
        ("a.safetensors/b.npz", "float32", "a.safetensors"),  # no folder
    ):
        with pytest.raises(InputError, match=named):
            ssl_jax.save(encoder, tmp_path / name, dtype=dtype)
    for choice in (dict(heads=2), dict(family="mae")):  # of published weights
        with pytest.raises(InputError, match=next(iter(choice))):
            ssl_jax.load(tmp_path / "a.safetensors", **choice)


def test_the_zoo_names_what_it_has(saved, tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    monkeypatch.setattr(places, "ZOO", folder)
    with pytest.raises(InputError, match="elsewhere"):
        ssl_jax.load("zoo/dino_photos")
    folder.mkdir()
    ssl_jax.save(ssl_jax.load(saved[0]), folder / "dino_photos.safetensors")
    assert ssl_jax.load("zoo/dino_photos").config.method == "dino"
    config = tiny.config("sop")
    config.init_from, config.init_model, config.model.depth = "zoo/dino_photos", True, 7
    assert start.shaped(config).model.depth == ssl_jax.load(saved[0]).config.model.depth
    with pytest.raises(InputError, match="zoo/dino_photos"):
        ssl_jax.load("zoo/dino_photo")
    with pytest.raises(InputError, match=r"a\.png"):
        ssl_jax.load("zoo/dino_photos")("a.png")
