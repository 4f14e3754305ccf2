"""Nested dicts of arrays by path: {"blocks": {"0": b}} and {"blocks/0": b} are the same tree."""

from collections.abc import Callable, Mapping
from typing import Any


def flatten(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """{"blocks/0/bias": leaf, ...} of a nested dict, keys in sorted order at every level.

    Whatever is no Mapping is a leaf; an empty dict leaves no trace.
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


def map_with_path(function: Callable, tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """`tree` with function(path, leaf) in place of each leaf; empty dicts stay."""
    return {
        key: map_with_path(function, value, f"{prefix}{key}/")
        if isinstance(value, Mapping)
        else function(f"{prefix}{key}", value)
        for key, value in tree.items()
    }
