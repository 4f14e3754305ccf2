"""Nested dicts of arrays by path: {"norm": {"bias": b}} and {"norm/bias": b} are the same tree.

Transformer blocks are stacked: "blocks/norm1/bias" is [depth, width], so that even a deep network
has few arrays. Files, rules and messages name each block, "blocks/0/norm1/bias" [width];
`per_block` and `stacked` convert one form to the other.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_STACKED = re.compile(r"((?:.*/)?blocks)/(?!\d+/)(.+)")
_BLOCK = re.compile(r"((?:.*/)?blocks)/(\d+)/(.+)")


def flatten(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """{"blocks/0/bias": leaf, ...} of a nested dict, keys in sorted order at every level.

    Everything but a Mapping is a leaf; empty dicts are dropped.
    """
    flat: dict[str, Any] = {}
    for key in sorted(tree):
        value, path = tree[key], f"{prefix}{key}"
        flat |= flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dict of {path: leaf}: the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        branch = tree
        for key in parents:
            branch = branch.setdefault(key, {})
        branch[last] = leaf
    return tree


def split(tree: Mapping, pattern: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the leaves into ({path: leaf} of paths that fully match the regular expression, {path:
    leaf} of the others)."""
    flat = flatten(tree)
    inside = {path: leaf for path, leaf in flat.items() if re.fullmatch(pattern, path)}
    return inside, {path: leaf for path, leaf in flat.items() if path not in inside}


def map_with_path(function: Callable, tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """Replaces each leaf by function(path, leaf); empty dicts are kept."""
    return {
        key: map_with_path(function, value, f"{prefix}{key}/")
        if isinstance(value, Mapping)
        else function(f"{prefix}{key}", value)
        for key, value in tree.items()
    }


def in_stack(path: str) -> tuple[str, str] | None:
    """("backbone/blocks", "norm1/bias") for the path of stacked blocks, None for other paths."""
    match = _STACKED.fullmatch(path)
    return (match[1], match[2]) if match else None


def rank(path: str, leaf: Any) -> int:
    """Number of dimensions of a parameter, for stacked blocks of a single block."""
    return len(leaf.shape) - (in_stack(path) is not None)


def along(factors: Any, leaf: Any) -> Any:
    """Reshapes the factors of a stack's blocks to multiply it; a single factor is a scalar."""
    return factors[0] if len(factors) == 1 else factors.reshape(-1, *(1,) * (len(leaf.shape) - 1))


def per_block(tree: Mapping) -> dict[str, Any]:
    """{path: array} of a nested dict of arrays, with a separate path for each stacked block."""
    return _apart(flatten(tree), lambda leaf, i: leaf[i])


def shapes(tree: Mapping) -> dict[str, jax.ShapeDtypeStruct]:
    """{path: shape and type} of a nested dict of arrays or ShapeDtypeStructs, with a separate path
    for each stacked block."""
    flat = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in flatten(tree).items()}
    return _apart(flat, lambda leaf, i: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))


def stacked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `per_block`. Raises ValueError if a stack lacks a block."""
    result: dict[str, Any] = {}
    blocks: dict[str, dict[int, Any]] = {}
    for path, leaf in flat.items():
        if match := _BLOCK.fullmatch(path):
            name = f"{match[1]}/{match[3]}"
            result[name] = blocks.setdefault(name, {})
            blocks[name][int(match[2])] = leaf
        else:
            result[path] = leaf
    for name, rows in blocks.items():
        if sorted(rows) != list(range(len(rows))):
            raise ValueError(f"{name}: there are blocks {sorted(rows)}; expected all from 0 on")
        result[name] = _stack([rows[i] for i in range(len(rows))])
    return result


def _apart(flat, row: Callable) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, leaf in flat.items():
        if stack := in_stack(path):
            blocks, inner = stack
            result |= {f"{blocks}/{i}/{inner}": row(leaf, i) for i in range(leaf.shape[0])}
        else:
            result[path] = leaf
    return result


def _stack(rows):
    on_host = all(isinstance(row, np.ndarray | np.generic) for row in rows)
    return np.stack(rows) if on_host else jnp.stack(rows)
