"""Base classes of all sources; `source` describes the protocol."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError, full_reason
from ssl_jax.data import foreign
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked

_NAMED = 5  # unreadable records in an error


class Source:
    """A source with the defaults of the protocol: no labels, masks or boxes, images of any size."""

    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    unlabelled: Sequence[int] = ()
    unmasked: Sequence[int] = ()
    has_masks: bool = False
    mask_names: Sequence[str] | None = None
    has_boxes: bool = False
    num_box_classes: int | None = None
    box_names: Sequence[str] | None = None
    size: tuple[int, int] | None = None
    channels: int = 3
    floats: bool = False
    sequences: Mapping[str, range] | None = None
    image_ids: Sequence[int] | None = None
    annotations: str | None = None
    left_out: str = ""
    place: str = ""  # where the images are, for people; repr tells sources apart

    def __str__(self) -> str:
        return self.place or repr(self)

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> dict[str, Any]:
        raise NotImplementedError

    def name(self, i: int) -> str:
        raise NotImplementedError

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i; decodes it if there is no cheaper way. Raises decode.Unreadable."""
        if self.size is not None:
            return self.size
        height, width = self[i]["image"].shape[:2]
        return height, width

    def list_names(self) -> Sequence[str] | None:
        """The names that `data.list` may contain, one for each record; None: records have none."""
        return None

    def names_digest(self) -> str:
        """A digest of the names of all records, by which a run is resumed on the same images; "" if
        names are mere numbers."""
        return ""

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """A digest that changes with records: with their names, labels, and the sizes and dates of
        their files; "" if these are not known."""
        return ""

    @property
    def unresized(self) -> "Source":
        """The source of the records as they were before they were resized; itself where none
        are."""
        return self

    def image_bytes(self, size: tuple[int, int]) -> int:
        """Bytes that an image of (H, W) pixels takes in memory."""
        return math.prod(size) * self.channels * (4 if self.floats else 1)


# What a source knows of all its records; one that wraps another has the same.
FACTS = tuple(Source.__annotations__)


