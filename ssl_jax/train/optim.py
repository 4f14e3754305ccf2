"""AdamW with rules by parameter path: learning-rate factors, decay, freezing, clipping.

The update is that of torch.optim.AdamW (Loshchilov & Hutter 2019, algorithm 2, decay scaled by the
learning rate):

    m <- b1 m + (1 - b1) g            v <- b2 v + (1 - b2) g^2
    p <- p - lr weight_decay p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

It is written out here rather than taken from optax because each frozen group needs its own t, and
because 1 - b2^t in float32 is off by 1e-5 at the first steps, where expm1 is exact.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError, Key
from ssl_jax.methods.base import NEVER, Rule


class Optimizer(NamedTuple):
    """init(params) -> state; update(grads, state, params, *, lr, weight_decay, epoch) -> (params,
    state, metrics).
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any, dict[str, jax.Array]]]


def assign_rules(rules, params) -> dict[str, Rule]:
    """{path: Rule} of every parameter: of the rules whose pattern matches the whole path
    ("a/b/kernel"), the first.

    Args:
      rules: ordered (regular expression, Rule). params: nested dict of arrays or ShapeDtypeStructs.

    Raises:
      InputError: parameters that no rule matches.
    """
    assigned = {
        path: next((rule for pattern, rule in rules if re.fullmatch(pattern, path)), None)
        for path in _flat(params)
    }
    missing = [path for path, rule in assigned.items() if rule is None]
    if missing:
        raise InputError(
            f"no optimizer rule matches the parameters {', '.join(missing)}; "
            "add a last rule for '.*' to the method's rules"
        )
    return assigned


def make(config, rules, params) -> Optimizer:
    """Builds the optimizer for parameters of this structure.

    Args:
      config: the section `optim` (beta1, beta2, eps, clip, clip_by).
      rules: ordered (path pattern, methods.base.Rule).
      params: nested dict of arrays or ShapeDtypeStructs; only paths and ranks are read.

    Returns:
      An Optimizer. Its state is a plain nested dict {"mu", "nu": moments in float32 (parameters
      that are never trained have none), "count": {"epoch_E": int32 updates of the parameters frozen
      until epoch E}}. `update` takes lr and weight_decay as scalars and `epoch` as an int32 scalar.
      It returns metrics grad_norm (before clipping), clipped (share of clipping groups that were
      clipped) and update_norm (of the change of the parameters, decay included), all over the
      parameters trained at this epoch.

    Raises:
      InputError: a parameter without a rule, a rule that cannot be.
    """
    assigned = assign_rules(rules, params)
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
    trained = {path: rule for path, rule in assigned.items() if rule.freeze_epochs != NEVER}
    decayed = {
        path: _is_decayed(path, leaf, assigned[path]) for path, leaf in _flat(params).items()
    }
    groups = _clip_groups(trained, config.clip_by)
    starts = sorted({rule.freeze_epochs for rule in trained.values()})

    def init(params):
        shapes = {path: leaf.shape for path, leaf in _flat(params).items()}
        mu, nu = (
            _nest({path: jnp.zeros(shapes[path], jnp.float32) for path in trained}, params)
            for _ in range(2)
        )
        return {
            "mu": mu,
            "nu": nu,
            "count": {_count_name(start): jnp.zeros((), jnp.int32) for start in starts},
        }

    def update(grads, opt_state, params, *, lr, weight_decay, epoch):
        # None: trained from the start, needs no selection.
        awake = {
            start: None if start == 0 else jnp.asarray(epoch) >= math.ceil(start)
            for start in starts
        }
        awake_of = {path: awake[rule.freeze_epochs] for path, rule in trained.items()}
        values, flat_grads = _flat(params), _flat(grads)
        g = {path: flat_grads[path].astype(jnp.float32) for path in trained}
        squares = {path: _select(awake_of[path], jnp.square(x).sum(), 0.0) for path, x in g.items()}
        factors, clipped = _clip_factors(squares, groups, config.clip)

        count = {
            _count_name(s): _select(awake[s], c + 1, c)
            for s, c in ((s, opt_state["count"][_count_name(s)]) for s in starts)
        }
        bias = {
            s: [_bias_correction(b, count[_count_name(s)]) for b in (config.beta1, config.beta2)]
            for s in starts
        }
        old_mu, old_nu = _flat(opt_state["mu"]), _flat(opt_state["nu"])
        mu, nu, new, moved = {}, {}, dict(values), []
        for path, rule in trained.items():
            on = awake_of[path]
            grad = g[path] * factors[path]
            m = config.beta1 * old_mu[path] + (1 - config.beta1) * grad
            v = config.beta2 * old_nu[path] + (1 - config.beta2) * jnp.square(grad)
            bias1, bias2 = bias[rule.freeze_epochs]
            change = (m / bias1) / (jnp.sqrt(v / bias2) + config.eps)
            value = values[path].astype(jnp.float32)
            if decayed[path]:
                change = change + weight_decay * value
            change = _select(on, lr * rule.lr * change, 0.0)
            mu[path], nu[path] = _select(on, m, old_mu[path]), _select(on, v, old_nu[path])
            new[path] = _select(on, (value - change).astype(values[path].dtype), values[path])
            moved.append(jnp.square(change).sum())

        metrics = {
            "grad_norm": jnp.sqrt(_total(squares.values())),
            "clipped": clipped,
            "update_norm": jnp.sqrt(_total(moved)),
        }
        return (
            _nest(new, params),
            {"mu": _nest(mu, params), "nu": _nest(nu, params), "count": count},
            metrics,
        )

    return Optimizer(init, update)


