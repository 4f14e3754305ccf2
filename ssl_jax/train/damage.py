"""Whether a checkpoint is damaged: what is not as it was saved may be moved out of the way, and
nothing else, whatever keeps it from being read.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ssl_jax.config import InputError
from ssl_jax.train import log

# What TensorStore says of bytes that are gone, or not those it wrote: its checksums and decoders.
_CONTENT = re.compile("DATA_LOSS|NOT_FOUND|OUT_OF_RANGE|Error decoding|ZSTD_")
_MACHINE = re.compile("resource_exhausted|out of memory|permission.denied|unavailable", re.I)
# What a file with other names than were written makes of the code that reads it.
_STRANGE = (KeyError, IndexError, AttributeError, TypeError)


class Damaged(InputError):
    """A checkpoint is not what was saved: files are missing or cut short, bits have changed, or its
    parts are of different ones."""


class NotAsSaved(ValueError):
    """A checksum, or a file that is missing or cut short."""


@contextlib.contextmanager
def named(path: Path, versions: Mapping[str, str | None] | None = None) -> Iterator[None]:
    """Turns what goes wrong while the checkpoint in `path` is read into one line: Damaged, or an
    InputError where nothing shows that it is.

    versions: of the packages that wrote it. The same ones can read what they wrote, so that what
    they do not understand has changed.
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
    """An error and those that it was made of."""
    return [] if error is None else [error, *chain(error.__cause__ or error.__context__)]


def is_of_machine(error: Exception) -> bool:
    """Whether memory, rights or a disk are at fault."""
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
    """What an error says, without its class where we raised it ourselves."""
    lines = str(error).strip().splitlines() or [""]
    ours = isinstance(error, NotAsSaved)
    return (lines[0] if ours else f"{type(error).__name__}: {lines[0]}")[:300]


def compare(computed: dict[str, str], saved: dict[str, str] | None) -> None:
    """Raises NotAsSaved that names arrays with another checksum than was saved; None: there is
    none."""
    wrong = [name for name in computed if saved is not None and saved.get(name) != computed[name]]
    if wrong:
        rest = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise NotAsSaved(f"wrong checksum of {', '.join(wrong[:3])}{rest}")


def check_files(folder: Path) -> None:
    """Raises NotAsSaved that names a file or array if something of the saved arrays is missing or
    cut short, and OSError for a file that cannot be read; reads a byte of each file and piece.

    Orbax reads all arrays at once, and when one fails the others fill stderr with tracebacks around
    the line that matters; other files it passes over, and fails later without their names.
    """
    import tensorstore  # what Orbax stores arrays with

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
