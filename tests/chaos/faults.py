"""What is done to a run, and with which exit codes it may answer."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ssl_jax.train.stop import EXIT_AT_ONCE, EXIT_PREEMPTED
from tests.chaos.processes import Attempt

DONE, REFUSED, KILLED = 0, 2, -signal.SIGKILL
LEFT = (1, -signal.SIGABRT)  # of a process that lost another
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
DAY = 86400.0


class Place(NamedTuple):
    """What a fault may be done to. images: the folder that the run reads, or None."""

    workdir: Path
    images: Path | None
    processes: int
    workers: bool


class Fault(NamedTuple):
    """codes: exit codes it may end with, beside 0; none: any that is not 0. phases: in which it may
    strike; none: in all. before: done while the
    run is stopped. strike: done to the running processes. Where there is no strike, the attempt is
    ended by SIGTERM at a later step, so that the next one can begin."""

    codes: tuple[int, ...]
    before: Callable[[Place, random.Random], None] | None = None
    strike: Callable[[Attempt, random.Random], None] | None = None
    jump: float = 0.0  # seconds
    phases: tuple[str, ...] = ()
    needs: Callable[[Place], bool] = lambda place: True


# --- signals, at a random moment of a random phase


def _signal(number: int, *, again: bool = False, one: bool = False) -> Callable:
    def strike(attempt: Attempt, chance: random.Random) -> None:
        attempt.signal(number, 1 if one else None)
        if again:
            time.sleep(chance.uniform(0.02, 0.3))
            attempt.signal(number)

    return strike


def phases(attempt: Attempt, chance: random.Random) -> dict[str, Callable[[], bool]]:
    """{phase: whether the attempt is in it}; some random time passes in start-up and in a step."""
    delay = time.monotonic() + chance.uniform(0, 4)
    steps = chance.randint(1, 6)
    seen = len(attempt.lines)
    checkpoints = attempt.workdir / "checkpoints"

    trains = attempt.says("img/s")  # what a killed save left before is no save

    def saving():
        names = os.listdir(checkpoints) if checkpoints.is_dir() else ()
        return any("tmp" in name for name in names) and trains()

    return {
        "start-up": lambda: time.monotonic() > delay,
        "compiling": attempt.says("^compiling the step"),
        "step": lambda: sum("img/s" in line for line in attempt.lines[seen:]) >= steps,
        "save": saving,
        "evaluation": attempt.says(r"^(evaluating|eval) at step"),
        "drawing": attempt.says("^final report"),
    }


# --- checkpoints and files, while the run is stopped


def intact(workdir: Path) -> list[int]:
    """Steps whose checkpoints this package did not damage since they were written, in order."""
    folder = workdir / "checkpoints"
    names = os.listdir(folder) if folder.is_dir() else ()
    steps = [int(name) for name in names if name.isdigit() and any((folder / name).iterdir())]
    return sorted(step for step in steps if not _mark(workdir, step).exists())


def _mark(workdir, step):
    # Beside the run, under the name of that very folder: one that is written anew is another.
    stat = (workdir / "checkpoints" / str(step)).stat()
    return workdir.with_name(f"{workdir.name}.damaged") / f"{step}-{stat.st_ino}-{stat.st_ctime_ns}"


def _to_newest(damage: Callable[[Path, random.Random], None]) -> Callable:
    """The damage done to a random file of the newest checkpoint; an older one stays intact."""

    def before(place: Place, chance: random.Random) -> None:
        workdir, step = place.workdir, intact(place.workdir)[-1]
        folder = workdir / "checkpoints" / str(step)
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
        damage(chance.choice(files), chance)
        mark = _mark(workdir, step)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()

    return before


def flip(path: Path, chance: random.Random) -> None:
    """One bit."""
    with path.open("r+b") as file:
        place = chance.randrange(path.stat().st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _two_left(place: Place) -> bool:
    return len(intact(place.workdir)) >= 2


def _one_left(place: Place) -> bool:
    return bool(intact(place.workdir))


def _half_a_row(place: Place, chance: random.Random) -> None:
    with (place.workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10000, "loss": 0.')


def _half_a_save(place: Place, chance: random.Random) -> None:
    """Folders that a kill may leave of a save, one of them under the name of a complete one."""
    folder, newest = place.workdir / "checkpoints", intact(place.workdir)[-1]
    for name in (f"{newest + 1}.orbax-checkpoint-tmp", str(newest + 1)):
        (folder / name).mkdir(exist_ok=True)


# --- disks


def mounted(folder: Path, size: str = "256m") -> bool:
    """Whether `folder` is now a disk of its own in memory, which only root can make."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    return folder.is_mount() or _ran(command)


