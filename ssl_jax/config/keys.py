"""Declares keys of configs and checks their values."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from ssl_jax.config.errors import InputError, did_you_mean

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a config, declared where it is used: default, meaning, and allowed values.

    default: also determines the type; an integer is allowed for a float, a list for a tuple.
    meaning: a phrase that explains it. unit: of the value, for example "pixels" or "images".
    above, least, below, most: range of a number, or of each element of a tuple.
    choices: allowed values, or allowed elements of a tuple. prefix: strings that begin with it are
      also allowed.
    length: of a tuple; 0 = any. ordered: the value is a pair (low, high) with low <= high.
    element: example of an element, if the default is an empty tuple; determines the type.
    pairs: the tuple may consist of pairs, a mapping, written as `--config.K={0:0,255:1}`.
    path: the value is a file or folder; a run stores its absolute path.
    free: may change when a run is resumed, because it affects only where or how something is
      computed, shown or stored, and not the result.
    acts: effect of a value that comes with somebody else's network, for example "is imported" (with
      `prefix`, only of values that begin with it); "" = none but to choose, or to name files that
      are read. None = "", except for strings without choices, which count as having effects.
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
        """The effect of a value that comes with somebody else's network, see `acts`; "" = none."""
        if value == self.default or (self.prefix and not str(value).startswith(self.prefix)):
            return ""
        if self.acts is None and self.is_open_text():
            return "may have undeclared effects"
        return self.acts or ""

    def is_open_text(self) -> bool:
        """Whether the value is a string, or strings, not limited to choices."""
        many = isinstance(self.default, tuple)
        example = (*self.default, self.element)[0] if many else self.default
        return isinstance(example, str) and bool(self.prefix or not self.choices)

    def check_stored(self, name: str, value: Any) -> None:
        """Raises InputError for a value with an effect (`acts`) in a config that came with a
        network."""
        if effect := self.effect(value):
            flag = "--import=MODULE" if name == "imports" else f"--config.{name}=VALUE"
            raise InputError(
                f"the stored config sets {name}={value!r}, which {effect}; set it yourself"
                f" ({flag}), or if you trust its author, use --trust (Python: trust=True)"
            )

    def allows(self, value: Any) -> bool:
        """Whether the key can have this value."""
        try:
            self.check("", value)
        except InputError:
            return False
        return True

    def check(self, name: str, value: Any) -> None:
        """Raises InputError for a value that this key, named `name`, cannot have."""
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
                # --config.evals.tasks=knn,linear is parsed as one string.
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
        """The allowed values in words: "above 0", "between 0 and 1", "4 numbers, each 0 or more";
        "" for a single value without limits.
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
    """Whether a value is a tuple of pairs."""
    items = value if isinstance(value, tuple | list) else ()
    return bool(items) and all(isinstance(x, tuple | list) and len(x) == 2 for x in items)


_MOST = 2**31 - 1  # default limit of integers: arrays, steps and loops count in 32 bits


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

    required: the dataclass itself has no default; `default` is that of the config. Other arguments:
    see `Key`.
    """
    metadata = {"key": key(default, meaning, unit, **words)}
    if required:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(settings: Any) -> dict[str, Key]:
    """{name: Key} of a dataclass whose fields are declared by `field`."""
    return {one.name: one.metadata["key"] for one in dataclasses.fields(settings)}


def settings_of(settings: type[T], section: Mapping | ConfigDict) -> T:
    """An instance of the dataclass `settings` with the values of a section of a config."""
    return settings(**{name: section[name] for name in keys_of(settings)})


def with_defaults(keys: dict, changes: dict) -> dict:
    """The declared section `keys` with changed defaults, {"cls.anchors": 8192}."""
    changed = dict(keys)
    for name, default in changes.items():
        head, _, rest = name.partition(".")
        if rest:
            changed[head] = with_defaults(changed[head], {rest: default})
        else:
            changed[head] = dataclasses.replace(changed[head], default=default)
    return changed


def free_on_resume(keys: dict) -> dict:
    """The declared section `keys` with `free` set for all keys."""
    return {
        name: free_on_resume(entry)
        if isinstance(entry, dict)
        else dataclasses.replace(entry, free=True)
        for name, entry in keys.items()
    }


def build(keys: Mapping) -> ConfigDict:
    """A locked ConfigDict with the defaults of a nested dict of Keys."""
    values = {
        name: build(entry) if isinstance(entry, Mapping) else entry.default
        for name, entry in keys.items()
    }
    return ConfigDict(values).lock()


def check_choice(name: str, value: object, choices: Collection) -> None:
    """Raises InputError, naming the nearest choice, if `value` is not one of `choices`."""
    if value not in list(choices):  # a list, because a value may not be hashable
        hint = did_you_mean(value, [str(choice) for choice in choices])
        listed = ", ".join(map(str, choices))
        raise InputError(f'{name} is "{str(value).strip()}"; it must be one of {listed}{hint}')


def check_multiple(name: str, value: int, unit: int, why: str) -> None:
    """Raises InputError, naming the nearest multiples, if `value` is not a multiple of `unit`."""
    if value % unit:
        below = value - value % unit
        nearest_ones = f"{below} or {below + unit}" if below else f"{unit}"
        raise InputError(f"{name} is {value}, not a multiple of {unit} ({why}); use {nearest_ones}")


def is_like(value: object, example: object) -> bool:
    """Whether a value has the type of `example`; an integer is allowed for a float, a list for a
    tuple."""
    if isinstance(example, tuple):
        # The first element of the example determines the type; an empty example allows all.
        return isinstance(value, tuple | list) and all(
            is_like(item, example[0]) if example else item is not None for item in value
        )
    if isinstance(example, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(example, bool)
    if isinstance(example, float):
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)
    return isinstance(value, type(example))


def wrong_type(key: str, value: object, current: object) -> str:
    """Message for a value whose type differs from that of `current`."""
    return f"{key} is {value!r}; it must be {_type_text(current)}, for example {current!r}"


def _type_text(current) -> str:
    if isinstance(current, tuple):
        return f"a tuple of {_type_text(current[0]).split()[-1]}s" if current else "a tuple"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(
        type(current), f"a {type(current).__name__}"
    )
