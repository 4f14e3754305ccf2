"""Paths as users write them."""

import os
from pathlib import Path

from ssl_jax.config.errors import InputError


def local(path: str | os.PathLike) -> Path:
    """A path with "~" resolved. Raises InputError for a user that is not there, and for texts that
    no file can be called."""
    try:
        if "\0" in str(path):
            raise ValueError("a zero byte")
        found = Path(path).expanduser()
        found.exists()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{str(path)[:200]!r} is not a valid path: {error}") from error
    return found


def absolute(path: str | Path) -> Path:
    """The path as it is called from any folder: from the root, "~" and ".." resolved, which
    libraries refuse; links stay. Raises InputError, see `local`."""
    found = local(path).absolute()
    return found.resolve() if ".." in found.parts else found
