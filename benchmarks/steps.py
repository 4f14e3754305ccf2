"""The train step of every recipe of configs/compare.py, or of other configs on photographs.

    python -m benchmarks steps
    python -m benchmarks steps --configs dino:vits16,sop:vits16 --batch 64

Medians of interleaved turns of ten steps on one batch. "x" is relative to the first config; GFLOP/s
and MFU count the products that the model needs (none twice), MFU as a share of the device's
published peak, or where none is known of what a large product reaches here; "own ops" is the share
of a step that goes when a sum of the networks' outputs replaces the method's objective; memory is
arrays and temporaries of one device. DINO has its step in PyTorch beside it, if that is installed:
the same network, batch and loss, with fused AdamW.
"""

import functools
import importlib.util
import shutil
import sys
import time

import jax
import jax.numpy as jnp

from benchmarks import libraries, measure, report
from configs import compare
from ssl_jax import api, methods
from ssl_jax import config as config_lib
from ssl_jax.models import zoo
from ssl_jax.runtime import sharding
from ssl_jax.train import estimate, loop, step
from ssl_jax.train import span as spans

STEPS = 10  # of a turn


COLUMNS = {
    "config": ("config", ""),
    "ms": ("ms", ".1f"),
    "images/s": ("images_per_second", ".1f"),
    "x": ("x", ".2f"),
    "GFLOP/s": ("gflops", ".1f"),
    "MFU": ("mfu", ".1%"),
    "own ops": ("own", ".1%"),
    "MiB": ("mib", ".0f"),
}


def main(argv=None) -> int:
    more = dict(
        configs=dict(default="", help="NAME[:VARIANT],... instead of the recipes"),
        batch=dict(type=int, default=0, help="images of a step; 0 = the config's"),
        dtype=dict(default="", help="model.dtype instead of the config's"),
    )
    chosen = report.options(__doc__, argv, compare.METHODS, small=False, peers=True, **more)
    if chosen.configs:
        configs = {name: with_photographs(name) for name in chosen.configs.split(",")}
    else:
        configs = {name: compare.get_config(name) for name in chosen.only}
    for config in configs.values():
        config.seed, config.evals.tasks = chosen.seed, ()
        config.optim.batch_size = chosen.batch or config.optim.batch_size
        config.model.dtype = chosen.dtype or config.model.dtype
    peers = libraries.setup("torch", installed=chosen.as_installed)
    rows = rows_of(configs, chosen.rounds)
    report.publish("steps", chosen, rows, report.cells(rows, COLUMNS), peers)
    return 0


def with_photographs(name: str):
    """A config by name, on pictures that come with the package."""
    config = config_lib.load(name)
    config.data.update(dict(kind="photos", size=256, length=4096, workers=0))
    if config.method == "stellar":
        config.stellar.target = "pixel"  # codes need a tokenizer's file
    return config


def rows_of(configs: dict, rounds: int) -> list[dict]:
    """A row per {name: config}, with medians over `rounds` turns of 10 steps on one batch.

    ms: of a step. images_per_second. x: ms relative to the first config's. gflops: matrix products
    that the model needs, a second. mfu: these as a share of the device's peak. own: share of the
    step that is left out when the method's objective is replaced by a sum of the networks' outputs.
    mib: arrays and temporaries of the step on one device. The last two are None for PyTorch.
    """
    steps = {name: _compiled(name, config) for name, config in configs.items()}
    forms = {name: {name: one.turn} | _in_torch(name, one) for name, one in steps.items()}
    calls = {form: call for group in forms.values() for form, call in group.items()}
    for name, config in configs.items():
        calls[name, "networks"] = _compiled(f"{name}, networks only", config, own=False).turn
    seconds = measure.medians(calls, rounds, skip=1)
    first, rows = next(iter(configs)), []
    peak = peak_flops()
    for name, form in [(name, form) for name, group in forms.items() for form in group]:
        one, each = steps[name], seconds[form] / STEPS
        flops = one.flops / each
        rows.append(
            dict(
                config=form,
                ms=1000 * each,
                images_per_second=one.images / each,
                x=seconds[form] / seconds[first],
                gflops=flops / 1e9,
                mfu=flops / (peak * one.devices),
                own=1 - seconds[name, "networks"] / seconds[name] if form == name else None,
                mib=one.bytes / 2**20 if form == name else None,
            )
        )
    return rows


