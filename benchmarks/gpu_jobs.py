"""What `python -m benchmarks gpu` times, each job in a process of its own."""

import csv
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks import measure

ROUNDS, STEPS = 4, 8  # timed


class Job(NamedTuple):
    """What is timed. config: a preset; "eager" or "compiled" for PyTorch; "card" for the rates that
    copies and products reach. batch: images of a step. changes: of `model`, where they differ from
    the preset's, so that one card holds what the preset spreads over several. span: steps that one
    program runs."""

    config: str
    batch: int = 128
    changes: dict = {}
    span: int = 1


_HALF_OF_VIT_L = dict(size="custom", width=1024, depth=12, heads=16)
_VIT_S = "ibot:vits16 dinov2:vits16 massl:vits16 sove:vits16 flsl:vits16".split()
JOBS = {
    "card": Job("card"),
    "dino": Job("dino:vits16"),
    "torch-compiled": Job("compiled"),
    "torch-eager": Job("eager"),
    "sop": Job("sop:vits16"),
    "dino-span": Job("dino:vits16", span=8),
    "sop-span": Job("sop:vits16", span=8),
    "dino-vitb16": Job("dino:vitb16", 64),
    "sop-vitl16": Job("sop:vitl16", 32, _HALF_OF_VIT_L),
    "stellar-vitb16": Job("stellar:vitb16", 32),
    "cribo": Job("cribo:vits16_in1k"),
    "mae-vitb16": Job("mae:vitb16", 128),
    **{name.partition(":")[0]: Job(name) for name in _VIT_S},
}
_TOY = dict(size="custom", width=32, depth=2, heads=2)


def work(options) -> int:
    """Prints the record of a job as JSON. It compiles at once, then writes OUT/NAME.compiled and is
    timed when it reads a line."""
    # Several programs share the card: none may take all of its memory.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    job, begin = JOBS[options.job], time.time()

    def take_turn():
        compiled(options.out, options.job).touch()
        sys.stdin.readline()

    if job.config == "card":
        row = _card(options.toy, take_turn)
    elif job.config in ("eager", "compiled"):
        row = _torch(job, options.toy, take_turn)
    else:
        row = _preset(job, options, take_turn)
    print(json.dumps(row | {"config": job.config, "seconds": time.time() - begin}))
    return 0


def compiled(out: pathlib.Path, name: str) -> pathlib.Path:
    """The file that says that a job waits for its turn."""
    return out / f"{name}.compiled"


def _preset(job, options, take_turn):
    import jax

    from benchmarks import steps
    from ssl_jax.train import program

    config = steps.with_photographs(job.config)
    config.evals.tasks, config.optim.batch_size = (), 2 if options.toy else job.batch
    config.mesh.update(dict(data=1, fsdp=1))  # one GPU, however many there are
    config.model.update(job.changes | (_TOY if options.toy else {}))
    began = time.time()
    step = steps.Step(config, span=job.span)
    compiling = time.time() - began
    moved, lines = program.read(step.text).traffic(), program.where(step.text)
    take_turn()
    step.fill()
    each = _timed(step.turn, job.span)
    changes = job.changes | ({"steps of a program": job.span} if job.span > 1 else {})
    return dict(
        **_speed(step.images, each, compiling, step.temporary / 2**30),
        host=1000 * step.host_seconds(4 * job.span),
        changes=" ".join(f"{key}={value}" for key, value in changes.items()),
        tflops=step.flops / each / 1e12,
        arguments=step.arguments / 2**30,
        bytes=moved,  # a loop whose passes are not known counts once
        jax=jax.__version__,
        **_traced(step, lines, options.out / f"{options.job}.kernels.csv"),
    )


def _torch(job, toy, take_turn):
    import torch

    from benchmarks import dino_torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, sizes = (2, dino_torch.TOY) if toy else (job.batch, dino_torch.VITS)
    began = time.time()
    step = dino_torch.make_step(batch, device, compiled=job.config == "compiled", sizes=sizes)
    step().item()  # compiles; a card has room for two
    compiling = time.time() - began
    take_turn()

    def turn(steps):
        for _ in range(steps):
            loss = step()
        loss.item()

    each = _timed(turn)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return _speed(batch, each, compiling, peak) | dict(torch=torch.__version__)


def _card(toy, take_turn):
    import jax
    import jax.numpy as jnp

    size, width = (1 << 16, 64) if toy else (1 << 30, 8192)
    copy, product = jax.jit(lambda x: x + 1), jax.jit(jnp.matmul)
    pixels = jnp.zeros(size, jnp.float32)
    matrix = jax.random.normal(jax.random.key(0), (width, width), jnp.bfloat16)
    take_turn()

    def rate(amount, call, *arguments):
        return amount / _seconds(lambda: jax.block_until_ready(call(*arguments)), 10, skip=1)

    copies = rate(2 * pixels.nbytes, copy, pixels)
    products = rate(2 * width**3, product, matrix, matrix)
    return dict(copy_rate=copies, product_rate=products, jax=jax.__version__)


def _seconds(call, rounds: int, skip: int = 0) -> float:
    """Median of a call, of the wall."""
    return measure.medians({"": call}, rounds, skip=skip, now=time.perf_counter)[""]


def _timed(turn, span: int = 1) -> float:
    """Median seconds of a step; turn(n) makes n of them, `span` in a program, and waits for the
    last."""
    turn(3 * span)
    return _seconds(lambda: turn(STEPS), ROUNDS) / STEPS


def _speed(batch, each, compiling, temporary) -> dict:
    speed = dict(batch=batch, ms=1000 * each, images_per_second=batch / each)
    return speed | dict(temporary=temporary, compile_seconds=compiling)


def _traced(step, lines: dict[str, str], table: pathlib.Path) -> dict:
    """{"kernels": how many ran in a step, "busy": their ms} of a trace, and writes `table`: ms of a
    step, times, operation of XLA, line of the package. lines: of the step's operations."""
    import jax

    from ssl_jax.train import profile

    steps = max(4, step.span)
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
