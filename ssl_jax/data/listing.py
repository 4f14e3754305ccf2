"""Files below a folder: listing them, finding those of a split, and matching files by name."""

import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssl_jax.config import InputError, local, reading, reason
from ssl_jax.data.lookup import listed

_NAMED = 3  # files in an error
# What people call a part of a set, and the folders in it; in any case.
_PARTS = (("train", "training"), ("val", "validation", "valid"), ("test", "testing"))
_ALIKE = (*_PARTS, ("images", "image"), ("masks", "mask"), ("annotations", "annotation"))
# What may follow the name of a part: "train2017", "val_images".
_AFTER = re.compile(r"[-_ ]?(?:\d{4}|images?|imgs?|set|data|split)$")
# Of systems, with small pictures of those beside them.
_SYSTEM = ("@eadir", "__macosx", "$recycle.bin", "lost+found")


def alike(name: str, there: Iterable[str]) -> str | None:
    """The name in `there` with the same meaning: itself, or else in another case, or a synonym
    ("Training" or "train2017" for "train"). None if there is none; InputError if there are
    several."""
    there = list(there)
    words = next((words for words in _ALIKE if name.lower() in words), (name.lower(),))
    matches = [name] if name in there else [other for other in there if other.lower() in words]
    matches = matches or [other for other in there if _word(other) in words]
    if len(matches) > 1:
        raise InputError(f"data.split: {name!r} can be {listed(matches)}; name one of them")
    return matches[0] if matches else None


def is_part(name: str) -> bool:
    """Whether this is a usual name of a part of a set."""
    return any(_word(name) in words for words in _PARTS)


def _word(name):
    """A name in small letters; of a part without what follows it."""
    name = name.lower()
    short = _AFTER.sub("", name)
    return short if any(short in words for words in _PARTS) else name


def below(folder: Path, name: str, there: Iterable[str] | None = None) -> Path | None:
    """The subfolder that `name` means, see `alike`. there: the subfolders, if they are known."""
    if (folder / name).is_dir():
        return folder / name
    if there is None:
        there = subfolders(folder) if folder.is_dir() else ()
    match = alike(name, there)
    return None if match is None else folder / match


def files_below(
    root: str | os.PathLike, extensions: tuple[str, ...], left_out: Counter | None = None
) -> list[str]:
    """Sorted relative paths ("/" between parts) of the files with these extensions (in small
    letters; files may have capitals). Hidden ones are left out, links to folders followed.

    left_out: the extensions of all other files are counted here, hidden files and folders as
      "hidden", and further links to folders that have been read.

    Raises InputError for a folder that cannot be listed.
    """
    root = Path(root)
    paths, visited = [], set()

    def fail(error):
        raise InputError(f"data.dir: cannot list {error.filename}: {reason(error)}") from error

    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        kinds = ["hidden" for name in (*subfolders, *files) if _hidden(name)]
        if real in visited:  # a link back to a parent would never end
            subfolders[:], files[:], kinds = [], [], ["further link to a folder"]
        visited.add(real)
        # Sorted, since of two ways to a folder the first one is taken.
        subfolders[:] = sorted(name for name in subfolders if not _hidden(name))
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else relative + "/"
        for name in (name for name in files if not _hidden(name)):
            if name.lower().endswith(extensions):
                paths.append(prefix + name)
            else:
                kinds.append(os.path.splitext(name)[1].lower() or "without extension")
        if left_out is not None:
            left_out.update(kinds)
    return sorted(paths)


def matching(folder: Path, *patterns: str) -> list[Path]:
    """Sorted paths below a folder that fit one of the patterns, without hidden ones."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(p for p in paths if not any(map(_hidden, p.relative_to(folder).parts)))


def text_of(key: str, path: str | os.PathLike) -> str:
    """The text in a file that the key `data.KEY` names. Raises InputError."""
    try:
        return reading.read_text(local(path), "utf-8-sig")  # Windows writes a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"data.{key}: {path} cannot be read: {why}") from error


def lines_of(key: str, path: str | os.PathLike) -> list[str]:
    """The lines of a text file that the key `data.KEY` names, but empty ones. Raises InputError,
    also for one without a line."""
    lines = [line.strip() for line in text_of(key, path).split("\n") if line.strip()]
    if not lines:
        raise InputError(f"data.{key}: {path} is empty; write one name per line")
    return lines


def counted(left_out: Counter) -> str:
    """What was left out as text, most frequent first: "3 .heic, 1 .txt, 2 hidden"."""
    return ", ".join(f"{count} {kind}" for kind, count in left_out.most_common())


def place(root: Path, part: str, split: str) -> Path | None:
    """Where `part` ("images") of a split lies: root/part/split or root/split/part; for "train" also
    root/part. None if there is no such folder."""
    there = subfolders(root) if root.is_dir() else []
    inner, outer = below(root, part, there), below(root, split, there)
    places = [inner and below(inner, split), outer and below(outer, part)]
    return next(filter(None, places), inner if split == "train" else None)


def readable(name: str) -> str:
    """A file name as text that can be printed: bytes that are no UTF-8 become "\\xff"."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def subfolders(root: Path) -> list[str]:
    """Sorted names of the folders in a folder, without hidden ones."""
    with os.scandir(root) as entries:  # asks the disk nothing about a million files
        return sorted(entry.name for entry in entries if entry.is_dir() and not _hidden(entry.name))


def _hidden(name):
    return name.startswith(".") or name.lower() in _SYSTEM


def stem(path: str) -> str:
    """A relative path without its extension: "a/b.jpg" -> "a/b"."""
    return posixpath.splitext(path)[0]


def composed(name: str) -> str:
    """A name as it is compared with others: in Unicode's form NFC. A Mac decomposes what it stores
    ("e" and an accent), other systems do not."""
    return unicodedata.normalize("NFC", name)


def matched(images: Iterable[str], files: Sequence[str], suffix: str = "") -> list[str | None]:
    """For each image the file of the same stem: at the same relative path, or else the only one of
    that name in any folder, if no other image has that name; None if there is none.

    suffix: follows the stem of the image in the name of the file ("_mask": a.jpg, a_mask.png).
    """
    by_path = {composed(stem(path)): path for path in files}
    names = [composed(stem(image) + suffix) for image in images]
    by_name: dict[str, list[str]] = {}
    for path in files:
        by_name.setdefault(posixpath.basename(composed(stem(path))), []).append(path)
    count = Counter(map(posixpath.basename, names))

    def elsewhere(name):
        alike = by_name.get(name, [])
        return alike[0] if len(alike) == count[name] == 1 else None

    return [by_path.get(name) or elsewhere(posixpath.basename(name)) for name in names]


def refuse_missing(
    key: str, what: str, images: Sequence[str], files: Sequence[object | None], hint: str
) -> None:
    """Raises InputError that names the first images without a counterpart, if there are any."""
    missing = [image for image, file in zip(images, files) if file is None]
    if missing:
        raise InputError(
            f"{key}: {len(missing)} of {len(images)} images have no {what}: "
            f"{listed(missing, _NAMED)}; {hint}"
        )
