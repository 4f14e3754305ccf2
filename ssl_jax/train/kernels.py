"""Kind and memory traffic of the kernels of a program compiled for a GPU or a TPU."""

from collections import defaultdict

from ssl_jax.train.hlo import COLLECTIVES, Array, Instruction

# Instructions that launch no kernel.
_FREE = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "async"),
    *("call", "partition-id", "replica-id", "opt-barrier", "add-dependency", "domain"),
)
# Instructions of kernels that only move arrays.
_MOVES = {
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy", "transpose"),
    *("reshape", "slice", "dynamic-slice", "dynamic-update-slice", "pad", "concatenate"),
    *("broadcast", "iota", "reverse"),
}
# A kernel's kind is that of the first of these instructions that it contains.
_KINDS = {
    "dot": "product",
    "convolution": "product",
    "sort": "sort",
    "reduce": "reduction",
    "reduce-window": "reduction",
    "scatter": "gather or scatter",
    "gather": "gather or scatter",
}

_CUBLAS = "__cublas"


def is_none(op: Instruction) -> bool:
    """Whether an instruction of a compiled program launches no kernel."""
    reserves = op.kind == "custom-call" and not op.operands  # a TPU's AllocateBuffer
    return op.base in _FREE or op.kind.endswith("-update") or reserves


def kind(kernel: Instruction, body: list[Instruction]) -> str:
    """The kind of a kernel by its most expensive instruction."""
    if kernel.kind == "custom-call":
        if "__cudnn$fmha" in kernel.text:
            return "attention by cuDNN"
        if "flash_attention" in kernel.text:
            return "attention by Pallas"
        target = kernel.bracketed(r'custom_call_target="([^"]*)"') or "custom call"
        return "product" if target.startswith(_CUBLAS) else target
    if kernel.base in COLLECTIVES:
        return "collective"
    # Without the scalar arithmetic of slice offsets.
    kinds = {i.base for i in body if i.kind == "reduce" or any(a.shape for a in i.arrays)}
    for word, kind in _KINDS.items():
        if word in kinds:
            return kind
    return "copy" if kinds and kinds <= _MOVES else "elementwise"


def traffic(kernel: Instruction, body: list[Instruction]) -> float:
    """Bytes that a kernel must move: the parts of its operands that its result needs, and the
    result. Arrays that stay on a TPU's chip and cuBLAS scratch space are excluded.

    body: its instructions, the last one its result; or the kernel itself if it is a single
    instruction.
    """
    root = next((i for i in reversed(body) if i.kind != "parameter"), body[-1])
    alone = kernel is root
    shares = defaultdict(float, {root.name: 1.0})  # fraction of each result that its users need
    for user in reversed(body):
        for position, operand in enumerate(user.operands):
            share = shares[user.name]
            if position == 0 and user.base in ("slice", "dynamic-slice", "gather"):
                # A "-start" instruction returns its operand along with its result.
                part = user.arrays[1].bytes if user.kind.endswith("-start") else user.bytes
                share *= part / max(operand.bytes, 1)
            elif position == 0 and (update := _update(user, alone)):
                share *= update.bytes / max(user.bytes, 1) if user.kind == "scatter" else 0.0
            shares[operand.name] = min(1.0, shares[operand.name] + share)
    if alone:
        inputs = [(operand, shares[operand.name]) for operand in set(kernel.operands)]
    else:
        numbers = ((i.bracketed(r" parameter\((\d+)\)"), shares[i.name]) for i in body)
        inputs = [(kernel.operands[int(number)], share) for number, share in numbers if number]
    read = sum(share * _outside(array) for operand, share in inputs for array in operand.arrays)
    if kernel.kind.endswith("-start"):  # the "-done" instruction writes
        return read
    scratch = "s8" if _CUBLAS in kernel.text else ""
    written = sum(_outside(array) for array in kernel.arrays if array.name != scratch)
    if kernel.kind.endswith("-done"):
        return written
    outputs = root.operands if root.kind == "tuple" else (root,)
    for result, array in zip(outputs, kernel.arrays):
        if update := _update(_source(result), alone):
            written -= _outside(array) * (1 - update.bytes / max(array.bytes, 1))
    return read + written


def _outside(array: Array) -> float:
    return 0.0 if array.on_chip else array.bytes


def _source(op: Instruction) -> Instruction:
    """The instruction behind bitcasts."""
    return _source(op.operands[0]) if op.kind == "bitcast" else op


def _update(op: Instruction, alone: bool) -> Instruction | None:
    """The operand that an instruction writes in place into its first operand, else None. In a
    fusion, the first operand must be an operand of the kernel (XLA copies it first if it must not
    be overwritten)."""
    if op.kind not in ("dynamic-update-slice", "scatter"):
        return None
    if not alone and _source(op.operands[0]).kind != "parameter":
        return None
    return op.operands[1 if op.kind == "dynamic-update-slice" else -1]
