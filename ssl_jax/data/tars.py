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
from typing import BinaryIO, NamedTuple

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
_LINKS = 16  # that may lead to a file one after the other
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
        shards, self._others = range(len(self._shards)), 0
        keys = section["labels"], section["images"]
        samples = [sample for n in shards for sample in self._index(n, *keys)]
        there = sorted({extension for _, members, _ in samples for extension in members})
        images = [_first(members, section["images"], IMAGES) for _, members, _ in samples]
        if not any(images):
            raise self._lacking("images", section["images"] or ", ".join(IMAGES), there)
        chosen = [sample for sample, image in zip(samples, images) if image is not None]
        self._names = [key for key, _, _ in chosen]
        masks = [_first(members, section["masks"], MASKS) for _, members, _ in chosen]
        self._members = {"image": list(filter(None, images)), "mask": masks}
        missing = {"samples without an image": len(samples) - len(chosen)}
        missing["members that are neither files nor links to one"] = self._others
        counts = [f"{count} {what} in {place}" for what, count in missing.items() if count]
        self.left_out = "; ".join(counts)
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

    def _index(self, number, key_of_label, key_of_image):
        """[(key, {extension: _Member}, label)] of the samples of a shard, in its order. Counts in
        `_others` members that are neither files nor links to one."""
        path = self._shards[number]
        files: dict[str, _Member] = {}
        links: dict[str, str] = {}
        samples: dict[str, dict[str, str]] = {}  # {key: {extension: name of the member}}
        twice: dict[str, str] = {}  # {key: an extension of two members}
        try:
            # mypy's stubs want an object that also writes.
            with (
                reading.open_regular(path) as file,
                tarfile.open(fileobj=_Headers(file), mode="r:") as tar,  # type: ignore[call-overload]
            ):
                for info in tar:
                    if info.size < 0 or info.issparse():  # the first would begin again for ever
                        raise tarfile.ReadError(f"its member {info.name} is sparse or broken")
                    name = posixpath.normpath(info.name)
                    if info.isreg():
                        files[name] = _Member(number, info.offset_data, info.size)
                    elif info.islnk() or info.issym():
                        # A symbolic link is relative to its folder.
                        folder = posixpath.dirname(name) if info.issym() else ""
                        links[name] = posixpath.normpath(posixpath.join(folder, info.linkname))
                    else:
                        self._others += not info.isdir()
                        continue
                    folder, base = posixpath.split(info.name)
                    if base.startswith("."):
                        continue
                    stem, _, extension = base.partition(".")
                    key = listing.readable(posixpath.join(folder, stem))
                    names = samples.setdefault(key, {})
                    if extension.lower() in names:
                        twice[key] = extension
                    names[extension.lower()] = name
                result = []
                for key, names in samples.items():
                    if key in twice and _first(names, key_of_image, IMAGES):
                        raise InputError(
                            f"data.dir: {path} has the member {key}.{twice[key]} twice; remove one"
                        )
                    found = {end: _followed(name, files, links) for end, name in names.items()}
                    members = {end: member for end, member in found.items() if member is not None}
                    self._others += len(found) - len(members)
                    if members:
                        label = _label_of(file, f"{path}/{key}", members, key_of_label)
                        result.append((f"{number}/{key}", members, label))
                return result
        except InputError:
            raise
        except Exception as error:  # tarfile raises nearly anything for headers that are broken
            raise InputError(
                f"data.dir: {path} cannot be read as a tar: {reason(error)};"
                " it must be complete and not compressed"
            ) from error

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


def _followed(name, files, links):
    """The file that a member is or links to, by way of other links; None where there is none."""
    for _ in range(_LINKS):
        name = links.get(name, name)
    return files.get(name)


def _label_of(file, name, members, key):
    """The label of a sample: of those in its members the one in "cls", or else the first one; None
    without one."""
    labels = {}
    for extension, member in members.items():
        if extension in ("cls", "json", key):
            if member.size > _MOST:
                raise tarfile.ReadError(f"{name}.{extension} has {member.size} bytes")
            file.seek(member.begin)
            content = file.read(member.size)
            labels[extension] = _label(f"{name}.{extension}", content, extension, key)
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
