"""What methods learn on CIFAR-10 and Imagenette in a given time: trains each, prints a row as each
run ends, and leaves tables, curves of score against minutes, pictures and weights.

    python launch/real_sets.py --data /data/tfds --minutes 40
    python launch/real_sets.py --data /data/tfds --steps 5000 --jobs 8

The step of every method is timed first, in turns; then each run gets so many steps that all
together take the time, unless --steps says how many. Several --jobs share the device: one run does
not keep a large one busy, and minutes are then those beside the others. Runs are in
WORKDIR/METHOD-SET and are resumed; their numbers go to WORKDIR/records.jsonl (or --records), and a
run that stands there, or has its results.json, is not made again. The weights of a finished one are
in WORKDIR/METHOD-SET.safetensors (bfloat16), which ssl_jax.load reads. Arguments --config.KEY=VALUE
go to every run.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launch")]

import bench_steps  # noqa: E402
import runs  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from records import Records, train_all  # noqa: E402

import ssl_jax  # noqa: E402
from configs import compare  # noqa: E402
from ssl_jax import config as config_lib  # noqa: E402
from ssl_jax import evals  # noqa: E402
from ssl_jax.cli import arguments  # noqa: E402

SETS = ("cifar10", "imagenette96")
SCORES = {name: evals.TYPES[name].heading for name in ("knn", "linear")}
_WITH_MARGIN = [f"{name} (margin)" for name in SCORES.values()]
HEADING = ("run", *_WITH_MARGIN, "steps", "ms a step", "minutes")
_SHARE = 0.75  # of the time that goes to steps; the rest to compilation, evaluation and pictures
_ROUNDS = 3  # in which steps are timed


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="", help="folder of the TFDS sets")
    parser.add_argument("--minutes", type=float, default=40.0, help="for all runs together")
    parser.add_argument("--steps", type=int, help="of every run, in place of --minutes")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, on the same device")
    parser.add_argument("--methods", default=",".join(compare.METHODS), help="comma-separated")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated; default: all")
    parser.add_argument("--workdir", default="runs/real_sets", type=Path, help="where the runs go")
    parser.add_argument("--records", type=Path, help="file of the numbers of runs made before")
    parser.add_argument("--write", action="store_true", help="put table and curves into docs")
    parser.add_argument("--finished", action="store_true", help="train nothing: what is there")
    args, passed_on = parser.parse_known_args(argv)
    methods, sets = args.methods.split(","), args.sets.split(",")
    runs.refuse_unknown(parser, passed_on, methods=(methods, compare.METHODS), sets=(sets, SETS))
    if not (args.data or args.finished):
        parser.error("give --data, the folder of the TFDS sets, or --finished")
    passed_on = [f"--config.data.dir={args.data}", *passed_on]
    names = [f"{method}:{images}" for images in sets for method in methods]
    records = Records(args.records or args.workdir / "records.jsonl")
    plan = {name: 0 for name in names if is_there(name, args.workdir, records)}
    missing = [name for name in names if name not in plan and not args.finished]
    if args.steps:
        plan |= dict.fromkeys(missing, args.steps)
    else:
        plan |= planned(missing, args.minutes, args.workdir, passed_on)
    wanted = {run_of(name, steps, args.workdir, passed_on): name for name, steps in plan.items()}
    print(row(*HEADING), flush=True)
    finished, failed = {}, []
    for run, record in train_all(wanted, args.jobs, records):
        name = wanted[run]
        if record is None:
            failed.append(name)
            print(f"{name}: FAILED, see {run.folder}.log", flush=True)
            continue
        finished[name] = record
        if run.done:
            keep(run.folder, record)
        print(row(*cells(name, record)), flush=True)
    finished = {name: finished[name] for name in names if name in finished}
    if finished:
        made = runs.provenance_of(record["made"] for record in finished.values())
        text = runs.markdown(table(finished))
        note = f"\n{made}\n"
        args.workdir.mkdir(parents=True, exist_ok=True)
        (args.workdir / "table.md").write_text(text + note)
        print("\n" + text)
        print(f"picture: {draw(finished, args.workdir / 'curves.png')}")
        if args.write:
            write(finished, text + note)
    return 1 if failed else 0


def write(finished: dict, text: str) -> None:
    """Puts table and curves into docs/results.md, in the section of the device of the runs."""
    on_gpu = any(record["made"].get("accelerators") for record in finished.values())
    section, file = ("real sets, GPU", "real_sets_gpu") if on_gpu else ("real sets", "real_sets")
    draw(finished, ROOT / "docs" / "pictures" / f"{file}.png")
    picture = f"\n![k-NN against minutes of training](pictures/{file}.png)\n"
    runs.fill(ROOT / "docs" / "results.md", section, text + picture)


def is_there(name: str, workdir: Path, records: Records) -> bool:
    """Whether the run of a config is on record or finished."""
    run = run_of(name, 0, workdir)
    return run.folder.name in records or run.done


def planned(names, minutes: float, workdir: Path, passed_on=()) -> dict[str, int]:
    """{name: steps} such that each run takes an equal share of the time. A method is timed on one
    set, as its views are the same on all. Kept in WORKDIR/plan.json, so that a script that was
    killed goes on with the same numbers."""
    file = workdir / "plan.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    missing = [name for name in names if name not in known]
    if missing:
        configs = {}
        for name in missing:
            method = name.partition(":")[0]
            if method not in configs:
                configs[method] = arguments.changed(config_lib.load(name), passed_on)
        taken = bench_steps.times(configs, _ROUNDS)
        seconds = 60 * minutes * _SHARE / len(names)
        for name in missing:
            of_step = statistics.median(taken[name.partition(":")[0]])
            known[name] = max(1, round(seconds / of_step))
        workdir.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(known, indent=2) + "\n")
    return {name: known[name] for name in names}


def run_of(name: str, steps: int, workdir: Path, passed_on=()) -> runs.Run:
    """The run of a config and so many steps, evaluated four times on the way."""
    return runs.Run(
        name,
        workdir / name.replace(":", "-"),
        (
            f"--config.optim.steps={steps}",
            f"--config.evals.every_steps={max(1, steps // 4)}",
            *passed_on,
        ),
    )


def keep(folder: Path, result: dict) -> None:
    """Writes the weights, with scores and the number of steps, beside the run's folder."""
    notes = {"scores": result["trained"], "untrained": result["untrained"], "raw": result["raw"]}
    encoder = ssl_jax.load(folder)
    ssl_jax.save(encoder, folder.with_name(folder.name + ".safetensors"), dtype="bfloat16", **notes)