def _is_decayed(path: str, leaf, rule: Rule) -> bool:
    if rule.decay == "matrices":
        return len(leaf.shape) >= 2 and path.rsplit("/", 1)[-1] != "bias"
    return bool(rule.decay)


def _clip_groups(trained: dict[str, Rule], clip_by: str) -> dict[str, list[str]]:
    """{group: its paths}; no groups at all if nothing is clipped."""
    if clip_by == "none":
        return {}
    groups: dict[str, list[str]] = {}
    for path, rule in trained.items():
        own = f"tensor {path}" if clip_by == "tensor" else "global"
        groups.setdefault(
            own if rule.clip_group is None else f"group {rule.clip_group}", []
        ).append(path)
    return groups


def _clip_factors(squares, groups, limit):
    """Factors min(1, limit / (norm + 1e-6)) per path, as torch's clip_grad_norm_, and the share of
    groups clipped.

    `squares`: {path: squared norm}, 0 for what is frozen. The 1e-6 also guards a zero gradient.
    """
    factors = dict.fromkeys(squares, 1.0)
    clipped = []
    for paths in groups.values():
        factor = jnp.minimum(
            1.0, limit / (jnp.sqrt(_total(squares[path] for path in paths)) + 1e-6)
        )
        clipped.append(factor < 1.0)
        factors |= dict.fromkeys(paths, factor)
    return factors, jnp.stack(clipped).mean(dtype=jnp.float32) if clipped else jnp.zeros(())


def _bias_correction(beta: float, count):
    """1 - beta^count, accurate for small counts; 1 while nothing was counted, so that a frozen
    group is not 0 / 0.
    """
    if beta == 0:
        return jnp.ones(())
    return jnp.where(count > 0, -jnp.expm1(count.astype(jnp.float32) * math.log(beta)), 1.0)


def _select(on, new, old):
    return new if on is None else jnp.where(on, new, old)


def _total(scalars):
    return sum(scalars, start=jnp.zeros((), jnp.float32))


def _count_name(start) -> str:
    return f"epoch_{start:g}"


def _flat(tree, prefix: str = "") -> dict[str, Any]:
    """{"a/b/c": leaf} of a nested dict."""
    flat = {}
    for key, value in tree.items():
        flat |= (
            _flat(value, f"{prefix}{key}/")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat


def _nest(flat: dict[str, Any], like, prefix: str = ""):
    """Nested dict with the keys of `like`; branches and leaves that `flat` lacks are left out."""
    tree = {}
    for key, value in like.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            branch = _nest(flat, value, path + "/")
            if branch or not value:
                tree[key] = branch
        elif path in flat:
            tree[key] = flat[path]
    return tree


def defaults() -> dict:
    """The section `optim` of the config: batch, length of the run, learning rate, AdamW."""
    return dict(
        batch_size=Key(
            1024, "per step, over all devices and processes", "images", above=0, most=2**24
        ),
        epochs=Key(100.0, "length of the run", "epochs", least=0, most=10**6),
        steps=Key(
            0,
            "length of the run; 0 = epochs * steps per epoch",
            "steps, counted in 32 bits",
            least=0,
            most=2**31 - 1,
        ),
        lr=Key(
            5e-4,
            "peak learning rate for a batch of base_batch; scaled by batch_size / base_batch",
            above=0,
            most=1000,
        ),
        base_batch=Key(256, "batch that lr is meant for", "images", above=0, most=2**24),
        final_lr=Key(1e-6, "end of the cosine, not scaled", least=0, most=1000),
        warmup_epochs=Key(
            10.0, "linear warm-up of the learning rate from 0", "epochs", least=0, most=10**6
        ),
        weight_decay=Key(0.04, "decoupled (AdamW), at step 0", least=0, most=1000),
        final_weight_decay=Key(0.4, "end of its cosine", least=0, most=1000),
        beta1=Key(0.9, "decay of the first moment", least=0, below=1),
        beta2=Key(0.999, "decay of the second moment", least=0, below=1),
        eps=Key(1e-8, "added to the root of the second moment", above=0, most=1),
        clip=Key(3.0, "largest L2 norm of a gradient", least=0),
        clip_by=Key(
            "tensor",
            'whose norm: each "tensor" (DINO family), the "global" one, or "none"',
            choices=("tensor", "global", "none"),
        ),
        chunks=Key(
            1,
            "encode the batch in so many pieces to save memory (the gradient is the same); 1 = off",
            "pieces",
            above=0,
            most=2**24,
            free=True,
        ),
    )


def check(config) -> None:
    """Refuses an `optim` section whose keys contradict each other. Raises InputError."""
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
