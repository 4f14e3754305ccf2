"""Throws faults at real runs and compares what comes out with undisturbed ones.

    python -m tests.chaos --faults 100 --seed 0
    python -m tests.chaos --config=sop:photos --faults 20 -- --config.optim.steps=60

Signals in every phase, killed processes and data workers, flipped bits, files cut short or gone,
full and read-only disks (as root), clocks that jump, images that appear; the run is started again
until it is done. Started again, this command goes on where it stopped. Exit code 1 if a fault was
not survived or anything differs.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.chaos import images, lane, table

# One with a memory; one with objects, in two processes.
DEFAULT = (("sop", 1), ("cribo", 2))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--faults", type=int, default=100, help="in all; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of faults")
    parser.add_argument("--method", action="append", help="NAME or NAME:PROCESSES, of tiny runs")
    parser.add_argument("--config", help="instead of the tiny runs; see ssl-jax train")
    parser.add_argument("--processes", type=int, default=1, help="of the run of --config")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), help="folder; %(default)s")
    parser.add_argument("--minutes", type=float, default=120, help="no attempt starts after these")
    parser.add_argument("--write", type=Path, help="document whose <!-- chaos --> gets the table")
    parser.add_argument("options", nargs="*", help="of the run of --config, after --")
    args = parser.parse_args(argv)
    if args.config:
        lanes = [lane.Lane("own", args.config, tuple(args.options), args.processes)]
    else:
        methods = [m.partition(":") for m in args.method or ()]
        wanted = [(name, int(count or 1)) for name, _, count in methods] or DEFAULT
        lanes = [_tiny(*one, args.out.absolute()) for one in wanted]
    until = time.monotonic() + 60 * args.minutes
    entries = {}
    for index, each in enumerate(lanes):
        share = args.faults // len(lanes) + (index < args.faults % len(lanes))
        say = lambda text: print(text, flush=True)  # noqa: E731
        entries[each.name] = lane.throw(each, args.out.absolute(), share, args.seed, until, say)
    text = table.markdown(entries)
    print(text)
    if args.write:
        table.fill(args.write, text)
    return 0 if table.clean(entries) else 1


def _tiny(method: str, processes: int, out: Path) -> lane.Lane:
    """Tiny images as files, two of them damaged; data workers where there is one process."""
    folder = images.write(out / "images")
    options = ("--config.data.kind=folder", f"--config.data.dir={folder}")
    options += ("--config.data.max_unreadable=0.2", "--config.evals.slow.seconds=0.05")
    options += ("--config.data.workers=2" if processes == 1 else "--config.mesh.data=0",)
    config = f"tests/slow_run.py:{method}"
    return lane.Lane(f"{method}-{processes}", config, options, processes)


if __name__ == "__main__":
    sys.exit(main())
