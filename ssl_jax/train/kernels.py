"""Kernels of a program compiled for a GPU or a TPU: what kind, and which bytes each must move."""

from collections import defaultdict

from ssl_jax.train.hlo import COLLECTIVES, Array, Instruction

# Instructions that are no kernels.
_FREE = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "async"),
    *("call", "partition-id", "replica-id", "opt-barrier", "add-dependency", "domain"),
)
# What a kernel that only moves arrays consists of.
_MOVES = {
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy", "transpose"),
    *("reshape", "slice", "dynamic-slice", "dynamic-update-slice", "pad", "concatenate"),
    *("broadcast", "iota", "reverse"),
}
# The first of these words that one of a kernel's instructions has is its kind.
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


def is_none(one: Instruction) -> bool:
    """Whether an instruction of a compiled program runs nothing."""
    reserves = one.kind == "custom-call" and not one.operands  # a TPU's AllocateBuffer
    return one.base in _FREE or one.kind.endswith("-update") or reserves


def kind(kernel: Instruction, body: list[Instruction]) -> str:
    """What a kernel does above all."""
    if kernel.kind == "custom-call":
        if "__cudnn$fmha" in kernel.text:
            return "attention by cuDNN"
        if "flash_attention" in kernel.text:
            return "attention by Pallas"
        target = kernel.bracketed(r'custom_call_target="([^"]*)"') or "custom call"
        return "product" if target.startswith(_CUBLAS) else target
    if kernel.base in COLLECTIVES:
        return "collective"
    # What works out the place of a slice is left out.
    kinds = {i.base for i in body if i.kind == "reduce" or any(a.shape for a in i.arrays)}
    for word, kind in _KINDS.items():
        if word in kinds:
            return kind
    return "copy" if kinds and kinds <= _MOVES else "elementwise"


def traffic(kernel: Instruction, body: list[Instruction]) -> float:
    """Bytes that a kernel reads and writes, each once: the parts of its operands that its result
    needs, and the result. What stays on the chip of a TPU is left out, as is scratch of cuBLAS.

    body: its instructions, the last one its result; or itself, which is one alone.
    """
    root = next((i for i in reversed(body) if i.kind != "parameter"), body[-1])
    alone = kernel is root
    shares = defaultdict(float, {root.name: 1.0})  # of each result, what its users need
    for user in reversed(body):
        for position, operand in enumerate(user.operands):
            share = shares[user.name]
            if position == 0 and user.base in ("slice", "dynamic-slice", "gather"):
                # One that begins has its operand beside its result.
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
    if kernel.kind.endswith("-start"):  # whose "-done" writes
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


def _source(one: Instruction) -> Instruction:
    """What is behind bitcasts."""
    return _source(one.operands[0]) if one.kind == "bitcast" else one


def _update(one: Instruction, alone: bool) -> Instruction | None:
    """What an instruction writes into its first operand in place; None if it does not. In a fusion
    that must be one of the kernel's operands; if it could not be written to, XLA has copied it."""
    if one.kind not in ("dynamic-update-slice", "scatter"):
        return None
    if not alone and _source(one.operands[0]).kind != "parameter":
        return None
    return one.operands[1 if one.kind == "dynamic-update-slice" else -1]
