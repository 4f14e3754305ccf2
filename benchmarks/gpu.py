"""Times full-size train steps on one GPU within a few minutes, DINO's beside PyTorch's.

    python -m benchmarks gpu --minutes 8                    ViT-S/16, then larger networks
    python -m benchmarks gpu --minutes 8 --only dino,torch-compiled,sop
    python -m benchmarks gpu --toy                          a rehearsal on a CPU, some minutes

Needs the package with a GPU build of JAX in the active environment, and no data: the pictures come
with the package. PyTorch is timed where it is installed.

Jobs start in the order of their importance, --jobs of them at a time, each in a process of its own.
These compile side by side: XLA and PyTorch both need some 100 s, on several cores. When all of them
have, they are timed one after the other, alone on the machine: a process that compiles tries
kernels on the card. Then the next start. Each result is written to OUT/gpu.jsonl at once, with
card, commit and versions, and a job that has a record of this commit, card and scale is not run
again: started again, the script continues where the minutes ended. The table OUT/gpu.md has all
records of the commit. Exit status 1 if a job failed.

A record: ms (median of four rounds of eight steps, each waiting for the last of them),
images_per_second, tflops (products that the model needs), temporary and arguments in GiB, seconds
to compile, bytes that the compiled step's kernels read and write, how many kernels a trace of a
step has and their ms ("busy"), the ms that the host needs to start a step. OUT/NAME.kernels.csv has
the kernels one by one.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from benchmarks import gpu_jobs
from experiments import store, tables


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8, help="nothing runs after them")
    parser.add_argument(
        "--only", default="", help=f"of {', '.join(gpu_jobs.JOBS)}; comma-separated"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/gpu_bench"))
    parser.add_argument("--toy", action="store_true", help="a rehearsal with tiny networks")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--limit", type=float, default=300, help="seconds to compile")
    what = "put the table of FILE's records, one commit's, into docs/benchmarks.md; times nothing"
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help=what)
    parser.add_argument("--job", help=argparse.SUPPRESS)  # a process of this script's
    options = parser.parse_args(argv)
    if options.job:
        return gpu_jobs.work(options)
    if options.write:
        return _write(options.write)
    names = options.only.split(",") if options.only else list(gpu_jobs.JOBS)
    if unknown := [name for name in names if name not in gpu_jobs.JOBS]:
        parser.error(f"no job {', '.join(unknown)}; there are {', '.join(gpu_jobs.JOBS)}")
    if importlib.util.find_spec("torch") is None:
        names = [name for name in names if not name.startswith("torch")]
        print("torch is not installed: no comparison with PyTorch", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    made, scale = tables.made(), "toy" if options.toy else "paper"
    of = f"{made['commit']} {made['accelerators'] or made['processor']} {scale}"
    kept, failed = store.Records(options.out / "gpu.jsonl"), 0
    for name, row in _all([name for name in names if f"{of} {name}" not in kept], options):
        if "error" not in row:
            kept[f"{of} {name}"] = row | {"made": made}
        failed += "error" in row
        print(f"{name}: {row.get('error') or _line(row)}", flush=True)
    done = {name: kept[f"{of} {name}"] for name in names if f"{of} {name}" in kept}
    (options.out / "gpu.md").write_text(f"{of}\n\n{table(done)}", encoding="utf-8")
    print(f"{len(done)} of {len(names)} jobs have a record; table in {options.out / 'gpu.md'}")
    return 1 if failed else 0


def _all(names, options):
    """Runs jobs, `options.jobs` at a time; yields (name, its record or {"error": why}) as each
    ends. What runs when the minutes are over is killed."""
    end = time.time() + 60 * options.minutes
    for first in range(0, len(names), options.jobs):
        group = names[first : first + options.jobs]
        if time.time() >= end:
            yield from ((name, {"error": "not started: no time left"}) for name in group)
            continue
        running = {name: _started(name, options) for name in group}
        limit = min(end, time.time() + options.limit)
        while time.time() < limit and any(_compiles(*one, options.out) for one in running.items()):
            time.sleep(0.2)
        for name, process in running.items():
            if _compiles(name, process, options.out):
                process.kill()
        for name, process in running.items():
            yield name, _timed(name, process, options.out, end)


def _started(name, options) -> subprocess.Popen:
    """The process of a job, which compiles."""
    gpu_jobs.compiled(options.out, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", "gpu", f"--job={name}", f"--out={options.out}"]
    command += ["--toy"] * options.toy
    pipe = subprocess.PIPE
    with open(options.out / f"{name}.log", "w") as log:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)


def _compiles(name, process, out) -> bool:
    return process.poll() is None and not gpu_jobs.compiled(out, name).exists()


def _timed(name, process, out, end) -> dict:
    """The record of a job that has compiled and is timed now, or {"error": why}."""
    gpu_jobs.compiled(out, name).unlink(missing_ok=True)
    try:
        text = process.communicate("\n", timeout=max(0, end - time.time()))[0]
    except subprocess.TimeoutExpired:
        process.kill()
        text = process.communicate()[0]
    if process.returncode == 0:
        return json.loads(text.splitlines()[-1])
    why = (
        "no time left" if process.returncode == -signal.SIGKILL else f"status {process.returncode}"
    )
    return {"error": f"{why}; see {out / name}.log"}


def _line(row: dict) -> str:
    if "copy_rate" in row:
        rates = row["copy_rate"] / 1e12, row["product_rate"] / 1e12
        return "copies {:.2f} TB/s, bfloat16 products {:.0f} TFLOP/s".format(*rates)
    speed = f"{row['ms']:.1f} ms, {row['images_per_second']:.0f} images/s"
    return f"{speed}, compiled in {row['compile_seconds']:.0f} s"


def _write(file: pathlib.Path) -> int:
    """Puts the table of a file's records into docs/benchmarks.md."""
    of_job = {name.split()[-1]: row for name, row in store.Records(file).items()}
    done = {job: of_job[job] for job in gpu_jobs.JOBS if job in of_job}
    made = tables.provenance(*(row["made"] for row in done.values()))
    tables.fill("docs/benchmarks.md", "gpu", f"{table(done)}\n{made}\n")
    return 0


