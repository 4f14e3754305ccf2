"""Rows of the papers' tables as data: the changes of a config, and the printed scores.

Each file NAME.toml in this folder holds the rows of one method, from its own paper and from others
that measured it:

    [[row]]
    id = "table10/K1024"                          # unique in the file
    place = "table 10, K = 1024"                  # as printed
    config = "sop:vits16_ablation"                # the config that is changed
    changes = { "sop.cls.anchors" = 1024 }        # dotted key = value; optional
    expected = { knn = 69.5 }                     # a number stands for "69.5 (paper, table 10)"
    note = "a remark for the reader"              # optional
    ours = { knn = "69.4 (seed 0)" }              # score of our own run; optional

    [[missing]]                                   # printed numbers that no config reproduces
    place = "table 2, COCO"
    expected = { "box AP, mask AP" = "51.4, 44.3" }
    why = "code: Cascade Mask R-CNN"              # begins with what is lacking: code, data or paper

ours.json adds scores of our own runs, {"sop/table10/K1024": {"knn": "69.4 (...)"}}. It is written
by experiments/claims.py.
"""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax.config import InputError, unknown

_FOLDER = Path(__file__).resolve().parent
OURS = _FOLDER / "ours.json"
_NEEDED = {"id": str, "place": str, "config": str, "expected": dict}
_KEYS = _NEEDED | {"changes": dict, "note": str, "ours": dict}
_MISSING = {"place": str, "expected": dict, "why": str}
LACKING = ("code", "data", "paper")  # what `Missing.why` begins with


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table.

    paper: name of its file. id: unique in the file. place: table or figure, and row. config: name
    of the config that is changed. changes: {dotted key: value}. expected, ours: {score: number,
    unit and source as text}.
    """

    paper: str
    id: str
    place: str
    config: str
    expected: dict[str, str]
    changes: dict = dataclasses.field(default_factory=dict)
    note: str = ""
    ours: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name among the rows of all papers: "sop/table10/K1024"."""
        return f"{self.paper}/{self.id}"

    def load(self) -> ConfigDict:
        """The row's config, with its numbers as `expected`. Raises InputError if the row changes a
        key that does not exist."""
        config = config_lib.load(self.config)
        keys = config_lib.flatten(config)
        for key in self.changes:
            if key not in keys:
                raise InputError(f"{self.name}: {unknown('config key', key, keys)}")
        config.update_from_flattened_dict(self.changes)
        config.expected = dict(self.expected)
        return config


@dataclasses.dataclass(frozen=True)
class Missing:
    """Numbers of a paper that no config reproduces: place, {score: number}, and reason."""

    place: str
    expected: dict[str, str]
    why: str


def names() -> list[str]:
    """The names of the papers, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name: str) -> tuple[Row, ...]:
    """The rows of one paper in the order of the file, with our scores from `OURS`.

    Raises:
      InputError: the paper is unknown, an id appears twice, or a key is unknown, missing or of
        another type.
    """
    if name not in names():
        raise InputError(unknown("paper", name, names()))
    measured = json.loads(OURS.read_text(encoding="utf-8"))
    return tuple(
        dataclasses.replace(row, ours=row.ours | measured.get(row.name, {}))
        for row in read(_FOLDER / f"{name}.toml")
    )


def missing(name: str) -> tuple[Missing, ...]:
    """Numbers of one paper that no config reproduces. Raises InputError like `load`."""
    if name not in names():
        raise InputError(unknown("paper", name, names()))
    path, entries = _FOLDER / f"{name}.toml", []
    for number, entry in enumerate(_content(path).get("missing", []), 1):
        label = f"{path}: missing {number}"
        _check(label, entry, _MISSING, _MISSING)
        if entry["why"].partition(":")[0] not in LACKING:
            begins = " or ".join(LACKING)
            raise InputError(f"{label}: why is {entry['why']!r}; it must begin with {begins}")
        numbers = {
            score: _number(label, score, value, entry["place"])
            for score, value in entry["expected"].items()
        }
        entries.append(Missing(**entry | {"expected": numbers}))
    return tuple(entries)


def _content(path: Path) -> dict:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {error}") from error
    for key in content:
        if key not in ("row", "missing"):
            raise InputError(f"{path}: {unknown('key', key, ['row', 'missing'])}")
    return content


def read(path: Path) -> tuple[Row, ...]:
    """The rows of a file. Like `load`, without `OURS`."""
    content = _content(path)
    rows = tuple(
        _row(path, number, entry) for number, entry in enumerate(content.get("row", []), 1)
    )
    ids = set()
    for row in rows:
        if row.id in ids:
            raise InputError(f'{path}: two rows have the id "{row.id}"; give each its own')
        ids.add(row.id)
    return rows


def find(name: str) -> Row:
    """The row of a name such as "sop/table10/K1024". Raises InputError if there is none."""
    paper, _, row_id = name.partition("/")
    rows = {row.id: row for row in load(paper)}
    if row_id not in rows:
        raise InputError(
            f"{unknown(f'row of {paper}', row_id, rows)}; ssl-jax show --paper={paper} lists them"
        )
    return rows[row_id]


def expected(config: str) -> dict[str, str]:
    """The numbers of the row that uses a config without changes; {} if there is none. config: its
    name, for example "sop:vits16"."""
    paper = config.partition(":")[0]
    rows = load(paper) if paper in names() else ()
    return next((dict(r.expected) for r in rows if r.config == config and not r.changes), {})


def _row(path: Path, number: int, entry: dict) -> Row:
    label = f'{path}: row "{entry.get("id", number)}"'
    _check(label, entry, _KEYS, _NEEDED)
    values = dict(entry)
    for key in ("expected", "ours"):
        values[key] = {
            score: _number(label, score, value, entry["place"])
            for score, value in entry.get(key, {}).items()
        }
    values["changes"] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in entry.get("changes", {}).items()
    }
    return Row(paper=path.stem, **values)


def _check(label: str, entry: dict, known: Mapping[str, type], needed: Mapping[str, type]) -> None:
    """Raises InputError for an unknown key, a value of another type, and a missing key."""
    for key, value in entry.items():
        if key not in known:
            raise InputError(f"{label}: {unknown('key', key, known)}")
        if not isinstance(value, known[key]):
            raise InputError(f"{label}: {key} is {value!r}; it must be a {known[key].__name__}")
    for key in needed:
        if key not in entry:
            raise InputError(f"{label} lacks the key {key}")


def _number(label: str, score: str, value, place: str) -> str:
    """A score as text. A number gets the row's place as its source."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{label}: {score} is {value!r}; it must be a number or a text")
    return value if isinstance(value, str) else f"{value} (paper, {place.partition(',')[0]})"
