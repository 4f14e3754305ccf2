"""How far a method gets on CIFAR-10 and Imagenette in an hour of two CPU cores, or in ten minutes
of one GPU: trains, evaluates, draws score against minutes, keeps weights and numbers.

    python -m launch.speedrun cpu --data /data/tfds
    python -m launch.speedrun gpu --data /data/tfds --methods sop,dino --sets cifar10

A run is `ssl-jax train --config=METHOD:SET`, or METHOD:SET_gpu. Its number of epochs takes the
budget on the machine that the recipe was made for; elsewhere the minutes differ and the network
does not. Runs are in WORKDIR/METHOD-SET-BUDGET-SEED and are resumed; one that has its results.json
is not made again. Beside it are its weights (bfloat16, .safetensors), which ssl_jax.load reads; the
numbers of all are in WORKDIR/records.jsonl. Without --data, METHOD:photos is trained, on
photographs that come with the packages. Arguments --config.KEY=VALUE go to every run.
"""

import argparse
import datetime
import itertools
import shlex
from pathlib import Path
from types import SimpleNamespace

from matplotlib.figure import Figure

import ssl_jax
from configs import compare
from experiments import evaluate, runs, store, tables, zoo
from experiments.tables import ROOT
from ssl_jax import trees
from ssl_jax.config import InputError, absolute

BUDGETS = {"cpu": "60 min on 2 cores", "gpu": "10 min on a GPU"}
# {set: the names under which TFDS may have prepared it}
SETS = {"cifar10": ["cifar10"], "imagenette96": ["imagenette96", "imagenette/160px-v2"]}
PHOTOS = "photos"
# Rows of experiments/evaluate.py, at 128 pixels: at CamVid's own size they take hours.
SCENES = {"dense_camvid": {"data": {"size": 128}}, "segment_camvid": {"side": 128, "short": 128}}
HEADING: tuple[str, ...] = ("method", "network", "k-NN", "linear")
HEADING += ("CamVid at 128 px, dense / segm.", "images seen", "minutes", "seed", "device")
HEADING += ("date, commit", "command")
RECORDS = store.FOLDER / "speedrun.jsonl"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].replace("\n", " "))
    parser.add_argument("budget", choices=BUDGETS, help="an hour of 2 cores, 10 minutes of a GPU")
    parser.add_argument("--data", default="", help="folder of the TFDS sets")
    parser.add_argument("--methods", default="sop", help="comma-separated; default: sop")
    parser.add_argument("--sets", default="", help="comma-separated; default: those in --data")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    place = ROOT / "runs" / "speedrun"
    parser.add_argument("--workdir", default=place, type=Path, help="where the runs go")
    parser.add_argument("--write", action="store_true", help="add the rows to docs/speedrun.md")
    args, passed_on = parser.parse_known_args(argv)
    if args.data and "://" not in args.data:
        args.data = str(absolute(args.data))  # the runs start in the checkout
    there = [images for images in SETS if prepared(args.data, images)]
    if args.data and not (there or args.sets):
        names = ", ".join(name for known in SETS.values() for name in known)
        raise InputError(f"--data={args.data} holds none of {names}; without --data: photographs")
    sets = args.sets.split(",") if args.sets else there or [PHOTOS]
    methods = args.methods.split(",")
    known = dict(methods=(methods, compare.METHODS), sets=(sets, (*SETS, PHOTOS)))
    runs.refuse_unknown(parser, passed_on, **known)
    records, failed = {}, []
    each = dict.fromkeys(itertools.product(sets, methods, args.seeds.split(",")))
    wanted = [run_of(args, method, images, seed, passed_on) for images, method, seed in each]
    runs.check(wanted)
    for run in wanted:
        print(f"{run.folder.name}: see {run.folder}.log", flush=True)
        if not runs.train(run):
            failed.append(run)
            print(f"{run.folder.name}: FAILED", flush=True)
            continue
        record = measured(run, args, passed_on)
        records[f"{run.folder.name}-{record['made']['commit']}"] = record
        print(" | ".join(cells(record)), flush=True)
    for file in (args.workdir / "records.jsonl", *([RECORDS] if args.write else [])):
        kept = store.Records(file)
        kept.update(records)
    if records:
        print("\n" + "\n".join(leaderboard(records.values())))
        print(f"picture: {draw(records.values(), args.workdir / 'curves.png')}")
    if args.write:
        write()
    return 1 if failed else 0


