"""Files that appear whole or not at all."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ssl_jax.config import InputError

UNFINISHED = ".ssl_jax-part"  # ends the names of files that a killed process did not finish


def check(path: Path) -> None:
    """Raises InputError if no file can be made at `path`, whose missing folders `replacing`
    makes."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: {folder} is not a folder you can write to")


def present(folder: Path) -> set[str]:
    """Names of the finished files in a folder, which may be missing."""
    files = folder.iterdir() if folder.is_dir() else ()
    return {file.name for file in files if file.suffix != UNFINISHED}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; at the end of the block the new file becomes `path`. If the
    block fails, or the process is killed, `path` is as before."""
    path = path.resolve()  # of a link, the file that it means
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def as_json(value: Any) -> bytes:
    """The content of a JSON file for people."""
    return f"{json.dumps(value, indent=2)}\n".encode()


def replace(files: dict[Path, bytes]) -> None:
    """Writes all files before the first of them takes its place, in their order."""
    with contextlib.ExitStack() as stack:
        for path, content in reversed(files.items()):  # a stack closes the last one first
            stack.enter_context(replacing(path)).write_bytes(content)
