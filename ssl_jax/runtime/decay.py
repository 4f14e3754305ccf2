"""Selects the parameters that decay, and lowers learning rates towards the input."""

import re
from collections.abc import Collection, Mapping, Sequence
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


def layers(depth: int, stages: Sequence[int] = ()) -> tuple[tuple[str, int], ...]:
    """Ordered (pattern of a backbone's paths, block as in `layer_factor`); the first match counts.

    stages: numbers of blocks of a Swin transformer, () for a ViT. The layer that merges tokens
    after a stage counts as the stage's last block (SimMIM, Xie et al. 2022).
    """
    blocks = [(f"blocks/{i}/.*", i) for i in range(0 if stages else depth)]
    end = 0
    for stage, count in enumerate(stages):
        blocks += [(f"stages/{stage}/blocks/{i}/.*", end + i) for i in range(count)]
        end += count
        blocks.append((f"stages/{stage}/merge.*", end - 1))
    return (*blocks, ("norm/.*", depth), (".*", -1))


def depths(backbone: Mapping) -> tuple[int, tuple[int, ...]]:
    """The arguments of `layers` for the parameters of a ViT or Swin transformer; 0, () for none."""
    stacks = [backbone] if "blocks" in backbone else []
    stages = backbone.get("stages", {})
    stacks += [stages[str(i)] for i in range(len(stages))]
    counts = tuple(next(iter(trees.flatten(x["blocks"]).values())).shape[0] for x in stacks)
    return sum(counts), counts if stages else ()


def layer_factors(params: Any, decay: float) -> Any:
    """Learning rate factors of the parameters {"head": ..., "backbone": ...}, one per block if
    blocks are stacked; 1 for the head and the backbone's final norm."""
    depth, stages = depths(params.get("backbone", {}))
    patterns = layers(depth, stages)

    def factor(path, leaf):
        if not path.startswith("backbone/"):
            return 1.0
        path = path.removeprefix("backbone/")
        if not (stack := trees.in_stack(path)):
            return layer_factor(decay, depth, block(path))
        of_stack = [block(f"{stack[0]}/{i}/{stack[1]}") for i in range(leaf.shape[0])]
        return trees.along(layer_factor(decay, depth, np.asarray(of_stack, np.float32)), leaf)

    def block(path):
        return next(i for pattern, i in patterns if re.fullmatch(pattern, path))

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
