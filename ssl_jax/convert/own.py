"""A network in one file, .safetensors or .npz: its weights, and as metadata the config they belong
to and notes (scores, command, licence of the data)."""

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.flax

from ssl_jax import trees
from ssl_jax.config import InputError

# Names in the metadata of .safetensors, and of two texts among the arrays of .npz.
_CONFIG, _NOTES = "ssl_jax.config", "ssl_jax.notes"


class Saved(NamedTuple):
    """What a file holds. config: as text (`config.to_json`). params, constants: nested dicts of
    arrays as stored; constants is None where the method has none. notes: {name: anything JSON}."""

    config: str
    params: dict
    constants: dict | None
    notes: dict[str, Any]


def write(path: str | Path, saved: Saved, *, dtype: str = "float32") -> None:
    """Writes a network; floating-point weights are stored as `dtype`, other arrays as they are.

    Raises InputError if the name ends in neither .safetensors nor .npz, or for bfloat16 in .npz,
    which has no such type.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(f"{path}: a network is saved as .safetensors or .npz; name it so")
    if path.suffix == ".npz" and dtype == "bfloat16":
        raise InputError(f"{path}: .npz has no bfloat16; save as .safetensors, or in float32")
    content = {"params": saved.params, "constants": saved.constants or {}}

    def stored(array):
        array = jnp.asarray(array)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    flat = {name: stored(array) for name, array in trees.per_block(content).items()}
    metadata = {_CONFIG: saved.config, _NOTES: json.dumps(saved.notes, sort_keys=True)}
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.asarray(array) for name, array in flat.items()}
        arrays |= {name: np.array(text) for name, text in metadata.items()}
        np.savez(path, **arrays)
        return
    # Not save_file, whose files nobody else may read.
    path.write_bytes(safetensors.flax.save(flat, metadata=metadata))


def read(path: str | Path) -> Saved | None:
    """The network in a file, or None for a file of another kind."""
    path = Path(path)
    found = _READERS[path.suffix](path) if path.suffix in _READERS else None
    if found is None:
        return None
    flat, config, notes = found
    try:
        tree: dict[str, Any] = trees.nest(trees.stacked(flat))
    except ValueError as error:
        raise InputError(f"{path} is incomplete: {error}") from error
    return Saved(config, tree["params"], tree.get("constants"), json.loads(notes))


def _read_safetensors(path: Path) -> tuple[dict[str, Any], str, str] | None:
    try:
        with safetensors.safe_open(path, framework="flax") as file:
            metadata = file.metadata() or {}
            if _CONFIG not in metadata:
                return None
            flat = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} cannot be read as .safetensors: {error}") from error
    return flat, metadata[_CONFIG], metadata[_NOTES]


def _read_npz(path: Path) -> tuple[dict[str, Any], str, str] | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            if _CONFIG not in file:
                return None
            flat = {name: jnp.asarray(file[name]) for name in set(file.files) - {_CONFIG, _NOTES}}
            return flat, str(file[_CONFIG]), str(file[_NOTES])
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as .npz: {error}") from error


_READERS = {".safetensors": _read_safetensors, ".npz": _read_npz}
