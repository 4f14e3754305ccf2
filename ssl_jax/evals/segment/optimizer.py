"""Adam and AdamW with a polynomial schedule, linear warm-up and layer-wise learning rate decay, as
in mmsegmentation and iBOT."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ssl_jax.config import field
from ssl_jax.runtime.decay import RULES, decayed, layer_factors
from ssl_jax.runtime.fit import Transformation

_WARMUP_START = 1e-6  # share of the learning rate at the start of the warm-up


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of the optimizer and its schedule."""

    steps: int = field(300, "length of the training", "steps", above=0, most=2**31 - 1)
    optimizer: str = field(
        "adamw",
        'optimizer: "adam" adds weight decay to the gradient, "adamw" to the update',
        choices=("adam", "adamw"),
    )
    lrs: tuple[float, ...] = field(
        (3e-3, 1e-2, 3e-2),
        "learning rates that are tried, in one pass if the network is frozen; the best counts",
        above=0,
        most=1000,
    )
    weight_decay: float = field(
        1e-4, "weight decay of the parameters selected by `decayed`", least=0, most=1000
    )
    decayed: str = field(
        "matrices",
        'parameters with weight decay: "matrices" (no biases, norms, tokens, position embeddings),'
        ' all but norms and position embeddings ("not_norms"), or "all"',
        choices=RULES,
    )
    power: float = field(
        1.0,
        "power of the learning rate's polynomial decay (1 - step / steps)^power; 0 = constant",
        least=0,
        most=100,
    )
    warmup: int = field(
        0, "linear warm-up of the learning rate; 0 = none", "steps", least=0, most=2**31 - 1
    )
    final_lr: float = field(
        0.0, "learning rate at the end of its decay; 0 = by `final_share`", least=0, most=1000
    )
    final_share: float = field(
        0.0, "learning rate at the end of its decay / peak learning rate", least=0, most=1
    )
    clip: float = field(0.0, "largest L2 norm of the whole gradient; 0 = no limit", least=0)
    layer_decay: float = field(
        1.0,
        "layer-wise decay: each block's learning rate is this factor times the next block's"
        " (frozen=False); 1 = none",
        above=0,
        most=1,
    )


def make(settings: Settings, params: Any) -> Transformation:
    """The function (step, peak learning rate) -> optax transformation, for parameters {"head": ...,
    "backbone": ...}."""
    adam = optax.scale_by_adam(0.9, 0.999, 1e-8)
    decay = optax.add_decayed_weights(settings.weight_decay, decayed(params, settings.decayed))
    chain = [decay, adam] if settings.optimizer == "adam" else [adam, decay]
    if settings.clip:
        chain.insert(0, optax.clip_by_global_norm(settings.clip))
    scales = layer_factors(params, settings.layer_decay)

    def at(step, peak):
        lr = learning_rate(settings, step, peak)
        scaled = optax.stateless(
            lambda updates, _: jax.tree.map(lambda x, scale: -lr * scale * x, updates, scales)
        )
        return optax.chain(*chain, scaled)

    return at


def learning_rate(settings: Settings, step: jax.Array, peak: jax.Array) -> jax.Array:
    """The learning rate at `step`: mmcv's "poly" policy with linear warm-up."""
    end = jnp.asarray(settings.final_lr) if settings.final_lr else settings.final_share * peak
    fall = (1.0 - step / settings.steps) ** settings.power if settings.power else 1.0
    rate = end + (peak - end) * fall
    if not settings.warmup:
        return rate
    missing = (1.0 - step / settings.warmup) * (1.0 - _WARMUP_START)
    return rate * jnp.where(step < settings.warmup, 1.0 - missing, 1.0)
