"""One config, thrown faults at until they are used up: attempt after attempt, run after run."""

import json
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ssl_jax.train import log
from tests.chaos import compare, faults
from tests.chaos.processes import Attempt

# Words of the output that a user should never see.
TRACEBACK, ADVICE = (
    "Traceback (most recent call last)",
    r"\b(delete|rm -r|remove (the|that|this))\b",
)


class Lane(NamedTuple):
    """config, options: of the run, as `ssl-jax train` takes them. name: of its part of the folder.
    patience: seconds after which an attempt that goes on hangs."""

    name: str
    config: str
    options: tuple[str, ...]
    processes: int
    patience: float = 600.0

    def place(self, folder: Path, run: int) -> faults.Place:
        images = next((o.split("=", 2)[-1] for o in self.options if ".data.dir=" in o), None)
        workers = next((o.split("=", 2)[-1] for o in self.options if ".data.workers=" in o), "0")
        workdir = folder / self.name / "runs" / f"{run:03}"
        return faults.Place(
            workdir, Path(images) if images else None, self.processes, workers != "0"
        )


def undisturbed(lane: Lane, folder: Path) -> Path:
    """The run folder that all others are compared with, made where it is missing."""
    workdir = folder / lane.name / "undisturbed"
    if (workdir / "results.json").exists():
        return workdir
    attempt = Attempt(lane.config, workdir, lane.options, lane.processes)
    codes = attempt.ended(4 * lane.patience)
    if codes is None or any(codes):
        raise SystemExit(
            f"the undisturbed run of {lane.name} ended with {codes}:\n{attempt.text()}"
        )
    return workdir


def throw(
    lane: Lane, folder: Path, count: int, seed: int, until: float, say: Callable[[str], None]
) -> list[dict]:
    """Entries of the journal, one for each attempt, of `count` faults that struck. What the journal
    in `folder` already holds is not done again.

    until: no attempt is started after this time.monotonic(). Ends with a run that is complete, so
    that each fault's run is compared.
    """
    whole = undisturbed(lane, folder)
    faults.mounted(folder / lane.name / "runs")
    journal = folder / lane.name / "faults.jsonl"
    entries = log.read_rows(journal)
    while time.monotonic() < until:
        left = count - sum(e["struck"] for e in entries)
        run = entries[-1]["run"] + entries[-1]["over"] if entries else 0
        if left <= 0 and entries and entries[-1]["over"]:
            break
        place = lane.place(folder, run)
        chance = random.Random(f"{seed}/{lane.name}/{len(entries)}")
        entry = _attempt(lane, place, chance, undisturbed=left <= 0) | {"run": run}
        if entry["codes"] is not None and not any(entry["codes"]):
            found = compare.differences(place.workdir, whole)
            entry |= found._asdict() | {"over": True}
            shutil.copytree(place.workdir, folder / lane.name / "last", dirs_exist_ok=True)
            shutil.rmtree(place.workdir)
        entries.append(entry)
        with journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        say(describe(lane, entry))
        if not entry["survived"]:
            (folder / lane.name / f"attempt-{len(entries) - 1}.txt").write_text(entry["text"])
    return entries


def _attempt(lane: Lane, place: faults.Place, chance: random.Random, *, undisturbed: bool) -> dict:
    possible = [name for name, fault in faults.FAULTS.items() if fault.needs(place)]
    name = "" if undisturbed else chance.choice(possible)
    fault = faults.FAULTS.get(name, faults.Fault(()))
    if fault.before:
        fault.before(place, chance)
    attempt = Attempt(lane.config, place.workdir, lane.options, lane.processes, fault.jump)
    conditions = faults.phases(attempt, chance)
    phase = chance.choice(fault.phases or list(conditions)) if fault.strike else "step"
    struck = not undisturbed and attempt.until(conditions[phase], lane.patience)
    if struck:
        strike = fault.strike or (lambda attempt, _: attempt.signal(signal.SIGTERM))
        strike(attempt, chance)
    codes = attempt.ended(lane.patience)
    text = attempt.text()
    faults.repair(place)
    hit = struck or fault.before is not None
    allowed = (0, *fault.codes) if hit else (0,)
    if not text:  # in Python's own start, before any line of ours: as documented
        allowed += tuple(-number for number in faults.SIGNALS)
    if lane.processes > 1 and faults.REFUSED in fault.codes and faults.REFUSED in (codes or ()):
        allowed += faults.LEFT  # one was refused and is gone, as the others notice
    expected = codes is not None and (
        (hit and not fault.codes) or all(code in allowed for code in codes)
    )
    began = re.search(r"continuing from step (\d+)", text)
    entry = {
        "fault": name,
        "phase": phase if fault.strike else "",
        "struck": bool(name) and hit,
        "codes": codes,
        "tracebacks": text.count(TRACEBACK),
        "advice": len(re.findall(ADVICE, text)),
        "began": int(began[1]) if began else 0 if "steps 0 to" in text else None,
        "reached": _reached(place.workdir),
        "survived": expected,
        # A run that does not go on is given up, and the next fault meets another one.
        "over": not expected,
    }
    return entry if expected and not entry["tracebacks"] else entry | {"text": text}


def _reached(workdir):
    rows = log.read_rows(workdir / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def lost(entries: list[dict]) -> Iterator[tuple[str, int]]:
    """(fault, steps that were done and had to be done again): of one that came before a start, the
    steps missing at that start; of one that struck, those missing at the next."""
    for before, entry in zip(entries, entries[1:], strict=False):
        if entry["run"] == before["run"] and entry["began"] is not None:
            came_before = faults.FAULTS[entry["fault"]].before if entry["fault"] else None
            yield (
                entry["fault"] if came_before else before["fault"],
                max(0, before["reached"] - entry["began"]),
            )


def describe(lane: Lane, entry: dict) -> str:
    """One line."""
    said = f"{entry['fault'] or 'to the end'}{' in ' * bool(entry['phase'])}{entry['phase']}"
    parts = [f"{lane.name}, run {entry['run']}: {said}", f"exit codes {entry['codes']}"]
    parts += ["it was over before"] * (bool(entry["fault"]) and not entry["struck"])
    parts += [f"step {entry['reached']}"]
    parts += ["NOT SURVIVED"] * (not entry["survived"])
    parts += [f"{entry['tracebacks']} tracebacks"] * bool(entry["tracebacks"])
    if "names" in entry:
        found = f"DIFFERENT: {', '.join(entry['names'][:5])}"
        parts.append(found if entry["names"] else f"complete, {entry['arrays']} arrays equal")
    return "; ".join(parts)
