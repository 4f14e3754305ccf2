"""Low-rank adapters as the library PEFT has them: adapter_config.json and
adapter_model.safetensors, for a model of transformers.

The names are those that its modules have in memory since transformers 5.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from ssl_jax import trees
from ssl_jax.config import InputError, local
from ssl_jax.convert import hf_hub, hub, read, rows
from ssl_jax.convert.described import Network
from ssl_jax.models import lora, vit
from ssl_jax.runtime import writing

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write(
    path: str | Path, shape: vit.ViTConfig, adapters: Mapping[str, Any], *, alpha: float, base: str
) -> None:
    """Writes the folder that `peft.PeftModel.from_pretrained(MODEL, FOLDER)` loads.

    Query, key and value, one kernel here and three there, get one A each, all alike.

    Args:
      path: a folder that is new, empty, or holds an earlier export of adapters.
      shape: of the encoder. adapters: of its tree "lora_a" and "lora_b" alone. alpha:
        `model.lora_alpha`. base: where the frozen weights came from, for people.

    Raises:
      InputError: another folder; a network that no model of transformers computes, or with trained
        query tokens, which are no adapters.
    """
    path = local(path)
    present = writing.present(path)
    if path.is_file() or present - {_CONFIG, _WEIGHTS} or (present and not _is_ours(path)):
        raise InputError(
            f"{path} is no folder of adapters that this version wrote; export to one that is new or"
            " empty"
        )
    hub.check_network(shape, "hf")
    if shape.queries:
        raise InputError(
            f"model.queries is {shape.queries}: query tokens are trained too, and adapters alone"
            " would give other features; export the whole network"
        )
    writing.check(path / _CONFIG)
    extra = np.zeros((shape.registers, shape.width), np.float32)
    network = Network(shape, {"backbone/registers": extra} if len(extra) else {}, "", "")
    names = hf_hub.modules(network)
    tensors, modules, rank = {}, [], 0
    flat = trees.per_block({"backbone": adapters})
    hub.check_finite(flat)
    for a in (name for name in flat if name.endswith(lora.A)):
        layer = a.removesuffix(lora.A)
        rank = flat[a].shape[1]
        parts, unnamed = rows.write(names, {f"{layer}kernel": flat[layer + lora.B]})
        if unnamed:
            raise InputError(f"{unnamed[0]} has adapters, but transformers has no such layer")
        for name, b in parts.items():
            modules.append(name.removesuffix(".weight"))
            tensors[f"base_model.model.{modules[-1]}.lora_A.weight"] = np.asarray(flat[a]).T
            tensors[f"base_model.model.{modules[-1]}.lora_B.weight"] = b
    config = dict(
        peft_type="LORA",
        base_model_name_or_path=base,
        r=rank,
        lora_alpha=alpha,
        target_modules=modules,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=False,
        inference_mode=True,
        task_type=None,
    )
    content = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    metadata = {"format": "pt", read.CHECKSUM: read.checksum(content)}
    weights = safetensors.numpy.save(content, metadata=metadata)
    writing.replace(  # the file by which `_is_ours` knows them first
        {path / _WEIGHTS: weights, path / _CONFIG: writing.as_json(config)}
    )


def _is_ours(path: Path) -> bool:
    try:
        return read.stored_checksum(path / _WEIGHTS) is not None
    except InputError:
        return False
