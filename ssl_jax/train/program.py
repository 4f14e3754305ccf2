"""Computation, communication and memory traffic of a compiled program on one device.

    compiled, program = program.compile(jax.jit(step).lower(state, batch))
    program.read(compiled.as_text()).kernels          # of a GPU's or a TPU's program

XLA's own cost analysis counts the body of a loop once and omits collectives. Here, products and
collectives are read from the program after XLA's SPMD partitioner and before fusion, which gives
the same figures for CPUs, GPUs and TPUs. Kernels are read from the final program.
"""

import contextlib
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from ssl_jax.train import kernels
from ssl_jax.train.hlo import COLLECTIVES, Instruction, Module

_PARTITIONED = "spmd-partitioning"  # XLA's pass
# Matrix products per pair of tokens inside opaque attention kernels: scores and weighted values;
# in the backward pass also the recomputed scores. JAX's TPU flash attention has two backward
# kernels.
_FLASH = {"bwd_dq": 3, "bwd_dkv": 4, "": 2}
_CUDNN = {"fmhaSoftmaxBackward": 5, "": 2}
_SCORES = r'"intermediate_tensor_shape": ?\{[^{}]*"dimensions": ?\[([^\]]*)\]'  # of cuDNN


class Collective(NamedTuple):
    """A collective operation; equal ones are counted together.

    kind: "all-reduce", "all-gather", ... type: of its result on a device, "f32[384,64]". bytes: of
    that result. devices: group size; 0 = all. where: line of this package, or JAX's op name. times:
    number of executions per call.
    """

    kind: str
    type: str
    bytes: float
    devices: int
    where: str
    times: int


class Kernels(NamedTuple):
    """Kernels of one kind from one line. times: executions per call. bytes: read and written."""

    kind: str
    where: str
    times: int
    bytes: float


class Program(NamedTuple):
    """Costs of one call of a program on one device.

    flops: {operand type: FLOPs of matrix products and convolutions}, the type being "bf16", "f32"
    (the platform's default precision), "f32 x3" or "f32 exact". where: {(line, type): FLOPs}.
    collectives: by descending volume. moved: bytes that the products read and write. kernels: by
    descending bytes; in a program before fusion, each instruction is one.
    """

    flops: dict[str, float]
    where: dict[tuple[str, str], float]
    collectives: list[Collective]
    moved: float = 0.0
    kernels: tuple[Kernels, ...] = ()

    def volume(self, kind: str = "") -> float:
        """Bytes of all collectives, or of one kind."""
        return sum(c.bytes * c.times for c in self.collectives if kind in ("", c.kind))

    def traffic(self) -> float:
        """Bytes that all kernels read and write."""
        return sum(kernels.bytes for kernels in self.kernels)


def compile(lowered: jax.stages.Lowered, **options: Any) -> tuple[jax.stages.Compiled, Program]:
    """Compiles with these XLA options and reads the program of one device."""
    with tempfile.TemporaryDirectory() as folder, _without_cache():
        dump = dict(xla_dump_to=folder, xla_dump_hlo_pass_re=_PARTITIONED)
        compiled = lowered.compile(compiler_options={**options, **dump})
        # TPUs have a pass of their own: "tpu-spmd-partitioning".
        files = list(Path(folder).glob(f"*.after_*{_PARTITIONED}.before_*.txt"))
        if files or "num_partitions=" in str(compiled.as_text()).partition("\n")[0]:
            (file,) = files
            return compiled, read(file.read_text())
        # The partitioner does not run for a single device.
        return compiled, read(lowered.as_text(dialect="hlo", debug_info=True))


@contextlib.contextmanager
def _without_cache():
    """Disables JAX's compilation cache, whose programs lack the text."""
    enabled = jax.config.values["jax_enable_compilation_cache"]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # re-reads the flag; removes no program
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def read(text: str) -> Program:
    """Reads an XLA module (HLO) from its text."""
    module = Module(text)
    costs = _Reader(module).costs(module.entry)
    total: Counter = Counter()
    for (_, kind), number in costs.flops.items():
        total[kind] += number
    collectives = [Collective(*(*key, times)) for key, times in costs.sent.items()]
    collectives.sort(key=lambda c: -c.bytes * c.times)
    ran = [Kernels(*(*key, times, costs.bytes[key])) for key, times in costs.ran.items()]
    ran.sort(key=lambda k: -k.bytes)
    moved = float(costs.moved.total())
    return Program(dict(total), dict(costs.flops), collectives, moved, tuple(ran))


