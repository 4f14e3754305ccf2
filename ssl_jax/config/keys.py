"""Keys: how they are declared, and which values they can have."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from ssl_jax.config.errors import InputError, did_you_mean

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a config, declared where it is used: default, meaning, and what is allowed.

    default: also gives the type; an integer may stand for a float, a list for a tuple.
    meaning: a phrase for people; unit: of the value, as "pixels" or "images".
    above, least, below, most: range of a number, or of every element of a tuple.
    choices: the values allowed, or those of every element of a tuple. prefix: other texts that
      begin with it are allowed as well.
    length: of a tuple; 0 = any. ordered: a pair (low, high) with low <= high.
    element: an example of a tuple's elements where the default has none, for their type.
    pairs: a tuple may also be one of pairs, a mapping: `--config.K={0:0,255:1}` writes it so.
    path: of a file or folder; a run keeps it as it is called from any folder.
    free: may differ when a run is continued, because it changes where or how something is
      computed, shown or stored, and not what.
    acts: what a value does that comes with somebody's network ("is imported"; of texts with a
      `prefix`, only those); "" = no more than to choose, or to name what is read. None is "", but
      of texts without choices: they act until they are declared.
    """

    default: Any
    meaning: str
    unit: str = ""
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    choices: tuple = ()
    prefix: str = ""
    length: int = 0
    ordered: bool = False
    element: Any = None
    pairs: bool = False
    path: bool = False
    free: bool = False
    acts: str | None = None

    def effect(self, value: Any) -> str:
        """What a value does that comes with somebody's network, see `acts`; "" = nothing."""
        if value == self.default or (self.prefix and not str(value).startswith(self.prefix)):
            return ""
        if self.acts is None and self.is_open_text():
            return "may have undeclared effects"
        return self.acts or ""

    def is_open_text(self) -> bool:
        """Whether it holds texts of people's own."""
        many = isinstance(self.default, tuple)
        example = (*self.default, self.element)[0] if many else self.default
        return isinstance(example, str) and bool(self.prefix or not self.choices)

    def check_stored(self, name: str, value: Any) -> None:
        """Refuses a value that acts, of a config that came with a network. Raises InputError."""
        if effect := self.effect(value):
            flag = "--import=MODULE" if name == "imports" else f"--config.{name}=VALUE"
            raise InputError(
                f"{name} of the stored config is {value!r}, which {effect}; set it yourself"
                f" ({flag}), or if you trust its author, use --trust (Python: trust=True)"
            )

    def allows(self, value: Any) -> bool:
        """Whether the key can have that value."""
        try:
            self.check("", value)
        except InputError:
            return False
        return True

    def check(self, name: str, value: Any) -> None:
        """Refuses a value that this key, called `name`, cannot have. Raises InputError."""
        example = self.default
        if example == () and self.element is not None:
            example = (self.element,)
        if self.pairs and is_mapping(value):
            value = tuple(number for pair in value for number in pair)
        if not is_like(value, example):
            raise InputError(wrong_type(name, value, example))
        items = value if isinstance(value, tuple | list) else (value,)
        if self.choices:
            if items is value and any("," in str(item) for item in items):
                # --config.evals.tasks=knn,linear is one string.
                example = f'--config.{name}="{self.choices[:2]}"'
                raise InputError(f"{name} is {value}; for several write {example}")
            for item in items:
                if not (self.prefix and str(item).startswith(self.prefix)):
                    check_choice(name, item, self.choices)
        if any(isinstance(item, float) and not math.isfinite(item) for item in items):
            raise InputError(f"{name} is {value}; it must be finite")
        fits = (
            all(map(self._holds, items))
            and len(items) == (self.length or len(items))
            and (not self.ordered or (len(items) == 2 and items[0] <= items[1]))
        )
        if not fits:
            raise InputError(f"{name} is {value}; it must be {self.range()}")
        if self.below is None and self.most is None and any(map(_beyond, items)):
            raise InputError(f"{name} is {value}; it must be at most {_MOST}")

    def _holds(self, number) -> bool:
        return (
            (self.above is None or number > self.above)
            and (self.least is None or number >= self.least)
            and (self.below is None or number < self.below)
            and (self.most is None or number <= self.most)
        )

    def range(self) -> str:
        """What is allowed, in words: "above 0", "between 0 and 1", "4 numbers, each 0 or more"; ""
        for a single value without limits.
        """
        limits = {
            "above": self.above,
            "at least": self.least,
            "below": self.below,
            "at most": self.most,
        }
        words = {word: _number(x) for word, x in limits.items() if x is not None}
        match list(words):
            case ["at least"]:
                each = f"{words['at least']} or more"
            case ["at least", "at most"]:
                each = f"between {words['at least']} and {words['at most']}"
            case _:
                each = " and ".join(f"{word} {x}" for word, x in words.items())
        if not isinstance(self.default, tuple):
            return each
        if isinstance((self.default or (self.element,))[0], str):
            return "names"
        if self.ordered:
            what = "(low, high) with low <= high"
        else:
            what = f"{self.length} numbers" if self.length else "numbers"
        return f"{what}, each {each}" if each else what


