"""The config's machinery: keys, config files, names, storing, comparing.

A config is a plain `ml_collections.ConfigDict`. Each of its keys is declared once, beside the code
that reads it, as a `Key` in the dict that the function `defaults()` of that module returns;
`ssl_jax.settings` puts the sections together. This module imports nothing of the package.
"""

import dataclasses
import difflib
import errno
import importlib.util
import inspect
import itertools
import json
import math
import os
import re
import sys
import types
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

COMPUTED = "run"  # the section that settings.resolve writes
# Sections without declared keys: `expected` maps the name of a score to a number and where it comes
# from, which is shown and never used.
OPEN = ("expected", COMPUTED)


class InputError(ValueError):
    """A user's mistake: one line that names the key, file or shape and says what would be right."""


class MissingFile(InputError):
    """A file that the user must fetch is not there. The config may be right: it can be shown, but
    not trained.
    """


_LONGEST = 4000  # characters of a line about bad input, which may quote files of others
_DEEPEST, _NESTED = 64, (dict, list)  # levels of JSON, and what has another one
# What a disk, a name or rights may do to a program.
_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
)


def refusal(error: BaseException) -> str:
    """The line that says it all, of an error that is no fault of the program: bad input, or a disk
    or a name that does not do; "" of any other.
    """
    ours = isinstance(error, InputError) or (isinstance(error, OSError) and error.errno in _DISK)
    text = " ".join(str(error).split())[:_LONGEST]
    # Names in files of others may hold what a terminal obeys.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) if ours else ""


def local(path: str | os.PathLike) -> Path:
    """A path with "~" resolved. Raises InputError for a user that is not there, and for texts that
    no file can be called."""
    try:
        if "\0" in str(path):
            raise ValueError("a zero byte")
        found = Path(path).expanduser()
        found.exists()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{str(path)[:200]!r} can be no file here: {error}") from error
    return found


def absolute(path: str | Path) -> Path:
    """The path as it is called from any folder: from the root, "~" and ".." resolved, which
    libraries refuse; links stay. Raises InputError, see `local`."""
    found = local(path).absolute()
    return found.resolve() if ".." in found.parts else found


# --- keys


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
            return "may do what it is not declared for"
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
                f"{name} of the stored config is {value!r}, which {effect}; give it yourself"
                f" ({flag}), or if you trust who made the network, --trust (Python: trust=True)"
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
        if _as_type(value, example) is None:
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
        close = nearest(str(value), [str(choice) for choice in choices])
        hint = f'; did you mean "{close}"?' if close else ""
        listed = ", ".join(map(str, choices))
        raise InputError(f'{name} is "{str(value).strip()}"; it must be one of {listed}{hint}')


def check_multiple(name: str, value: int, unit: int, why: str) -> None:
    """Raises InputError, naming the nearest multiples, if `value` is no multiple of `unit`."""
    if value % unit:
        below = value - value % unit
        nearest_ones = f"{below} or {below + unit}" if below else f"{unit}"
        raise InputError(f"{name} is {value}, not a multiple of {unit} ({why}); use {nearest_ones}")


def _as_type(value, current):
    """`value` as the type of `current` without loss (int -> float, list -> tuple), or None if it
    has another type.
    """
    if isinstance(current, tuple):
        if not isinstance(value, (tuple, list)):
            return None
        # Elements follow the first element of the default; an empty default says nothing about
        # them.
        items = tuple(_as_type(v, current[0]) if current else v for v in value)
        return None if None in items else items
    if isinstance(current, bool) or isinstance(value, bool):
        return value if isinstance(value, bool) and isinstance(current, bool) else None
    if isinstance(current, float):
        numeric = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)
        return float(value) if numeric else None
    return value if isinstance(value, type(current)) else None


def wrong_type(key: str, value: object, current: object) -> str:
    """Message for a value that cannot stand where `current` stands."""
    return f"{key} is {value!r}; it must be {_wanted(current)}, for example {current!r}"


def _wanted(current) -> str:
    if isinstance(current, tuple):
        return f"a tuple of {_wanted(current[0]).split()[-1]}s" if current else "a tuple"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(
        type(current), f"a {type(current).__name__}"
    )