# {heading: (key of a record, format)}
COLUMNS = {
    "images": ("batch", "d"),
    "ms": ("ms", ".1f"),
    "images/s": ("images_per_second", ".0f"),
    "x PyTorch compiled": ("ratio", ".2f"),
    "kernels": ("kernels", ".0f"),
    "ms in kernels": ("busy", ".1f"),
    "ms of the host": ("host", ".1f"),
    "temporary GiB": ("temporary", ".1f"),
    "TFLOP/s": ("tflops", ".0f"),
    "GB": ("gb", ".0f"),
    "ms by bytes": ("least", ".1f"),
    "share reached": ("share", ".0%"),
}


def table(done: dict[str, dict]) -> str:
    """Records as a table in Markdown. ms by bytes: those of the step's bytes at the card's rate of
    copies; share reached: that of the measured ms."""
    peer = done.get("torch-compiled", {}).get("ms")
    rate = done.get("card", {}).get("copy_rate")
    rows, others = [["step", *COLUMNS]], []
    for name, row in done.items():
        if "ms" not in row:
            others.append(f"{name}: {_line(row)}.\n")
            continue
        row = dict(row)
        if peer and name in ("dino", "dino-span", "torch-compiled", "torch-eager"):
            row["ratio"] = row["ms"] / peer
        if rate and row.get("bytes"):
            least = 1000 * row["bytes"] / rate
            row |= dict(gb=row["bytes"] / 1e9, least=least, share=least / row["ms"])
        cells = ["" if row.get(k) is None else format(row[k], form) for k, form in COLUMNS.values()]
        rows.append([f"{name}, {row['changes']}" if row.get("changes") else name, *cells])
    return tables.markdown(rows) + "\n" + "".join(others)
