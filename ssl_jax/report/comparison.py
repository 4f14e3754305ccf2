"""Compares runs: final scores with baselines, means over seeds, scores over the step, and the
settings and machines in which runs differ. Tables are plain dicts of texts, shown by `page`.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import changed, flatten
from ssl_jax.evals.registry import BASELINES, TRAINED
from ssl_jax.report.folders import RunFolder
from ssl_jax.report.table import IMAGES, best

ABSENT = "\u2013"  # an en dash for missing values


def scores(runs: Sequence[RunFolder]) -> dict:
    """The table of final scores: {"columns": [{"heading", "differing", "images"}], "rows":
    [{"name", "run", "cells": [{"text", "best", "notes"}]}]}.

    One row per run, then the baselines, whose "run" is None; equal baselines of several runs share
    a row. The best score of a column is marked if it leads by more than the standard error and all
    runs measured it with the same settings; "differing" lists keys that differ.
    """
    headings: dict[str, tuple[str, str]] = {}
    for run in runs:
        of_run = run.headings()
        measured = (score for row in run.results.values() for score in row)
        headings |= {score: of_run[score] for score in measured if score in of_run}
    rows = [
        (run.name, number, run.results.get(TRAINED, {}), _differences(run), run)
        for number, run in enumerate(runs)
    ]
    baselines: list[tuple] = [(name, None, values, {}, None) for name, values in _baselines(runs)]
    columns, highest = [], {}
    for score, (name, heading) in headings.items():
        differing = _measured_differently(runs, score, name)
        values = [row[2][score] for row in [*rows, *baselines] if _is_number(row[2].get(score))]
        counts = [row[2].get(score + IMAGES, 0) for row in rows]
        images = int(min((x for x in counts if np.isfinite(x) and x >= 1), default=0))
        highest[score], note = best(values, images) if values else (None, "")
        if differing:
            highest[score] = None
        columns.append(dict(heading=heading, differing=differing, images=note))

    def cell(score, values, notes, run):
        value = values.get(score)
        expected = run.config.get("expected", {}).get(score) if run else None
        paper = [f"expected {expected}"] if expected else []
        return dict(
            text=ABSENT if value is None else f"{value:.1f}",
            best=value is not None and value == highest.get(score),
            notes=[*notes.get(score, ()), *paper],
        )

    return dict(
        columns=columns,
        rows=[
            dict(
                name=name, run=number, cells=[cell(score, values, notes, run) for score in headings]
            )
            for name, number, values, notes, run in [*rows, *baselines]
        ],
    )


def _is_number(value) -> bool:
    return value is not None and np.isfinite(value)


def _differences(run: RunFolder) -> dict[str, list[str]]:
    """{score: ["+3.7 over untrained network", ...]}."""
    trained, notes = run.results.get(TRAINED, {}), {}
    for score, value in trained.items():
        notes[score] = [
            f"{_signed(value - run.results[row][score])} over {row}"
            for row in BASELINES
            if score in run.results.get(row, {})
        ]
    return notes


def _signed(number: float) -> str:
    return f"{number:+.1f}".replace("-", "\u2212")


def _baselines(runs) -> list[tuple[str, dict]]:
    """(name, scores) of the baselines; equal ones of several runs appear once."""
    groups: list[tuple[str, dict, list[str]]] = []
    for row in BASELINES:
        for run in runs:
            if not (baseline := run.results.get(row)):
                continue
            for name, values, owners in groups:
                if name == row and values == baseline:
                    owners.append(run.name)
                    break
            else:
                groups.append((row, baseline, [run.name]))
    several = {row: sum(name == row for name, _, _ in groups) > 1 for row in BASELINES}
    return [
        (f"{row} of {', '.join(owners)}" if several[row] else row, values)
        for row, values, owners in groups
    ]


def _measured_differently(runs, score: str, name: str) -> list[str]:
    """Keys of the evaluation `name` that differ among the runs with this score."""
    sections = [run.config["evals"][name] for run in runs if score in run.headings()]
    return sorted({key for other in sections[1:] for key in changed(sections[0], other)})


def over_seeds(runs: Sequence[RunFolder]) -> list[dict]:
    """Mean and sample standard deviation of runs that differ only in the seed: [{"names", "rows":
    [(heading, [text])]}], for groups of two or more runs with results."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        if TRAINED in run.results:
            config = {key: value for key, value in run.config.items() if key != "seed"}
            groups.setdefault(json.dumps(config, sort_keys=True), []).append(run)
    result = []
    for group in groups.values():
        if len(group) < 2 or len({run.config.get("seed") for run in group}) < len(group):
            continue
        cells = []
        for score, (_, heading) in group[0].headings().items():
            values = [r.results[TRAINED][score] for r in group if score in r.results[TRAINED]]
            if len(values) == len(group):
                mean, spread = statistics.fmean(values), statistics.stdev(values)
                cells.append((heading, [f"{mean:.1f} \u00b1 {spread:.1f}"]))
        result.append(dict(names=[run.name for run in group], rows=cells))
    return result


