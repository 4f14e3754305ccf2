"""Whole runs by where they keep the decoded set (data.cache), which take turns: what surrounds the
step. "data wait" is the share of the time that the step waits for data. Some minutes.
"""

import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import report

CACHES = ("none", "memory", "device")
_SMALL = "model.width=32 model.depth=1 model.heads=1 optim.batch_size=16".split()
# With a network so small that its step takes as long as Python and the loader do.
RUNS = {
    "quickstart": ("quickstart",),
    "sop:photos": ("sop:photos",),
    "quickstart, a block of width 32, batch 16": ("quickstart", *_SMALL),
}
_LOGS = 6  # rows of metrics.csv


COLUMNS = {
    "run": ("case", ""),
    "data.cache": ("form", ""),
    "images/s": ("rate", ",.0f"),
    "x": ("x", ".2f"),
    "data wait": ("wait", ".1%"),
}


def main(argv=None) -> int:
    chosen = report.options(__doc__, argv)
    first = next(iter(RUNS))
    cases, steps = ({first: RUNS[first]}, 12) if chosen.small else (RUNS, 120)
    rows = times(chosen.rounds, cases=cases, steps=steps)
    report.publish("cache", chosen, rows, report.cells(rows, COLUMNS))
    return 0


def times(rounds: int, *, cases=RUNS, steps: int) -> list[dict]:
    """A row per case and cache: medians over rounds, in which runs of `steps` steps take turns.

    Keys of a row: case, form (data.cache), rate (images a second after the first log), x (time
    relative to the first form of the case), wait (share of the time that the step waits for data).
    """
    found = {(case, cache): list[tuple]() for case in cases for cache in CACHES}
    for _ in range(rounds):
        for case, cache in found:
            found[case, cache].append(_run(cases[case], cache, steps))
    rows = []
    for (case, cache), values in found.items():
        rate, wait = (statistics.median(column) for column in zip(*values))
        first = statistics.median(value for value, _ in found[case, CACHES[0]])
        rows.append(dict(case=case, form=cache, rate=rate, x=first / rate, wait=wait))
    return rows


def _run(config, cache: str, steps: int) -> tuple[float, float]:
    """Images a second, and the share of waiting."""
    name, *changes = config
    logs = steps // _LOGS
    changes += [f"data.cache={cache}", f"optim.steps={steps}", f"log.every_steps={logs}"]
    changes += ["evals.tasks=()", "evals.picture_size=0"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ssl_jax", "train", f"--config={name}"]
        command += [f"--workdir={folder}/run", *(f"--config.{change}" for change in changes)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = list(csv.DictReader(Path(folder, "run", "metrics.csv").open()))[1:]
    keys = ("images_per_second", "data_wait")
    rate, wait = (statistics.median(float(row[key]) for row in rows) for key in keys)
    return rate, wait
