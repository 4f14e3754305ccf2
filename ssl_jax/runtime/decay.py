"""Which parameters decay, and learning rates that shrink towards the input."""

from collections.abc import Collection
from typing import Any

from ssl_jax import trees

# Learned tokens and position codes of a vision transformer, by the last part of their paths.
TOKENS = ("cls", "position", "registers", "queries", "mask_token")


def is_matrix(path: str, leaf: Any, spared: Collection[str] = ()) -> bool:
    """Whether weight decay moves a parameter where it moves matrices alone: arrays of rank 2 and
    more (of stacked blocks, those of one block), no biases, and none whose path ends in a name of
    `spared`."""
    return trees.rank(path, leaf) >= 2 and path.rsplit("/", 1)[-1] not in ("bias", *spared)


def layer_factor(decay: float, depth: int, block: Any) -> Any:
    """Factor on the learning rate of a block (0 = the first of `depth`), decay^(depth - block);
    block -1 is what lies before the blocks, block `depth` what follows them (BEiT, Bao et al. 2022,
    appendix)."""
    return decay ** (depth - block)
