"""The operations of a step that papers time: CrIBo table 9, STELLAR table 13, and the whole steps
behind the hours of SOP table B.1. Networks are untrained, images photographs.

Sizes of which a call would take more than --limit seconds are not run, and the table says so. What
--only leaves out keeps its rows in OUT/parts.json; --measured --write puts them into the documents
without measuring.
"""

import json
import sys

import jax

from benchmarks import measure, operations, report
from experiments import store, tables

REST = "backpropagation and EMA"


def main(argv=None) -> int:
    more = dict(
        measured=dict(action="store_true", help="the rows of OUT/parts.json alone"),
        limit=dict(type=float, default=10, help="seconds of a call, at most"),
    )
    chosen = report.options(__doc__, argv, PARTS, **more)
    names = [] if chosen.measured else chosen.only
    rows = times(names, chosen.rounds, chosen.limit, small=chosen.small)
    path = chosen.out / "parts.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    rows += [row for row in before if row["part"] not in names]
    rows.sort(key=lambda row: list(PARTS).index(row["part"]))
    report.publish("parts", chosen, rows, table(rows))
    if chosen.write:
        where = f"{tables.processor()}, {tables.cores()} cores, see docs/benchmarks.md"
        store.beside_papers(ours(rows, where.replace(" 1 cores", " 1 core")))
    return 0


def times(only, rounds: int, limit: float, *, small: bool = False) -> list[dict]:
    """A row for each operation and number of images of the tables in `only`.

    rounds: timed calls, after one that compiles. limit: seconds that a call may take, to judge by
    its time with fewer images; where it would take longer, it is not run. small: few images, narrow
    networks.

    Keys of a row: part, operation, images, ms (median; None: not run), expected_ms (None where it
    was run).
    """
    rows: list[dict] = []
    for part in only:
        _, make, sizes = PARTS[part]
        before: dict[str, tuple[int, float]] = {}  # operation -> (images, seconds) of the last size
        for images in (max(2, jax.device_count()),) if small else sizes:
            expected = {o: s * images / n for o, (n, s) in before.items()}
            skipped = frozenset(o for o, s in expected.items() if s > limit)
            calls = make(images, small, skipped)
            for operation, call in calls.items():
                seconds = _seconds(call, rounds)
                before[operation] = images, seconds
                rows.append(_row(part, operation, images, 1e3 * seconds, None))
                print(f"{part}, {operation}, {images} images: {seconds:.4f} s", file=sys.stderr)
            if "step" in calls:  # what is left of it is neither networks nor objects
                taken = {row["operation"]: row["ms"] for row in rows if row["images"] == images}
                rest = taken.pop("step") - sum(taken[name] for name in calls if name != "step")
                rows.append(_row(part, REST, images, rest, None))
            left = {o: s for o, s in expected.items() if o not in calls}
            rows += [_row(part, o, images, None, 1e3 * s) for o, s in left.items()]
    return rows


def _row(part, operation, images, ms, expected):
    return dict(part=part, operation=operation, images=images, ms=ms, expected_ms=expected)


def _seconds(call, rounds: int) -> float:
    return measure.medians({"": lambda: jax.block_until_ready(call())}, rounds, skip=1)[""]


# Images of a device in the papers: 128, 4 to 64, 64; fewer first, where a device is slow.
PARTS = {
    "cribo": ("CrIBo table 9", operations.cribo, (4, 128)),
    "stellar": ("STELLAR table 13", operations.stellar, (4, 8, 16, 32, 64)),
    "sop": ("SOP table B.1", operations.sop, (4, 64)),
}
# ms in the papers: CrIBo 128 images a die of MI250x, STELLAR one A100, SOP 64 images a V100 (the
# hours of 300 epochs over 1251 steps of 1024 images each).
PAPER = {
    "forward pass": "453",
    "clustering": "82",
    "retrieval and update": "48",
    "object projections": "11",
    REST: "493",
    "step": "1087",
    "encoder": "8.2, 9.1, 14, 20, 32",
    "decoder": "4.6, 6.8, 8.8, 12, 15",
    "mask encoding": "7.9, 8.9, 11, 18, 17",
    "SK clustering": ".34, .34, .34, .37, .39",
    "Sinkhorn matching": "1.4, 1.4, 1.4, 1.4, 1.2",
    operations.HUNGARIAN: "5.7, 17, 40, 90, 180",
    "dino step": "696",
    "ibot step": "703",
    "massl step": "694",
    "sop step": "703",
}
# The rows of the papers that get our times.
ROWS = {"cribo": "cribo/table10/vitb16-K12", "stellar": "stellar/table13/Sinkhorn-matching"}


def table(rows: list[dict]) -> list[tuple]:
    """Cells: a line for each operation, its times by images, the paper's."""
    heading = ("table", "operation", "ms (images)", "ms in the paper")
    lines = [(PARTS[p][0], o, text(mine), PAPER[o]) for (p, o), mine in _by_operation(rows)]
    return [heading, *lines]


def ours(rows: list[dict], where: str) -> dict[str, dict[str, str]]:
    """{row of the papers: {operation: our times, where}}."""
    numbers: dict[str, dict[str, str]] = {}
    for (part, operation), mine in _by_operation(rows):
        if part in ROWS:
            numbers.setdefault(ROWS[part], {})[operation] = f"ms (images): {text(mine)}; {where}"
    return numbers


def text(rows: list[dict]) -> str:
    """ "12.3 (4), 250 (8); 64 not run": the times of one operation."""
    times = [(row["ms"], row["images"]) for row in rows]
    done = [f"{ms:,.0f} ({n})" if ms >= 100 else f"{ms:.3g} ({n})" for ms, n in times if ms]
    left = ", ".join(str(n) for ms, n in times if ms is None)
    return ", ".join(done) + (f"; {left} not run" if left else "")


def _by_operation(rows):
    names = dict.fromkeys((row["part"], row["operation"]) for row in rows)
    return [(n, [row for row in rows if (row["part"], row["operation"]) == n]) for n in names]
