"""Parses the text of an XLA program (HLO): computations, instructions, types, source lines.

Only this module depends on the text format; `program` sums its results.
"""

import dataclasses
import math
import re

from jaxlib import _hlo  # type: ignore[attr-defined]

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
)
_PACKAGE = "/ssl_jax/"
# An array type with its layout: f32[8,16]{1,0}. The first number is the width in bits; a pred takes
# one byte. S(1) after the tiles of a TPU layout marks an array that never leaves the chip.
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\](?:\{[\d,]*(:T\([^}]*S\(1\)[^}]*\})?)?")


@dataclasses.dataclass(frozen=True)
class Array:
    """name: "bf16". on_chip: in the memory of a TPU's core."""

    name: str
    bits: int
    shape: tuple[int, ...]
    on_chip: bool

    @property
    def bytes(self) -> float:
        return self.bits / 8 * math.prod(self.shape)


def arrays(type_: str) -> list[Array]:
    """The arrays of a type, which may be a tuple."""
    return [
        Array(name, int(bits or 8), tuple(int(d) for d in shape.split(",") if d), bool(chip))
        for name, bits, shape, chip in _ARRAY.findall(type_)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """kind: "all-reduce", "dot", ... text: the whole line. type: of the result, such as
    "f32[8,16]{1,0}"."""

    name: str
    kind: str
    text: str
    type: str
    operands: tuple["Instruction", ...]

    @property
    def base(self) -> str:
        """The kind without the suffix of asynchronous pairs ("-start", "-done")."""
        return self.kind.removesuffix("-start").removesuffix("-done")

    @property
    def arrays(self) -> list[Array]:
        return arrays(self.type)

    @property
    def bytes(self) -> float:
        return sum(array.bytes for array in self.arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape

    def bracketed(self, pattern: str) -> str | None:
        """The first group of a pattern's match in the text; None without a match."""
        match = re.search(pattern, self.text)
        return match and match[1]

    def named(self, *attributes: str) -> list[str]:
        """Names of the computations in these attributes."""
        texts = (self.bracketed(rf"\b{a}=(\{{[^}}]*\}}|%?[\w.\-]+)") or "" for a in attributes)
        return [name.strip("%{} ") for names in texts for name in names.split(",") if name]


class Module:
    """computations: {name: instructions, operands before their users}. entry: name of the main
    computation."""

    def __init__(self, text: str):
        module = _hlo.hlo_module_from_text(text)
        text = module.to_string()  # with renumbered source lines
        self.computations = {c.name: _instructions(c) for c in module.computations()}
        entry = re.search(r"^ENTRY %?([^\s(]+)", text, re.MULTILINE)
        if entry is None:
            raise ValueError("programs of this XLA version cannot be read: no ENTRY line")
        self.entry = entry[1]
        self._lines = _lines(text)

    def where(self, *instructions: Instruction) -> str:
        """The source line in this package of the first instruction that has one, preferring lines
        outside `train` (gradients only know the line of `shard_map`); else JAX's op name."""
        frames = (self._lines.get(i.bracketed(r"stack_frame_id=(\d+)") or "") for i in instructions)
        lines = sorted(filter(None, frames), key=lambda line: line.startswith("train/"))
        names = (i.bracketed(r'op_name="([^"]*)"') for i in instructions)
        return lines[0] if lines else next(filter(None, names), "")

    def bodies(self, instruction: Instruction) -> list[str]:
        """Computations that an instruction runs, without the reducers of reductions."""
        match instruction.base:
            case "while":
                return instruction.named("body")
            case "fusion" | "async":
                return instruction.named("calls")
            case "call":
                return instruction.named("to_apply")
            case "conditional":
                branches = ("branch_computations", "true_computation", "false_computation")
                return instruction.named(*branches)
        return []

    def trips(self, loop: Instruction) -> int:
        """Trip count of a loop: XLA's annotation, else the constant in its condition."""
        if noted := loop.bracketed(r'"known_trip_count":\{"n":"(\d+)"'):
            return int(noted)
        condition = self.computations[loop.named("condition")[0]]
        numbers = (i.bracketed(r"s32\[\]\S* constant\((\d+)\)") for i in condition)
        return max((int(number) for number in numbers if number), default=1)


def _instructions(computation) -> list[Instruction]:
    instructions: dict[str, Instruction] = {}
    for raw in computation.instructions():
        words = re.findall(r"[A-Z][a-z0-9]*", raw.opcode.name[1:])  # kAllReduce -> all-reduce
        kind, text = "-".join(words).lower(), raw.to_string()
        if kind.startswith("async-") and f" {kind}(" not in text:  # "slice-start" is one of these
            kind = re.findall(r" ([a-z\-]+-(?:start|update|done))\(", text)[0]
        type_ = text.split(" = ", 1)[1].split(f" {kind}(", 1)[0]
        operands = tuple(instructions[operand.name] for operand in raw.operands())
        instructions[raw.name] = Instruction(raw.name, kind, text, type_, operands)
    return list(instructions.values())


def _lines(text: str) -> dict[str, str]:
    """{stack frame number: innermost line in this package, such as "ops/nearest.py:12"}."""

    def section(name):
        match = re.search(rf"^{name}\n((?:\d+ .*\n)+)", text, re.MULTILINE)
        rows = match[1].splitlines() if match else []
        return dict(row.split(" ", 1) for row in rows)

    def fields(row):
        return dict(re.findall(r"(\w+)=(\d+)", row))

    files, locations = section("FileNames"), section("FileLocations")
    frames = {number: fields(row) for number, row in section("StackFrames").items()}

    def line(number):
        seen = set()
        while number in frames and number not in seen:
            seen.add(number)
            location = fields(locations.get(frames[number].get("file_location_id"), ""))
            file = files.get(location.get("file_name_id"), "").strip('"')
            if _PACKAGE in file:
                return f"{file.split(_PACKAGE)[-1]}:{location['line']}"
            number = frames[number].get("parent_frame_id")
        return ""

    return {number: line(number) for number in frames}
