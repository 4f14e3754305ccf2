"""The optimizer: one of optax, with rules by parameter path.

A method's rules say for each parameter by which factor its learning rate is scaled, whether it
decays, from which epoch it is trained, and which gradients are clipped together. Two things are
written here because optax does them otherwise: clipping as torch does it, and the bias correction
of Adam, which loses digits in optax.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from ssl_jax.config import InputError, check_choice, key
from ssl_jax.methods.base import NEVER, Rule, Rules


class Optimizer(NamedTuple):
    """init(params) -> state; update(grads, state, params, *, lr, weight_decay, epoch) -> (params,
    state, metrics).
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any, dict[str, jax.Array]]]


def by_path(tree: Any) -> dict[str, Any]:
    """{"a/b/c": leaf} of a pytree, in the order of its leaves."""
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


def assign_rules(rules: Rules, params: Any) -> dict[str, Rule]:
    """{path: Rule} of every parameter, in the order of the leaves: the first rule whose pattern
    matches the whole path ("a/b/kernel").

    Args:
      rules: ordered (regular expression, Rule).
      params: nested dict of arrays or ShapeDtypeStructs.

    Raises:
      InputError: parameters that no rule matches, an impossible rule.
    """
    assigned: dict[str, Rule] = {}
    missing = []
    for path in by_path(params):
        rule = next((rule for pattern, rule in rules if re.fullmatch(pattern, path)), None)
        if rule is None:
            missing.append(path)
        else:
            assigned[path] = rule
    if missing:
        raise InputError(
            f"no optimizer rule matches the parameters {', '.join(missing)}; "
            "add a last rule for '.*' to the method's rules"
        )
    for path, rule in assigned.items():
        if (
            rule.decay not in (True, False, "matrices")
            or not rule.freeze_epochs >= 0
            or not rule.lr >= 0
        ):
            raise InputError(
                f"the optimizer rule for {path} is {rule}; "
                "lr and freeze_epochs must be >= 0, decay True, False or 'matrices'"
            )
    return assigned


def is_decayed(path: str, leaf: jax.Array | jax.ShapeDtypeStruct, rule: Rule) -> bool:
    """Whether weight decay moves this parameter."""
    if rule.decay == "matrices":
        return len(leaf.shape) >= 2 and path.rsplit("/", 1)[-1] != "bias"
    return rule.decay


def make(config: ConfigDict, rules: Rules, params: Any) -> Optimizer:
    """Builds the optimizer for parameters of this structure.

    Args:
      config: the section `optim` (name, beta1, beta2, eps, clip, clip_by).
      rules: ordered (path pattern, methods.base.Rule).
      params: nested dict of arrays or ShapeDtypeStructs; only paths and shapes are read.

    Returns:
      An Optimizer. Its state is that of optax.partition: "epoch_E" holds moments (float32) and
      count of the parameters that are frozen until epoch E, "never" is empty. `update` takes lr and
      weight_decay as scalars and `epoch` as an int32 scalar. It returns metrics grad_norm (before
      clipping) and update_norm (of the change of the parameters, decay included), both over the
      parameters trained at this epoch, and clipped, the share of all clipping groups that were
      clipped (those still frozen never are).

    Raises:
      InputError: a parameter without a rule, an impossible rule, an unknown name.
    """
    check_choice("optim.name", config.name, _TRANSFORMATIONS)
    assigned = assign_rules(rules, params)
    structure = jax.tree.structure(params)
    decayed = jax.tree.unflatten(
        structure, [is_decayed(path, x, assigned[path]) for path, x in by_path(params).items()]
    )
    factors = jax.tree.unflatten(structure, [rule.lr for rule in assigned.values()])
    starts = [_start(rule) for rule in assigned.values()]
    labels = jax.tree.unflatten(structure, map(_label, starts))
    groups = _clip_groups(assigned, config.clip_by)

    def transformation(lr, weight_decay, epoch):
        """The optax transformation of one step; its state does not depend on the arguments."""
        inner = _TRANSFORMATIONS[config.name](config, lr, weight_decay, decayed)
        by_label = {_label(start): _from_epoch(inner, start, epoch) for start in set(starts)}
        return optax.partition(by_label, labels)

    def init(params):
        return transformation(0.0, 0.0, 0).init(optax.tree.cast(params, jnp.float32))

    def update(grads, opt_state, params, *, lr, weight_decay, epoch):
        grads = optax.tree.cast(grads, jnp.float32)
        squares = [
            jnp.square(g).sum() if start == 0 else jnp.where(epoch >= start, jnp.square(g).sum(), 0)
            for g, start in zip(jax.tree.leaves(grads), starts, strict=True)
        ]
        clip, clipped = _clip_factors(squares, groups, config.clip)
        grads = optax.tree.mul(grads, structure.unflatten(clip))
        updates, opt_state = transformation(lr, weight_decay, epoch).update(
            grads, opt_state, optax.tree.cast(params, jnp.float32)
        )
        updates = optax.tree.mul(updates, factors)
        metrics = {
            "grad_norm": jnp.sqrt(sum(squares)),
            "clipped": clipped,
            "update_norm": optax.tree.norm(updates),
        }
        return optax.apply_updates(params, updates), opt_state, metrics

    return Optimizer(init, update)


