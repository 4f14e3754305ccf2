"""Gradient clipping with the formula of torch's clip_grad_norm_: per tensor, per group, or
globally."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import trees


class Clipped(NamedTuple):
    """gradients: {path: array}. norm: global norm before clipping, without frozen tensors.
    share: fraction of the groups that were clipped."""

    gradients: dict[str, jax.Array]
    norm: jax.Array
    share: jax.Array


def make(
    groups: Mapping[str, tuple[str | None, ...]], starts: Mapping[str, np.ndarray], limit: float
) -> Callable[[Mapping[str, Any], jax.Array], Clipped]:
    """Builds clip(gradients {path: float32 array}, epoch).

    Args:
      groups: {path: names}, with one name for an array, or one for each row of a stack. Tensors
        of the same name are clipped by their joint norm; None = not clipped.
      starts: {path: [number of names]}, the epochs that are over when its training begins; earlier,
        its norm counts as 0.
      limit: largest norm. The factor is min(1, limit / (norm + 1e-6)).
    """
    names = [name for block_names in groups.values() for name in block_names]
    distinct = dict.fromkeys(name for name in names if name is not None)
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(distinct)}
    index = np.array([numbers.get(name, -1) for name in names])
    member = index == np.arange(len(numbers))[:, None]
    ends = np.cumsum([len(block_names) for block_names in groups.values()])

    def clip(gradients, epoch) -> Clipped:
        squares = []
        for path, block_names in groups.items():
            gradient, start = gradients[path], starts[path]
            rows = 1 if len(block_names) > 1 else 0
            # Not reshaped first: this would gather a sharded gradient.
            square = jnp.square(gradient).sum(range(rows, gradient.ndim)).reshape(-1)
            squares.append(jnp.where(epoch >= start, square, 0) if start.any() else square)
        all_squares = jnp.concatenate(squares)
        norms = jnp.sqrt(jnp.where(member, all_squares, 0).sum(1))
        factors = jnp.minimum(1.0, limit / (norms + 1e-6))
        # Tensors without a group have index -1.
        by_path = jnp.split(jnp.append(factors, 1.0)[index], ends[:-1])
        clipped = {
            path: gradients[path] * trees.along(factor, gradients[path])
            for path, factor in zip(groups, by_path, strict=True)
        }
        share = (factors < 1.0).mean() if numbers else jnp.zeros(())
        return Clipped(clipped, jnp.sqrt(all_squares.sum()), share)

    return clip
