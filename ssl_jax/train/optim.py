"""The optimizer: an optax transformation with rules by parameter path.

A method's rules give each parameter a learning-rate factor, its weight decay, the epoch from which
it is trained, and its clipping group. Two parts replace optax's own: clipping with torch's formula
(clip.py), and the bias correction of Adam, which loses digits in optax. One transformation, mapped
over the blocks of a stack, updates each of them separately, by its own rules.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from ssl_jax import trees
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods.base import NEVER, Rule, Rules
from ssl_jax.runtime.decay import depths, is_matrix, layer_factor, layers
from ssl_jax.train import clip as clip_lib
from ssl_jax.train import updates

_OTHERS = "others"  # parameters outside stacks of blocks


class Optimizer(NamedTuple):
    """init(params) -> state; update(grads, state, params, *, lr, weight_decay, epoch) -> (params,
    state, metrics).
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any, dict[str, jax.Array]]]


def assign_rules(rules: Rules, params: Any) -> dict[str, Rule]:
    """{path: Rule} of every parameter, in the order of the leaves: the first rule whose pattern
    matches the whole path ("a/b/kernel"). Each block of a stack has its own paths
    ("backbone/blocks/0/norm1/scale").

    Args:
      rules: ordered (regular expression, Rule).
      params: nested dict of arrays or ShapeDtypeStructs.

    Raises:
      InputError: a parameter without a matching rule, or an invalid rule.
    """
    assigned: dict[str, Rule] = {}
    missing = []
    for path in trees.shapes(params):
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


def of_backbone(rules: Rules, config: ConfigDict, depth: int, stages: Sequence[int] = ()) -> Rules:
    """The rules adjusted by the config's keys for a backbone of `depth` blocks in `stages`.

    `optim.backbone_lr` and `optim.backbone_layer_decay` multiply the learning-rate factors;
    `optim.backbone_freeze_epochs` is the least number of frozen epochs.
    """
    lr, wait, decay = config.backbone_lr, config.backbone_freeze_epochs, config.backbone_layer_decay

    def within(path, factor):
        return tuple(
            (
                f"(?={path}$)(?:{pattern})",
                replace(rule, lr=rule.lr * factor, freeze_epochs=max(rule.freeze_epochs, wait)),
            )
            for pattern, rule in rules
        )

    if decay == 1:
        return within("backbone/.*", lr) + rules
    adjusted = [
        within(f"backbone/{path}", lr * layer_factor(decay, depth, i))
        for path, i in layers(depth, stages)
    ]
    return sum(adjusted, ()) + rules


def is_decayed(path: str, leaf: jax.Array | jax.ShapeDtypeStruct, rule: Rule) -> bool:
    """Whether weight decay applies to a parameter; path and leaf of a stack are those of a single
    block."""
    if rule.decay == "matrices":
        return is_matrix(path, leaf)
    return rule.decay


def make(config: ConfigDict, rules: Rules, params: Any) -> Optimizer:
    """Builds the optimizer for parameters of this structure.

    Args:
      config: the section `optim` (name, beta1, beta2, eps, clip, clip_by, backbone_*).
      rules: ordered (path pattern, methods.base.Rule).
      params: nested dict of arrays or ShapeDtypeStructs; only paths and shapes are read.

    Returns:
      An Optimizer. Its state holds one optax.partition state for each of "others",
      "backbone_blocks" and so on; that of a stack is [depth, ...] like its parameters. Within it,
      "epoch_E" holds moments (float32) and count of the parameters frozen until epoch E; "never" is
      empty. `update` takes lr and weight_decay as scalars, and `epoch`, the epochs that are over,
      with a fraction. Its metrics are grad_norm (before clipping) and update_norm (of the
      parameters' change, with decay), both over the parameters trained in this step, and clipped,
      the share of all clipping groups that were clipped (frozen ones count as not clipped).

    Raises:
      InputError: a parameter without a rule, an invalid rule, an unknown name, or a stack of blocks
        of which only some decay.
    """
    check_choice("optim.name", config.name, updates.TRANSFORMATIONS)
    structure = jax.tree.structure(params)
    rules = of_backbone(rules, config, *depths(params.get("backbone", {})))
    leaves = _leaves(rules, params)
    clip = clip_lib.make(
        {path: _clip_groups(path, leaf.rules, config.clip_by) for path, leaf in leaves.items()},
        {path: leaf.starts for path, leaf in leaves.items()},
        config.clip,
    )
    parts = _divided(leaves)

    def transformation(name, starts, lr, weight_decay, epoch):
        """The optax transformation of one step for a part; its state's structure depends only on
        `name`."""
        decayed = trees.nest({path: leaf.decayed for path, leaf in parts[name].items()})
        labels = trees.nest({path: leaf.label for path, leaf in parts[name].items()})
        inner = updates.TRANSFORMATIONS[config.name](config, lr, weight_decay, decayed)
        by_label = {x: _from_epoch(inner, x, start, epoch) for x, start in starts.items()}
        return optax.partition(by_label, labels)

    def init(params):
        flat = trees.flatten(optax.tree.cast(params, jnp.float32))

        def begin(name, starts, arrays):
            return transformation(name, starts, 0.0, 0.0, 0).init(arrays)

        return {
            name: _of_part(parts, name, begin, trees.nest(arrays))
            for name, arrays in _divided(flat).items()
        }

    def update(grads, opt_state, params, *, lr, weight_decay, epoch):
        clipped = clip(trees.flatten(optax.tree.cast(grads, jnp.float32)), epoch)
        before = _divided(trees.flatten(optax.tree.cast(params, jnp.float32)))

        def step(name, starts, grads, state, params):
            change = transformation(name, starts, lr, weight_decay, epoch)
            return change.update(grads, state, params)

        changed, states = {}, {}
        for name, arrays in _divided(clipped.gradients).items():
            given = trees.nest(arrays), opt_state[name], trees.nest(before[name])
            changes, states[name] = _of_part(parts, name, step, *given)
            changed[name] = trees.flatten(changes)
        scaled = jax.tree.unflatten(structure, _scaled(changed, leaves))
        metrics = {
            "grad_norm": clipped.norm,
            "clipped": clipped.share,
            "update_norm": optax.tree.norm(scaled),
        }
        return optax.apply_updates(params, scaled), states, metrics

    return Optimizer(init, update)