# --- update rules: name -> optax transformation, from the section `optim`, lr, weight decay and the
# tree that says what decays. The learning rate scales the decay in all of them; sgd and lars add
# the decay to the gradient, before momentum, the others to the step.


def _adamw(config, lr, weight_decay, decayed):
    return optax.chain(
        _scale_by_adam(config.beta1, config.beta2, config.eps),
        optax.add_decayed_weights(weight_decay, decayed),
        optax.scale_by_learning_rate(lr),
    )


def _lars(config, lr, weight_decay, decayed):
    # What does not decay is not scaled by the ratio of norms either (code of SimCLR and BYOL).
    return optax.lars(lr, weight_decay, decayed, trust_ratio_mask=decayed, momentum=config.beta1)


def _lion(config, lr, weight_decay, decayed):
    return optax.lion(lr, config.beta1, config.beta2, weight_decay=weight_decay, mask=decayed)


def _sgd(config, lr, weight_decay, decayed):
    return optax.chain(
        optax.add_decayed_weights(weight_decay, decayed), optax.sgd(lr, momentum=config.beta1)
    )


def _muon(config, lr, weight_decay, decayed):
    def dimensions(x):
        # None: Adam. A token [1, d] or a gain [1, K] has no directions to make orthogonal.
        return optax.contrib.MuonDimensionNumbers() if x.ndim == 2 and min(x.shape) > 1 else None

    # 0.2: the root mean square of a step is about Adam's, so that lr and weight decay mean the same
    # (Liu et al. 2025, "Muon is scalable for LLM training").
    direction = optax.contrib.muon(
        -1.0,  # so that it gives the direction, to which decay is added
        beta=config.beta1,
        eps=config.eps,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        muon_weight_dimension_numbers=lambda params: jax.tree.map(dimensions, params),
        consistent_rms=0.2,
    )
    return optax.chain(
        direction,
        optax.add_decayed_weights(weight_decay, decayed),
        optax.scale_by_learning_rate(lr),
    )


_TRANSFORMATIONS = {"adamw": _adamw, "lars": _lars, "lion": _lion, "muon": _muon, "sgd": _sgd}


# --- freezing


def _start(rule: Rule):
    """First epoch at which the parameters of a rule are trained, or NEVER."""
    return NEVER if rule.freeze_epochs == NEVER else math.ceil(rule.freeze_epochs)


def _label(start) -> str:
    return "never" if start == NEVER else f"epoch_{start}"


def _from_epoch(inner, start, epoch):
    """`inner` from epoch `start` on; before it the step is 0 and the state of `inner` stays."""
    if start == 0:
        return inner
    if start == NEVER:
        return optax.set_to_zero()
    return optax.transforms.conditionally_mask(inner, lambda step: epoch >= start)


# --- what optax does otherwise


def _scale_by_adam(beta1, beta2, eps):
    """optax.scale_by_adam, but with a bias correction that is exact in float32.

    optax rounds beta before it takes 1 - beta^t. In the first hundred updates its steps are off by
    up to 1e-5 for beta2 = 0.999 and 1e-4 for 0.9999; these by less than 1e-6.
    """
    adam = optax.scale_by_adam(beta1, beta2, eps)

    def update(grads, state, params=None):
        _, state = adam.update(grads, state, params)
        bias1, bias2 = (_bias_correction(beta, state.count) for beta in (beta1, beta2))
        steps = jax.tree.map(
            lambda m, v: (m / bias1) / (jnp.sqrt(v / bias2) + eps), state.mu, state.nu
        )
        return steps, state

    return optax.GradientTransformation(adam.init, update)


