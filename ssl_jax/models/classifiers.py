"""Reads linear classifiers and mappings between class sets from files."""

from pathlib import Path

import numpy as np

from ssl_jax.config import InputError, local, read_json, reason
from ssl_jax.models import weights


def read_mapping(path: str | Path) -> np.ndarray:
    """[c] int: the ImageNet-9 class of each ImageNet-1K class, or -1.

    Raises InputError for a file without such a mapping.
    """
    path = local(path)
    if not path.is_file():
        raise InputError(
            f'no file "{path}"; set `mapping` to in_to_in9.json of the backgrounds challenge'
        )
    try:
        entries = {int(name): int(value) for name, value in read_json(path).items()}
        mapping = np.array([entries[i] for i in range(len(entries))], np.int64)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path} is not {{class of ImageNet-1K: class of ImageNet-9, or -1}} for the classes"
            " 0, 1, ..."
        ) from error
    if not len(mapping) or mapping.max() < 0 or mapping.min() < -1:
        raise InputError(f"{path} maps nothing, or to a class below -1")
    return mapping


def read_head(path: str | Path) -> dict[str, np.ndarray]:
    """Arrays of a linear classifier: kernel [d, c], bias [c]; with a layer norm also scale and
    shift [d].

    Raises InputError for a file without them.
    """
    fetch = "set `head` to an .npz file with kernel and bias"
    arrays = weights.read(local(path), "classifier", fetch)
    try:
        head = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} holds arrays that are no numbers: {reason(error)}") from error
    kernel, bias = head.get("kernel"), head.get("bias")
    norm = [name for name in ("scale", "shift") if name in head]
    if (
        kernel is None
        or bias is None
        or kernel.ndim != 2
        or bias.shape != kernel.shape[1:]
        or len(norm) == 1
        or any(head[name].shape != kernel.shape[:1] for name in norm)
    ):
        shapes = {name: list(value.shape) for name, value in head.items()}
        raise InputError(
            f"{path} holds {shapes}; a classifier is kernel [d, c] and bias [c], with scale and"
            " shift [d] if it has a layer norm"
        )
    return head
