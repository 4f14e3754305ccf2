"""Files that appear whole or not at all."""

import pytest

from ssl_jax.config import InputError
from ssl_jax.runtime import writing


def test_a_failure_leaves_the_files_as_they_were(tmp_path):
    old, new = tmp_path / "old", tmp_path / "made" / "new"
    old.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), writing.replacing(old) as path:
        path.write_bytes(b"half")
        raise ZeroDivisionError
    (tmp_path / "folder").mkdir()
    for files in (
        {old: b"after", tmp_path / "folder" / "a" / "b": None},
        {old: b"", old / "a": b""},
    ):
        with pytest.raises((TypeError, OSError)):
            writing.replace(files)
    assert old.read_bytes() == b"before"
    writing.replace({old: b"after", new: b"1"})
    assert (old.read_bytes(), new.read_bytes()) == (b"after", b"1")
    assert writing.present(tmp_path) == {"old", "folder", "made"}
    assert not [path for path in tmp_path.rglob("*") if path.suffix == writing.UNFINISHED]
    (tmp_path / "link").symlink_to(old)
    writing.replace({tmp_path / "link": b"2"})
    assert old.read_bytes() == b"2"


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    writing.check(tmp_path / "a" / "b" / "c")
    with pytest.raises(InputError, match="file"):
        writing.check(tmp_path / "file" / "b")
    assert not (tmp_path / "a").exists()
