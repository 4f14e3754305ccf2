"""Runs of `ssl-jax train`: trained where they are missing, read where they are there; and what the
commands of `python -m experiments` share."""

import argparse
import contextlib
import csv
import importlib
import itertools
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from experiments.store import Records
from experiments.tables import ROOT, made, spread
from ssl_jax import evals, extras
from ssl_jax.cli import arguments
from ssl_jax.config import InputError, exit_code, refusal
from ssl_jax.runtime import pages, stop

ROWS = {"untrained": "untrained network", "raw": "raw pixels", "trained": "trained"}
# Keys that change no result, or a place.
_FREE = tuple(f"--config.{key}" for key in ("log.", "checkpoint.", "data.workers", "data.dir"))
_LAST = 20  # rows of metrics.csv that stand for the end of a run
_SOON = 0.2  # seconds in which a signal is passed on


def start(main) -> None:
    """Ends the process with what a script's `main()` returns; bad input, a library that is not
    installed and a signal are one line and a status, as of ssl-jax. With huge pages, as ssl-jax."""
    pages.restart_with_huge_pages()
    try:
        sys.exit(main())
    except stop.Interrupted:
        status, line = stop.EXIT_PREEMPTED, "stopped; the same command continues"
    except KeyboardInterrupt:
        status, line = stop.EXIT_AT_ONCE, "stopped"
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and extras.missing(error)
        status, line = exit_code(error), absent or refusal(error)
        if not line:
            raise
    print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
    sys.exit(status)


def dispatch(package: str, names) -> None:
    """Runs `main()` of the module of a package that the first word of the command names."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word not in names:
        print(f"python -m {package} {'|'.join(names)} ...", file=sys.stderr)
        sys.exit(0 if word in ("-h", "--help") else 2)
    sys.argv[:2] = [word]
    start(lambda: importlib.import_module(f"{package}.{word}").main())


def data(name: str) -> dict:
    """experiments/NAME.toml, with lists as tuples, as configs have them."""

    def frozen(value):
        if isinstance(value, dict):
            return {key: frozen(x) for key, x in value.items()}
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return frozen(tomllib.loads((ROOT / "experiments" / f"{name}.toml").read_text("utf-8")))


def integers(text: str) -> list[int]:
    """ "0,1" as a list."""
    return [int(part) for part in text.split(",")]


def parser(text: str, seeds: str) -> argparse.ArgumentParser:
    """With the options of all commands that train."""
    shared = argparse.ArgumentParser(description=text.split("\n\n")[0])
    shared.add_argument("--seeds", type=integers, default=seeds, help="comma-separated")
    shared.add_argument("--workdir", default="runs/compare", type=Path, help="where the runs go")
    shared.add_argument("--records", type=Path, help="file of the numbers of runs made before")
    shared.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its own cores")
    shared.add_argument("--finished", action="store_true", help="train nothing: what is there")
    shared.add_argument("--write", action="store_true", help="also write the tables into documents")
    return shared


def records_of(options) -> Records:
    """The file that the options name."""
    return Records(options.records or options.workdir / "records.jsonl")


def results(wanted: dict, options) -> tuple[dict, int]:
    """({key: record} of {key: run}, 1 if a run failed): on record, or trained now. Runs that
    several keys have are trained once."""
    records, status = records_of(options), 0
    missing = [run for run in dict.fromkeys(wanted.values()) if run.folder.name not in records]
    if options.finished:
        missing = [run for run in missing if run.done]
    for run, there in train_all(missing, options.jobs):
        if there:
            records[run.folder.name] = read(run.folder) | {"made": made(run.folder)}
        status |= not there
    found = {key: run.folder.name for key, run in wanted.items() if run.folder.name in records}
    return {key: records[name] for key, name in found.items()}, status


class Run(NamedTuple):
    """`ssl-jax train --config=CONFIG ARGUMENTS --workdir=FOLDER`; its output goes to FOLDER.log."""

    config: str
    folder: Path
    arguments: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it has its results or, without evaluations, its last checkpoint."""
        if (self.folder / "results.json").exists():
            return True
        try:
            config = json.loads((self.folder / "config.json").read_text())
        except FileNotFoundError:
            return False
        last = self.folder / "checkpoints" / str(config["run"]["total_steps"])
        return not config["evals"]["tasks"] and last.is_dir()

    def check_same(self) -> None:
        """Raises InputError if the folder holds a run of another config or with other arguments."""
        file = self.folder / "environment.json"
        command = json.loads(file.read_text()).get("command") if file.exists() else None
        if command is None:
            return
        changes, others = arguments.split(command)
        pairs = itertools.pairwise([*others, ""])  # a value may be a separate word
        words = [f"{a}={b}" if a in ("--config", "--row") else a for a, b in pairs]
        there = {*changes, *(word for word in words if word.startswith(("--config=", "--row=")))}
        mine = {f"--config={self.config}", *self.arguments}
        differing = sorted(word for word in there ^ mine if not word.startswith(_FREE))
        if differing:
            raise InputError(
                f"{self.folder} holds a run with other settings ({', '.join(differing)}); choose"
                " another --workdir"
            )