def _scaled(changed, leaves):
    """The changes of all leaves, each times its learning-rate factors."""
    return [
        changed[name][inner] * trees.along(leaf.lr, changed[name][inner])
        for path, leaf in leaves.items()
        for name, inner in [_place(path)]
    ]


def _of_part(parts, name, function, *arrays):
    """Calls function(name, {label: first epoch}, *arrays) for a part; for a stack, vmapped over its
    blocks."""
    starts = {leaf.label: leaf.starts for leaf in parts[name].values()}
    if name == _OTHERS:
        return function(name, {label: start[0] for label, start in starts.items()}, *arrays)
    return jax.vmap(functools.partial(function, name))(starts, *arrays)


# --- leaves and stacks


class _Leaf(NamedTuple):
    """Settings of one array. rules: one for each block of a stack, else a single one."""

    rules: tuple[Rule, ...]
    decayed: bool

    @property
    def starts(self) -> np.ndarray:
        """Epochs that are over when training begins, or NEVER: float32 [number of rules]."""
        return np.array([rule.freeze_epochs for rule in self.rules], np.float32)

    @property
    def lr(self) -> np.ndarray:
        """Learning-rate factors, float32 [number of rules]."""
        return np.array([rule.lr for rule in self.rules], np.float32)

    @property
    def label(self) -> str:
        names = ["never" if s == NEVER else _number(s) for s in self.starts]
        if len(set(names)) > 1:
            return f"epochs_{'_'.join(names)}"
        return names[0] if names[0] == "never" else f"epoch_{names[0]}"


def _number(x: np.float32) -> str:
    """Shortest decimal that no other float32 has: "2", "0.135"."""
    return np.format_float_positional(x, trim="-")


def _leaves(rules: Rules, params: Any) -> dict[str, _Leaf]:
    """{path: _Leaf} in the order of the leaves."""
    assigned, leaves = assign_rules(rules, params), {}
    for path, leaf in trees.flatten(params).items():
        blocks = trees.shapes({path: leaf})
        block_rules = {name: assigned[name] for name in blocks}
        decayed = {name: is_decayed(name, blocks[name], rule) for name, rule in block_rules.items()}
        if len(set(decayed.values())) > 1:
            yes = next(name for name, value in decayed.items() if value)
            no = next(name for name, value in decayed.items() if not value)
            raise InputError(
                f"by the optimizer rules {yes} decays and {no} does not; blocks are stored"
                " together, so give them the same value of decay"
            )
        leaves[path] = _Leaf(tuple(block_rules.values()), any(decayed.values()))
    return leaves


def _place(path: str) -> tuple[str, str]:
    """(part, path within it): ("backbone_blocks", "norm1/scale"), or ("others", path)."""
    stack = trees.in_stack(path)
    return (stack[0].replace("/", "_"), stack[1]) if stack else (_OTHERS, path)


def _divided(flat: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{part: {path within it: leaf}}."""
    parts: dict[str, dict[str, Any]] = {}
    for path, leaf in flat.items():
        name, inner = _place(path)
        parts.setdefault(name, {})[inner] = leaf
    return parts


# --- freezing


def _from_epoch(inner, label, start, epoch):
    """`inner` from epoch `start` on; before, updates are 0 and the state of `inner` is kept."""
    if label == "epoch_0":
        return inner
    if label == "never":
        return optax.set_to_zero()
    return optax.transforms.conditionally_mask(inner, lambda step: epoch >= start)


def _clip_groups(path: str, rules: tuple[Rule, ...], clip_by: str) -> tuple[str | None, ...]:
    """The clipping group of an array, or of each block of a stack; None = not clipped."""

    def name(i, rule):
        if clip_by == "none" or rule.freeze_epochs == NEVER:
            return None
        if rule.clip_group is not None:
            return f"group {rule.clip_group}"
        return f"tensor {path} {i}" if clip_by == "tensor" else "global"

    return tuple(name(i, rule) for i, rule in enumerate(rules))
