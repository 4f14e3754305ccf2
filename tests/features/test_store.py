"""Entries of the store, whose notes anybody may have written."""

import errno
import fcntl
import json
import os

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.features.store import Entry
from ssl_jax.runtime import lock


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["arrays"].update({"../../precious": [[3], "int64"]}),
        lambda meta: meta.update(arrays=[]),
        lambda meta: meta.pop("key"),
    ],
)
def test_notes_that_are_no_ones_own_are_refused_and_remove_nothing(change, tmp_path):
    precious = tmp_path / "precious.npy"
    np.save(precious, np.arange(3))
    entry = Entry(tmp_path / "folder" / "entry", {"network": "a"})
    with entry.new() as folder:
        entry.finish(folder, {"image": np.zeros((2, 3))}, skipped=[])
    file = tmp_path / "folder" / "entry" / "meta.json"
    meta = json.loads(file.read_text())
    change(meta)
    file.write_text(json.dumps(meta))
    for use in (entry.read, entry.remove):
        with pytest.raises(InputError, match="meta.json"):
            use()
    assert precious.exists() and (file.parent / "image.npy").exists()


def _stored(path):
    entry = Entry(path, {"network": "a"})
    with entry.new() as folder:
        entry.finish(folder, {"image": np.zeros((2, 3))}, skipped=[])
    return entry


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_disk_that_fails_damages_nothing(number, tmp_path, monkeypatch):
    entry = _stored(tmp_path / "entry")

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    for owner, name in ((np, "load"), (os, "open")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(OSError) as told:
                entry.read()
        assert told.value.errno == number
    arrays, _ = entry.read()
    assert arrays["image"].shape == (2, 3)
    (entry.path / "image.npy").write_bytes(b"")
    with pytest.raises(InputError, match="image.npy"):
        entry.read()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    """A temporary folder with the lock of a process that has ended, if it is of an old date. What
    the disk holds for another machine is not waited for."""
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: pytest.fail("waits"))

    def unfinished(name):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "image.npy", np.zeros(3))
        mine = lock.Lock(tmp_path)._mine | {"process": 2**22 + 1, "flock": False}
        (folder / lock.FILE).write_text(json.dumps(mine))
        os.utime(folder / lock.FILE, (1, 1))
        return folder

    dead, alien = unfinished(".0a_abcdefgh"), unfinished(".my_abcdefgh")
    alive = unfinished(".0b_abcdefgh")
    held = lock.Lock(alive, lambda line: None).take()
    os.utime(alive / lock.FILE, (1, 1))
    more, recent = unfinished(".0c_abcdefgh"), unfinished(".0d_abcdefgh")
    (more / "mine.txt").write_text("mine")
    os.utime(recent / lock.FILE)
    away = unfinished(".0f_abcdefgh") / lock.FILE
    away.write_text(json.dumps({"host": "away", "boot": "b", "process": 1, "flock": True}))
    os.utime(away, (1, 1))
    with away.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _stored(tmp_path / "0e")
    held.release()
    assert not dead.exists() and (more / "mine.txt").exists()
    assert all((folder / "image.npy").exists() for folder in (alien, alive, recent, away.parent))
