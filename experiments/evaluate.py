"""What a network is worth on real sets: every evaluation of evaluate.toml whose set is there,
beside the untrained network and raw pixels. Prints a row as each ends; --write puts the table into
docs/results.md, with --rows these rows of it.

    python -m experiments evaluate runs/mine --data /data/tfds --davis /data/DAVIS --write

Each evaluation is kept as WORKDIR/NAME/results.json, with its pictures, and not made again;
features are in WORKDIR/features. The sets are CIFAR-10 and Imagenette (both at 64 px), CamVid,
COCO128 and BCCD in TFDS's form, and two clips of DAVIS 2016 in its own. Sets that are not there are
left out, and named.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

import ssl_jax
from experiments import runs, tables
from ssl_jax import evals, settings
from ssl_jax.config import InputError
from ssl_jax.data import source
from ssl_jax.report.evaluation import Evaluation


class Row(NamedTuple):
    """One evaluation: its type, the set, what differs from the type's settings, and the scores
    shown; () = the type's own."""

    type: str
    set: str
    changes: dict
    scores: tuple[str, ...] = ()


ROWS = {name: Row(**row) for name, row in runs.data("evaluate").items()}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("network", help="a run folder, a saved network or published weights")
    parser.add_argument("--data", default="", help="folder of the TFDS sets")
    parser.add_argument("--davis", default="", help="folder of DAVIS")
    parser.add_argument("--rows", default="", help="comma-separated; default: all")
    parser.add_argument("--workdir", default="runs/evaluate", type=Path, help="where results go")
    parser.add_argument("--examples", type=int, default=0, help="images of each part; 0 = all")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results.md")
    args = parser.parse_args(argv)
    names = args.rows.split(",") if args.rows else list(ROWS)
    runs.refuse_unknown(parser, [], rows=(names, ROWS))
    encoder = ssl_jax.load(args.network)
    rows = [["evaluation", "score", "set", *evals.ROWS, "seconds"]]
    for name in names:
        try:
            rows.append(cells(name, evaluated(name, encoder, args)))
        except InputError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        print(" | ".join(rows[-1]), flush=True)
    text = tables.markdown(rows)
    print(text)
    if args.write:
        option, page = f" --rows {args.rows}" if args.rows else "", "docs/results.md"
        note = f"\n`python -m experiments evaluate{option}`, {encoder!r}. {tables.provenance()}\n"
        if args.rows:
            text = among(text, tables.filled(page, "evaluation").replace(note, ""))
        tables.fill(page, "evaluation", text + note)
    return 0


def evaluated(name: str, encoder, args, changes=None) -> dict:
    """{row of a comparison: scores, "seconds": number} of one evaluation. changes: of its row's."""
    row, changes = ROWS[name], changes or {}
    data = row.changes["data"] | changes.get("data", {})
    row = row._replace(changes=row.changes | changes | {"data": data})
    folder = args.workdir / name
    if not (folder / "seconds.json").is_file():  # the last file that is written
        evaluation = opened(name, row, encoder, args)
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        network = encoder.params, encoder.constants
        evaluation.publish(evaluation.compare(*network), *network, folder)
        (folder / "seconds.json").write_text(json.dumps(time.monotonic() - began))
    seconds = json.loads((folder / "seconds.json").read_text())
    return json.loads((folder / "results.json").read_text()) | {"seconds": seconds}


def opened(name: str, row: Row, encoder, args, **changes) -> Evaluation:
    """A row's evaluation of a network, its images opened; changes: of the whole config. Raises
    InputError if there is no folder for the set."""
    config = ConfigDict(settings.completed(encoder.config).to_dict())
    place = args.davis if row.changes["data"]["kind"] == "davis" else args.data
    if not place:
        raise InputError(f"no folder given for {row.set}")
    sections = ConfigDict | FrozenConfigDict  # one for each evaluation, none of them wanted
    config.evals = ConfigDict(
        {k: v for k, v in config.evals.items() if not isinstance(v, sections)}
    )
    config.evals[name] = evals.new(row.type, **row.changes)
    section = config.evals[name]
    if section.data.kind not in source.EMBEDDED:
        section.data.dir = place
    if args.examples:
        section.train_examples = section.test_examples = args.examples
    config.evals.tasks, config.evals.picture_size = (name,), 0  # pictures of what is scored
    # A recipe's batches are of its own images, which may be smaller.
    config.evals.batch_size = min(config.evals.batch_size, 64)
    config.evals.cache = str(args.workdir / "features")  # several rows want the same
    config.update(changes)
    settings.check_evals(config)
    evaluation = Evaluation(FrozenConfigDict(config))
    evaluation.open()
    evaluation.network = encoder
    return evaluation


def among(table: str, older: str) -> str:
    """An older table and its notes, with the rows that the table has anew; the table itself where
    the older one lacks some of them."""
    first, rows = (lambda line: line.split(" | ")[0]), older.splitlines()
    new = {first(line): line for line in table.splitlines()}
    if not new.keys() <= set(map(first, rows)):
        return table
    return "".join(f"{new.get(first(line), line)}\n" for line in rows)


def cells(name: str, results: dict) -> list[str]:
    """Of a row of the table."""
    row = ROWS[name]

    def shown(of):
        scores = results.get(of, {})
        prefix = "" if name == row.type else f"{name}_"
        values = [scores.get(f"{prefix}{score}") for score in row.scores or (row.type,)]
        return " / ".join("-" if value is None else f"{value:.1f}" for value in values)

    heading = evals.TYPES[row.type].heading
    return [name, heading, row.set, *map(shown, evals.ROWS), f"{results['seconds']:.0f}"]
