"""Paths written by users."""

import os
from pathlib import Path

from ssl_jax.config.errors import InputError


def local(path: str | os.PathLike) -> Path:
    """A path with "~" resolved. Raises InputError for an unknown user, and for strings that are not
    valid file names."""
    try:
        if "\0" in str(path):
            raise ValueError("a zero byte")
        expanded = Path(path).expanduser()
        expanded.exists()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{str(path)[:200]!r} is not a valid path: {error}") from error
    return expanded


def absolute(path: str | Path) -> Path:
    """The absolute path, with "~" and ".." resolved, which libraries refuse. Other links are kept.
    Raises InputError, see `local`."""
    full = local(path).absolute()
    return full.resolve() if ".." in full.parts else full