class Wrapper(Source):
    """The records of another source, with its facts; a subclass changes some of either."""

    def __init__(self, source: Any):
        """source: is adopted, see `adopt`."""
        self._source = adopt(source)
        for fact in FACTS:
            setattr(self, fact, getattr(self._source, fact))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._source[i]

    def name(self, i: int) -> str:
        return self._source.name(i)

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i, without decoding it where the source can do so."""
        return self.size if self.size is not None else self._source.shape(i)

    def list_names(self) -> Sequence[str] | None:
        """Those of the source."""
        return self._source.list_names()

    def names_digest(self) -> str:
        """That of the source."""
        return self._source.names_digest()

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """That of the source."""
        return self._source.fingerprint(indices)

    def __repr__(self) -> str:
        return repr(self._source)


def names_of(classes: Iterable | Mapping[Any, int]) -> tuple[str, ...]:
    """Names of classes in the order of their numbers, from names or {name: number}."""
    if isinstance(classes, Mapping):
        classes = sorted(classes, key=classes.__getitem__)
    return tuple(map(str, classes))


def _is_several(value):
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _is_size(value):
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(x, int | np.integer) for x in value)
    )


# Attributes of somebody else's object that are called like facts and mean something else are not
# used: `self.size = 224` is common.
_NAMES = ("class_names", "mask_names", "box_names")
_USABLE: dict[str, Callable[[Any], bool]] = {
    "size": _is_size,
    "sequences": lambda value: isinstance(value, Mapping),
    **dict.fromkeys(("annotations", "place", "left_out"), lambda value: isinstance(value, str)),
    **dict.fromkeys((*_NAMES, "unlabelled", "unmasked", "image_ids"), _is_several),
}


class Adopted(Wrapper):
    """An object of somebody else's, in which all but its length and its records may be missing, see
    `adopt`.

    strict: whether a label that is no class is an error. Otherwise it is left out if it is no whole
    number, and refused by those who use labels if it is too large.
    """

    _source: Any

    def __init__(
        self, source: Any, title: str, channels: int | None = None, *, strict: bool = False
    ):
        """Raises InputError for an object without len() or records by index."""
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise InputError(
                f"records must be an object with len() and records by index, but {title} is not"
            )
        self._source, self._title, self._strict = source, title, strict
        for fact in FACTS:
            value = getattr(source, fact, None)
            usable = value is not None and _USABLE.get(fact, lambda value: True)(value)
            setattr(self, fact, value if usable else getattr(Source, fact))
        for fact in _NAMES:
            if (names := getattr(self, fact)) is not None:
                setattr(self, fact, names_of(names) or None)
        self.channels = channels or self.channels
        classes: Any = getattr(source, "classes", None)  # torchvision's
        if isinstance(classes, int) and self.num_classes is None:
            self.num_classes = classes
        elif _is_several(classes) and self.class_names is None:
            self.class_names = names_of(classes)
        if self.num_classes is None and self.class_names:
            self.num_classes = len(self.class_names)
        if self.num_classes is not None and not len(self.unlabelled):
            targets = getattr(source, "targets", None)
            self.unlabelled = foreign.unlabelled(targets, len(source))

    def __getitem__(self, i: int) -> dict[str, Any]:
        i = checked(i, len(self))
        try:
            record = foreign.record(self._source[i], self.channels)
        except (Unreadable, InputError):
            raise
        # Whatever their reader raises for a file that is broken or gone.
        except Exception as error:
            raise Unreadable(self.name(i), full_reason(error)) from error
        if "label" in record:
            given, classes = record.pop("label"), self.num_classes
            label = foreign.label(given, classes is not None)
            if self._strict and classes is not None and (label is None or label >= classes):
                raise InputError(
                    f"{self.name(i)} has the label {given!r}; it must be a whole number from 0 to"
                    f" {classes - 1}, or None"
                )
            record |= {} if label is None else {"label": label}
        return record

    def _call(self, name, default, *arguments):
        """What the method of that name returns; the default where the object has none."""
        method = getattr(self._source, name, None)
        return method(*arguments) if callable(method) else default

    def name(self, i: int) -> str:
        return str(self._call("name", f"{self._title}/{i}", i))

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i."""
        return self._call("shape", None, i) or Source.shape(self, i)

    def list_names(self) -> Sequence[str] | None:
        """See `Source.list_names`."""
        names = self._call("list_names", None)
        return None if names is None else list(names)

    def names_digest(self) -> str:
        """See `Source.names_digest`."""
        return str(self._call("names_digest", ""))

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """See `Source.fingerprint`."""
        return str(self._call("fingerprint", "", indices))

    @property
    def unresized(self) -> Source:
        """See `Source.unresized`."""
        inner = getattr(self._source, "unresized", self._source)
        if inner is self._source:
            return self
        return Adopted(inner, self._title, self.channels, strict=self._strict)

    def __str__(self) -> str:
        return str(self._source)

    def __repr__(self) -> str:
        # Python's own text has an address, which is another one in each process and run.
        return re.sub(r" at 0x[0-9a-f]+", "", super().__repr__())


def adopt(source: Any, title: str = "") -> Source:
    """A source with every attribute of the protocol, see `data.source`.

    A record of another object is a dict as there, a pair (image, label) as in torchvision's data
    sets, or an image: a PIL image, or an array uint8 or float [H, W, channels], or [H, W] of
    gray. One that cannot be read or is something else is `Unreadable`. Missing attributes get the
    defaults of `Source`; those of torchvision are used: `classes` are class names, {name: number}
    or their count, and `targets` all labels. None or a negative number means that an image has no
    label; evaluations leave it out if `unlabelled` or `targets` says so.

    Args:
      source: a `Source`, which is returned unchanged, or any object with a length and records by
        index.
      title: names records without a name, "TITLE/3"; by default the name of the type.

    Raises InputError for an object without len() or records by index.
    """
    if isinstance(source, Source):
        return source
    return Adopted(source, title or type(source).__name__)


def why_unreadable(source: Source, i: int) -> str:
    """The reason why record i cannot be read, in one line; reads it once more."""
    try:
        source[i]
    except Unreadable as error:
        return error.reason
    return "readable now"


def named_unreadable(source: Source, bad: Mapping[int, str | None]) -> str:
    """Some unreadable records for a message: "a.png (truncated), ... and 3 more".

    bad: {index: reason, or None to ask again}.
    """
    named = [
        f"{source.name(i)} ({reason or why_unreadable(source, i)})"
        for i, reason in list(bad.items())[:_NAMED]
    ]
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return ", ".join(named) + more


def check_channels(source: Source, channels: int) -> None:
    """Refuses a source whose images have other channels than a network takes. Raises
    InputError."""
    if source.channels != channels:
        raise InputError(
            f"model.in_channels is {channels}, but the images of {source} have {source.channels}"
            " channels; make model.in_channels and data.channels (of files) agree"
        )
