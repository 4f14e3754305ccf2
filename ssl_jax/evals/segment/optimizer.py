"""Adam and AdamW with a polynomial schedule, a linear warm-up and a learning rate per block, as in
mmsegmentation and iBOT."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ssl_jax import trees

_TOKENS = ("cls", "position", "registers", "queries", "mask_token")
_WARMUP_START = 1e-6  # share of the learning rate at which the warm-up begins


class Optimizer(NamedTuple):
    """init(params) -> state; update(grads, state, params, lr) -> (params, state)."""

    init: Callable
    update: Callable


def learning_rate(config: Any, steps: int, step: jax.Array, base: jax.Array) -> jax.Array:
    """At `step` of `steps` for a peak of `base`: mmcv's "poly" policy with its linear warm-up."""
    end = jnp.asarray(config.final_lr) if config.final_lr else config.final_share * base
    fall = (1.0 - step / steps) ** config.power if config.power else 1.0
    rate = end + (base - end) * fall
    if not config.warmup:
        return rate
    missing = (1.0 - step / config.warmup) * (1.0 - _WARMUP_START)
    return rate * jnp.where(step < config.warmup, 1.0 - missing, 1.0)


def factors(params: Any, depth: int, decay: float) -> Any:
    """Factor on the learning rate of each parameter of {"head": ..., "backbone": ...}, one per
    block where they are stacked.

    Block i of the backbone has decay^(depth - i), what lies before the blocks decay^(depth + 1);
    its final norm and the head have 1 (BEiT, iBOT).
    """

    def factor(path, leaf):
        if not path.startswith("backbone/") or path.startswith("backbone/norm/"):
            return 1.0
        if path.startswith("backbone/blocks/"):
            return trees.along(decay ** (depth - np.arange(depth, dtype=np.float32)), leaf)
        return decay ** (depth + 1)

    return trees.map_with_path(factor, params)


def decayed(params: Any, rule: str) -> Any:
    """Which parameters decay, by one of settings.DECAYS."""

    def of(path, leaf):
        names = path.split("/")
        if rule == "all":
            return True
        if rule == "not_norms":
            return names[-1] != "position" and not any("norm" in name for name in names)
        return trees.rank(path, leaf) >= 2 and names[-1] not in _TOKENS

    return trees.map_with_path(of, params)


def make(config: Any, params: Any, depth: int) -> Optimizer:
    """The optimizer of an evaluation's section for parameters of this structure."""
    adam = optax.scale_by_adam(0.9, 0.999, 1e-8)
    decay = optax.add_decayed_weights(config.weight_decay, decayed(params, config.decayed))
    chain = (decay, adam) if config.optimizer == "adam" else (adam, decay)
    transformation = optax.chain(*chain)
    scales = factors(params, depth, config.layer_decay)

    def update(grads, state, params, lr):
        updates, state = transformation.update(grads, state, params)
        updates = jax.tree.map(lambda x, scale: -lr * scale * x, updates, scales)
        return optax.apply_updates(params, updates), state

    return Optimizer(transformation.init, update)
