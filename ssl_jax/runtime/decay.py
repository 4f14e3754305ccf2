"""Selects the parameters that decay, and lowers learning rates towards the input."""

from collections.abc import Collection
from typing import Any

from ssl_jax import trees

# Learned tokens and position embeddings of a ViT, by the last part of their paths.
TOKENS = ("cls", "position", "registers", "queries", "mask_token")


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
