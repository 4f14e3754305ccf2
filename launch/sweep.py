"""Runs of one config with other values: trains what is missing, then a table of what differs.

    python -m launch.sweep --config=compare:flsl --grid flsl.prototypes=64,128 --grid seed=0,1
    python -m launch.sweep --workdir=runs/sweep --list changes.txt --config=sop:cifar10
    python -m launch.sweep --config=sop:vits16 --grid optim.lr=5e-4,1e-3 --slurm="--time=48:00:00"
    python -m launch.sweep --table runs/sweep/*/
    python -m launch.sweep --table runs/base runs/sweep/*/ --gains

A grid is every combination of the values; a list is a file with the changes of one run a line, as
KEY=VALUE separated by blanks. A run is `ssl-jax train` in WORKDIR/KEY=VALUE,..., in a process of
its own; it resumes after a kill, and one that is finished is not made again. Values are
those of --config.KEY=VALUE; a value with commas, such as a pair, needs a list. Arguments
--config.KEY=VALUE go to every run. With --slurm the runs become one array of jobs
(launch/slurm.sbatch, one process and GPU each), and --table shows what they gave. With --gains the
table says what each run changes of the first one and how many points more it has.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments import runs, tables
from experiments.tables import ROOT
from ssl_jax import config as config_lib
from ssl_jax import evals
from ssl_jax.config import InputError

# Of a resolved config: what follows from other keys, or often does.
_FOLLOWS = ("run.", "expected.", "evals.", "folder")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="NAME[:VARIANT], as of ssl-jax train")
    parser.add_argument("--grid", action="append", default=[], help="KEY=VALUE,VALUE,...; repeat")
    parser.add_argument("--list", type=Path, help="file with KEY=VALUE KEY=VALUE ... a line")
    parser.add_argument("--workdir", default="runs/sweep", type=Path, help="where the runs go")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its own cores")
    parser.add_argument("--slurm", help="submit them as an array; further options of sbatch, or ''")
    parser.add_argument("--table", nargs="+", type=Path, help="only the table of these run folders")
    parser.add_argument("--keys", default="", help="columns of the table; default: what differs")
    parser.add_argument("--gains", action="store_true", help="a table of gains over the first run")
    parser.add_argument("--write", metavar="MARK", help="also put the table there in a document")
    parser.add_argument("--document", default=ROOT / "experiments" / "tried.md", type=Path)
    args, passed_on = parser.parse_known_args(argv)
    if args.table:
        report(args.table, args)
        return 0
    runs.refuse_unknown(parser, passed_on)
    if not args.config or bool(args.grid) == bool(args.list):
        parser.error("--config=NAME and one of --grid and --list are needed, or --table")
    changes = of_grid(args.grid) if args.grid else of_list(args.list)
    keys = dict.fromkeys(part.partition("=")[0] for change in changes for part in change)
    args.keys = args.keys or ",".join(keys)
    wanted = [
        runs.Run(
            args.config,
            args.workdir / (",".join(change).replace("/", "_") or "unchanged"),
            (*(f"--config.{part}" for part in change), *passed_on),
        )
        for change in dict.fromkeys(map(tuple, changes))
    ]
    if args.slurm is not None:
        runs.check(wanted)
        return submit([run for run in wanted if not run.done], args.workdir, args.slurm)
    failed = []
    for run, there in runs.train_all(wanted, args.jobs):
        failed += [] if there else [run]
    finished = [run.folder for run in wanted if run not in failed]
    if finished:
        print()
        (args.workdir / "table.md").write_text(report(finished, args))
    return 1 if failed else 0


def submit(wanted: list[runs.Run], folder: Path, options: str) -> int:
    """Queues an array of jobs; returns sbatch's status."""
    if not wanted:
        print("all runs have results")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        shlex.join([f"--config={r.config}", f"--workdir={r.folder.absolute()}", *r.arguments])
        for r in wanted
    ]
    # A file of its own: jobs that are queued again read theirs long after a later submission.
    handle, name = tempfile.mkstemp(prefix="runs_", suffix=".txt", dir=folder.absolute())
    file = Path(name)
    with open(handle, "w") as listing:
        listing.writelines(f"{line}\n" for line in lines)
    one = ["--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1"]
    command = ["sbatch", f"--array=0-{len(lines) - 1}", *one, *shlex.split(options)]
    environment = {"PYTHON": sys.executable} | os.environ | {"RUNS": str(file)}
    return subprocess.run([*command, "launch/slurm.sbatch"], cwd=ROOT, env=environment).returncode


