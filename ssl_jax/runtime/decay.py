"""Selects the parameters that decay, and lowers learning rates towards the input."""

from collections.abc import Collection
from typing import Any

import numpy as np

from ssl_jax import trees

# Learned tokens and position embeddings of a ViT, by the last part of their paths.
TOKENS = ("cls", "position", "registers", "queries", "mask_token")
RULES = ("matrices", "not_norms", "all")  # of `decayed`


def is_matrix(path: str, leaf: Any, spared: Collection[str] = ()) -> bool:
    """Whether weight decay restricted to matrices applies to this parameter.

    Matrices are arrays of rank 2 or more (for stacked blocks: the rank within one block) that are
    no biases and whose path does not end in a name of `spared`.
    """
    return trees.rank(path, leaf) >= 2 and path.rsplit("/", 1)[-1] not in ("bias", *spared)


def layer_factor(decay: float, depth: int, block: Any) -> Any:
    """Learning-rate factor of a block, decay^(depth - block) (BEiT, Bao et al. 2022, appendix).

    Blocks count from 0 to depth - 1; -1 stands for the layers before the blocks, `depth` for those
    after them.
    """
    return decay ** (depth - block)


def layer_factors(params: Any, depth: int, decay: float) -> Any:
    """Learning rate factors of the parameters {"head": ..., "backbone": ...}, one per block if
    blocks are stacked; 1 for the head and the backbone's final norm."""

    def factor(path, leaf):
        if not path.startswith("backbone/") or path.startswith("backbone/norm/"):
            return 1.0
        if path.startswith("backbone/blocks/"):
            blocks = np.arange(depth, dtype=np.float32)
            return trees.along(layer_factor(decay, depth, blocks), leaf)
        return layer_factor(decay, depth, -1)

    return trees.map_with_path(factor, params)


def decayed(params: Any, rule: str) -> Any:
    """Tree of bool: whether each parameter has weight decay, by one of RULES."""

    def of(path, leaf):
        *parents, name = path.split("/")
        if rule == "matrices":
            return is_matrix(path, leaf, TOKENS)
        norm = any("norm" in part for part in (*parents, name))
        return rule == "all" or not (norm or name == "position")

    return trees.map_with_path(of, params)