def where(text: str) -> dict[str, str]:
    """{operation: line of this package, or JAX's op name} of a compiled program's text."""
    module = Module(text)
    return {i.name: module.where(i) for c in module.computations.values() for i in c}


class _Costs(NamedTuple):
    """flops: {(line, operand type): FLOPs}. sent: {(kind, type, bytes, devices, line): times}.
    moved: {kind: bytes moved by products}. ran, bytes: {(kind, line): kernels, and their bytes}."""

    flops: Counter
    sent: Counter
    moved: Counter
    ran: Counter
    bytes: Counter


class _Reader:
    """Sums the costs of computations, the innermost first."""

    def __init__(self, module: Module):
        self._module = module
        self._totals: dict[str, _Costs] = {}

    def costs(self, name: str) -> _Costs:
        """The costs of a computation and of those that it calls."""
        if name not in self._totals:
            totals = _Costs(*(Counter() for _ in _Costs._fields))
            for instruction in self._module.computations[name]:
                self._add(instruction, totals)
            self._totals[name] = totals
        return self._totals[name]

    def _add(self, op: Instruction, totals: _Costs) -> None:
        kind, line = op.base, self._module.where(op)
        if products := _products(op):
            totals.flops[line, _operands(op)] += products
            totals.moved[kind] += round(sum(i.bytes for i in (op, *op.operands)))
        elif kind in COLLECTIVES and kind + "-done" != op.kind and (devices := _group(op)) != 1:
            totals.sent[kind, op.type, op.bytes, devices, line] += 1
        bodies = self._module.bodies(op)
        inner = [self.costs(name) for name in bodies]
        if kind == "conditional":  # the most expensive branch
            inner = [max(inner, key=lambda c: (c.flops.total(), c.bytes.total()))]
        times = self._module.trips(op) if kind == "while" else 1
        fused = kind == "fusion" and bool(bodies)  # a "fusion-done" has no body
        for part in inner:
            pairs = list(zip(totals, part, strict=True))
            for total, costs in pairs[:3] if fused else pairs:
                for key, number in costs.items():
                    total[key] += times * number
        if fused or not (inner or kernels.is_none(op)):
            body = self._module.computations[bodies[0]] if fused else [op]
            line = self._module.where(op, *reversed(body)) or self._module.where(*op.operands)
            key = kernels.kind(op, body), line
            totals.ran[key] += not op.kind.endswith("-done")
            totals.bytes[key] += round(kernels.traffic(op, body))


def _group(exchange: Instruction) -> int:
    """Number of devices in the group of a collective; 0 = all."""
    if listed := exchange.bracketed(r"replica_groups=\{\{([\d,]*)\}"):
        return len(listed.split(","))
    return int(exchange.bracketed(r"replica_groups=\[\d+,(\d+)\]") or 0)


def _operands(product: Instruction) -> str:
    """The wider operand type, such as "bf16" or "f32"; with the requested precision of float32 if
    it exceeds the default: "f32 exact", or three bfloat16 passes, "f32 x3"."""
    first = (operand.arrays[0] for operand in product.operands[:2])
    name, text = max(first, key=lambda array: array.bits).name, product.text
    if name != "f32":
        return name
    if "operand_precision={highest" in text:
        return f"{name} exact"
    return f"{name} x3" if "operand_precision={high" in text or "f32_x3" in text else name


def _products(op: Instruction) -> int:
    """FLOPs of a "dot", a "convolution" or an attention kernel; 0 for other instructions."""
    if op.kind in ("dot", "convolution"):
        left, right = (operand.shape for operand in op.operands[:2])
        if op.kind == "dot":
            axes = op.bracketed(r"lhs_contracting_dims=\{([\d,]*)\}") or ""
            summed = math.prod(left[int(a)] for a in axes.split(",") if a)
        else:
            kernel = op.bracketed(r"dim_labels=\w+_(\w+)->") or ""
            summed = math.prod(right) // right[kernel.index("o")]
        return 2 * math.prod(op.shape) * summed
    if op.kind == "custom-call" and (scores := op.bracketed(_SCORES)):
        pairs = math.prod(map(int, scores.replace('"', "").split(",")))
        return 2 * _part(_CUDNN, op) * pairs * op.operands[0].shape[-1]
    if op.kind == "custom-call" and "flash_attention" in op.text:
        queries, keys = (operand.shape for operand in op.operands[:2])  # [B, heads, N, width]
        return 2 * _part(_FLASH, op) * math.prod(queries) * keys[2]
    return 0


def _part(products: dict[str, int], kernel: Instruction) -> int:
    return next(number for part, number in products.items() if part in kernel.text)