def _in_torch(name: str, one: "Step") -> dict:
    """{form: ten steps} of a DINO step in PyTorch, of the same sizes and type; compiled where there
    is a C++ compiler. {} for other methods and without PyTorch."""
    c = one.config
    if c.method != "dino" or importlib.util.find_spec("torch") is None:
        return {}
    import torch

    from benchmarks import dino_torch

    shape, head, views = zoo.vit_config(c.model), c.dino, c.views
    sizes = dino_torch.Sizes(
        *(shape.width, shape.depth, shape.heads, shape.patch),
        *(head.head_hidden, head.head_bottleneck, head.prototypes),
        *(views.global_size, views.local_size, views.local_count),
    )
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    dtype = getattr(torch, c.model.dtype)

    def turn(step):
        for _ in range(STEPS):
            loss = step()
        loss.item()

    def form(compiled):
        options = dict(compiled=compiled, sizes=sizes, dtype=dtype)
        return functools.partial(turn, dino_torch.make_step(one.images, device, **options))

    forms = {f"{name}, PyTorch eager": form(False)}
    if shutil.which("g++"):
        forms[f"{name}, PyTorch compiled"] = form(True)
    return forms


def times(configs: dict, rounds: int) -> dict[str, list[float]]:
    """{name: seconds of a step in each round} of {name: config}, the mean of 10 steps each."""
    calls = {name: _compiled(name, config).turn for name, config in configs.items()}
    seconds = measure.in_rounds(calls, rounds, skip=1)
    return {name: [turn / STEPS for turn in turns] for name, turns in seconds.items()}


def peak_flops() -> float:
    """FLOP/s of a device in its networks' type: as published, or of a large product of float32,
    measured, where the device is in no table."""
    kind = jax.devices()[0].device_kind.replace(" lite", "e")
    for name, machine in estimate.MACHINES.items():
        if name.lower() in kind.lower():
            return machine.flops["bf16"]
    size = 2048
    matrix = jnp.ones((size, size))
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()

    seconds = measure.medians({"": lambda: product(matrix, matrix).block_until_ready()}, 10)[""]
    return 2 * size**3 / seconds


def _compiled(name: str, config, **options) -> "Step":
    """The step of a config; says how long it took, as large ones take minutes."""
    start = time.perf_counter()
    made = Step(config, **options).fill()
    print(f"{name}: compiled in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return made


class Step:
    """A compiled step; `fill` puts a state and a batch on the device.

    own: False replaces the method's objective, see `networks_only`. span: steps that one program
    runs, each on a copy of the batch. images: of a step. flops: of the products that the model
    needs in it. temporary, arguments, bytes: of one device, as XLA says. text: the compiled
    program.
    """

    def __init__(self, config, *, own: bool = True, span: int = 1):
        self._run = run = api.prepare(config)
        self.config = run.config
        method = run.method if own else networks_only(run.method)
        shardings = jax.tree.map(lambda x: x.sharding, run.abstract)
        train_step = step.make_step(method, run.optimizer, run.config)
        batches = loop.open_loader(run)
        self.span, self._batch = span, next(batches)
        batches.close()
        if span > 1:
            train_step = spans.spanned(train_step, span)
            self._batch = spans.stacked([self._batch] * span, span)
        place = sharding.batch_sharding(run.mesh, axis=int(span > 1))
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), self._batch
        )
        compiling = step.compile_step(train_step, run.mesh, shardings)
        more = (jax.ShapeDtypeStruct((), jnp.int32), None) if span > 1 else ()
        self._call = compiling.lower(run.abstract, batch, *more).compile()
        used = self._call.memory_analysis()
        assert used is not None  # CPU, GPU and TPU all tell
        self.arguments, self.temporary = used.argument_size_in_bytes, used.temp_size_in_bytes
        self.bytes = self.arguments + self.temporary
        self.images, self.devices = run.config.optim.batch_size, run.mesh.size
        self.flops = step.flops_per_image(run.config, run.abstract) * self.images
        self.text = str(self._call.as_text())

    def fill(self) -> "Step":
        self._batch = sharding.put_batch(self._batch, self._run.mesh, axis=int(self.span > 1))
        self._more = (jnp.int32(self.span), None) if self.span > 1 else ()
        self._state = loop.fresh_state(self._run)
        return self

    def turn(self, steps: int = STEPS):
        """Makes so many steps, a multiple of the span, and waits for the last, as a run does."""
        jax.block_until_ready(self._start(steps))

    def host_seconds(self, steps: int = 4) -> float:
        """What the host needs to start a step, while the device is at work on others."""
        self.turn(self.span)
        start = time.perf_counter()
        metrics = self._start(steps)
        seconds = (time.perf_counter() - start) / steps
        jax.block_until_ready(metrics)
        return seconds

    def _start(self, steps):
        for _ in range(steps // self.span):
            self._state, metrics = self._call(self._state, self._batch, *self._more)
        return metrics


def networks_only(method: methods.Method) -> methods.Method:
    """The method with the sum of the networks' outputs as its loss; its carry stays as it is."""

    def objective(params, teacher, outputs, carry, key, progress):
        del params, teacher, key, progress
        parts = [jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(outputs) if _float(x)]
        return 1e-6 * sum(parts), methods.Output(carry, {})

    return method._replace(objective=objective)


def _float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