def unmount(folder: Path) -> None:
    if folder.is_mount():
        _ran(["umount", "-l", str(folder)])


def _ran(command):
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


def _own_disk(place: Place) -> bool:
    return place.workdir.parent.is_mount()


def _fill(attempt: Attempt, chance: random.Random) -> None:
    with contextlib.suppress(OSError), ballast(attempt.workdir).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))


def ballast(workdir: Path) -> Path:
    """The file that fills the disk."""
    return workdir.parent / "ballast"


def _read_only(attempt: Attempt, chance: random.Random) -> None:
    command = ["mount", "-o", "remount,ro", str(attempt.workdir.parent)]
    attempt.until(lambda: _ran(command), seconds=20)  # not while a file is being written


def repair(place: Place) -> None:
    """The disk of the run has room and can be written again, and the folder has its images."""
    disk = place.workdir.parent
    if disk.is_mount():
        _ran(["mount", "-o", "remount,rw", str(disk)])
    ballast(place.workdir).unlink(missing_ok=True)
    if place.images:
        added(place.images).unlink(missing_ok=True)


# --- data


def _kill_worker(attempt: Attempt, chance: random.Random) -> None:
    if workers := attempt.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


def _new_image(place: Place, chance: random.Random) -> None:
    assert place.images is not None
    added(place.images).write_bytes(chance.randbytes(500))


def added(images: Path) -> Path:
    """The image that appears in the folder: a damaged one."""
    return images / "zz.jpg"


def _several(place: Place) -> bool:
    return place.processes > 1


def _with_workers(place: Place) -> bool:
    return place.workers


def _known_files(place: Place) -> bool:
    return place.images is not None and bool(intact(place.workdir))


STOPS = (EXIT_PREEMPTED,)
FAULTS = {
    "SIGKILL": Fault((KILLED,), strike=_signal(signal.SIGKILL)),
    "SIGTERM": Fault(STOPS, strike=_signal(signal.SIGTERM)),
    "SIGUSR1": Fault(STOPS, strike=_signal(signal.SIGUSR1)),
    "Ctrl-C": Fault(STOPS, strike=_signal(signal.SIGINT)),
    "Ctrl-C twice": Fault((*STOPS, EXIT_AT_ONCE), strike=_signal(signal.SIGINT, again=True)),
    # Before they have found each other, the first waits five minutes for one that is gone.
    "one process dies": Fault(
        (),
        strike=_signal(signal.SIGKILL, one=True),
        phases=("compiling", "step", "save", "evaluation", "drawing"),
        needs=_several,
    ),
    "flipped bit": Fault(STOPS, before=_to_newest(flip), needs=_two_left),
    "file cut short": Fault(STOPS, before=_to_newest(cut), needs=_two_left),
    "file gone": Fault(STOPS, before=_to_newest(lambda path, _: path.unlink()), needs=_two_left),
    "half a row": Fault(STOPS, before=_half_a_row, needs=_one_left),
    "half a save": Fault(STOPS, before=_half_a_save, needs=_one_left),
    "disk full": Fault((REFUSED,), strike=_fill, needs=_own_disk),
    "disk read-only": Fault((REFUSED,), strike=_read_only, needs=_own_disk),
    "data worker dies": Fault(STOPS, strike=_kill_worker, needs=_with_workers),
    "image appears": Fault((REFUSED,), before=_new_image, needs=_known_files),
    "clock a day ahead": Fault(STOPS, jump=DAY),
    "clock a day back": Fault(STOPS, jump=-DAY),
}
