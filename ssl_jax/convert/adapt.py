"""Converts translated weights where a library stores the same numbers in another form."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ssl_jax.convert.weights import Weights


def to_model(weights: Weights, model: Mapping[str, Any]) -> Weights:
    """Weights with the tokens, LayerScale and mask vector of the described network.

    - Position embeddings that a library adds to registers (timm by default) are added to them.
    - Zero biases that the network lacks are left out.
    - Query tokens, written as registers after the registers, are separated.
    - LayerScale and a mask vector that the library's model has, but the network lacks, are left out
      if they are neutral: factors of 1, a vector of 0.

    model: the known fields of models.vit.ViTConfig.
    """
    arrays, names = dict(weights.arrays), dict(weights.names)
    _take_codes(arrays, model)
    _take_biases(arrays, names, model)
    if model.get("queries") and "backbone/registers" in arrays:
        tokens, count = arrays.pop("backbone/registers"), model.get("registers", 0)
        title = names.pop("backbone/registers")
        for path, part in (("registers", tokens[:count]), ("queries", tokens[count:])):
            if len(part):
                arrays[f"backbone/{path}"], names[f"backbone/{path}"] = part, title
    neutral: dict[str, int] = {}
    if model.get("layer_scale") == 0:
        neutral |= {path: 1 for path in arrays if re.fullmatch(r".*/ls[12]/gamma", path)}
    if "layer_scale" in model and "backbone/mask_token" in arrays:  # in our own words
        neutral["backbone/mask_token"] = 0
    for value in (0, 1):
        paths = [path for path, number in neutral.items() if number == value]
        if all(np.all(arrays[path] == value) for path in paths):
            for path in paths:
                del arrays[path], names[path]
    return weights._replace(arrays=arrays, names=names)


def _take_biases(arrays: dict, names: dict, model: Mapping[str, Any]) -> None:
    """Makes biases of query and value, or none, of those of all three, if the others are 0 in every
    block."""
    kind = model.get("qkv_bias", "all")
    present = "qv" if kind == "qv" else ""
    paths = [path for path in arrays if path.endswith("attn/qkv/bias") and kind != "all"]
    parts = {path: dict(zip("qkv", np.split(arrays[path], 3))) for path in paths}
    if any(np.any(x) for part in parts.values() for name, x in part.items() if name not in present):
        return
    for path in paths:
        title = names.pop(path)
        del arrays[path]
        for name in present:
            new = path.replace("qkv/bias", f"{name}_bias")
            arrays[new], names[new] = parts[path][name], title


def _take_codes(arrays: dict[str, np.ndarray], model: Mapping[str, Any]) -> None:
    """Takes those of registers out of the position embeddings [cls + registers + patches, d]."""
    registers, codes = arrays.get("backbone/registers"), arrays.get("backbone/position")
    if registers is None or codes is None or registers.shape[1:] != codes.shape[1:]:
        return
    lead = int("backbone/cls" in arrays)
    end = lead + len(registers)
    if not _square(len(codes) - end) or (not model.get("image_size") and _is_grid(codes, lead)):
        return
    if model.get("image_size") and len(codes) - end != _patches(arrays, model):
        return
    if np.any(codes[lead:end]):  # adding zeros could change the sign of a zero
        arrays["backbone/registers"] = registers + codes[lead:end]
    arrays["backbone/position"] = np.concatenate([codes[:lead], codes[end:]])


def _square(count: int) -> bool:
    return count > 0 and math.isqrt(count) ** 2 == count


def _is_grid(codes: np.ndarray, lead: int) -> bool:
    """Whether these are the codes of patches, with or without the class token's."""
    return _square(len(codes)) or _square(len(codes) - lead)


def _patches(arrays: Mapping[str, np.ndarray], model: Mapping[str, Any]) -> int:
    side = math.isqrt(arrays["backbone/patch/kernel"].shape[0] // 3)
    return (model["image_size"] // side) ** 2