def cells(name: str, result: dict) -> list[str]:
    """Of one run: name, scores with their margins, steps, milliseconds, minutes."""
    trained = result["trained"]
    scores = [f"{trained[key]:.1f} ({runs.margin(result, key):+.1f})" for key in SCORES]
    steps = f"{result['curve']['step'][-1]:.0f}"
    return [name, *scores, steps, f"{result['ms']:.1f}", f"{result['minutes']:.1f}"]


def row(name: str, *others: str) -> str:
    """One line of the running report."""
    return f"{name:<24}" + "".join(f"{cell:>17}" for cell in others)


def table(finished: dict) -> list[list[str]]:
    """Rows of cells: a line for each run, and the baselines of each set."""
    rows = [list(HEADING), *(cells(name, result) for name, result in finished.items())]
    for images in dict.fromkeys(name.split(":")[1] for name in finished):
        mine = [result for name, result in finished.items() if name.endswith(f":{images}")]
        for kind in ("untrained", "raw"):
            scores = [runs.spread(result[kind][key] for result in mine) for key in SCORES]
            rows.append([f"{runs.ROWS[kind]}, {images}", *scores, "", "", ""])
    return rows


def draw(finished: dict, path: Path) -> Path:
    """k-NN against minutes of training, a panel for each set, a line for each method."""
    sets = list(dict.fromkeys(name.split(":")[1] for name in finished))
    figure = Figure(figsize=(6 * len(sets), 4), layout="constrained")
    for axes, images in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets):
        mine = {name: one for name, one in finished.items() if name.endswith(f":{images}")}
        for name, record in mine.items():
            minutes = [step * record["ms"] / 60000 for step in record["curve"]["step"]]
            label = compare.TITLES[name.split(":")[0]]
            axes.plot(minutes, record["curve"]["knn"], marker="o", label=label)
        raw = statistics.fmean(record["raw"]["knn"] for record in mine.values())
        axes.axhline(raw, color="gray", linestyle="--", linewidth=1, label=runs.ROWS["raw"])
        axes.set(title=images, xlabel="minutes of training", ylabel="k-NN, %")
        axes.legend()
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    runs.start(main)