def _bias_correction(beta: float, count):
    """1 - beta^count, without the cancellation."""
    return 1.0 if beta == 0 else -jnp.expm1(count * math.log(beta))


def _clip_groups(assigned: dict[str, Rule], clip_by: str) -> list[list[int]]:
    """Positions of the leaves that are clipped by a joint norm; no groups if nothing is clipped."""
    if clip_by == "none":
        return []
    groups: dict[str, list[int]] = {}
    for position, (path, rule) in enumerate(assigned.items()):
        if rule.freeze_epochs == NEVER:
            continue
        own = f"tensor {path}" if clip_by == "tensor" else "global"
        name = own if rule.clip_group is None else f"group {rule.clip_group}"
        groups.setdefault(name, []).append(position)
    return list(groups.values())


def _clip_factors(squares, groups, limit):
    """Factors min(1, limit / (norm + 1e-6)) per leaf, as torch's clip_grad_norm_, and the share of
    groups clipped.

    `squares`: squared norm of each leaf, 0 for what is frozen. The 1e-6 also guards a zero
    gradient.
    """
    factors = [1.0] * len(squares)
    clipped = []
    for positions in groups:
        norm = jnp.sqrt(sum(squares[i] for i in positions))
        factor = jnp.minimum(1.0, limit / (norm + 1e-6))
        clipped.append(factor < 1.0)
        for i in positions:
            factors[i] = factor
    return factors, jnp.stack(clipped).mean(dtype=jnp.float32) if clipped else jnp.zeros(())


# --- config


def defaults() -> dict:
    """The section `optim` of the config: batch, length of the run, learning rate, AdamW."""
    return dict(
        name=key(
            "adamw",
            "update rule; lars and sgd take beta1 as momentum and no beta2",
            choices=tuple(_TRANSFORMATIONS),
        ),
        batch_size=key(
            1024, "per step, over all devices and processes", "images", above=0, most=2**24
        ),
        epochs=key(100.0, "length of the run", "epochs", least=0, most=10**6),
        steps=key(
            0,
            "length of the run, which ends a longer warm-up too; 0 = epochs * steps per epoch",
            "steps, counted in 32 bits",
            least=0,
            most=2**31 - 1,
        ),
        extended=key(
            (),
            "further ends of the run, see --extend; from each end to the next, learning rate,"
            " weight decay and teacher momentum take their cosines anew",
            "steps from the start of the run",
            element=1,
            above=0,
            most=2**31 - 1,
        ),
        lr=key(
            5e-4,
            "peak learning rate for a batch of base_batch; scaled by batch_size / base_batch",
            above=0,
            most=1000,
        ),
        base_batch=key(256, "batch that lr is meant for", "images", above=0, most=2**24),
        final_lr=key(1e-6, "end of the cosine, not scaled", least=0, most=1000),
        warmup_epochs=key(
            10.0, "linear warm-up of the learning rate from 0", "epochs", least=0, most=10**6
        ),
        weight_decay=key(0.04, "decoupled (AdamW), at step 0", least=0, most=1000),
        final_weight_decay=key(0.4, "end of its cosine", least=0, most=1000),
        beta1=key(0.9, "decay of the first moment", least=0, below=1),
        beta2=key(0.999, "decay of the second moment", least=0, below=1),
        eps=key(1e-8, "added to the root of the second moment", above=0, most=1),
        clip=key(3.0, "largest L2 norm of a gradient", least=0),
        clip_by=key(
            "tensor",
            'whose norm: each "tensor" (DINO family), the "global" one, or "none"',
            choices=("tensor", "global", "none"),
        ),
        chunks=key(
            1,
            "encode the batch in so many pieces to save memory (the gradient is the same); 1 = off",
            "pieces",
            above=0,
            most=2**24,
            free=True,
        ),
    )


def check(config: ConfigDict) -> None:
    """Refuses settings of `config.optim` that contradict each other. Raises InputError."""
    o = config.optim
    if not (o.epochs > 0 or o.steps > 0):
        raise InputError("optim.epochs and optim.steps are both 0; set one of them above 0")
    if not o.steps and o.warmup_epochs > o.epochs:
        raise InputError(
            f"optim.warmup_epochs is {o.warmup_epochs}, longer than the run; use at most"
            f" optim.epochs = {o.epochs}"
        )
    if o.clip_by != "none" and not o.clip > 0:
        raise InputError(
            f'optim.clip is {o.clip}; it must be above 0 (optim.clip_by="none" switches clipping'
            " off)"
        )
