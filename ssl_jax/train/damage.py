"""Distinguishes damaged checkpoints, which may be moved away, from intact ones that cannot be read
for another reason and must stay.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ssl_jax.config import InputError
from ssl_jax.train import log

# TensorStore's errors about missing or changed bytes, from its checksums and decoders.
_CONTENT = re.compile("DATA_LOSS|NOT_FOUND|OUT_OF_RANGE|Error decoding|ZSTD_")
_MACHINE = re.compile("resource_exhausted|out of memory|permission.denied|unavailable", re.I)
# Errors of the reading code for a file whose field names have changed.
_STRANGE = (KeyError, IndexError, AttributeError, TypeError)


class Damaged(InputError):
    """A checkpoint differs from what was saved: files are missing or truncated, bits have changed,
    or its parts come from different checkpoints."""


class NotAsSaved(ValueError):
    """A checksum is wrong, or a file is missing or truncated."""


@contextlib.contextmanager
def named(path: Path, versions: Mapping[str, str | None] | None = None) -> Iterator[None]:
    """Turns errors while reading the checkpoint at `path` into one line: Damaged, or InputError if
    nothing proves damage.

    versions: those of the packages that wrote it. If they equal the installed ones, a checkpoint
    that these do not understand has changed.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if _is_damage(error, versions == log.versions()):
            raise Damaged(f"checkpoint {path} is damaged: {first_line(error)}") from error
        raise InputError(
            f"checkpoint {path} cannot be read and was left in place: {first_line(error)}"
        ) from error


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and its causes."""
    return [] if error is None else [error, *chain(error.__cause__ or error.__context__)]


def is_of_machine(error: Exception) -> bool:
    """Whether memory, permissions or a disk are at fault."""
    return any(
        isinstance(e, MemoryError)
        or (isinstance(e, OSError) and not isinstance(e, FileNotFoundError))
        or _MACHINE.search(str(e))
        for e in chain(error)
    )


def _is_damage(error: Exception, same_versions: bool) -> bool:
    if is_of_machine(error):
        return False
    changed = (NotAsSaved, FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError)
    if any(isinstance(e, changed) or _CONTENT.search(str(e)) for e in chain(error)):
        return True
    return same_versions and isinstance(error, _STRANGE)


def first_line(error: Exception) -> str:
    """The first line of an error, prefixed with its class unless it is a NotAsSaved."""
    lines = str(error).strip().splitlines() or [""]
    ours = isinstance(error, NotAsSaved)
    return (lines[0] if ours else f"{type(error).__name__}: {lines[0]}")[:300]


def compare(computed: dict[str, str], saved: dict[str, str] | None) -> None:
    """Raises NotAsSaved, naming the arrays whose checksum differs from the saved one. saved: None
    if the checkpoint has no checksums."""
    wrong = [name for name in computed if saved is not None and saved.get(name) != computed[name]]
    if wrong:
        rest = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise NotAsSaved(f"wrong checksum of {', '.join(wrong[:3])}{rest}")


def check_files(folder: Path) -> None:
    """Reads one byte of each file and array chunk. Raises NotAsSaved, naming the array, if a chunk
    is missing or truncated, and OSError for a file that cannot be read.

    Without this check, one unreadable array makes Orbax print tracebacks of all the others, and
    some unreadable files fail later without their names.
    """
    import tensorstore  # Orbax's array store

    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                file.read(1)
    store = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    ).result()
    pieces = {key: store.read(key, byte_range=slice(-1, None)) for key in store.list().result()}
    missing = [key.decode() for key, read in pieces.items() if not read.result().value]
    if missing or not pieces:
        raise NotAsSaved(f"{folder} holds no data of {missing[0] if missing else 'any array'}")