def run_of(args, method: str, images: str, seed: str, passed_on) -> runs.Run:
    """The run of a method on a set."""
    size = "_gpu" if args.budget == "gpu" and images != PHOTOS else ""
    place = [f"--config.data.dir={args.data}"] if images != PHOTOS else []
    if (name := prepared(args.data, images)) and name != images:
        place.append(f"--config.data.name={name}")
    folder = args.workdir / f"{method}-{images}-{args.budget}-{seed}"
    arguments = (*place, f"--config.seed={seed}", *passed_on)
    return runs.Run(f"{method}:{images}{size}", folder, arguments)


def prepared(data: str, images: str) -> str:
    """The name of a set in the folder `data`; "" if it is not there."""
    names = SETS.get(images, []) if data else []
    return next((name for name in names if Path(data, name).is_dir()), "")


def measured(run: runs.Run, args, passed_on) -> dict:
    """The record of a finished run: what `runs.read` says, and what its row in the leaderboard
    shows. Writes the weights beside the run."""
    method, images, _, seed = run.folder.name.split("-")
    encoder, record = ssl_jax.load(run.folder), runs.read(run.folder)
    ended = (run.folder / "results.json").stat().st_mtime
    elapsed = (ended - (run.folder / "environment.json").stat().st_mtime) / 60
    place = ["--data /data/tfds"] if args.data else []
    which = f"--methods {method} --sets {images} --seeds {seed}"
    options = [*place, which, *map(shlex.quote, passed_on)]
    command = f"bash launch/speedrun.sh {args.budget} {' '.join(options)}"
    zoo.keep(run.folder.with_name(f"{run.folder.name}.safetensors"), run.folder, command)
    if images == "imagenette96" and Path(args.data, "camvid").is_dir():
        for row, scores in scenes(encoder, args.data, run.folder / "scenes").items():
            record[row] |= scores
    return record | {
        "made": tables.made(run.folder),
        "method": method,
        "set": images,
        "budget": args.budget,
        "seed": int(seed),
        "date": datetime.datetime.fromtimestamp(ended, datetime.UTC).date().isoformat(),
        "images": int(record["curve"]["step"][-1]) * encoder.config.optim.batch_size,
        "network": network(encoder),
        "elapsed": elapsed,  # with compilation and evaluations; of a resumed run, its last part
        "command": command,
    }


def network(encoder) -> str:
    """ "1.1 M weights, patch 8, conv stem" """
    model, weights = encoder.config.model, trees.flatten(encoder.params["backbone"]).values()
    stem = ", conv stem" if model.stem == "conv" else ""
    return f"{sum(x.size for x in weights) / 1e6:.1f} M weights, patch {model.patch}{stem}"


def scenes(encoder, data: str, workdir: Path) -> dict:
    """{key of runs.ROWS: {row of SCENES: mIoU}} on CamVid, by experiments/evaluate.py."""
    args = SimpleNamespace(data=data, davis="", examples=0, workdir=workdir)
    results = {
        name: evaluate.evaluated(name, encoder, args, changes) for name, changes in SCENES.items()
    }
    return {
        key: {name: of[row][f"{name}_{evaluate.ROWS[name].type}"] for name, of in results.items()}
        for key, row in runs.ROWS.items()
    }


def scores(record: dict, row: str) -> list[str]:
    """Of the network of a run, or of what it is compared with: a key of runs.ROWS."""
    of = record[row]
    on_scenes = [f"{of[name]:.1f}" for name in SCENES if name in of]
    return [f"{of['knn']:.1f}", f"{of['linear']:.1f}", " / ".join(on_scenes) or "-"]


