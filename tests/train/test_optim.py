"""AdamW against optax and against torch's documented update in float64; freezing, clipping,
coverage.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.methods.base import DEFAULT_RULES, NEVER, Rule
from ssl_jax.train import optim

EVERYTHING = ((".*", Rule(decay=True)),)


def settings(**changes) -> ConfigDict:
    config = config_lib.build(optim.defaults())
    config.update(dict(clip_by="none") | changes)
    return config


def tree(seed=0, scale=1.0):
    """Parameters of the shapes that matter: matrix, bias, norm gain, class token, mask vector, gain
    [1, K].
    """
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(scale * rng.normal(size=shape), jnp.float32)

    return {
        "backbone": {
            "blocks": {
                "0": {
                    "attn": {"qkv": {"kernel": draw(4, 6), "bias": draw(6)}},
                    "norm": {"scale": draw(4)},
                }
            },
            "cls": draw(1, 4),
            "mask_token": draw(1, 4),
        },
        "head": {"last": {"direction": draw(4, 5), "gain": draw(1, 5)}},
    }


def flat(values) -> dict[str, np.ndarray]:
    pairs = jax.tree_util.tree_leaves_with_path(values)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in pairs
    }


def steps(optimizer, params, count, *, lr=1e-2, weight_decay=0.1, epochs=None, jit=True, scale=1.0):
    """Applies `count` updates with gradients tree(1), tree(2), ...; returns params, opt_state and
    the last metrics.
    """
    update = jax.jit(optimizer.update) if jit else optimizer.update
    opt_state, metrics = optimizer.init(params), None
    for t in range(count):
        epoch = jnp.int32(epochs[t] if epochs else t)
        grads = tree(t + 1, scale)
        params, opt_state, metrics = update(
            grads,
            opt_state,
            params,
            lr=jnp.float32(lr),
            weight_decay=jnp.float32(weight_decay),
            epoch=epoch,
        )
    return params, opt_state, metrics


def torch_adamw(p, grads, *, lr, weight_decay, beta1=0.9, beta2=0.999, eps=1e-8):
    """torch.optim.AdamW as documented, in float64: decay, moments, bias correction, step."""
    p, m, v = p.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(np.asarray(grads, np.float64), start=1):
        p = p - lr * weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_equals_torch_in_float64(scale):
    optimizer = optim.make(settings(), EVERYTHING, tree())
    got = flat(steps(optimizer, tree(), 7, scale=scale)[0])
    for path, start in flat(tree()).items():
        grads = [flat(tree(t + 1, scale))[path] for t in range(7)]
        np.testing.assert_allclose(
            got[path], torch_adamw(start, grads, lr=1e-2, weight_decay=0.1), atol=5e-7, rtol=1e-6
        )


def test_equals_optax():
    reference = optax.adamw(
        1e-2, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim >= 2, p)
    )
    params, opt_state = tree(), reference.init(tree())
    for t in range(5):
        updates, opt_state = reference.update(tree(t + 1), opt_state, params)
        params = optax.apply_updates(params, updates)
    got, _, _ = steps(optim.make(settings(), DEFAULT_RULES, tree()), tree(), 5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), got, params)


def test_default_rules_decay_by_rank_of_the_stored_tensor():
    """With zero gradients only decay moves a parameter: matrices, tokens, the [1, K] gain; no bias,
    no norm gain.
    """
    optimizer = optim.make(settings(), DEFAULT_RULES, tree())
    zeros = jax.tree.map(jnp.zeros_like, tree())
    new, _, metrics = optimizer.update(
        zeros, optimizer.init(tree()), tree(), lr=0.1, weight_decay=0.5, epoch=0
    )
    old = flat(tree())
    moved = {path for path, x in flat(new).items() if not np.array_equal(x, old[path])}
    assert moved == {
        "backbone/blocks/0/attn/qkv/kernel",
        "backbone/cls",
        "backbone/mask_token",
        "head/last/direction",
        "head/last/gain",
    }
    np.testing.assert_allclose(flat(new)["backbone/cls"], 0.95 * old["backbone/cls"], rtol=1e-6)
    assert np.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] == 0
    change = math.sqrt(sum(((0.05 * old[path]) ** 2).sum() for path in moved))
    assert metrics["update_norm"] == pytest.approx(change, rel=1e-5)


def test_a_bias_of_rank_two_is_not_decayed():
    params = {"qkv": {"bias": jnp.ones((3, 4))}}
    optimizer = optim.make(settings(), DEFAULT_RULES, params)
    new, _, _ = optimizer.update(
        {"qkv": {"bias": jnp.zeros((3, 4))}},
        optimizer.init(params),
        params,
        lr=1.0,
        weight_decay=1.0,
        epoch=0,
    )
    np.testing.assert_array_equal(new["qkv"]["bias"], 1.0)


def test_learning_rate_factor_scales_step_and_decay():
    rules = (("head/.*", Rule(lr=0.5, decay=True)), *EVERYTHING)
    got = flat(steps(optim.make(settings(), rules, tree()), tree(), 3)[0])
    for path, lr in {"head/last/direction": 0.5e-2, "backbone/cls": 1e-2}.items():
        grads = [flat(tree(t + 1))[path] for t in range(3)]
        np.testing.assert_allclose(
            got[path], torch_adamw(flat(tree())[path], grads, lr=lr, weight_decay=0.1), atol=5e-7
        )


def test_first_matching_rule_counts_and_the_whole_path_must_match():
    rules = (
        ("last|cls|head", Rule(lr=4.0)),  # no path is just that
        ("head/last/gain", Rule(lr=2.0)),
        ("head/last/.*", Rule(lr=3.0)),
        *DEFAULT_RULES,
    )
    assigned = optim.assign_rules(rules, tree())
    special = {path: rule.lr for path, rule in assigned.items() if rule.lr != 1}
    assert special == {"head/last/gain": 2.0, "head/last/direction": 3.0}


def test_a_parameter_without_a_rule_is_named():
    with pytest.raises(InputError, match=r"backbone/cls, backbone/mask_token;"):
        optim.make(settings(), (("head/.*", Rule()), ("backbone/blocks/.*", Rule())), tree())


@pytest.mark.parametrize(
    "rule",
    [Rule(lr=-1.0), Rule(freeze_epochs=-1), Rule(decay="matrix"), Rule(freeze_epochs=math.nan)],
)
def test_an_impossible_rule_is_refused(rule):
    with pytest.raises(InputError, match="optimizer rule for"):
        optim.make(settings(), ((".*", rule),), tree())


FREEZE = (("head/last/.*", Rule(decay=True, freeze_epochs=2)), *EVERYTHING)


def test_a_frozen_group_does_not_move_at_all():
    optimizer = optim.make(settings(), FREEZE, tree())
    params, opt_state, metrics = steps(optimizer, tree(), 4, epochs=[0, 0, 1, 1])
    np.testing.assert_array_equal(
        flat(params)["head/last/direction"], flat(tree())["head/last/direction"]
    )  # no decay either
    for moment in ("mu", "nu"):
        assert not flat(opt_state[moment])["head/last/direction"].any()
        assert flat(opt_state[moment])["backbone/cls"].all()
    assert jax.tree.map(int, opt_state["count"]) == {"epoch_0": 4, "epoch_2": 0}
    trained = math.sqrt(
        sum(
            (g.astype(np.float64) ** 2).sum()
            for path, g in flat(tree(4)).items()
            if not path.startswith("head")
        )
    )
    assert metrics["grad_norm"] == pytest.approx(trained, rel=1e-6)


def test_a_thawed_group_starts_with_a_count_of_its_own():
    """torch skips a parameter whose gradient is None: its first real update is its step 1."""
    optimizer = optim.make(settings(), FREEZE, tree())
    params, opt_state, _ = steps(optimizer, tree(), 5, epochs=[0, 1, 2, 2, 3])
    path = "head/last/gain"
    grads = [flat(tree(t + 1))[path] for t in (2, 3, 4)]
    np.testing.assert_allclose(
        flat(params)[path],
        torch_adamw(flat(tree())[path], grads, lr=1e-2, weight_decay=0.1),
        atol=5e-7,
    )
    assert jax.tree.map(int, opt_state["count"]) == {"epoch_0": 5, "epoch_2": 3}


def test_nan_in_a_frozen_group_stays_out():
    optimizer = optim.make(settings(clip_by="global"), FREEZE, tree())
    grads = tree(1)
    grads["head"] = jax.tree.map(lambda x: x * jnp.nan, grads["head"])
    new, opt_state, metrics = optimizer.update(
        grads, optimizer.init(tree()), tree(), lr=0.1, weight_decay=0.1, epoch=jnp.int32(0)
    )
    assert all(
        np.isfinite(x).all()
        for x in (*flat(new).values(), *flat(opt_state).values(), *flat(metrics).values())
    )


def test_never_trained_parameters_have_no_moments():
    rules = (
        ("head/last/gain", Rule(freeze_epochs=NEVER)),
        ("backbone/blocks/.*", Rule(freeze_epochs=NEVER)),
        *EVERYTHING,
    )
    optimizer = optim.make(settings(), rules, tree())
    params, opt_state, _ = steps(optimizer, tree(), 3, epochs=[0, 10**6, 2**31 - 1])
    assert set(flat(opt_state["mu"])) == {
        "backbone/cls",
        "backbone/mask_token",
        "head/last/direction",
    }
    assert "blocks" not in opt_state["nu"]["backbone"]
    old, new = flat(tree()), flat(params)
    assert {path for path in old if np.array_equal(old[path], new[path])} == {
        p for p in old if "blocks" in p or "gain" in p
    }
    assert jax.tree.structure(params) == jax.tree.structure(tree())


def clipped_gradients(config, rules, grads):
    """What reaches the moments at the first step: mu / (1 - beta1)."""
    optimizer = optim.make(config, rules, tree())
    _, opt_state, metrics = optimizer.update(
        grads, optimizer.init(tree()), tree(), lr=0.1, weight_decay=0.0, epoch=0
    )
    return {path: m / 0.1 for path, m in flat(opt_state["mu"]).items()}, metrics


def norm(*arrays) -> float:
    return math.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in arrays))


def test_clipping_per_tensor():
    grads = flat(tree(1))
    limit = 2.0
    got, metrics = clipped_gradients(settings(clip=limit, clip_by="tensor"), EVERYTHING, tree(1))
    over = {path for path, g in grads.items() if norm(g) > limit}
    assert 0 < len(over) < len(grads)  # the test sees both sides
    for path, g in grads.items():
        np.testing.assert_allclose(got[path], g * min(1, limit / (norm(g) + 1e-6)), rtol=1e-5)
    assert metrics["clipped"] == pytest.approx(len(over) / len(grads))
    assert metrics["grad_norm"] == pytest.approx(norm(*grads.values()), rel=1e-6)  # before clipping


def test_clipping_by_the_global_norm():
    grads = flat(tree(1))
    got, metrics = clipped_gradients(settings(clip=2.0, clip_by="global"), EVERYTHING, tree(1))
    for path, g in grads.items():
        np.testing.assert_allclose(got[path], g * 2.0 / norm(*grads.values()), rtol=1e-5)
    assert metrics["clipped"] == 1


def test_clipping_by_group():
    """Tensors of a group share one norm; the others are clipped as clip_by says, without them."""
    rules = (("head/.*", Rule(decay=True, clip_group="head")), *EVERYTHING)
    grads = flat(tree(1))
    head = [g for path, g in grads.items() if path.startswith("head")]
    rest = [g for path, g in grads.items() if not path.startswith("head")]
    got, _ = clipped_gradients(settings(clip=0.5, clip_by="global"), rules, tree(1))
    for path, g in grads.items():
        own = norm(*head) if path.startswith("head") else norm(*rest)
        np.testing.assert_allclose(got[path], g * 0.5 / own, rtol=1e-5)


@pytest.mark.parametrize("clip_by", ["tensor", "global"])
def test_zero_gradients_are_not_divided_by(clip_by):
    got, metrics = clipped_gradients(
        settings(clip=1.0, clip_by=clip_by), EVERYTHING, jax.tree.map(jnp.zeros_like, tree())
    )
    assert not any(g.any() for g in got.values())
    assert metrics["clipped"] == 0


def test_the_clipping_factor_has_torchs_epsilon():
    """limit / (norm + 1e-6): visible where the norm itself is that small."""
    params = {"kernel": jnp.zeros((1, 1))}
    optimizer = optim.make(settings(clip=1e-6, clip_by="tensor"), EVERYTHING, params)
    grads = {"kernel": jnp.full((1, 1), 3e-6)}
    _, opt_state, _ = optimizer.update(
        grads, optimizer.init(params), params, lr=0.1, weight_decay=0.0, epoch=0
    )
    assert float(opt_state["mu"]["kernel"][0, 0]) == pytest.approx(0.1 * 3e-6 / 4, rel=1e-5)


def test_half_precision_gradients_are_handled_in_float32():
    """The norm of a bf16 gradient with many entries, summed in bf16, would be far off; moments stay
    float32.
    """
    params = {"kernel": jnp.zeros((64, 64))}
    optimizer = optim.make(settings(clip=1.0, clip_by="tensor"), EVERYTHING, params)
    grads = {"kernel": jnp.full((64, 64), 0.1, jnp.bfloat16)}
    _, opt_state, metrics = optimizer.update(
        grads, optimizer.init(params), params, lr=0.1, weight_decay=0.0, epoch=0
    )
    exact = 64 * float(jnp.bfloat16(0.1))
    assert metrics["grad_norm"] == pytest.approx(exact, rel=1e-6)
    assert opt_state["mu"]["kernel"].dtype == opt_state["nu"]["kernel"].dtype == jnp.float32


def test_a_nan_gradient_shows_in_the_norm():
    grads = tree(1)
    grads["backbone"]["cls"] = grads["backbone"]["cls"].at[0, 0].set(jnp.nan)
    _, metrics = clipped_gradients(settings(clip_by="tensor"), EVERYTHING, grads)
    assert not np.isfinite(metrics["grad_norm"])


def test_shapes_alone_are_enough():
    """From ShapeDtypeStructs, under eval_shape, and jitted with any epoch in one trace."""
    abstract = jax.eval_shape(tree)
    optimizer = optim.make(settings(clip_by="global"), FREEZE, abstract)
    opt_state = jax.eval_shape(optimizer.init, abstract)
    scalar, epoch = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    new, new_state, _ = jax.eval_shape(
        lambda g, s, p, x, e: optimizer.update(g, s, p, lr=x, weight_decay=x, epoch=e),
        abstract,
        opt_state,
        abstract,
        scalar,
        epoch,
    )
    assert new == abstract and new_state == opt_state
    traces = []

    def counted(g, s, p, epoch):
        traces.append(epoch)
        return optimizer.update(g, s, p, lr=0.1, weight_decay=0.1, epoch=epoch)

    run = jax.jit(counted)
    for epoch in range(4):
        run(tree(1), optimizer.init(tree()), tree(), jnp.int32(epoch))
    assert len(traces) == 1


def test_sharded_parameters_give_the_same_update():
    from ssl_jax.train import sharding

    mesh = sharding.make_mesh(2, 4)
    params = {"kernel": jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)), jnp.float32)}
    grads = {"kernel": jnp.asarray(np.random.default_rng(1).normal(size=(8, 16)), jnp.float32)}
    optimizer = optim.make(settings(clip=1.0, clip_by="tensor"), EVERYTHING, params)
    run = jax.jit(
        lambda g, s, p: optimizer.update(g, s, p, lr=0.1, weight_decay=0.1, epoch=jnp.int32(0))
    )
    whole, _, whole_metrics = run(grads, optimizer.init(params), params)

    def cut(x):
        return jax.device_put(x, sharding.param_sharding(mesh, x.shape, min_size=0))

    parts, _, metrics = run(*jax.tree.map(cut, (grads, optimizer.init(params), params)))
    assert parts["kernel"].sharding.spec == sharding.param_sharding(mesh, (8, 16), min_size=0).spec
    np.testing.assert_allclose(parts["kernel"], whole["kernel"], rtol=1e-6)
    assert metrics["grad_norm"] == pytest.approx(float(whole_metrics["grad_norm"]), rel=1e-6)
