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
        expanded = Path(path).expanduser()
        expanded.exists()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{str(path)[:200]!r} is not a valid path: {error}") from error
    return expanded


def absolute(path: str | Path) -> Path:
    """The path as it is called from any folder: from the root, "~" and ".." resolved, which
    libraries refuse; links stay. Raises InputError, see `local`."""
    full = local(path).absolute()
    return full.resolve() if ".." in full.parts else full
