"""What a network is worth on real sets: every evaluation that they allow, beside the untrained
network and raw pixels. Prints a row as each ends; --write puts the table into docs/results.md,
with --rows these rows of it.

    python -m experiments evaluate runs/imagenette --data /data/tfds --davis /data/DAVIS --write

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
from experiments import runs
from experiments.runs import ROOT
from ssl_jax import evals, settings
from ssl_jax.config import InputError
from ssl_jax.data import source
from ssl_jax.report.evaluation import Evaluation


class Row(NamedTuple):
    """One evaluation: its type, the set, the scores shown, and its settings."""

    type: str
    set: str
    scores: tuple[str, ...]
    changes: dict


def _tfds(name, **changes):
    return dict(kind="tfds", name=name, **changes)


_CIFAR = _tfds("cifar10", size=64)
_IMAGENETTE = _tfds("imagenette96", size=64, test_split="validation")
_CAMVID = _tfds("camvid", test_split="test")
_IBOT = dict(
    optimizer="sgd",
    schedule="cosine",
    norm=False,
    weight_decay=0.0,
    scale_lr=True,
    batch=256,
    layers=4,
    tokens="mean",
    lrs=(1e-3, 1e-2, 0.1, 0.5, 1.0, 5.0),
)
ROWS = {
    f"{name}_{images}": Row(type, images, (type,), dict(data=data, **changes))
    for images, data in (("cifar10", _CIFAR), ("imagenette96", _IMAGENETTE))
    for name, type, changes in (
        ("knn", "knn", {}),
        ("linear", "linear", {}),
        ("linear_ibot", "linear", _IBOT),
        ("logistic", "logistic", dict(c=(0.01, 0.1, 1.0))),
    )
} | {
    # All 367 training images would take an hour for patches of 8 pixels.
    "dense_camvid": Row(
        "dense",
        "camvid, from 101 images",
        ("dense", "dense_pixel"),
        dict(data=_CAMVID, train_examples=101),
    ),
    "segment_camvid": Row("segment", "camvid", ("segment",), dict(data=_CAMVID)),
    "box_knn_coco128": Row(
        "box_knn",
        "coco128",
        ("box_knn",),
        dict(data=_tfds("coco128", size=256, test_split="validation"), crop=224, k=(20,)),
    ),
    "davis": Row(
        "davis",
        "DAVIS 2016, two clips",
        ("davis", "davis_j", "davis_f"),
        dict(data=dict(kind="davis", split="2016/val", test_split="2016/val"), short_side=240),
    ),
    # The same images in training and test: whether a detector can be trained at all.
    "yolos_bccd": Row(
        "yolos",
        "bccd, 32 images learned by heart",
        ("yolos", "yolos_ap50"),
        dict(
            data=_tfds("bccd", test_split="train"),
            **dict(train_examples=32, test_examples=32, queries=40, flip=0.0, crop_prob=0.0),
            **dict(sizes=(96,), test_size=96, longest=128, canvas=32),
            **dict(epochs=1100, batch=2, lr=3e-4),
        ),
    ),
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
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
    found = {}
    for name in names:
        try:
            found[name] = evaluated(name, encoder, args)
        except InputError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        print(" | ".join(cells(name, found[name])), flush=True)
    text = runs.markdown(table(found))
    print(text)
    if args.write:
        option, document = f" --rows {args.rows}" if args.rows else "", ROOT / "docs" / "results.md"
        note = f"\n`python -m experiments evaluate{option}`, {encoder!r}. {runs.provenance()}\n"
        if args.rows:
            text = among(text, runs.filled(document, "evaluation").replace(note, ""))
        runs.fill(document, "evaluation", text + note)
    return 0


def evaluated(name: str, encoder, args) -> dict:
    """{row of a comparison: scores, "seconds": number} of one evaluation."""
    folder = args.workdir / name
    if not (folder / "seconds.json").is_file():  # the last file that is written
        row = ROWS[name]
        config = ConfigDict(settings.completed(encoder.config).to_dict())
        place = args.davis if row.changes["data"]["kind"] == "davis" else args.data
        if not place:
            raise InputError(f"no folder given for {row.set}")
        config.evals = ConfigDict({k: v for k, v in config.evals.items() if not is_section(v)})
        config.evals[name] = evals.new(row.type, **row.changes)
        section = config.evals[name]
        if section.data.kind not in source.EMBEDDED:
            section.data.dir = place
        if args.examples:
            section.train_examples = section.test_examples = args.examples
        config.evals.tasks, config.evals.picture_size = (name,), 0  # pictures of what is scored
        config.evals.cache = str(args.workdir / "features")  # several rows want the same
        settings.check_evals(config)
        evaluation = Evaluation(FrozenConfigDict(config))
        evaluation.open()
        evaluation.network = encoder
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        network = encoder.params, encoder.constants
        evaluation.publish(evaluation.compare(*network), *network, folder)
        (folder / "seconds.json").write_text(json.dumps(time.monotonic() - began))
    seconds = json.loads((folder / "seconds.json").read_text())
    return json.loads((folder / "results.json").read_text()) | {"seconds": seconds}


def among(table: str, older: str) -> str:
    """An older table and its notes, with the rows that the table has anew; the table itself where
    the older one lacks some of them."""
    first, rows = (lambda line: line.split(" | ")[0]), older.splitlines()
    new = {first(line): line for line in table.splitlines()}
    if not new.keys() <= set(map(first, rows)):
        return table
    return "".join(f"{new.get(first(line), line)}\n" for line in rows)


def is_section(value) -> bool:
    """Whether a value of the section `evals` is an evaluation."""
    return isinstance(value, ConfigDict | FrozenConfigDict)


def cells(name: str, results: dict) -> list[str]:
    """Of a row of the table."""
    row = ROWS[name]

    def shown(of):
        scores = results.get(of, {})
        prefix = "" if name == row.type else f"{name}_"
        values = [scores.get(f"{prefix}{score}") for score in row.scores]
        return " / ".join("-" if value is None else f"{value:.1f}" for value in values)

    heading = evals.TYPES[row.type].heading
    return [name, heading, row.set, *map(shown, evals.ROWS), f"{results['seconds']:.0f}"]


def table(found: dict) -> list[list[str]]:
    """Rows of cells, one for each evaluation."""
    heading = ["evaluation", "score", "set", *evals.ROWS, "seconds"]
    return [heading, *(cells(name, results) for name, results in found.items())]
