"""docs/own_data.md: every command on a set of the kind it is about."""

import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssl_jax import cli
from tests.data.records import png, save, shard
from tests.docs.test_docs import blocks

COUNT = 160  # the configs take 128 images at once
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 24, 24, 3), np.uint8)


def photos(place):
    for i in range(COUNT):
        save(place / f"{i:03}.{('jpg', 'tif', 'bmp')[i % 3]}", PIXELS[i])
    for name in ("a.heic", "b.heic", "notes.txt"):
        (place / name).write_text("x")


def classes(place):
    for i in range(COUNT):
        save(place / ("ash", "oak")[i % 2] / f"{i:03}.png", PIXELS[i])


def scenes(place):
    for i in range(COUNT):
        save(place / "images" / f"{i:03}.jpg", PIXELS[i])
        save(place / "masks" / f"{i:03}.png", np.full((24, 24), i % 3, np.uint8))


def csv(place):
    photos(place.parent / "photos")
    files = sorted((place.parent / "photos").glob("[0-9]*"))
    rows = [f"photos/{path.name},{'ab'[i % 2]}" for i, path in enumerate(files)]
    place.write_text("\n".join(["path,label", *rows]))


def tars(place):
    samples = {f"{i}.png": png(PIXELS[i]) for i in range(COUNT)}
    samples |= {f"{i}.json": json.dumps({"label": i % 3}).encode() for i in range(COUNT)}
    shard(place / "0.tar", samples)


def beans(place):
    for split in ("train", "test"):
        images = [{"bytes": png(image), "path": None} for image in PIXELS]
        (place / "data").mkdir(parents=True, exist_ok=True)
        table = pa.table({"image": images, "labels": [i % 3 for i in range(COUNT)]})
        pq.write_table(table, place / "data" / f"{split}-00000-of-00001.parquet")


def scans(place):
    for i in range(COUNT):
        path = place / "train" / f"{i:03}{('', ' ill')[i % 2]}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, PIXELS[i])


def tiles(place):
    for i in range(COUNT):
        path = place / ("crop", "forest")[i % 2] / f"{i:03}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.tile(PIXELS[i], (1, 1, 2))[..., :5].astype(np.uint16))


_LABELLED = dict(classes=classes, slice=classes, list=csv, tars=tars, beans=beans, scans=scans)
_LABELLED["tiles"] = tiles
# Workdir of the command -> (what makes its set, tasks)
EXPECTED = {name: (make, ("knn", "linear")) for name, make in _LABELLED.items()}
EXPECTED |= {"photos": (photos, ("rank",)), "scenes": (scenes, ("dense", "rank"))}
PARTS = {"slice": "train[90%:]", "beans": "test"}  # the test split; elsewhere train[80%:]
QUICK = ("photos", "classes", "scans")


@pytest.fixture
def commands(root, tmp_path) -> dict:
    """{name of the run: arguments of `ssl-jax train`, with the sets of the page below tmp_path}."""
    text = (root / "docs" / "own_data.md").read_text().replace("\\\n", " ")
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    found = {}
    for words in (shlex.split(line.replace("/my/", f"{tmp_path}/")) for line in lines):
        arguments = words[words.index("ssl-jax") + 2 :]
        found[arguments[-1].removeprefix("--workdir=runs/")] = arguments[:-1]
    return found


def test_the_page_has_a_command_for_each(commands):
    assert sorted(commands) == sorted(EXPECTED)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in EXPECTED]
)
def test_what_each_command_evaluates(name, commands, root, tmp_path, monkeypatch, capsys):
    make, tasks = EXPECTED[name]
    (place,) = (word.split("=", 1)[1] for word in commands[name] if ".data.dir=" in word)
    make(tmp_path / place.removeprefix(f"{tmp_path}/"))
    if name == "scans":
        text = (root / "docs" / "own_data.md").read_text()
        code = next(block for block in blocks(text, "python") if "class Slices" in block)
        head = "from pathlib import Path\nimport numpy as np\n"
        (tmp_path / "scans.py").write_text(head + code)
        monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["ssl-jax", "show", *commands[name]]) == 0
    text = capsys.readouterr().out
    assert "cannot be opened" not in text
    shown = dict(re.findall(r"^(\S+) +(.*?)  +\S.*$", text, re.MULTILINE))
    assert shown["evals.tasks"] == repr(tasks)
    assert shown[f"evals.{tasks[0]}.data.test_split"] == repr(PARTS.get(name, "train[80%:]"))
    assert shown["run.num_records"] == str(COUNT - COUNT // 10 * (name == "slice"))


@pytest.mark.slow
def test_the_first_command_leaves_pictures(commands, tmp_path, capsys):
    photos(tmp_path / "photos")
    smaller = ["--config=quickstart" if "imagenette" in x else x for x in commands["photos"]]
    keys = ("optim.steps=2", "evals.every_steps=0", "evals.picture_size=0", "model.depth=1")
    arguments = [*smaller, *(f"--config.{key}" for key in keys), f"--workdir={tmp_path}/run"]
    assert cli.main(["ssl-jax", "train", *arguments]) == 0
    text = capsys.readouterr().out
    assert f"skipped: 2 .heic, 1 .txt in {tmp_path}/photos (not read)\n" in text
    pictures = {path.stem for path in (tmp_path / "run" / "pictures").glob("*")}
    assert {"curves", "attention", "pca", "neighbours", "sop_neighbours"} <= pictures
    assert "RankMe" in (tmp_path / "run" / "results.txt").read_text()
