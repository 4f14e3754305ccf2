"""Times full-size train steps on one GPU within a few minutes, DINO's beside PyTorch's.

    python -m benchmarks gpu --minutes 8                    ViT-S/16, then larger networks
    python -m benchmarks gpu --minutes 8 --only dino,torch-compiled,sop
    python -m benchmarks gpu --scale toy                    a rehearsal on a CPU, some minutes

Needs the package with a GPU build of JAX in the active environment, and no data: the pictures come
with the package. PyTorch is timed where it is installed.

Jobs start in the order of their importance. Some compile side by side, each in a process of its
own: XLA and PyTorch both need some 100 s, on several cores. They take turns being timed, on cores
that no other compiles on. Each result is written to OUT/gpu.jsonl at once, with card, commit and
versions, and a job that has a record of this commit, card and scale is not run again: started
again, the script goes on where the minutes ended. The table OUT/gpu.md has all records of the
commit. Exit status 1 if a job failed.

A record: ms (median of four rounds of eight steps, each waiting for the last of them),
images_per_second, tflops (products that the model needs), temporary and arguments in GiB, seconds
to compile, bytes that the compiled step's kernels read and write, how many kernels a trace of a
step has and their ms ("busy"), the ms that the host needs to start a step. OUT/NAME.kernels.csv has
the kernels one by one.
"""

import argparse
import contextlib
import csv
import fcntl
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from experiments import store as records
from experiments import tables

ROUNDS, STEPS = 4, 8  # timed


class Job(NamedTuple):
    """What is timed. config: a preset; "torch" or "tests" with what they are given in `options`;
    "card" for the rates that copies and products reach.
    batch: images of a step. changes: of `model`, where they differ from the preset's, so that one
    card holds what the preset spreads over several."""

    config: str
    batch: int = 128
    changes: dict = {}
    options: tuple[str, ...] = ()


_HALF_OF_VIT_L = dict(size="custom", width=1024, depth=12, heads=16)
_VIT_S = "ibot:vits16 dinov2:vits16 massl:vits16 sove:vits16 flsl:vits16".split()
JOBS = {
    "card": Job("card"),
    "dino": Job("dino:vits16"),
    "torch-compiled": Job("torch", options=("compiled",)),
    "torch-eager": Job("torch", options=("eager",)),
    "sop": Job("sop:vits16"),
    "dino-vitb16": Job("dino:vitb16", 64),
    "sop-vitl16": Job("sop:vitl16", 32, _HALF_OF_VIT_L),
    "stellar-vitb16": Job("stellar:vitb16", 32),
    "cribo": Job("cribo:vits16_in1k"),
    "mae-vitb16": Job("mae:vitb16", 128),
    **{name.partition(":")[0]: Job(name) for name in _VIT_S},
    "test-cudnn": Job("tests", options=("tests/models/test_attention.py", "-k", "on_a_gpu")),
    "test-float64": Job("tests", options=("tests/losses", "-k", "equals_the_reference")),
}
_TOY = dict(width=32, depth=2, heads=2)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8, help="nothing runs after them")
    parser.add_argument("--only", default="", help=f"of {', '.join(JOBS)}; comma-separated")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/gpu_bench"))
    parser.add_argument("--scale", choices=("paper", "toy"), default="paper")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4))
    parser.add_argument("--limit", type=float, default=300, help="seconds a job may take")
    parser.add_argument(
        "--write",
        type=pathlib.Path,
        metavar="FILE",
        help="put the table of FILE's records, one"
        " commit's, into docs/benchmarks.md; times nothing",
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)  # a process of this script's
    options = parser.parse_args(arguments)
    if options.job:
        files = dict(turn=options.out / "turn", kernels=options.out / f"{options.job}.kernels.csv")
        return _work(JOBS[options.job], toy=options.scale == "toy", **files)
    if options.write:
        return _write(options.write)
    names = options.only.split(",") if options.only else list(JOBS)
    if unknown := [name for name in names if name not in JOBS]:
        parser.error(f"no job {', '.join(unknown)}; there are {', '.join(JOBS)}")
    if importlib.util.find_spec("torch") is None:
        names = [name for name in names if JOBS[name].config != "torch"]
        print("torch is not installed: no comparison with PyTorch", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    made = tables.made()
    of = f"{made['commit']} {made['accelerators'] or made['processor']} {options.scale}"
    kept = records.Records(options.out / "gpu.jsonl")
    missing = [name for name in names if f"{of} {name}" not in kept]
    failed = []
    for name, row in _all(missing, options):
        if "error" in row:
            failed.append(name)
            print(f"{name}: {row['error']}", flush=True)
        else:
            kept[f"{of} {name}"] = row | {"made": made}
            print(f"{name}: {_line(row)}", flush=True)
    done = {name: kept[f"{of} {name}"] for name in names if f"{of} {name}" in kept}
    (options.out / "gpu.md").write_text(f"{of}\n\n{table(done)}", encoding="utf-8")
    print(f"{len(done)} of {len(names)} jobs have a record; table in {options.out / 'gpu.md'}")
    return 1 if failed else 0


def _all(names, options):
    """Runs jobs, `options.jobs` at a time; yields (name, its record or {"error": why}) as each
    ends. What runs when the minutes are over is killed."""
    end, waiting, running = time.time() + 60 * options.minutes, list(names), {}
    while waiting or running:
        while waiting and len(running) < options.jobs and time.time() < end:
            name = waiting.pop(0)
            command = [sys.executable, "-m", "benchmarks", "gpu", f"--job={name}"]
            command += [f"--scale={options.scale}", f"--out={options.out}"]
            with open(options.out / f"{name}.log", "w") as log:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
            running[name] = process, min(end, time.time() + options.limit)
        for name, (process, limit) in list(running.items()):
            if process.poll() is None and time.time() < limit:
                continue
            ended = process.poll() is not None
            process.kill()
            text = process.communicate()[0].decode()
            del running[name]
            if ended and process.returncode == 0:
                yield name, json.loads(text.splitlines()[-1])
            else:
                why = f"status {process.returncode}" if ended else "no time left"
                yield name, {"error": f"{why}; see {options.out / name}.log"}
        if waiting and not running and time.time() >= end:
            yield from ((name, {"error": "not started: no time left"}) for name in waiting)
            return
        time.sleep(0.2)


def _stay_on(timed: bool) -> None:
    """Keeps all threads of the process on four cores for what is timed, or on the others, where
    processes compile; on a machine of few, on any."""
    cores = range(os.cpu_count() or 1)
    if len(cores) >= 8 and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), cores[:4] if timed else cores[4:])


