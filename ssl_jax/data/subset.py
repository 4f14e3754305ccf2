"""Some records of another source: those that a list names, or a slice of a split."""

import hashlib
import os
import posixpath
import re
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base, listing
from ssl_jax.data.lookup import checked, listed

_NAMED = 3  # unknown names in an error


class Subset(base.Wrapper):
    """The records `indices` of a source, in this order."""

    def __init__(self, source: Any, indices: Sequence[int] | np.ndarray, what: str = ""):
        """what: says in messages which records these are."""
        super().__init__(source)
        self._indices = np.asarray(indices, np.int64)
        number = zlib.crc32(self._indices.astype("<i8").tobytes())  # other records, another repr
        self._checksum = f"{number:08x}"
        self._what = f"{what or 'records'}, {len(self._indices)} images, {self._checksum}"
        if self.image_ids is not None:
            self.image_ids = tuple(self.image_ids[i] for i in self._indices)
        for fact in ("unlabelled", "unmasked"):
            rows = np.flatnonzero(np.isin(self._indices, getattr(self, fact)))
            setattr(self, fact, rows.tolist())
        self.sequences = None  # their frames would no longer follow each other

    def _index(self, i: int) -> int:
        return int(self._indices[checked(i, len(self))])

    def __len__(self):
        return len(self._indices)

    def __getitem__(self, i):
        return self._source[self._index(i)]

    def name(self, i: int) -> str:
        return self._source.name(self._index(i))

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i, as the source finds it."""
        return self._source.shape(self._index(i))

    def list_names(self) -> Sequence[str] | None:
        """Those of these records."""
        names = self._source.list_names()
        return None if names is None else [names[i] for i in self._indices]

    def names_digest(self) -> str:
        """That of the source, and of the choice of records."""
        return f"{self._source.names_digest()}, {self._checksum}"

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """That of these records of the source."""
        return self._source.fingerprint(self._indices[indices])

    def __repr__(self):
        return f"Subset({self._source!r}, {self._what})"


class Relabelled(Subset):
    """All records of a source, with labels (or labels of boxes) that are numbers of `names`, among
    them the names of its classes."""

    def __init__(self, source: Any, names: Sequence[str], boxes: bool = False):
        text = "\n".join(names).encode("utf-8", "surrogateescape")
        what = "classes of boxes" if boxes else "classes"
        super().__init__(source, range(len(source)), f"{what} {zlib.crc32(text):08x}")
        number = {name: i for i, name in enumerate(names)}
        own = (box_names if boxes else class_names)(source) or ()
        self._number = np.array([*(number[name] for name in own), -1], np.int32)  # -1 stays -1
        self._names, self._boxes = tuple(names), boxes
        if boxes:
            self.box_names, self.num_box_classes = self._names, len(names)
        else:
            self.class_names, self.num_classes = self._names, len(names)

    def __getitem__(self, i):
        record = super().__getitem__(i)
        fields = ("box_labels", "crowd_labels") if self._boxes else ("label",)
        new = {key: self._number[np.asarray(record[key], int)] for key in fields if key in record}
        return record | new

    @property
    def unresized(self) -> base.Source:
        """See `Source.unresized`."""
        inner = self._source.unresized
        return self if inner is self._source else Relabelled(inner, self._names, self._boxes)


def boxes_like(source: Any, other: Any) -> Any:
    """The source, with the classes of its boxes numbered as in another part of the set; unchanged
    if that lacks one of them."""
    names = box_names(other)
    own = box_names(source)
    if not own or not names or own == names or not set(own) <= set(names):
        return source
    return Relabelled(source, names, boxes=True)


def box_names(source: Any) -> tuple[str, ...] | None:
    """Names of the classes of boxes as they are compared, None if they have none."""
    return tuple(map(listing.composed, source.box_names)) if source.box_names else None


def class_names(source: Any) -> tuple[str, ...] | None:
    """Names of the label classes as they are compared; their numbers if the source has no names."""
    if source.num_classes is None:
        return None
    names = source.class_names or map(str, range(source.num_classes))
    return tuple(map(listing.composed, names))


def numbered_alike(train: Any, test: Any, numbers: bool) -> tuple[Any, Any]:
    """Gives a class the same number, that of `train`, in two parts of a set that each number the
    classes that they hold.

    numbers: whether classes that only `test` has are added, if all names are numbers. Otherwise
    parts with different classes stay as they are.
    """
    ours, theirs = class_names(train), class_names(test)
    if ours is None or theirs is None or ours == theirs:
        return train, test
    if not set(theirs) <= set(ours):
        if not numbers or not all(name.isdecimal() for name in (*ours, *theirs)):
            return train, test
        ours = tuple(sorted({*ours, *theirs}, key=int))
    parts = (
        part if class_names(part) == ours else Relabelled(part, ours) for part in (train, test)
    )
    return next(parts), next(parts)


def split_name(split: str) -> tuple[str, bool]:
    """The name in a split, and whether the split is a slice: "train[:90%]" -> ("train", True)."""
    name, bracket, _ = split.partition("[")
    return name, bool(bracket)


def remainder(split: str) -> str:
    """The rest of a part after a slice at its beginning or end: "train[:90%]" -> "train[90%:]"; ""
    for all other slices."""
    match = re.fullmatch(r"([^\[]+)\[(\d+%?)?:(\d+%?)?\]", split)
    if match is None or (match[2] is None) == (match[3] is None):
        return ""
    name, begin, end = match.groups()
    return f"{name}[:{begin}]" if end is None else f"{name}[{end}:]"


def sliced(source: Any, split: str) -> Subset:
    """The records of a slice such as "train[:90%]", "train[100:]" or "train[:10%]+train[90%:]", in
    TFDS's syntax.

    Sorted names would put the images of a class side by side, so a slice is taken in the order of
    the hashes (BLAKE2b) of the records' names, or of their indices if they have no names. So a
    slice holds images of all classes; [:90%] and [90%:] share no record and cover all of them;
    every machine gets the same slice; and added or removed files move few others to another slice.
    The records of a slice are in the order of the source.

    Raises:
      InputError: no slice of this form, or one without a record.
    """
    from tensorflow_datasets.core import splits  # a second, only for those who use it

    name = split_name(split)[0]
    whole = splits.SplitInfo(name="part", shard_lengths=[len(source)], num_bytes=0)
    # A folder may have a name that TFDS does not allow.
    spec = re.sub(rf"(^|\+){re.escape(name)}\[", r"\1part[", split)
    try:
        spans = splits.AbstractSplit.from_spec(spec).to_absolute({"part": whole})
    # Several classes of error, and their texts have several lines.
    except Exception as error:
        raise InputError(
            f"data.split: {split!r} is not a slice of the {len(source)} records of {name!r}; write"
            f" {name}[:90%], {name}[100:200] or {name}[:10%]+{name}[90%:]"
        ) from error
    names = source.list_names() or list(map(str, range(len(source))))
    hashes = [hashlib.blake2b(os.fsencode(name), digest_size=16).digest() for name in names]
    order = np.array(sorted(range(len(source)), key=lambda i: (hashes[i], i)))
    chosen = np.concatenate([order[span.from_ : span.to] for span in spans])
    if not len(chosen):
        raise InputError(f"data.split: {split!r} of {source} holds no records")
    return Subset(source, np.unique(chosen), f"split={split!r}")


def listed_records(source: Any, path: str) -> Subset:
    """The records of a source that a text file names, one a line, in the order of the source.

    A line is a file name ("n01440764_10026.JPEG"), an id, or a relative path, with or without its
    extension; if it is a whole relative path or id, it means that record alone. This is the format
    of SimCLR's lists of 1 % and 10 % of ImageNet.

    Raises:
      InputError: no such file, a name that the source does not know or knows several times.
    """
    lines = dict.fromkeys(map(listing.composed, listing.lines_of("list", path)))
    names = source.list_names()
    if names is None:
        raise InputError(f"data.list: {path}: the records of {source} have no file name or id")
    places = _places(names, lines)
    unknown = [name for name in lines if name not in places]
    if unknown:
        raise InputError(
            f"data.list: {len(unknown)} of {len(lines)} names in {path} are not in {source}:"
            f" {listed(unknown, _NAMED)}; names there look like {names[0]!r}"
        )
    twice = [name for name in lines if places[name] < 0]
    if twice:
        raise InputError(
            f"data.list: {listed(twice, _NAMED)} in {path}: several records of {source} have this"
            " name; write relative paths"
        )
    return Subset(source, sorted({places[name] for name in lines}), f"list={path!r}")


def _places(names: Sequence[str], lines: Collection[str]) -> dict[str, int]:
    """{wanted name: its record, -1 if there are several}, without those that nothing is called."""
    names = list(map(listing.composed, names))
    whole: dict[str, int] = {}
    parts: dict[str, int] = {}
    for i, name in enumerate(names):
        file = posixpath.basename(name)
        for form in {name, file, posixpath.splitext(name)[0], posixpath.splitext(file)[0]}:
            if form in lines:
                places = whole if form == name else parts
                places[form] = i if places.get(form, i) == i else -1
    return parts | whole
