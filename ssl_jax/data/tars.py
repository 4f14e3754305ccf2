"""WebDataset tars as a source.

The package `webdataset` reads tars sequentially. Training here reads records by index, so that a
run resumes at any record. Uncompressed tars allow this: the standard library's tarfile gives the
offset of each member, and its bytes are read from there. All headers are read once, when a set is
opened.
"""

import functools
import posixpath
import re
import tarfile
from typing import Any, BinaryIO, NamedTuple

from ssl_jax.config import InputError, local, reading, reason
from ssl_jax.data import classes, kinds, listing
from ssl_jax.data.decode import Unreadable, most_bytes
from ssl_jax.data.labels import checked as checked_labels
from ssl_jax.data.lookup import checked, listed
from ssl_jax.data.stored import Stored, digest_of_names

IMAGES = ("jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "image")
MASKS = ("seg.png", "mask.png", "segmentation.png")
LABELS = ("label", "class", "cls", "category", "target")  # in a .json
_MOST = 2**24  # bytes of a label or json
_HEADER = 2**16  # bytes of a tar's header at most, long names and attributes included
_PARTS = re.compile(
    r"(?<![a-z])(train(?:ing)?|val(?:id|idation)?|test(?:ing)?)(?![a-z])", re.IGNORECASE
)


class _Member(NamedTuple):
    """Where a file lies in a tar."""

    shard: int
    begin: int
    size: int


class Tars(Stored):
    """Samples of WebDataset shards: members "KEY.EXTENSION" that follow each other and share KEY.

    The image of a sample is its "jpg", "png", ... (IMAGES), its label the text in "cls" or one of
    LABELS in its "json", its mask "seg.png" or "mask.png". The section can name other extensions or
    another key of the json. Samples without an image are left out and counted. A split is a folder
    of tars, or the tars with its name in theirs ("train-0000.tar"); if no tar names a split,
    "train" means all tars.
    """

    def __init__(self, section: kinds.Section, split: str):
        """section: the keys that `register` names below; dir is a tar, or a folder of tars.

        Raises:
          InputError: naming shard and sample for a tar that is compressed or broken, a sample
            without a mask where others have one, a label that is no number or text.
        """
        place, self._shards = section["dir"], _shards(section, split)
        shards = range(len(self._shards))
        samples = [sample for n in shards for sample in self._index(n, section["labels"])]
        there = sorted({extension for _, members, _ in samples for extension in members})
        images = [_first(members, section["images"], IMAGES) for _, members, _ in samples]
        if not any(images):
            raise self._lacking("images", section["images"] or ", ".join(IMAGES), there)
        chosen = [sample for sample, image in zip(samples, images) if image is not None]
        self._names = [key for key, _, _ in chosen]
        masks = [_first(members, section["masks"], MASKS) for _, members, _ in chosen]
        self._members = {"image": list(filter(None, images)), "mask": masks}
        missing = len(samples) - len(chosen)
        self.left_out = f"{missing} samples without an image in {place}" if missing else ""
        values = [label for _, _, label in chosen]
        for key, column in {"labels": values, "masks": masks}.items():
            if section[key] and all(value is None for value in column):
                raise self._lacking(key, section[key], there)
        if any(masks) and not all(masks):
            lacking = [self.name(i) for i, mask in enumerate(masks) if mask is None]
            what = f"{len(lacking)} of {len(masks)} samples have none"
            raise InputError(f"data.masks: {what}: {listed(lacking, 3)}")
        labels, class_names = checked_labels(values, self.name)
        given = classes.of_masks(section) if all(masks) else {}
        given["chosen"] = classes.chosen(section)
        self._describe(labels=labels, class_names=class_names, masks=all(masks), **given)
        self._about = [repr(str(place)), repr(split), f"shards={len(shards)}"]
        self._about += self._encoded(section["labels"], section["masks"])

    def _lacking(self, key, name, there):
        """The error that no sample has what a key names."""
        what = "extension or key of its json" if key == "labels" else "extension"
        return InputError(
            f"data.{key}: no sample of {self._shards[0]} has the {what} {name!r}; its extensions:"
            f" {listed(there)}"
        )

    def _index(self, number, key_of_label):
        """[(key, {extension: _Member}, label)] of the samples of a shard, in its order."""
        samples: dict[str, dict[str, _Member]] = {}
        labels: dict[str, dict[str, Any]] = {}
        try:
            # mypy's stubs want an object that also writes.
            with (
                reading.open_regular(self._shards[number]) as file,
                tarfile.open(fileobj=_Headers(file), mode="r:") as tar,  # type: ignore[call-overload]
            ):
                for info in tar:
                    folder, name = posixpath.split(info.name)
                    if info.size < 0 or info.issparse():  # the first would begin again for ever
                        raise tarfile.ReadError(f"its member {info.name} is sparse or broken")
                    if not info.isreg() or name.startswith("."):
                        continue
                    stem, _, extension = name.partition(".")
                    key = listing.readable(posixpath.join(folder, stem))
                    extension = extension.lower()
                    member = _Member(number, info.offset_data, info.size)
                    samples.setdefault(key, {})[extension] = member
                    if extension in ("cls", "json", key_of_label):
                        name = f"{self._shards[number]}/{key}.{extension}"
                        if member.size > _MOST:
                            raise tarfile.ReadError(f"{info.name} has {member.size} bytes")
                        file.seek(member.begin)
                        content = file.read(member.size)
                        label = _label(name, content, extension, key_of_label)
                        labels.setdefault(key, {})[extension] = label
        except InputError:
            raise
        except Exception as error:  # tarfile raises nearly anything for headers that are broken
            raise InputError(
                f"data.dir: {self._shards[number]} cannot be read as a tar: {reason(error)};"
                " it must be complete and not compressed"
            ) from error
        found = {key: _first_label(labels.get(key, {})) for key in samples}
        return [(f"{number}/{key}", members, found[key]) for key, members in samples.items()]

    def _read(self, i: int, part: str) -> bytes:
        member = self._members[part][i]
        try:
            reading.check_size(member.size, most_bytes(self.max_pixels))
            with reading.open_regular(self._shards[member.shard]) as file:
                file.seek(member.begin)
                data = file.read(member.size)
        except OSError as error:
            raise Unreadable(self.name(i), reason(error)) from error
        if len(data) < member.size:
            raise Unreadable(self.name(i), "the tar has become shorter since it was opened")
        return data

    def __len__(self):
        return len(self._names)

    def name(self, i: int) -> str:
        shard, _, key = self._names[checked(i, len(self))].partition("/")
        return f"{self._shards[int(shard)]}/{key}"

    def _files_of(self, i):
        return [self._shards[int(self._names[i].partition("/")[0])]]

    def names_digest(self) -> str:
        """See `Source.names_digest`."""
        return self._names_digest

    @functools.cached_property  # a start asks three times, and a set can have a million names
    def _names_digest(self):
        return digest_of_names(self.list_names())

    def list_names(self) -> list[str]:
        """What `data.list` may name: the key of each sample."""
        return [name.partition("/")[2] for name in self._names]


class _Headers:
    """A tar of which no more is read at once than a header: sizes in it may lie."""

    def __init__(self, file: BinaryIO):
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        """So many bytes."""
        if not 0 <= size <= _HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)