def every_score(runs: Sequence[RunFolder]) -> dict:
    """All numbers of results.json, with a column for each network of each run."""
    columns = [(run.name, row, run.results[row]) for run in runs for row in run.results]
    names = list(dict.fromkeys(score for _, _, values in columns for score in values))
    return dict(
        columns=[(name, row) for name, row, _ in columns],
        rows=[
            (score, [f"{v[score]:.4g}" if score in v else ABSENT for _, _, v in columns])
            for score in names
        ],
    )


def learning(run: RunFolder, score: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of a score: those measured during training and, from the final comparison,
    the untrained network at step 0 and the trained one at the last step."""
    points = {}
    if score in run.scores:
        points = dict(zip(run.scores["step"].tolist(), run.scores[score].tolist()))
    for row, step in ((BASELINES[0], 0.0), (TRAINED, float(run.step))):
        if score in run.results.get(row, {}):
            points.setdefault(step, run.results[row][score])
    ordered = np.array(sorted(points.items()), np.float64).reshape(-1, 2)
    return ordered[:, 0], ordered[:, 1]


def settings(runs: Sequence[RunFolder]) -> dict:
    """Keys in which the configs differ: {"differing": rows, "some": rows, "same": number of equal
    keys} with rows (key, [text per run]). "some" has the keys that some runs lack, usually those of
    another method."""
    configs = [flatten(run.config) for run in runs]
    keys = sorted(set().union(*configs))
    differing, partial = [], []
    for key in keys:
        present = [key in config for config in configs]
        values = [config.get(key) for config in configs]
        if not all(present):
            partial.append((key, _texts(values, present)))
        elif any(value != values[0] for value in values):
            differing.append((key, _texts(values, present)))
    return dict(differing=differing, some=partial, same=len(keys) - len(differing) - len(partial))


def _texts(values, present) -> list[str]:
    return [
        (", ".join(map(str, v)) if isinstance(v, list | tuple) else str(v)) or '""' if t else ABSENT
        for v, t in zip(values, present)
    ]


def environment(runs: Sequence[RunFolder]) -> list[tuple[str, list[str]]]:
    """(name, values of all runs) of machines and versions; one value if all runs agree."""
    packages = sorted({p for run in runs for p in run.environment.get("versions") or {}})
    columns = [_environment_of(run.environment, packages) for run in runs]
    rows = []
    for name in columns[0]:
        texts = [str(column[name] or ABSENT) for column in columns]
        rows.append((name, texts if len(set(texts)) > 1 else texts[:1]))
    return rows


def _environment_of(recorded: Mapping[str, Any], packages: Sequence[str]) -> dict[str, Any]:
    versions = recorded.get("versions") or {}
    return {
        "machine": recorded.get("machine"),
        "devices": _counted(recorded.get("devices") or []),
        "processors": recorded.get("processor_count"),
        "processes": recorded.get("process_count"),
        "git revision": recorded.get("git"),
        "Python": recorded.get("python"),
        "XLA flags": recorded.get("xla_flags"),
        **{package: versions.get(package) for package in packages},
    }


def _counted(devices: Sequence[str]) -> str:
    """Counts equal names: "8 x gpu H100"."""
    counts = {name: list(devices).count(name) for name in devices}
    return ", ".join(f"{n} x {name}" if n > 1 else str(name) for name, n in counts.items())