# --- names


def unknown(kind: str, name: str, options: Collection[str]) -> str:
    """Message for a name that does not exist: the nearest one that does, and all of them if they
    are few.
    """
    close = nearest(str(name), options)
    hint = f'; did you mean "{close}"?' if close else ""
    listed = f" (known: {', '.join(sorted(options))})" if len(options) <= 16 else ""
    return f'unknown {kind} "{name}"{hint}{listed}'


def nearest(name: str, options: Collection[str]) -> str | None:
    """The most similar option: by whole name, else by the last part of dotted names."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    if not close:
        last = {o.rsplit(".", 1)[-1]: o for o in options}
        close = [
            last[c]
            for c in difflib.get_close_matches(name.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.7)
        ]
    return close[0] if close else None


def flatten(config: Mapping) -> dict[str, Any]:
    """{dotted key: value} of every leaf; an empty section has none."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, (ConfigDict, Mapping)):
            flat |= {f"{key}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[key] = value
    return flat


# --- loading


def load(name_with_arg: str, known: Collection[str] = ()) -> ConfigDict:
    """Runs `get_config` of a config file.

    Args:
      name_with_arg: "sop:vits16" calls get_config("vits16") of the config sop that comes with the
        package, "sop" its get_config(). A name that ends in .py is the path of a file:
        "configs/mine.py:vits16".
      known: all keys there are, among which an error looks for the nearest one.

    Returns:
      A locked config, not validated yet.

    Raises:
      InputError: no such config, no get_config in it, a key that does not exist, a value of the
      wrong type.
    """
    name, _, arg = name_with_arg.partition(":")
    get_config = read_module(find(name)).get_config
    parameters = inspect.signature(get_config).parameters
    if arg and not parameters:
        raise InputError(f'{name}: get_config() has no variants, but ":{arg}" was given')
    if not arg and any(p.default is p.empty for p in parameters.values()):
        raise InputError(f"{name} needs a variant: --config={name}:NAME")
    try:
        config = get_config(arg) if arg else get_config()
    except (AttributeError, KeyError, TypeError) as error:
        # How ml_collections reports an unknown key or a wrong type.
        raise InputError(f"{name_with_arg}: {_reason(error, known)}") from error
    if not isinstance(config, ConfigDict):
        raise InputError(
            f"{name}: get_config must return an ml_collections.ConfigDict, got"
            f" {type(config).__name__}"
        )
    return config.lock()


def find(name: str) -> Path:
    """The file of a config: a path that ends in .py, or the name of one of `shipped`.

    Raises:
      InputError: no such file, no shipped config of that name.
    """
    path = Path(name)
    if path.suffix != ".py":
        names = shipped()
        if name not in names:
            raise InputError(unknown("config", name, names))
        return names[name]
    if not path.is_file():
        if path.stem in shipped():
            raise InputError(f'no file "{name}" here; the package has it as --config={path.stem}')
        siblings = path.parent.glob("*.py") if path.parent.is_dir() else ()
        raise InputError(unknown("config file", name, sorted(map(str, siblings))))
    return path


def shipped() -> dict[str, Path]:
    """{name: file} of the configs that come with the package: in its folder configs/, or in that of
    the checkout.
    """
    package = Path(__file__).resolve().parent
    installed = package / "configs"
    folder = installed if installed.is_dir() else package.parent / "configs"
    return {
        path.stem: path
        for path in sorted(folder.glob("*.py"))
        if "\ndef get_config(" in path.read_text(encoding="utf-8")
    }


def read_module(path: Path) -> types.ModuleType:
    """The module of a config file, run anew. It has a get_config, and may import other files of its
    folder: `from . import shared`.

    Raises:
      InputError: not a .py file, no Python, no get_config in it, or it imports what is not there.
    """
    path = path.resolve()
    # A package of that folder under a name of our own, so that it works wherever the folder is.
    package = f"_ssl_jax_configs_{zlib.crc32(str(path.parent).encode()):08x}"
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(path.parent)]
    spec = importlib.util.spec_from_file_location(f"{package}.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file; the name of a config file ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise InputError(f"{error.filename or path}{line}: {error.msg}") from error
    except ValueError as error:
        if "null bytes" not in str(error):  # a SyntaxError since Python 3.11.4
            raise
        raise InputError(f"{path}: {error}") from error
    except ImportError as error:
        raise InputError(f"{path}: {error}; install it, or put its folder on PYTHONPATH") from error
    if not callable(getattr(module, "get_config", None)):
        raise InputError(f"{path} defines no get_config(arg)")
    return module


def _reason(error: Exception, known: Collection[str]) -> str:
    """One line from an error of ml_collections about an unknown key (which lists its section) or a
    wrong type.
    """
    text = " ".join(str(error.args[0] if error.args else error).split())
    key = re.search(r'Key "(.+?)" does not exist', text)
    if key is None:
        return f"{type(error).__name__}: {text}".replace(" (reference)", "")
    present = re.findall(r"'(\w+)\\?': ", text)
    return unknown("config key", key[1], present if nearest(key[1], present) else known)


# --- storing, comparing


def to_json(config: ConfigDict) -> str:
    """The config as JSON text, keys sorted; `from_json` gives an equal config back."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> FrozenConfigDict:
    """A frozen config from the text of `to_json`, which anybody may have written. Raises InputError
    if it is no such text."""
    values = json_object(text, "stored config")
    for name, type_ in (("method", str), ("model", dict)):
        if not isinstance(values.get(name, type_()), type_):
            raise InputError(f"stored config: {wrong_type(name, values[name], type_())}")
    try:
        return FrozenConfigDict(ConfigDict(_tuples(values)))
    # What ml_collections does not take: a dict in a list, a name with a dot.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"stored config is none of this package: {error}") from error


def json_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The object in a JSON text that anybody may have written; `what` it is, for messages. Raises
    InputError."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{what} must be a JSON object, got {type(value).__name__}")
    inner: list[Any] = [value]
    for _ in range(_DEEPEST):
        groups = (x.values() if isinstance(x, dict) else x for x in inner if type(x) in _NESTED)
        inner = list(itertools.chain.from_iterable(groups))
    if inner:
        raise InputError(f"{what} has more than {_DEEPEST} levels")
    return value


def _tuples(value):
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def changed(old: Mapping, new: Mapping) -> list[str]:
    """Dotted keys whose values differ, or that only one of two configs (or flat dicts) has;
    sorted.
    """
    old, new, absent = flatten(old), flatten(new), object()
    return [key for key in sorted(old | new) if old.get(key, absent) != new.get(key, absent)]


def fingerprint(config: ConfigDict, declared: dict[str, Key]) -> dict[str, Any]:
    """{dotted key: value} of everything in a resolved config that must agree for a run to be
    continued: all keys that are not declared free, and the number of training images.
    """

    def free(name):
        if name in declared:
            return declared[name].free
        # Not a key of this version: free where its whole section is.
        section = name.split(".")[0]
        others = [k.free for other, k in declared.items() if other.startswith(f"{section}.")]
        return section in OPEN or (bool(others) and all(others))

    records = f"{COMPUTED}.num_records"
    values = flatten(config)
    return {name: value for name, value in values.items() if name == records or not free(name)}


def compare_for_resume(
    saved: ConfigDict, current: ConfigDict, declared: dict[str, Key]
) -> list[str]:
    """Why `saved` cannot be continued with `current` (both resolved): "KEY is OLD there, NEW here";
    [] if it can.

    A key that the version of `saved` did not have yet is no reason while it switches nothing on.
    """
    old, new = fingerprint(saved, declared), fingerprint(current, declared)

    def off(value):
        return isinstance(value, bool | int | str | tuple) and not value

    new = {name: value for name, value in new.items() if name in old or not off(value)}

    def said(values, name):
        return repr(values[name]) if name in values else "absent"

    def moved(name):
        """Whether it is one file: relative before, or it is not there any more."""
        key, before, now = declared.get(name), old.get(name), new.get(name)
        if key is None or not key.path or not before or not now:
            return False
        there = absolute(before)
        return there == Path(now) or (there.name == Path(now).name and not there.exists())

    differing = [name for name in changed(old, new) if not moved(name)]
    return [f"{name} is {said(old, name)} there, {said(new, name)} here" for name in differing]
