"""A network in one file, .safetensors or .npz: its weights, and as metadata the config they belong
to, notes (scores, command, licence of the data) and a checksum of all three."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.flax

from ssl_jax import trees
from ssl_jax.config import InputError, check_choice, json_object, local, reading
from ssl_jax.convert import read as files
from ssl_jax.runtime import writing

# Names in the metadata of .safetensors, and of two texts among the arrays of .npz.
_CONFIG, _NOTES = "ssl_jax.config", "ssl_jax.notes"
_MOST = 2**15  # arrays of a network, each block by itself
# Notes that are used.
_EXAMPLES = {"step": 0, "image": "", "scores": {}, "untrained": {}, "raw": {}, "command": ""}


class Saved(NamedTuple):
    """The contents of a file. config: as text (`config.to_json`). params, constants: nested dicts
    of arrays as stored; constants is None if the method has none. notes: {name: anything JSON}."""

    config: str
    params: dict
    constants: dict | None
    notes: dict[str, Any]


def wide(tree: Any) -> Any:
    """Stored weights in float32; other arrays as they are."""

    def one(array):
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return array.astype(jnp.float32) if floating else array

    return jax.tree.map(one, tree)


def write(path: str | Path, saved: Saved, *, dtype: str = "float32") -> None:
    """Writes a network; floating-point weights are stored as `dtype` (float32, bfloat16 or
    float16), other arrays as they are.

    Raises InputError if the name ends in neither .safetensors nor .npz, for another dtype, for
    bfloat16 in .npz, which has no such type, for an existing file that this function did not write,
    and for a folder that cannot be written to.
    """
    path = local(path)
    check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(f"{path}: the name of a saved network must end in .safetensors or .npz")
    if path.suffix == ".npz" and dtype == "bfloat16":
        raise InputError(f"{path}: .npz has no bfloat16; save as .safetensors, or in float32")
    if path.exists() and not _is_ours(path):
        raise InputError(f"{path} exists and is not a network of ssl_jax; choose another name")
    writing.check(path)
    content = {"params": saved.params, "constants": saved.constants or {}}

    def stored(array):
        array = jnp.asarray(array)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    flat = {name: stored(array) for name, array in trees.per_block(content).items()}
    metadata = {_CONFIG: saved.config, _NOTES: json.dumps(saved.notes, sort_keys=True)}
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in flat.items()}
    metadata[files.CHECKSUM] = files.checksum(arrays, *metadata.values())
    if path.suffix == ".npz":
        arrays |= {name: np.array(text) for name, text in metadata.items()}
        with writing.replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)
        return
    # Not save_file, whose files nobody else may read.
    writing.replace({path: safetensors.flax.save(flat, metadata=metadata)})


def _is_ours(path):
    try:
        return _CONFIG in _READERS[path.suffix](path)[1]
    except Exception:  # whatever a reader says of another file
        return False


def read(path: str | Path) -> Saved | None:
    """The network in a file, or None for a file of another kind.

    Raises InputError for a file that is broken, damaged (by its checksum) or incomplete.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        return None
    with files.readable(path):
        arrays, texts = _READERS[path.suffix](path)
        if _CONFIG not in texts:
            return None
        config, notes = texts[_CONFIG], texts.get(_NOTES, "{}")
        files.check_sum(path, texts.get(files.CHECKSUM), arrays, config, notes)
    entries = json_object(notes, f"{path}: its notes", _EXAMPLES)
    if len(arrays) > _MOST:
        raise InputError(f"{path} holds {len(arrays)} arrays, more than any network")
    try:
        tree: dict[str, Any] = jax.tree.map(jnp.asarray, trees.nest(trees.stacked(arrays)))
        return Saved(config, {**tree["params"]}, tree.get("constants"), entries)
    # A name that is missing, or stands for an array and for a folder of arrays.
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is incomplete: {error}") from error


def _read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safetensors.safe_open(path, framework="numpy") as file:
        texts = file.metadata() or {}
        names = file.keys() if _CONFIG in texts else ()
        return {name: file.get_tensor(name) for name in names}, texts


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with reading.open_npz(path) as file:
        arrays = {name: file[name] for name in (file.files if _CONFIG in file else ())}
    texts = (_CONFIG, _NOTES, files.CHECKSUM)
    return arrays, {name: str(arrays.pop(name)) for name in texts if name in arrays}


_READERS = {".safetensors": _read_safetensors, ".npz": _read_npz}
