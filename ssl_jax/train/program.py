"""What one device computes and sends in a compiled program: matrix-product FLOPs, collectives,
memory.

    compiled, program = program.compile(jax.jit(step).lower(state, batch))

XLA's own cost analysis counts the body of a loop once and says nothing of collectives, so the
program is read as XLA holds it after it was cut for the devices (the SPMD partitioner) and before
anything is fused for one kind of device: the same figures for CPUs, GPUs and TPUs.
"""

import contextlib
import math
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache
from jaxlib import _hlo  # type: ignore[attr-defined]

_PARTITIONED = "spmd-partitioning"  # XLA's pass
_PACKAGE = "/ssl_jax/"
# An array type: f32[8,16]. Its first number is the width in bits; pred is a byte.
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
)
# Matrix products per pair of tokens in JAX's flash attention for TPUs, which hides them: scores and
# their sum over values; backward, each kernel also works out the scores anew.
_FLASH = {"bwd_dq": 3, "bwd_dkv": 4, "": 2}


class Collective(NamedTuple):
    """An exchange between devices, the same ones added up.

    kind: "all-reduce", "all-gather", ... type: of what a device holds afterwards, "f32[384,64]".
    bytes: of it. devices: that exchange with each other; 0 = all. where: line of this package, or
    what JAX calls the operation. times: in one call.
    """

    kind: str
    type: str
    bytes: float
    devices: int
    where: str
    times: int


class Program(NamedTuple):
    """Of one device and one call.

    flops: {type of the operands: FLOPs of matrix products and convolutions}: "bf16", "f32" (as
    precise as the platform's default), "f32 x3", "f32 exact". where: the same by (line, type).
    collectives: in order of their volume. moved: bytes that these products read and write.
    """

    flops: dict[str, float]
    where: dict[tuple[str, str], float]
    collectives: list[Collective]
    moved: float = 0.0

    def volume(self, kind: str = "") -> float:
        """Bytes of all collectives, or of one kind."""
        return sum(c.bytes * c.times for c in self.collectives if kind in ("", c.kind))


def compile(lowered: jax.stages.Lowered, **options: Any) -> tuple[jax.stages.Compiled, Program]:
    """Compiles, with these options of XLA, and reads the program of a device.

    lowered: for several devices (with one there is no partitioner, and nothing to read).
    """
    with tempfile.TemporaryDirectory() as folder, _without_cache():
        dump = dict(xla_dump_to=folder, xla_dump_hlo_pass_re=_PARTITIONED)
        compiled = lowered.compile(compiler_options={**options, **dump})
        # TPUs have a pass of their own: "tpu-spmd-partitioning".
        (file,) = Path(folder).glob(f"*.after_*{_PARTITIONED}.before_*.txt")
        return compiled, read(file.read_text())


@contextlib.contextmanager
def _without_cache():
    """Has programs compiled anew: one from JAX's cache on disk comes without its text."""
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # which forgets whether it is in use, no program
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def read(text: str) -> Program:
    """Reads a module of XLA (HLO) from its text."""
    module = _hlo.hlo_module_from_text(text)
    text = module.to_string()  # which numbers the lines of source anew
    reader = _Reader(module, _lines(text))
    flops, sent, moved = reader.costs(_found(r"^ENTRY %?([^\s(]+)", text))
    total: dict[str, float] = {}
    for (_, kind), number in flops.items():
        total[kind] = total.get(kind, 0.0) + number
    collectives = [Collective(*(*key, times)) for key, times in sent.items()]
    collectives.sort(key=lambda c: -c.bytes * c.times)
    return Program(total, dict(flops), collectives, float(moved.total()))


def where(text: str) -> dict[str, str]:
    """{operation: line of this package, or what JAX calls it} of a compiled program's text."""
    module = _hlo.hlo_module_from_text(text)
    reader = _Reader(module, _lines(module.to_string()))
    every = (i for c in module.computations() for i in c.instructions())
    return {i.name: reader.where(i.to_string()) for i in every}