def report(folders: list[Path], args) -> str:
    """Prints the table of the finished runs and names the others; writes it between two marks of a
    document if there is a name. Raises InputError if no run, or with `gains` not the first one, is
    finished."""
    done = [folder for folder in folders if runs.Run("", folder).done]
    if not done or (args.gains and done[0] != folders[0]):
        raise InputError(f"{folders[0]} has no results yet; wait for the run, or resume it")
    if left := [folder.name for folder in folders if folder not in done]:
        print(f"without results yet: {', '.join(left)}", file=sys.stderr)
    folders = done
    rows = gains(folders) if args.gains else table(folders, args.keys.split(",") * bool(args.keys))
    text = tables.markdown(rows)
    print(text, end="")
    if args.write:
        tables.fill(args.document, args.write, f"{text}\n{tables.provenance(*folders)}\n")
    return text


def of_grid(grid: list[str]) -> list[tuple[str, ...]]:
    """("a=1,2", "b=3") -> [("a=1", "b=3"), ("a=2", "b=3")]."""
    axes = []
    for text in grid:
        key, _, values = text.partition("=")
        axes.append([f"{key}={value}" for value in values.split(",")])
    return list(itertools.product(*axes))


def of_list(file: Path) -> list[tuple[str, ...]]:
    """The changes of each line; empty lines and comments (#) are left out."""
    lines = (shlex.split(line, comments=True) for line in file.read_text().splitlines())
    return [tuple(line) for line in lines if line]


def table(folders: list[Path], keys: Sequence[str] = ()) -> list[list[str]]:
    """Rows of cells: of each run the given keys, or those that differ among all of them (and its
    folder, if they do not tell the runs apart), and its scores; the baselines below, with the mean
    over the runs that have them."""
    results, configs = read(folders)
    keys, scores = list(keys) or differing(list(configs.values())), measured(results)
    different = {tuple(str(config.get(key)) for key in keys) for config in configs.values()}
    if not keys or len(different) < len(configs):
        keys.append("folder")
    rows = [[*keys, *(evals.TYPES[name].heading for name in scores)]]
    for folder, result in results.items():
        cells = [str(configs[folder].get(key, "-")) for key in keys]
        rows.append(cells + [tables.spread([result["trained"][s]]) for s in scores])
    for kind in ("untrained", "raw"):
        have = [r[kind] for r in results.values() if kind in r]
        if not have:
            continue
        cells = [tables.spread(r[name] for r in have if name in r) for name in scores]
        rows.append([runs.ROWS[kind], *("" for _ in keys[1:]), *cells])
    return rows


def gains(folders: list[Path]) -> list[list[str]]:
    """Rows of cells: of each run what it changes of the first one, its scores, and their
    differences from those of the first."""
    results, configs = read(folders)
    (base, *others), scores = folders, measured(results)
    headings = [evals.TYPES[name].heading for name in scores]
    rows = [["change", *(f"{heading} (gain)" for heading in headings)]]
    first = results[base]["trained"]
    rows.append(["none", *(f"{first[name]:.1f}" for name in scores)])
    for folder in others:
        keys, now = differing([configs[base], configs[folder]]), results[folder]["trained"]
        changes = ", ".join(f"{key}={configs[folder].get(key, '-')}" for key in keys)
        cells = [f"{now[name]:.1f} ({now[name] - first[name]:+.1f})" for name in scores]
        rows.append([f"`{changes or folder.name}`", *cells])
    return rows


def read(folders: list[Path]) -> tuple[dict[Path, dict], dict[Path, dict]]:
    """Results and resolved configs {key: value} of finished runs."""
    texts = {folder: (folder / "config.json").read_text() for folder in folders}
    configs = {
        folder: config_lib.flatten(json.loads(text)) | {"folder": folder.name}
        for folder, text in texts.items()
    }
    return {folder: {"trained": {}} | runs.read(folder) for folder in folders}, configs


def measured(results: dict[Path, dict]) -> list[str]:
    """The scores that some run has."""
    trained = [result["trained"] for result in results.values()]
    return [name for name in evals.TYPES if any(name in scores for scores in trained)]


def differing(configs: list[dict]) -> list[str]:
    """Keys whose values are not the same in all configs {key: value}, but what follows from other
    keys."""
    keys = {key for config in configs for key in config_lib.changed(configs[0], config)}
    return sorted(key for key in keys if not key.startswith(_FOLLOWS))


if __name__ == "__main__":
    runs.start(main)
