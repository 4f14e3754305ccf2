"""What the benchmarks share: options, tables, the JSON file and the place in docs/benchmarks.md."""

import argparse
import json
from pathlib import Path

from experiments import tables

_AS_INSTALLED = dict(action="store_true", help="other libraries are left as they are")


def options(text: str, argv, known=(), **more) -> argparse.Namespace:
    """The options of a benchmark. known: names that --only chooses from. more: further options by
    name, as `add_argument` takes them; `peers=True`: that of other libraries, `small=False`: there
    are no small sizes."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=kind)
    if more.pop("small", True):
        parser.add_argument("--small", action="store_true", help="sizes for a moment")
    parser.add_argument("--rounds", type=int, default=5, help="of timing, all forms in turns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/bench", type=Path, help="folder of the JSON file")
    parser.add_argument("--write", action="store_true", help="table into docs/benchmarks.md")
    parser.set_defaults(only=list(known))
    if known:
        listed = f"comma-separated: {', '.join(known)}"
        parser.add_argument("--only", type=lambda words: words.split(","), help=listed)
    if more.pop("peers", False):
        more["as_installed"] = _AS_INSTALLED
    for name, how in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    chosen = parser.parse_args(argv)
    if chosen.rounds < 1:
        parser.error(f"--rounds is {chosen.rounds}; it must be at least 1")
    if unknown := sorted({*chosen.only} - {*known}):
        parser.error(f"--only is {','.join(unknown)}; it must name some of {', '.join(known)}")
    return chosen


def cells(rows: list[dict], columns: dict[str, tuple[str, str]]) -> list[list[str]]:
    """A table of rows. columns: {heading: (key of a row, format)}; None is shown as "-"."""
    body = [
        ["-" if row[key] is None else format(row[key], form) for key, form in columns.values()]
        for row in rows
    ]
    return [list(columns), *body]


def keep(name: str, chosen, rows: list[dict], **more) -> None:
    """Writes OUT/NAME.json: the rows, where they were made and the options."""
    path = chosen.out / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = dict(made=tables.made(), small=getattr(chosen, "small", False))
    about |= dict(rounds=chosen.rounds, seed=chosen.seed)
    path.write_text(json.dumps(about | dict(rows=rows) | more, indent=1) + "\n")


def publish(name: str, chosen, rows: list[dict], table: list, peers: str = "") -> None:
    """Prints a table and keeps its rows; with --write it goes into docs/benchmarks.md. peers: how
    other libraries were set up."""
    text = tables.markdown(table) + (f"\n{peers}.\n" if peers else "")
    print(text)
    keep(name, chosen, rows, peers=peers)
    if chosen.write:
        rounds = f"Medians of {chosen.rounds} rounds" if chosen.rounds > 1 else "One round"
        note = f"\n{rounds}, seed {chosen.seed}. {tables.provenance()}\n"
        tables.fill("docs/benchmarks.md", name, text + note)
