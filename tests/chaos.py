"""Throws faults at real runs and compares what comes out with undisturbed ones.

    python -m tests.chaos --faults 100 --seed 0

A run is started again until it is done; disks become full or read-only as root alone. Started
again, this command goes on where it stopped. Exit code 1 if a fault was not survived or anything
differs.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.tables import fill, markdown, provenance
from ssl_jax.runtime.stop import EXIT_AT_ONCE, EXIT_PREEMPTED
from ssl_jax.train import log
from tests.data import records
from tests.process import runs
from tests.process.runs import Run

# Words of the output that a user should never see.
_WORDS = {
    "tracebacks": r"Traceback \(most recent call last\)",
    "advice": r"\b(delete|rm -r|remove (the|that|this))\b",
}
PATIENCE = 600.0  # seconds after which an attempt that goes on hangs
REFUSED = 2
LEFT = (1, -signal.SIGABRT)  # of a process that lost another
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_MARK = "damaged.txt"  # in a checkpoint that was damaged here
# `ssl-jax` with a `time.time` that jumps; the system promises that the monotonic clock does not.
_JUMPS = """
import random, sys, threading, time
ahead, true, after = float(sys.argv.pop(1)), time.time, random.Random(0).uniform(1, 8)
timer = threading.Timer(after, setattr, (time, "time", lambda: true() + ahead))
timer.daemon = True
timer.start()
from ssl_jax.__main__ import main
sys.exit(main())
"""


class Lane(NamedTuple):
    """A run that faults are done to, in workdir; name: of its part of the folder."""

    name: str
    images: Path
    processes: int
    workdir: Path = Path()

    def start(self, jump: float = 0.0) -> Run:
        """Tiny images as files, two of them damaged; data workers where there is one process."""
        options = [f"--config.data.dir={self.images}", "--config.data.kind=folder"]
        options += ["--config.data.max_unreadable=0.2", "--config.evals.slow.seconds=0.05"]
        options += ["--config.data.workers=2" if self.processes == 1 else "--config.mesh.data=0"]
        config = f"tests/slow_run.py:{self.name.partition('-')[0]}"
        program = ("-c", _JUMPS, str(jump)) if jump else ("-m", "ssl_jax")
        more: Any = dict(processes=self.processes, program=program, env=os.environ)
        return Run(config, self.workdir, *options, **more)

    def own_disk(self) -> bool:
        return self.workdir.parent.is_mount()

    def intact(self) -> list[int]:
        """Steps whose checkpoints were not damaged here since they were written, in order."""
        folders = [f for f in (self.workdir / "checkpoints").glob("*") if f.name.isdigit()]
        found = {int(f.name): os.listdir(f) for f in folders}
        return sorted(step for step, names in found.items() if names and _MARK not in names)


class Fault(NamedTuple):
    """codes: exit codes it may end with, beside 0; none: any. before: done while the run is
    stopped. strike: done to the running processes, SIGTERM at a later step where there is none.
    phases: in which it may strike; none: in all."""

    codes: tuple[int, ...]
    before: Callable[[Lane, random.Random], None] | None = None
    strike: Callable[[Run, random.Random], None] | None = None
    jump: float = 0.0  # seconds
    phases: tuple[str, ...] = ()


def phases(run: Run, chance: random.Random) -> dict[str, Callable[[], bool]]:
    """{phase: whether the run is in it}; some random time passes in start-up and in a step."""
    delay, steps = time.monotonic() + chance.uniform(0, 4), chance.randint(1, 6)
    return {
        "start-up": lambda: time.monotonic() > delay,
        "compiling": run.says("^compiling the step"),
        "step": lambda: sum("img/s" in line for line in list(run.lines)) >= steps,
        "save": run.saves,
        "evaluation": run.says(r"^(evaluating|eval) at step"),
        "drawing": run.says("^final report"),
    }


def _signal(*numbers: int, index: int | None = None) -> Callable:
    def strike(run: Run, chance: random.Random) -> None:
        for number in numbers:
            run.signal(number, index)
            time.sleep(chance.uniform(0.02, 0.3))

    return strike


def _damage(how: str) -> Callable:
    """Done to a random file of the newest checkpoint; an older one stays intact."""

    def before(lane: Lane, chance: random.Random) -> None:
        folder = lane.workdir / "checkpoints" / str(lane.intact()[-1])
        files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size]
        damage(chance.choice(files), how, chance)
        (folder / _MARK).touch()

    return before


def damage(path: Path, how: str, chance: random.Random) -> None:
    """how: "flip" one bit, "cut" it short, or anything else: it is gone."""
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    path.unlink()
    if how == "flip":
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[:place])


def _half_a_row(lane: Lane, chance: random.Random) -> None:
    with (lane.workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10000, "loss": 0.')


def _half_a_save(lane: Lane, chance: random.Random) -> None:
    """Folders that a kill may leave, one of them under the name of a complete one."""
    for end in (".orbax-checkpoint-tmp", ""):
        (lane.workdir / "checkpoints" / f"{lane.intact()[-1] + 1}{end}").mkdir(exist_ok=True)


def _new_image(lane: Lane, chance: random.Random) -> None:
    """A damaged one."""
    (lane.images / "zz.jpg").write_bytes(chance.randbytes(500))


def _ran(*command):
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


def _fill(run: Run, chance: random.Random) -> None:
    path = run.workdir.parent / "ballast"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))


def _read_only(run: Run, chance: random.Random) -> None:
    command = ("mount", "-o", "remount,ro", str(run.workdir.parent))
    run.until(lambda: _ran(*command), seconds=20)  # not while a file is being written


def _kill_worker(run: Run, chance: random.Random) -> None:
    if workers := run.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


def repair(lane: Lane) -> None:
    """The disk of the run has room and can be written again, and the folder has its images."""
    if lane.own_disk():
        _ran("mount", "-o", "remount,rw", str(lane.workdir.parent))
    (lane.workdir.parent / "ballast").unlink(missing_ok=True)
    (lane.images / "zz.jpg").unlink(missing_ok=True)


_STOPS = (EXIT_PREEMPTED,)
_TWICE = _signal(signal.SIGINT, signal.SIGINT)
_IN_TOUCH = ("compiling", "step", "save", "evaluation", "drawing")
_KILL, _KILL_ONE = _signal(signal.SIGKILL), _signal(signal.SIGKILL, index=1)
FAULTS = {
    "SIGKILL": Fault((-signal.SIGKILL,), strike=_KILL),
    "SIGTERM": Fault(_STOPS, strike=_signal(signal.SIGTERM)),
    "SIGUSR1": Fault(_STOPS, strike=_signal(signal.SIGUSR1)),
    "Ctrl-C": Fault(_STOPS, strike=_signal(signal.SIGINT)),
    "Ctrl-C twice": Fault((*_STOPS, EXIT_AT_ONCE), strike=_TWICE),
    # Before they have found each other, the first waits five minutes for one that is gone.
    "one process dies": Fault((), strike=_KILL_ONE, phases=_IN_TOUCH),
    "flipped bit": Fault(_STOPS, before=_damage("flip")),
    "file cut short": Fault(_STOPS, before=_damage("cut")),
    "file gone": Fault(_STOPS, before=_damage("gone")),
    "half a row": Fault(_STOPS, before=_half_a_row),
    "half a save": Fault(_STOPS, before=_half_a_save),
    "disk full": Fault((REFUSED,), strike=_fill),
    "disk read-only": Fault((REFUSED,), strike=_read_only),
    "data worker dies": Fault(_STOPS, strike=_kill_worker),
    "damaged image added": Fault((REFUSED,), before=_new_image),
    "clock a day ahead": Fault(_STOPS, jump=86400.0),
    "clock a day back": Fault(_STOPS, jump=-86400.0),
}
# What a run must have for a fault; all others can be done to any.
NEEDS: dict[str, Callable[[Lane], object]] = {
    "one process dies": lambda lane: lane.processes > 1,
    **dict.fromkeys(("flipped bit", "file cut short", "file gone"), lambda run: run.intact()[1:]),
    **dict.fromkeys(("half a row", "half a save", "damaged image added"), Lane.intact),
    **dict.fromkeys(("disk full", "disk read-only"), Lane.own_disk),
    "data worker dies": lambda lane: lane.processes == 1,
}


def throw(lane: Lane, folder: Path, count: int, seed: int, until: float) -> list[dict]:
    """Entries of the journal in `folder`, one for each attempt, until `count` faults have struck
    and the last run is complete; until: no attempt is started after this time.monotonic()."""
    whole, journal = folder / lane.name / "undisturbed", folder / lane.name / "faults.jsonl"
    if not (whole / "results.json").exists():
        run = lane._replace(workdir=whole).start()
        if run.ended(4 * PATIENCE) != (0,) * lane.processes:
            raise SystemExit(f"the undisturbed run of {lane.name} does not end:\n{run.text()}")
    with _disk(folder / lane.name / "runs") as place:
        return _thrown(lane, place, whole, journal, count, seed, until)


@contextlib.contextmanager
def _disk(place: Path) -> Iterator[Path]:
    """A disk of its own in memory, which only root can make; what is on it does not stay."""
    place.mkdir(parents=True, exist_ok=True)
    if not place.is_mount():
        _ran("mount", "-t", "tmpfs", "-o", "size=256m", "none", str(place))
    try:
        yield place
    finally:
        if place.is_mount():
            _ran("umount", "-l", str(place))


def _thrown(lane, place, whole, journal, count, seed, until) -> list[dict]:
    folder = journal.parent
    entries = log.read_rows(journal)
    while time.monotonic() < until:
        left = count - sum(e["struck"] for e in entries)
        if left <= 0 and entries and entries[-1]["over"]:
            break
        number = entries[-1]["run"] + entries[-1]["over"] if entries else 0
        lane = lane._replace(workdir=place / f"{number:03}")
        chance = random.Random(f"{seed}/{lane.name}/{len(entries)}")
        entry, text = _attempt(lane, chance, left > 0)
        entry["run"] = number
        if entry["codes"] is not None and not any(entry["codes"]):
            entry |= runs.differences(lane.workdir, whole)._asdict() | {"over": True}
            shutil.copytree(lane.workdir, folder / "last", dirs_exist_ok=True)
            shutil.rmtree(lane.workdir)
        entries.append(entry)
        with journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{lane.name}: {entry}", flush=True)
        if not entry["survived"] or entry["tracebacks"]:
            (folder / f"attempt-{len(entries) - 1}.txt").write_text(text)
    return entries


def _attempt(lane: Lane, chance: random.Random, disturbed: bool) -> tuple[dict, str]:
    """The entry, and what was printed."""
    possible = [n for n in FAULTS if n not in NEEDS or NEEDS[n](lane)]
    name = chance.choice(possible) if disturbed else ""
    fault = FAULTS.get(name, Fault(()))
    if fault.before:
        fault.before(lane, chance)
    run = lane.start(fault.jump)
    conditions = phases(run, chance)
    phase = chance.choice(fault.phases or list(conditions)) if fault.strike else "step"
    struck = disturbed and run.until(conditions[phase], PATIENCE)
    if struck:
        (fault.strike or (lambda run, _: run.signal(signal.SIGTERM)))(run, chance)
    codes, text = run.ended(PATIENCE), run.text()
    repair(lane)
    hit = struck or fault.before is not None
    allowed = (0, *fault.codes) if hit else (0,)
    if not text:  # in Python's own start, before any line of ours: as documented
        allowed += tuple(-number for number in SIGNALS)
    if lane.processes > 1 and REFUSED in fault.codes and REFUSED in (codes or ()):
        allowed += LEFT  # one was refused and is gone, as the others notice
    survived = codes is not None and ((hit and not fault.codes) or set(codes) <= set(allowed))
    began = re.search(r"resuming from step (\d+)", text)
    rows = log.read_rows(lane.workdir / "metrics.jsonl")
    return {
        "fault": name,
        "phase": phase if fault.strike else "",
        "struck": bool(name) and hit,
        "codes": codes,
        **{name: len(re.findall(word, text)) for name, word in _WORDS.items()},
        "began": int(began[1]) if began else 0 if "steps 0 to" in text else None,
        "reached": rows[-1]["step"] if rows else 0,
        "survived": survived,
        # A run that does not go on is given up, and the next fault meets another one.
        "over": not survived,
    }, text


def lost(entries: list[dict]) -> Iterator[tuple[str, int]]:
    """(fault, steps to be done again): of one that came before a start, those missing at that
    start; of one that struck, those missing at the next."""
    for last, entry in zip(entries, entries[1:], strict=False):
        if entry["run"] == last["run"] and entry["began"] is not None:
            came_before = entry["fault"] and FAULTS[entry["fault"]].before
            missing = max(0, last["reached"] - entry["began"])
            yield entry["fault"] if came_before else last["fault"], missing


def table(entries: dict[str, list[dict]]) -> str:
    """entries: {lane: its journal}."""
    everything = [entry for journal in entries.values() for entry in journal]
    steps = [pair for journal in entries.values() for pair in lost(journal)]
    struck, complete = ([e for e in everything if e.get(k)] for k in ("struck", "arrays"))
    rows = [("fault", "thrown", "survived", "steps lost: mean, most", "exit codes of processes")]
    for name, *counts in _counts("fault", struck):
        codes = Counter(c for e in struck if e["fault"] == name for c in e["codes"] or ("hangs",))
        known = [count for fault, count in steps if fault == name]
        said = f"{statistics.fmean(known):.1f}, {max(known)}" if known else "-"
        ended = ", ".join(f"{code} x {n}" for code, n in sorted(codes.items(), key=str))
        rows.append((name, *counts, said, ended))
    phases = [("phase, if the run was running", "thrown", "survived"), *_counts("phase", struck)]
    hangs = sum(e["codes"] is None for e in everything)
    total = {k: sum(e.get(k, 0) for e in everything) for k in ("arrays", "rows", *_WORDS)}
    summary = (
        f"{len(struck)} faults on {len(entries)} configurations ({', '.join(entries)}),"
        f" {sum(e['survived'] for e in struck)} survived; {len(complete)} runs finished,"
        f" {sum(bool(e['names']) for e in complete)} of them with a difference from the undisturbed"
        f" run in {total['arrays']} arrays and {total['rows']} rows; hangs: {hangs}; tracebacks:"
        f" {total['tracebacks']}; advice to delete something: {total['advice']}."
    )
    return "\n".join((markdown(rows), markdown(phases), summary))


def _counts(key, entries):
    """(value, how many entries have it, how many of them were survived)."""
    for name in sorted({e[key] for e in entries} - {""}):
        survived = [e["survived"] for e in entries if e[key] == name]
        yield name, len(survived), sum(survived)


def main(argv: list[str] | None = None) -> int:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("chaos", description=__doc__, formatter_class=how)
    add = parser.add_argument
    add("--faults", type=int, default=100, help="in all; default: %(default)s")
    add("--seed", type=int, default=0, help="of the choice of faults")
    add("--method", action="append", help="NAME or NAME:PROCESSES")
    add("--out", type=Path, default=Path("runs/chaos"), help="folder; %(default)s")
    add("--minutes", type=float, default=120, help="no attempt starts after these")
    add("--write", type=Path, help="document whose <!-- chaos --> gets the table")
    args = parser.parse_args(argv)
    out, until = args.out.absolute(), time.monotonic() + 60 * args.minutes
    files, lanes = images(out / "images"), []
    for method, _, count in (each.partition(":") for each in args.method or ("sop", "cribo:2")):
        lanes.append(Lane(f"{method}-{count or 1}", files, int(count or 1)))
    shares = [len(range(i, args.faults, len(lanes))) for i in range(len(lanes))]
    each = zip(lanes, shares, strict=True)
    entries = {lane.name: throw(lane, out, share, args.seed, until) for lane, share in each}
    text = table(entries)
    print(text)
    if args.write:
        fill(args.write, "chaos", f"{text} {provenance()}\n")
    every = [entry for journal in entries.values() for entry in journal]
    return int(any(not e["survived"] or e["advice"] or e.get("names") for e in every))


def images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for index in range(34):
        path = folder / f"{index % 17:02}" / f"{index:03}.jpg"
        records.save(path, rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
        if index in (5, 20):
            path.write_bytes(path.read_bytes()[:60])
    return folder


if __name__ == "__main__":
    sys.exit(main())
