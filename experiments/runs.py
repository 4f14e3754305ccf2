"""What the scripts that train many small runs share: train what is missing, read what is there,
write tables into documents."""

import csv
import importlib
import json
import os
import platform
import queue
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from ssl_jax import evals
from ssl_jax.config import refusal
from ssl_jax.runtime import pages

ROOT = Path(__file__).resolve().parent.parent
ROWS = {"untrained": "untrained network", "raw": "raw pixels", "trained": "trained"}
_LAST = 20  # rows of metrics.csv that stand for the end of a run


def start(main) -> None:
    """Ends the process with what a script's `main()` returns; bad input is one line and status 2,
    as of ssl-jax. With huge pages, as ssl-jax."""
    pages.restart_with_huge_pages()
    try:
        sys.exit(main())
    except Exception as error:
        if not (line := refusal(error)):
            raise
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


def dispatch(modules: dict[str, str]) -> None:
    """Runs what the first word of the command names, {word: module}: the module's `main()`."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word not in modules:
        print(f"the first argument must be one of {', '.join(modules)}", file=sys.stderr)
        sys.exit(0 if word in ("-h", "--help") else 2)
    sys.argv[:2] = [word]
    start(lambda: importlib.import_module(modules[word]).main())


class Run(NamedTuple):
    """`ssl-jax train --config=CONFIG ARGUMENTS --workdir=FOLDER`; its output goes to FOLDER.log."""

    config: str
    folder: Path
    arguments: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        return (self.folder / "results.json").exists()


def train(run: Run, cores=()) -> bool:
    """Trains in a process of its own unless there are results; continues what was cut off. True if
    there are results then.

    cores: processors that the process may use; () = all.
    """
    if not run.done:
        run.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ssl_jax", "train", f"--config={run.config}"]
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        with open(f"{run.folder}.log", "a") as log:
            subprocess.run(
                [*pinned, *command, f"--workdir={run.folder}", *run.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                check=False,
            )
    return run.done


def train_all(wanted, jobs: int = 1):
    """Trains runs, `jobs` at a time, each with its share of the cores; yields (run, whether there
    are results) as each ends."""
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

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(one, run) for run in wanted]):
            yield future.result()


def read(folder: Path) -> dict:
    """Of a finished run: {"untrained", "raw", "trained": {score: number}; "end": {metric: its mean
    over the last 20 rows}; "ms": median milliseconds of a step; "minutes": of training; "size": of
    large views, pixels; "curve": {"step" and scores: their numbers on the way}}."""
    scores = json.loads((folder / "results.json").read_text())
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


def spread(values, sign: str = "") -> str:
    """ "12.3 ± 0.4", mean and sample standard deviation; one value has none, no value is "-"."""
    values = list(values)
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):{sign}.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def markdown(rows) -> str:
    """A table of rows of cells, the first row its heading."""
    heading, *body = [[str(cell) for cell in row] for row in rows]
    lines = [heading, ["---"] * len(heading), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


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


def made(folder: Path | None = None) -> dict:
    """With what a run on this machine was made, of its environment.json; without a folder, with
    what is checked out and installed."""
    import jax

    file = Path(folder or "", "environment.json")
    there = json.loads(file.read_text()) if folder and file.exists() else {}
    devices = there.get("devices") or [f"{d.platform} {d.device_kind}" for d in jax.devices()]
    return {
        "commit": (there.get("git") or _checked_out())[:7],
        "processor": processor(),
        "cores": os.cpu_count() if folder else cores(),
        "accelerators": _accelerators(devices),
        "python": there.get("python", platform.python_version()),
        "jax": there.get("versions", {}).get("jax", jax.__version__),
    }


def provenance(*folders: Path) -> str:
    """Where and with what runs were made, as one sentence; without folders, of what was measured
    just now."""
    return provenance_of([made(folder) for folder in folders] or [made()])


def provenance_of(all_made) -> str:
    """The same from what `made` says of each."""
    all_made = list(all_made)

    def each(form: str) -> str:
        return ", ".join(dict.fromkeys(form.format(**one) for one in all_made))

    where = each("{processor}, {cores} cores").replace(" 1 cores", " 1 core")
    accelerators = {one["accelerators"] for one in all_made if one.get("accelerators")}
    return (
        f"Commit {each('{commit}')}; {where}"
        f"{''.join(f', {name}' for name in sorted(accelerators))}; Python"
        f" {each('{python}')}, jax {each('{jax}')}."
    )


def _accelerators(devices: list[str]) -> str:
    """ "8 x NVIDIA H100" of eight names as "gpu NVIDIA H100"; "" of a CPU."""
    names = [name.partition(" ")[2] for name in devices if not name.startswith("cpu ")]
    return f"{len(names)} x {names[0]}" if names else ""


def _checked_out() -> str:
    """The commit that is checked out."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The name of the processor as Linux has it, else of its kind."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def fill(document: Path, name: str, text: str) -> None:
    """Replaces what stands between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a
    document. Raises ValueError if they are not there once, in this order."""
    before, _, after = _around(document, name)
    document.write_text(before + text + after, encoding="utf-8")


def filled(document: Path, name: str) -> str:
    """What stands there. Raises ValueError as `fill`."""
    return _around(document, name)[1]


def _around(document: Path, name: str) -> tuple[str, str, str]:
    """A document up to the end of the first line, between them, and from the second line on."""
    old = document.read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    if old.count(start) != 1 or old.count(end) != 1 or old.index(start) > old.index(end):
        raise ValueError(f"{document} needs one line {start.strip()} and one {end.strip()} below")
    before, rest = old.split(start)
    inside, after = rest.split(end)
    return before + start, inside, end + after
