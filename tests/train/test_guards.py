"""guards.py: what is counted and listed."""

import os

import numpy as np
import pytest

from ssl_jax.data.folder import Folder
from ssl_jax.train import guards
from tests.data.records import save

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)


def batch(index, replaced):
    return {"index": np.array(index), "replaced": np.array(replaced)}


def test_unreadable_images_are_listed_once_with_their_reason(tmp_path, capsys):
    """Also one whose name is no UTF-8, or has the characters that divide the list."""
    names = [os.fsdecode(b"1_caf\xe9.png"), "2_a\tb\nc.png", "3.png"]
    images, workdir = tmp_path / "images", tmp_path / "run"
    workdir.mkdir()
    for name, image in zip(names, IMAGES, strict=True):
        try:
            save(images / name, image)
        except OSError:
            pytest.skip("this file system knows only UTF-8")
    for name in names[:2]:
        (images / name).write_bytes((images / name).read_bytes()[:40])
    folder = Folder(images)
    for _ in range(2):  # a run that goes on knows what was listed
        listed = guards.Unreadable(workdir, folder)
        listed.note(batch([0, 2], [True, False]))
        listed.note(batch([1, 0], [True, True]))
    lines = (workdir / "unreadable.txt").read_text("utf-8").split("\n")
    assert lines.pop() == "" and len(lines) == 2
    assert [line.split("\t")[0] for line in lines] == [
        f"{images}/1_caf\\xe9.png",
        f"{images}/2_a\\tb\\nc.png",
    ]
    assert all(line.split("\t")[1] for line in lines)
    out = capsys.readouterr().out
    assert out.count("cannot read") == 2 and "1_caf\\xe9.png (" in out
