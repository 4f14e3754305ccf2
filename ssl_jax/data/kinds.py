"""The registry of kinds of data sets: what `data.kind` of a config names, and how it is opened."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ssl_jax.config import InputError, check_choice

# What an evaluation may need of a set; sequences: videos with masks.
NEEDS = ("labels", "masks", "boxes", "sequences")
FOLDER = MappingProxyType({"dir": "the folder that holds the images"})
Section = Mapping[str, Any]  # the keys of `source.defaults()` and their values


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data set; see `register`."""

    open: Callable[[Section, str], Any]
    parts: Callable[[Section], Sequence[str]]
    keys: Collection[str]
    has: Collection[str] | Callable[[Section], Collection[str]]
    required: Mapping[str, str]
    slices: bool
    classes: str

    def check(self, name: str, kind: str, values: Section) -> None:
        """Refuses a section of that name and kind that lacks what is required. Raises
        InputError."""
        for key, what in self.required.items():
            if not values[key]:
                raise InputError(f'{name}.{key} is ""; {name}.kind="{kind}" needs {what}')


KINDS: dict[str, Kind] = {}


def register(
    kind: str,
    open: Callable[[Section, str], Any],
    *,
    parts: Callable[[Section], Sequence[str]] = lambda section: (),
    keys: Collection[str] = (),
    has: Collection[str] | Callable[[Section], Collection[str]] = NEEDS,
    required: Mapping[str, str] = MappingProxyType({}),
    slices: bool = True,
    classes: str = "declared",
) -> None:
    """Adds a kind of data set, which `data.kind` of a config can name from then on.

    A module outside the package calls this when it is imported; `--import=my.module` has it
    imported, and is kept in the checkpoint. Registering a kind again replaces it.

    Args:
      kind: its name; one that ends in ":" stands for all names that begin with it.
      open: of (section, split), returns the records of a part of the set: an object with the
        protocol of `data.source`, of which `base.adopt` fills in what is missing. `section` has
        all keys of the section `data`. Raises InputError.
      parts: of (section), the names of the parts that can be opened; none for a set that is not
        divided.
      keys: those of the section that this kind reads, of all that only some kinds read
        (`specific`): a value of any other one is refused.
      has: those of NEEDS that its sets can have, or a function of the section that returns them.
      required: {key: what it has to name, for the error where it is ""}.
      slices: whether slices of a part ("train[:90%]") are cut out of what `open` returns; if not,
        `open` reads them itself, or records belong together.
      classes: "declared": all parts have the same classes, with the same numbers; otherwise parts
        are what files and folders happen to be called, and each has the classes that it holds:
        "names", or "numbers" where some may be numbers.
    """
    KINDS[kind] = Kind(open, parts, keys, has, required, slices, classes)


def names() -> tuple[str, ...]:
    """All kinds, without those that stand for several names."""
    return tuple(kind for kind in KINDS if not kind.endswith(":"))


def find(kind: object) -> Kind | None:
    """The kind of that name, None if there is none."""
    front, colon, _ = str(kind).partition(":")
    return KINDS.get(front + colon)


def get(kind: object) -> Kind:
    """The kind of that name. Raises InputError naming the nearest one."""
    known = find(kind)
    if known is None:
        check_choice("data.kind", kind, names())
    return known or KINDS[str(kind)]


def specific() -> dict[str, list[str]]:
    """{key: the kinds that read it} of the keys that only some kinds read."""
    readers: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        for key in kind.keys:
            readers.setdefault(key, []).append(name)
    return readers