def _found(pattern: str, text: str) -> str:
    """The part of a text that stands in the brackets of a pattern."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"this version of XLA writes programs in another way: no {pattern}")
    return found[1]


class _Reader:
    """Adds up computations from the innermost outwards."""

    def __init__(self, module, lines: dict[str, str]):
        self._computations = {c.name: list(c.instructions()) for c in module.computations()}
        self._lines = lines
        self._known: dict[str, tuple[Counter, Counter, Counter]] = {}

    def costs(self, name: str) -> tuple[Counter, Counter, Counter]:
        """{(line, operands): FLOPs}, {(kind, type, bytes, line): times} and {kind: bytes moved by
        products} of a computation."""
        if name not in self._known:
            found: tuple[Counter, Counter, Counter] = Counter(), Counter(), Counter()
            for instruction in self._computations[name]:
                self._add(instruction, *found)
            self._known[name] = found
        return self._known[name]

    def _add(self, instruction, flops: Counter, sent: Counter, moved: Counter) -> None:
        kind, text = _kind(instruction), instruction.to_string()
        flash = kind == "custom-call" and "flash_attention" in text
        if kind in ("dot", "convolution") or flash:
            count = (_flash_flops if flash else _flops)(instruction, text)
            flops[self.where(text), _operands(instruction, text)] += count
            arrays = [instruction, *instruction.operands()]
            moved[kind] += round(sum(_bytes(_type_of(i)) for i in arrays))
        elif kind.removesuffix("-start") in COLLECTIVES:
            devices, type_ = _group(text), _type(text, kind)
            if devices != 1:
                kind = kind.removesuffix("-start")
                sent[kind, type_, _bytes(type_), devices, self.where(text)] += 1
        # What a reduction adds up with is not run as a program of its own.
        runs = kind in ("fusion", "while", "conditional", "call", "async-start")
        inner = [self.costs(name) for name in _bodies(text)] if runs else []
        if kind == "conditional":  # the dearest branch
            inner = [max(inner, key=lambda costs: sum(costs[0].values()))]
        times = self._trips(instruction, text) if kind == "while" else 1
        for part in inner:
            for total, costs in zip((flops, sent, moved), part, strict=True):
                for key, number in costs.items():
                    total[key] += times * number

    def _trips(self, instruction, text: str) -> int:
        """How often a loop runs: as XLA noted it, or else the number its condition compares to."""
        noted = re.search(r'"known_trip_count":\{"n":"(\d+)"', text)
        if noted:
            return int(noted[1])
        condition = self._computations[_named(text, "condition")[0]]
        numbers = (re.search(r"s32\[\] constant\((\d+)\)", i.to_string()) for i in condition)
        return max((int(number[1]) for number in numbers if number), default=1)

    def where(self, text: str) -> str:
        """Line of this package that an instruction comes from, or what JAX calls it."""
        frame = re.search(r"stack_frame_id=(\d+)", text)
        name = re.search(r'op_name="([^"]*)"', text)
        return (frame and self._lines.get(frame[1])) or (name[1] if name else "")


def _group(text: str) -> int:
    """Devices that exchange with each other; 0 = all."""
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", text)
    if listed:
        return len(listed[1].split(","))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", text)
    return int(counted[1]) if counted else 0


def _kind(instruction) -> str:
    """kAllReduce -> all-reduce."""
    words = re.findall(r"[A-Z][a-z0-9]*", instruction.opcode.name[1:])
    return "-".join(words).lower()


def _named(text: str, attribute: str) -> list[str]:
    """Computations that an attribute of an instruction names."""
    found = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", text)
    return [name.strip("%{} ") for name in found[1].split(",")] if found else []


_BODIES = (
    *("calls", "body", "condition", "branch_computations", "to_apply"),
    *("true_computation", "false_computation"),
)


def _bodies(text: str) -> list[str]:
    """Computations that an instruction names, what a reduction adds up with among them."""
    return [name for attribute in _BODIES for name in _named(text, attribute)]


def _type(text: str, kind: str) -> str:
    """The type between the name of an instruction and its kind: "f32[8,16]" or "(s32[], ...)"."""
    return text.split(" = ", 1)[1].split(f" {kind}(", 1)[0]


def _type_of(instruction) -> str:
    return _type(instruction.to_string(), _kind(instruction))


def _arrays(type_: str) -> list[tuple[str, int, tuple[int, ...]]]:
    """(name, bits, shape) of each array in a type."""
    found = _ARRAY.findall(type_)
    return [(n, int(b or 8), tuple(int(d) for d in s.split(",") if d)) for n, b, s in found]


def _bytes(type_: str) -> float:
    return sum(bits / 8 * math.prod(shape) for _, bits, shape in _arrays(type_))


def _shape_of(instruction) -> tuple[str, tuple[int, ...]]:
    """(type name, shape) of what an instruction gives."""
    ((name, _, shape), *_) = _arrays(_type_of(instruction))
    return name, shape


def _operands(instruction, text: str) -> str:
    """The wider of the two types, "bf16" or "f32"; of the latter what the program asks for beyond
    the default: "f32 exact", or three passes of bfloat16, "f32 x3"."""
    arrays = [_arrays(_type_of(operand))[0] for operand in instruction.operands()[:2]]
    name, *_ = max(arrays, key=lambda array: array[1])
    if name != "f32":
        return name
    if "operand_precision={highest" in text:
        return f"{name} exact"
    return f"{name} x3" if "operand_precision={high" in text or "f32_x3" in text else name


def _flops(instruction, text: str) -> int:
    """2 x products of a "dot" or a "convolution"."""
    _, out = _shape_of(instruction)
    (_, left), (_, right) = map(_shape_of, instruction.operands()[:2])
    if _kind(instruction) == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", text)
        summed = math.prod(left[int(a)] for a in axes[1].split(",") if a) if axes else 1
    else:
        kernel = _found(r"dim_labels=\w+_(\w+)->", text)
        summed = math.prod(right) // right[kernel.index("o")]
    return 2 * math.prod(out) * summed


def _flash_flops(instruction, text: str) -> int:
    """2 x products of a kernel of flash attention; its first operands are q and k, [B, heads, N,
    width]."""
    (_, queries), (_, keys) = map(_shape_of, instruction.operands()[:2])
    products = next(number for part, number in _FLASH.items() if part in text)
    return 2 * products * math.prod(queries) * keys[2]


def _lines(text: str) -> dict[str, str]:
    """{number of a stack frame: "ops/nearest.py:12"}, the innermost line in this package."""

    def section(name):
        found = re.search(rf"^{name}\n((?:\d+ .*\n)+)", text, re.MULTILINE)
        rows = found[1].splitlines() if found else []
        return dict(row.split(" ", 1) for row in rows)

    def fields(row):
        return dict(re.findall(r"(\w+)=(\d+)", row))

    files, places = section("FileNames"), section("FileLocations")
    frames = {number: fields(row) for number, row in section("StackFrames").items()}

    def line(number):
        seen = set()
        while number in frames and number not in seen:
            seen.add(number)
            place = fields(places.get(frames[number].get("file_location_id"), ""))
            file = files.get(place.get("file_name_id"), "").strip('"')
            if _PACKAGE in file:
                return f"{file.split(_PACKAGE)[-1]}:{place['line']}"
            number = frames[number].get("parent_frame_id")
        return ""

    return {number: line(number) for number in frames}