def cells(record: dict) -> list[str]:
    """A row of the leaderboard."""
    made = record["made"]
    device = made["accelerators"] or f"{made['processor']}, {made['cores']} cores"
    return [
        compare.TITLES[record["method"]],
        record["network"],
        *scores(record, "trained"),
        f"{record['images'] / 1e6:.2f} M",
        f"{record['minutes']:.0f} ({max(record['minutes'], record['elapsed']):.0f})",
        str(record["seed"]),
        device,
        f"{record['date']}, {made['commit']}",
        f"`{record['command']}`",
    ]


def leaderboard(records) -> list[str]:
    """A heading and a table for each set and budget, the best k-NN first, with the baselines of the
    best below."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for record in records:
        groups.setdefault((record["set"], record["budget"]), []).append(record)
    parts = []
    for images, budget in sorted(groups):
        mine = sorted(groups[images, budget], key=lambda record: -record["trained"]["knn"])
        rows = [HEADING, *map(cells, mine)]
        for row in ("untrained", "raw"):
            rows.append([runs.ROWS[row], "", *scores(mine[0], row), *[""] * 6])
        parts += [f"### {images}, {BUDGETS[budget]}\n", tables.markdown(rows)]
    return parts


def draw(records, path: Path) -> Path:
    """k-NN against minutes of training, a panel for each set, a line for each run; untrained
    network and raw pixels dashed."""
    records = list(records)
    sets = list(dict.fromkeys(record["set"] for record in records))
    figure = Figure(figsize=(7 * len(sets), 4), layout="constrained")
    for axes, images in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        mine = [record for record in records if record["set"] == images]
        for record in mine:
            minutes = [step * record["ms"] / 60000 for step in record["curve"]["step"]]
            label = f"{compare.TITLES[record['method']]}, seed {record['seed']}"
            axes.plot(minutes, record["curve"]["knn"], marker="o", markersize=3, label=label)
        for row, style in (("raw", "--"), ("untrained", ":")):
            level, name = mine[0][row]["knn"], runs.ROWS[row]
            axes.axhline(level, color="gray", linestyle=style, linewidth=1, label=name)
        axes.set(title=images, xlabel="minutes of training", ylabel="k-NN, %")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)
    return path


def best(records) -> list[list[str]]:
    """Rows of cells: of each set and budget the run with the best k-NN, beside its baselines."""
    rows = [["images", "budget", "method", *(f"k-NN, {row}" for row in runs.ROWS.values())]]
    rows[0] += [f"linear, {row}" for row in runs.ROWS.values()]
    groups: dict[tuple[str, str], dict] = {}
    for record in sorted(records, key=lambda record: record["trained"]["knn"]):
        groups[record["budget"], record["set"]] = record
    for (budget, images), record in sorted(groups.items()):
        title = compare.TITLES[record["method"]]
        scored = [f"{record[row][score]:.1f}" for score in ("knn", "linear") for row in runs.ROWS]
        rows.append([images, BUDGETS[budget], title, *scored])
    return rows


def write() -> None:
    """The leaderboard and the curves of all records in docs/speedrun.md, the best in README.md."""
    every = list(store.Records(RECORDS).values())
    tables.fill(ROOT / "README.md", "speedrun", tables.markdown(best(every)))
    text = "\n".join(leaderboard(every))
    for budget in BUDGETS:
        mine = [record for record in every if record["budget"] == budget]
        if mine:
            picture = draw(mine, ROOT / "docs" / "pictures" / f"speedrun_{budget}.png")
            text += f"\n![k-NN against minutes, {BUDGETS[budget]}](pictures/{picture.name})\n"
    tables.fill(ROOT / "docs" / "speedrun.md", "leaderboard", text)


if __name__ == "__main__":
    runs.start(main)
