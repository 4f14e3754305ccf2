"""A network in one file, safetensors: its weights, and as metadata the config they belong to and
notes (scores, command, licence of the data)."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import safetensors
import safetensors.flax

from ssl_jax import trees
from ssl_jax.config import InputError

_CONFIG, _NOTES = "ssl_jax.config", "ssl_jax.notes"  # names in the metadata


class Saved(NamedTuple):
    """What a file holds. config: as text (`config.to_json`). params, constants: nested dicts of
    arrays as stored; constants is None where the method has none. notes: {name: anything JSON}."""

    config: str
    params: dict
    constants: dict | None
    notes: dict[str, Any]


def write(path: str | Path, saved: Saved, *, dtype: str = "float32") -> None:
    """Writes a network; floating-point weights are stored as `dtype`, other arrays as they are.

    Raises InputError if the name does not end in .safetensors.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: a network is saved as .safetensors; name it so")
    content = {"params": saved.params, "constants": saved.constants or {}}

    def stored(array):
        array = jnp.asarray(array)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    flat = {name: stored(array) for name, array in trees.flatten(content).items()}
    metadata = {_CONFIG: saved.config, _NOTES: json.dumps(saved.notes, sort_keys=True)}
    # Not save_file, whose files nobody else may read.
    path.write_bytes(safetensors.flax.save(flat, metadata=metadata))


def read(path: str | Path) -> Saved | None:
    """The network in a file, or None for a file of another kind."""
    path = Path(path)
    if path.suffix != ".safetensors":
        return None
    try:
        with safetensors.safe_open(path, framework="flax") as file:
            metadata = file.metadata() or {}
            if _CONFIG not in metadata:
                return None
            tree: dict[str, Any] = trees.nest({name: file.get_tensor(name) for name in file.keys()})
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} cannot be read as .safetensors: {error}") from error
    notes = json.loads(metadata[_NOTES])
    return Saved(metadata[_CONFIG], tree["params"], tree.get("constants"), notes)