def is_mapping(value: Any) -> bool:
    """Whether a tuple is one of pairs."""
    items = value if isinstance(value, tuple | list) else ()
    return bool(items) and all(isinstance(x, tuple | list) and len(x) == 2 for x in items)


_MOST = 2**31 - 1  # of an integer without another limit: arrays, steps and loops count in 32 bits


def _beyond(number) -> bool:
    return isinstance(number, int) and number > _MOST


def _number(x) -> str:
    return f"{x:g}" if isinstance(x, float) else str(x)


def key(default: Any, meaning: str, unit: str = "", **words: Any) -> Key:
    """Declares a key of a section: `lr=key(5e-4, "peak learning rate", above=0)`; see `Key`."""
    return Key(default, meaning, unit, **words)


def field(
    default: Any, meaning: str, unit: str = "", *, required: bool = False, **words: Any
) -> Any:
    """Declares a key as a field of a frozen dataclass: `k: int = field(20, "neighbours", above=0)`.

    required: the dataclass itself has no default; `default` is that of the config. Others: see
    `Key`.
    """
    metadata = {"key": key(default, meaning, unit, **words)}
    if required:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(settings: Any) -> dict[str, Key]:
    """{name: Key} of the fields of a dataclass, which `field` declared."""
    return {one.name: one.metadata["key"] for one in dataclasses.fields(settings)}


def settings_of(settings: type[T], section: Mapping | ConfigDict) -> T:
    """The dataclass `settings` with the values that a section of a config has for its fields."""
    return settings(**{name: section[name] for name in keys_of(settings)})


def with_defaults(keys: dict, changes: dict) -> dict:
    """The declared section `keys` with other defaults, {"cls.anchors": 8192}."""
    changed = dict(keys)
    for name, default in changes.items():
        head, _, rest = name.partition(".")
        if rest:
            changed[head] = with_defaults(changed[head], {rest: default})
        else:
            changed[head] = dataclasses.replace(changed[head], default=default)
    return changed


def free_on_resume(keys: dict) -> dict:
    """The declared section `keys`, all of which may differ when a run is continued."""
    return {
        name: free_on_resume(entry)
        if isinstance(entry, dict)
        else dataclasses.replace(entry, free=True)
        for name, entry in keys.items()
    }


def build(keys: Mapping) -> ConfigDict:
    """A locked ConfigDict with the defaults of a (nested) dict of Keys."""
    values = {
        name: build(entry) if isinstance(entry, Mapping) else entry.default
        for name, entry in keys.items()
    }
    return ConfigDict(values).lock()


def check_choice(name: str, value: object, choices: Collection) -> None:
    """Raises InputError, naming the nearest choice, if `value` is none of `choices`."""
    if value not in list(choices):  # by comparison: a value need not be hashable
        hint = did_you_mean(value, [str(choice) for choice in choices])
        listed = ", ".join(map(str, choices))
        raise InputError(f'{name} is "{str(value).strip()}"; it must be one of {listed}{hint}')


def check_multiple(name: str, value: int, unit: int, why: str) -> None:
    """Raises InputError, naming the nearest multiples, if `value` is no multiple of `unit`."""
    if value % unit:
        below = value - value % unit
        nearest_ones = f"{below} or {below + unit}" if below else f"{unit}"
        raise InputError(f"{name} is {value}, not a multiple of {unit} ({why}); use {nearest_ones}")


def is_like(value: object, example: object) -> bool:
    """Whether a value has the type of `example`; an integer may stand for a float, a list for a
    tuple."""
    if isinstance(example, tuple):
        # Elements follow the first one of the example; an empty one says nothing about them.
        return isinstance(value, tuple | list) and all(
            is_like(item, example[0]) if example else item is not None for item in value
        )
    if isinstance(example, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(example, bool)
    if isinstance(example, float):
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)
    return isinstance(value, type(example))


def wrong_type(key: str, value: object, current: object) -> str:
    """Message for a value that cannot stand where `current` stands."""
    return f"{key} is {value!r}; it must be {_type_text(current)}, for example {current!r}"


def _type_text(current) -> str:
    if isinstance(current, tuple):
        return f"a tuple of {_type_text(current[0]).split()[-1]}s" if current else "a tuple"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(
        type(current), f"a {type(current).__name__}"
    )
