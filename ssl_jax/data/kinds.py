"""The registry of kinds of data sets, the values of `data.kind` in a config."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from ssl_jax.config import InputError, check_choice

# What an evaluation may need of a set; sequences: videos with masks.
NEEDS = ("labels", "masks", "boxes", "sequences")
# Keys of a section `data` for masks whose numbers may be changed, see `classes.of_masks`.
MASK_KEYS = ("class_names", "class_map", "reduce_zero_label")
FILE_KEYS = ("channels", "range")  # of image files, see `bands`
# How a kind is registered whose images lie in a folder, and one of them that has columns.
FOLDER: dict[str, Any] = dict(required={"dir": "the folder that holds the images"})
COLUMNS = FOLDER | dict(
    keys=("dir", "list", "images", "labels", "masks", *MASK_KEYS), has=("labels", "masks")
)
Section = Mapping[str, Any]  # the keys of `source.defaults()` and their values


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data set.

    open: (section, split) -> the records of a part of the set: an object with the protocol of
      `data.source`; `base.adopt` adds missing attributes. `section` has all keys of the section
      `data`. Raises InputError.
    parts: (section) -> the names of the parts that can be opened; none for an undivided set.
    keys: the keys of the section that this kind reads, of those that only some kinds read
      (`specific`); setting any other of these is refused.
    has: those of NEEDS that its sets can have, or a function of the section that returns them.
    required: {key: description of its value, for the error if it is ""}.
    slices: whether slices of a part ("train[:90%]") are taken from the result of `open`; if not,
      `open` reads them itself, or records belong together.
    classes: "declared": all parts have the same classes, with the same numbers. Otherwise parts are
      named by files and folders, and each has the classes that it contains: "names", or "numbers"
      if some may be numbers.
    """

    open: Callable[[Section, str], Any]
    parts: Callable[[Section], Sequence[str]] = lambda section: ()
    keys: Collection[str] = ()
    has: Collection[str] | Callable[[Section], Collection[str]] = NEEDS
    required: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slices: bool = True
    classes: Literal["declared", "names", "numbers"] = "declared"

    def check(self, name: str, kind: str, values: Section) -> None:
        """Refuses a section of that name and kind that lacks what is required. Raises
        InputError."""
        for key, what in self.required.items():
            if not values[key]:
                raise InputError(f'{name}.{key} is ""; {name}.kind="{kind}" needs {what}')


KINDS: dict[str, Kind] = {}


def register(kind: str, open: Callable[[Section, str], Any], **facts: Any) -> None:
    """Adds a kind of data set, which `data.kind` of a config can then name.

    A module outside the package calls this when it is imported; `--import=my.module` imports it and
    is stored in the checkpoint. Registering a kind again replaces it.

    kind: its name. open, facts: see `Kind`.
    """
    KINDS[kind] = Kind(open, **facts)


def names() -> tuple[str, ...]:
    """All kinds, without those that stand for several names."""
    return tuple(kind for kind in KINDS if not kind.endswith(":"))


def find(kind: object) -> Kind | None:
    """The kind of that name, None if there is none."""
    front, colon, _ = str(kind).partition(":")
    return KINDS.get(front + colon)


def get(kind: object) -> Kind:
    """The kind of that name. Raises InputError naming the nearest one."""
    entry = find(kind)
    if entry is None:
        check_choice("data.kind", kind, names())
    return entry or KINDS[str(kind)]


def specific() -> dict[str, list[str]]:
    """{key: the kinds that read it} of the keys that only some kinds read."""
    readers: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        for key in kind.keys:
            readers.setdefault(key, []).append(name)
    return readers