def _work(job: Job, *, toy: bool, turn: pathlib.Path, kernels: pathlib.Path) -> int:
    """Prints the record of a job as JSON. It compiles at once and is timed when it has `turn`, a
    file that one process locks at a time. kernels: the table of a preset's kernels."""
    # Several programs share the card: none may take all of its memory.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    begin = time.time()
    _stay_on(timed=False)
    measure = {"torch": _torch, "tests": _tests, "card": _card}.get(job.config)
    with open(turn, "w") as lock:

        def take_turn():
            fcntl.flock(lock, fcntl.LOCK_EX)
            _stay_on(timed=True)

        row = measure(job, toy, take_turn) if measure else _preset(job, toy, take_turn, kernels)
    if "error" in row:
        print(row["error"], file=sys.stderr)
        return 1
    print(json.dumps(row | {"config": job.config, "seconds": time.time() - begin}))
    return 0


def _preset(job, toy, take_turn, kernels):
    import jax

    from benchmarks import bench
    from benchmarks import steps as bench_steps
    from ssl_jax.train import program

    config = bench.with_photographs(job.config)
    config.evals.tasks, config.optim.batch_size = (), 2 if toy else job.batch
    config.mesh.update(dict(data=1, fsdp=1))  # one GPU, however many there are
    config.model.update(job.changes)
    if toy:
        config.model.size = "custom"
        config.model.update(_TOY)
    began = time.time()
    step = bench_steps.Step(config)
    compiling = time.time() - began
    moved, lines = program.read(step.text).traffic(), program.where(step.text)
    take_turn()
    step.fill()
    step.turn(3)
    each = statistics.median(_seconds(lambda: step.turn(STEPS)) / STEPS for _ in range(ROUNDS))
    host = 1000 * step.host_seconds()
    return dict(
        batch=step.images,
        host=host,
        changes=" ".join(f"{key}={value}" for key, value in job.changes.items()),
        ms=1000 * each,
        images_per_second=step.images / each,
        tflops=step.flops / each / 1e12,
        temporary=step.temporary / 2**30,
        arguments=step.arguments / 2**30,
        compile_seconds=compiling,
        bytes=moved,
        jax=jax.__version__,
        **_traced(step, lines, kernels),
    )


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _traced(step, lines: dict[str, str], table: pathlib.Path) -> dict:
    """{"kernels": how many ran in a step, "busy": their ms} of a trace, and writes `table`: ms of a
    step, times, operation of XLA, line of the package. lines: of the step's operations."""
    import jax

    from ssl_jax.train import profile

    steps = 4
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            step.turn(steps)
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        costs = profile.costs(path, lines)
    with open(table, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("ms", "times", "operation", "line"))
        for one in costs:
            ms = f"{1000 * one.seconds / steps:.4f}"
            rows.writerow((ms, one.times / steps, one.name, one.where))
    ran = sum(one.times for one in costs) / steps
    return dict(kernels=ran, busy=1000 * sum(one.seconds for one in costs) / steps)


