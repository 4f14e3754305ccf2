"""Numbers in one file that outlives the folders of their runs.

JSON Lines, a line for each run: its name under "run", what `runs.read` says of it, "probes" (what
was measured of its network afterwards), and under "made" commit, processor and versions.
`pandas.read_json(FILE, lines=True)` reads it.
"""

import json
import math
import os
from collections import UserDict
from pathlib import Path

from experiments.tables import ROOT
from ssl_jax import papers
from ssl_jax.config import InputError

FOLDER = ROOT / "experiments" / "records"


class Records(UserDict[str, dict]):
    """{name of a run: its record}, kept in a file, which scripts beside each other may share.

    Raises InputError if the file is there and not such a file.
    """

    def __init__(self, file: Path):
        super().__init__()
        self.file, self.data = file, _read(file)

    def __setitem__(self, name: str, record: dict) -> None:
        """Keeps a record, and the file with it and all that is there by now, ordered by name."""
        self.data |= _read(self.file) | {name: _short(record)}
        lines = [json.dumps({"run": name} | record) for name, record in sorted(self.data.items())]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        new.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        os.replace(new, self.file)


def beside_papers(numbers: dict[str, dict[str, str]]) -> None:
    """Adds our {row of the papers: {score: number}} to those that the documents show."""
    every = json.loads(papers.OURS.read_text(encoding="utf-8")) if papers.OURS.exists() else {}
    for row, mine in numbers.items():
        every[row] = every.get(row, {}) | mine
    text = json.dumps(dict(sorted(every.items())), indent=2, ensure_ascii=False)
    papers.OURS.write_text(text + "\n", encoding="utf-8")


def _read(file: Path) -> dict[str, dict]:
    """The records of a file; none if it is not there."""
    found = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            found[record.pop("run")] = record
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f'{file}, line {number} is no record: expected {{"run": NAME, ...}}'
            ) from None
    return found


def _short(value):
    """A record with six digits a number, without those that are not finite."""
    if isinstance(value, dict):
        kept = {name: _short(x) for name, x in value.items()}
        return {name: x for name, x in kept.items() if x is not None}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [_short(x) for x in value]
    return value
