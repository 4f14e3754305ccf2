"""The rows of the papers' tables as data: what a row changes in a config, and the number it got.

Each file NAME.toml beside this one holds the rows of one method, from its own paper and from others
that ran it:

    [[row]]
    id = "table10/K1024"                          # unique in the file
    place = "table 10, K = 1024"                  # as printed
    config = "sop:vits16_ablation"                # what it starts from
    changes = { "sop.cls.anchors" = 1024 }        # dotted key = value; may be left out
    expected = { knn = 69.5 }                     # a number stands for "69.5 (paper, table 10)"
    note = "what the reader must know"            # may be left out
    ours = { knn = "69.4 (seed 0)" }              # what a run of ours got; may be left out

    [[missing]]                                   # what is printed and no config of ours gives
    place = "table 2, COCO"
    expected = { "box AP, mask AP" = "51.4, 44.3" }
    why = "code: Cascade Mask R-CNN"              # code, data or paper: what is lacking

ours.json adds numbers of ours, {"sop/table10/K1024": {"knn": "69.4 (...)"}}; experiments/claims.py
writes it.
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

    paper: name of its file. id: unique in it. place: where it is printed. config: name of the
    config it starts from. changes: {dotted key: value}. expected, ours: {score: number, unit and
    source as text}.
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
        """The row's config, with its numbers. Raises InputError if it changes what is not there."""
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
    """Numbers of a paper that no config gives: where they are printed, {score: number}, and why."""

    place: str
    expected: dict[str, str]
    why: str


def names() -> list[str]:
    """The names of the papers, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name: str) -> tuple[Row, ...]:
    """The rows of one paper, in the order of the file, with our numbers of `OURS`.

    Raises:
      InputError: no such paper; a key that rows do not have, or one that is missing or of another
      type; an id twice.
    """
    if name not in names():
        raise InputError(unknown("paper", name, names()))
    measured = json.loads(OURS.read_text(encoding="utf-8"))
    return tuple(
        dataclasses.replace(row, ours=row.ours | measured.get(row.name, {}))
        for row in read(_FOLDER / f"{name}.toml")
    )


def missing(name: str) -> tuple[Missing, ...]:
    """What is missing of one paper. Raises InputError as `load`."""
    if name not in names():
        raise InputError(unknown("paper", name, names()))
    path, found = _FOLDER / f"{name}.toml", []
    for number, entry in enumerate(_content(path).get("missing", []), 1):
        label = f"{path}: missing {number}"
        _check(label, entry, _MISSING, _MISSING)
        if entry["why"].partition(":")[0] not in LACKING:
            raise InputError(f"{label}: why is {entry['why']!r}; begin with {' or '.join(LACKING)}")
        numbers = {
            score: _number(label, score, value, entry["place"])
            for score, value in entry["expected"].items()
        }
        found.append(Missing(**entry | {"expected": numbers}))
    return tuple(found)


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
    """The rows of a file, as `load` does, without `OURS`."""
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
    """The row "sop/table10/K1024". Raises InputError if there is none of that name."""
    paper, _, row_id = name.partition("/")
    rows = {row.id: row for row in load(paper)}
    if row_id not in rows:
        raise InputError(
            f"{unknown(f'row of {paper}', row_id, rows)}; ssl-jax show --paper={paper} lists them"
        )
    return rows[row_id]


def expected(config: str) -> dict[str, str]:
    """The numbers of the row that is this config as it stands; {} if no row is. `config`: its name,
    "sop:vits16".
    """
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
    """Refuses a key that is not known, a value of another type, and a needed key that is not there.
    Raises InputError."""
    for key, value in entry.items():
        if key not in known:
            raise InputError(f"{label}: {unknown('key', key, known)}")
        if not isinstance(value, known[key]):
            raise InputError(f"{label}: {key} is {value!r}; it must be a {known[key].__name__}")
    for key in needed:
        if key not in entry:
            raise InputError(f"{label} lacks the key {key}")


def _number(label: str, score: str, value, place: str) -> str:
    """A score as text; a bare number is printed at the row's place."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{label}: {score} is {value!r}; it must be a number or a text")
    return value if isinstance(value, str) else f"{value} (paper, {place.partition(',')[0]})"