def parts(section: kinds.Section) -> list[str]:
    """Names of the parts that the tars of a folder have."""
    place = local(section["dir"])
    if place.is_file():
        return []
    named = [_PARTS.search(path.name) for path in listing.matching(place, "*.tar")]
    folders = [path.parent.name for path in listing.matching(place, "*/*.tar")]
    return sorted({*folders, *(match[1] for match in named if match)})


def _shards(section, split) -> list[str]:
    """Paths of the tars of a split."""
    place = local(section["dir"])
    if place.is_file():
        shards = [place] if split == "train" else []
    else:
        split = listing.alike(split, parts(section)) or split
        tars = listing.matching(place, "*.tar")
        inside = listing.matching(place / split, "*.tar")
        named = [path for path in tars if split in _PARTS.findall(path.name)]
        divided = any(_PARTS.search(path.name) for path in tars)
        shards = inside or named or (tars if split == "train" and not divided else [])
    if not shards:
        there = listed(parts(section)) if place.exists() else "it does not exist"
        raise InputError(
            f"data.split: {place} has no tar of the part {split!r}; parts: {there}; to hold out a"
            ' part, use a slice such as "train[90%:]"'
        )
    return list(map(str, shards))


def _first(members, name, usual):
    """The member with the wanted extension, or the first with a usual one; None without one."""
    names = (name,) if name else usual
    return next((members[name] for name in names if name in members), None)


def _first_label(labels):
    """Of a sample's labels {extension: label} the one in "cls", or else the first one."""
    every = (labels.get("cls"), *labels.values())
    return next((label for label in every if label is not None), None)


def _label(name, content, extension, key):
    """The label in a member's bytes; None if it holds none."""
    try:
        text = content.decode("utf-8")
        if extension != "json":
            return _number(text.strip()) if not key or key == extension else None
        fields = reading.parse_json(text)
        found = [fields[name] for name in ((key,) if key else LABELS) if name in fields]
        usable = [value for value in found if key or isinstance(value, str | int | float)]
        value = usable[0] if usable else None
        if not isinstance(value, str | int | float | None) or value != value:
            raise ValueError(f"labels must be numbers or strings, not {value!r:.99}")
    except (UnicodeDecodeError, ValueError, TypeError) as error:
        raise InputError(f"data.labels: {name} cannot be read: {error}") from error
    return _number(value) if isinstance(value, str) else value


def _number(text):
    """A text of digits as a number, any other as it is."""
    return int(text) if text.removeprefix("-").isdecimal() else text or None


kinds.register("webdataset", Tars, parts=parts, classes="numbers", **kinds.COLUMNS)
