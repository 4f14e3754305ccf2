"""Stores configs as JSON, reads JSON that may come from anybody, and compares configs."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax.config import reading
from ssl_jax.config.errors import InputError, reason
from ssl_jax.config.keys import Key
from ssl_jax.config.paths import absolute

COMPUTED = "run"  # the section computed by settings.resolve
# Sections without declared keys. `expected` maps names of scores to numbers with their source,
# which are only shown.
OPEN = ("expected", COMPUTED)
_LARGEST = 2**26  # bytes of a JSON file
_DEEPEST, _NESTED = 64, (dict, list)  # most levels of JSON; types that add a level


def flatten(config: Mapping) -> dict[str, Any]:
    """{dotted key: value} of all leaves; an empty section has none."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, (ConfigDict, Mapping)):
            flat |= {f"{key}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def to_json(config: ConfigDict) -> str:
    """The config as JSON text with sorted keys; `from_json` returns an equal config."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> FrozenConfigDict:
    """A frozen config from a text of `to_json`. Raises InputError for other texts, which may come
    from anybody."""
    values = json_object(text, "stored config", {"method": "", "model": {}})
    try:
        return FrozenConfigDict(ConfigDict(_tuples(values)))
    # ml_collections refuses a dict in a list, and a name with a dot.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the stored config was not written by this package: {error}") from error


def json_object(
    text: str | bytes, what: str, examples: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The object in a JSON text that may come from anybody.

    what: name of the text in messages. examples: {dotted name: a value of its type}; such values
    must have that type, be null, or be missing.

    Raises InputError.
    """
    try:
        value = reading.parse_json(text)
    except (ValueError, TypeError) as error:
        raise InputError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{what} must be a JSON object, got {type(value).__name__}")
    inner: list[Any] = [value]
    for _ in range(_DEEPEST):
        groups = (x.values() if isinstance(x, dict) else x for x in inner if type(x) in _NESTED)
        inner = list(itertools.chain.from_iterable(groups))
    if inner:
        raise InputError(f"{what} has more than {_DEEPEST} levels")
    for name, example in examples.items():
        section, _, last = name.rpartition(".")
        item = ((value.get(section) or {}) if section else value).get(last)
        if item is not None:
            Key(example, "").check(f"{what}: {name}", item)
    return value


def read_json(
    path: str | Path, examples: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The object in a JSON file, see `json_object`. Raises InputError."""
    try:
        return json_object(reading.read_bytes(path, _LARGEST), str(path), examples)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason(error)}") from error


def _tuples(value):
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def changed(old: Mapping, new: Mapping) -> list[str]:
    """Sorted dotted keys whose values differ, or that only one of two configs (or flat dicts)
    has."""
    old, new, absent = flatten(old), flatten(new), object()
    return [key for key in sorted(old | new) if old.get(key, absent) != new.get(key, absent)]


def fingerprint(config: ConfigDict, declared: dict[str, Key]) -> dict[str, Any]:
    """{dotted key: value} of a resolved config that must not change when a run is resumed: all keys
    that are not declared free, and the number of training images.
    """

    def free(name):
        if name in declared:
            return declared[name].free
        # A key that this version does not have is free if its whole section is.
        section = name.split(".")[0]
        flags = [k.free for other, k in declared.items() if other.startswith(f"{section}.")]
        return section in OPEN or (bool(flags) and all(flags))

    records = f"{COMPUTED}.num_records"
    values = flatten(config)
    return {name: value for name, value in values.items() if name == records or not free(name)}


def compare_for_resume(
    saved: ConfigDict, current: ConfigDict, declared: dict[str, Key]
) -> list[str]:
    """Reasons why a run with the config `saved` cannot be resumed with `current` (both resolved):
    "KEY is OLD there, NEW here"; [] if it can.

    A key that an older version did not have is not a reason while it enables nothing, nor is a new
    section with its defaults.
    """
    old, new = fingerprint(saved, declared), fingerprint(current, declared)

    sections = {name.partition(".")[0] for name in flatten(saved)}

    def off(name, value):
        if name.partition(".")[0] not in sections and name in declared:
            return value == declared[name].default
        return isinstance(value, bool | int | str | tuple) and not value

    new = {name: value for name, value in new.items() if name in old or not off(name, value)}

    def text(values, name):
        return repr(values[name]) if name in values else "absent"

    def moved(name):
        """Whether a path differs only because it was relative, or because the file was moved."""
        key, before, now = declared.get(name), old.get(name), new.get(name)
        if key is None or not key.path or not before or not now:
            return False
        old_path, new_path = absolute(before), Path(now)
        # A relative path that means nothing in this folder: a command repeated in another one.
        repeated = not new_path.is_absolute() and old_path.match(str(new_path))
        gone = old_path.name == new_path.name and not old_path.exists()
        return old_path == new_path or repeated or gone

    differing = [name for name in changed(old, new) if not moved(name)]
    return [f"{name} is {text(old, name)} there, {text(new, name)} here" for name in differing]