def _card(job, toy, take_turn):
    import jax
    import jax.numpy as jnp

    size, width = (1 << 16, 64) if toy else (1 << 30, 8192)
    copy, product = jax.jit(lambda x: x + 1), jax.jit(jnp.matmul)
    pixels = jnp.zeros(size, jnp.float32)
    matrix = jax.random.normal(jax.random.key(0), (width, width), jnp.bfloat16)
    take_turn()

    def each(call, argument):
        jax.block_until_ready(call(argument))
        seconds = (_seconds(lambda: jax.block_until_ready(call(argument))) for _ in range(10))
        return statistics.median(seconds)

    return dict(
        copy_rate=2 * pixels.nbytes / each(copy, pixels),
        product_rate=2 * width**3 / each(lambda x: product(x, x), matrix),
        jax=jax.__version__,
    )


def _torch(job, toy, take_turn):
    import torch

    from benchmarks import dino_torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, compiled = 2 if toy else job.batch, job.options == ("compiled",)
    began = time.time()
    step = dino_torch.make_step(
        batch, device, compiled=compiled, sizes=dino_torch.TOY if toy else dino_torch.VITS
    )
    step().item()  # compiles; a card has room for two
    compiling = time.time() - began
    take_turn()

    def turn(steps):
        for _ in range(steps):
            loss = step()
        loss.item()

    turn(3)
    each = statistics.median(_seconds(lambda: turn(STEPS)) / STEPS for _ in range(ROUNDS))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return dict(
        batch=batch,
        ms=1000 * each,
        images_per_second=batch / each,
        temporary=peak,
        compile_seconds=compiling,
        torch=torch.__version__,
    )


def _tests(job, toy, take_turn):
    take_turn()
    environment = os.environ | {"SSL_JAX_TEST_PLATFORM": "cpu" if toy else "cuda"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *job.options]
    ran = subprocess.run(command, cwd=tables.ROOT, env=environment, capture_output=True, text=True)
    if ran.returncode:
        return {"error": ran.stdout[-4000:] + ran.stderr[-2000:]}
    return dict(tests=ran.stdout.strip().splitlines()[-1])


def _line(row: dict) -> str:
    if "tests" in row:
        return row["tests"]
    if "copy_rate" in row:
        rates = row["copy_rate"] / 1e12, row["product_rate"] / 1e12
        return "copies {:.2f} TB/s, bfloat16 products {:.0f} TFLOP/s".format(*rates)
    memory = "" if row["temporary"] is None else f", {row['temporary']:.1f} GiB of results"
    return (
        f"{row['ms']:.1f} ms, {row['images_per_second']:.0f} images/s{memory}, compiled in"
        f" {row['compile_seconds']:.0f} s"
    )


def _write(file: pathlib.Path) -> int:
    """Puts the table of a file's records into docs/benchmarks.md."""
    kept = records.Records(file)
    of_job = {name.split()[-1]: kept[name] for name in kept}
    done = {job: of_job[job] for job in JOBS if job in of_job}
    made = tables.provenance(*(row["made"] for row in done.values()))
    tables.fill(tables.ROOT / "docs" / "benchmarks.md", "gpu", f"{table(done)}\n{made}\n")
    return 0


def table(done: dict[str, dict]) -> str:
    """Records as a table in Markdown."""
    peer = done.get("torch-compiled", {}).get("ms")
    rate = done.get("card", {}).get("copy_rate")
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for name, row in done.items():
        if "ms" not in row:
            continue
        label = f"{name}, {row['changes']}" if row.get("changes") else name
        ratio = f"{row['ms'] / peer:.2f}" if peer and name.startswith(("dino", "torch")) else ""
        cells = (
            *(label, str(row["batch"]), f"{row['ms']:.1f}", f"{row['images_per_second']:.0f}"),
            ratio,
            *(_cell(row.get(key), form) for key, form in _REST),
            *_bound(row, rate),
        )
        lines.append(f"| {' | '.join(cells)} |")
    others = [f"{name}: {_line(row)}." for name, row in done.items() if "ms" not in row]
    return "\n".join([*lines, "", *others]) + "\n"


def _bound(row, rate):
    """GB of a step, the ms that they take at the card's rate of copies, the share that these are of
    the measured ones."""
    if not rate or not row.get("bytes"):
        return "", "", ""
    least = 1000 * row["bytes"] / rate
    return f"{row['bytes'] / 1e9:.0f}", f"{least:.1f}", f"{100 * least / row['ms']:.0f} %"


_COLUMNS = ("step", "images", "ms", "images/s", "x PyTorch compiled")
_COLUMNS += ("kernels", "ms in kernels", "ms of the host", "temporary GiB", "TFLOP/s")
_COLUMNS += ("GB", "ms by bytes", "share reached")
_REST = (
    ("kernels", ".0f"),
    ("busy", ".1f"),
    ("host", ".1f"),
    ("temporary", ".1f"),
    ("tflops", ".0f"),
)


def _cell(value, form):
    return "" if value is None else f"{value:{form}}"