def train(run: Run, cores=()) -> bool:
    """Trains in a process of its own unless it is done; continues what was cut off. True if it is
    done then. Raises InputError if the folder holds another run, and as `execute`.

    cores: processors that the process may use; () = all.
    """
    run.check_same()
    if not run.done:
        run.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ssl_jax", "train", f"--config={run.config}"]
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        with open(f"{run.folder}.log", "a") as log:
            execute([*pinned, *command, f"--workdir={run.folder.absolute()}", *run.arguments], log)
    return run.done


def execute(command: list[str], log) -> None:
    """Runs a command in the checkout to its end, its output in a file. A signal to stop is passed
    on; once the command has saved and ended, raises stop.Interrupted."""
    with stop.listening() as signals:
        signals.busy()
        if not signals.received:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
            while process.poll() is None and not signals.received:
                time.sleep(_SOON)
            if signals.received:
                process.terminate()  # of Ctrl-C it knows already: a second signal changes nothing
            process.wait()
        if signals.received:
            raise stop.Interrupted


def check(wanted: list[Run]) -> None:
    """Raises InputError if two runs have one folder, or a folder holds another run."""
    for folder, count in Counter(run.folder for run in wanted).items():
        if count > 1:
            raise InputError(f"{count} runs would share {folder}; leave out or rename values")
    for run in wanted:
        run.check_same()


def train_all(wanted, jobs: int = 1):
    """Trains runs, `jobs` at a time, each with its share of the cores; names each as it ends, and
    yields (run, whether there are results). Raises InputError before it begins, as `check`; a
    signal to stop reaches the runs in training, and no other begins (`execute`)."""
    wanted = list(wanted)
    check(wanted)
    cores: queue.SimpleQueue = queue.SimpleQueue()
    available = sorted(os.sched_getaffinity(0)) if shutil.which("taskset") and jobs > 1 else []
    for job in range(jobs):
        cores.put(available[job::jobs])

    def one(run):
        mine = cores.get()
        try:
            return run, train(run, mine)
        finally:
            cores.put(mine)

    with contextlib.ExitStack() as stack:
        stack.enter_context(stop.listening()).busy()
        pool = ThreadPoolExecutor(jobs)
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in as_completed([pool.submit(one, run) for run in wanted]):
            run, there = future.result()
            outcome = "done" if there else f"FAILED, see {run.folder}.log"
            print(f"{run.folder.name}: {outcome}", flush=True)
            yield run, there


def read(folder: Path) -> dict:
    """Of a finished run: {"untrained", "raw", "trained": {score: number}; "end": {metric: its mean
    over the last 20 rows}; "ms": median milliseconds of a step; "minutes": of training; "size": of
    large views, pixels; "curve": {"step" and scores: their numbers on the way}}."""
    file = folder / "results.json"
    scores = json.loads(file.read_text()) if file.exists() else {}
    config = json.loads((folder / "config.json").read_text())
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    speeds = [float(row["images_per_second"]) for row in rows[1:] or rows]
    seconds = config["optim"]["batch_size"] / statistics.median(speeds)
    end = {}
    for name in rows[-1]:
        values = [float(row[name]) for row in rows[-_LAST:] if row[name] not in ("", None)]
        end[name] = statistics.fmean(values) if values else float("nan")
    steps = int(float(rows[-1]["step"]))
    return {key: as_today(scores[row]) for key, row in ROWS.items() if row in scores} | {
        "size": config["views"]["global_size"],
        "end": end,
        "ms": 1000 * seconds,
        "minutes": steps * seconds / 60,
        "curve": curve(folder / "evals.csv"),
    }


def curve(file: Path) -> dict[str, list[float]]:
    """Steps, and the scores that every row has; {} without such a file."""
    rows = list(csv.DictReader(file.open())) if file.exists() else []
    names = [name for name in rows[0] if all(row[name] for row in rows)] if rows else []
    return {
        name: [float(row[name]) for row in rows]
        for name in names
        if name == "step" or name in evals.TYPES
    }


def as_today(scores: dict) -> dict:
    """Scores of a run of any version: version 0.1 called the best of all k "knn", chosen on the
    test set."""
    return scores | ({"knn": scores["knn_k20"]} if "knn_k20" in scores else {})


def margin(run: dict, score: str) -> float:
    """The trained network's score over the better of its baselines that have it."""
    baselines = [run[name][score] for name in ("untrained", "raw") if score in run.get(name, {})]
    return run["trained"][score] - max(baselines)


def margins(mine: list[dict], score: str) -> str:
    """ "+7.2 ± 0.5 (+6.8)": of runs with different seeds, and that of the worst."""
    values = [margin(run, score) for run in mine]
    return f"{spread(values, '+')} ({min(values):+.1f})"


def refuse_unknown(parser, passed_on, **groups) -> None:
    """Ends the script with one line that names what it does not know.

    passed_on: arguments that the parser left; only --config.KEY=VALUE are meant for the runs.
    groups: {what: (names given, names there are)}.
    """
    unknown = [name for names, known in groups.values() for name in names if name not in known]
    unknown += [a for a in passed_on if not a.startswith("--config.")]
    if unknown:
        listed = [f"none of the {what} {', '.join(known)}" for what, (_, known) in groups.items()]
        listed.append("and no --config.KEY=VALUE" if groups else "no --config.KEY=VALUE")
        parser.error(f"{', '.join(unknown)}: {', '.join(listed)}")
