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
from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.methods.base import DEFAULT_RULES, NEVER, Rule
from ssl_jax.settings import base_config
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


def stack(seed=0, *, depth=3):
    """The same with blocks, stacked."""
    draw = np.random.default_rng(seed).normal
    params = tree(seed)
    params["backbone"]["blocks"] = {
        "attn": {
            "qkv": {
                "kernel": jnp.asarray(draw(size=(depth, 4, 6)), jnp.float32),
                "bias": jnp.asarray(draw(size=(depth, 6)), jnp.float32),
            }
        },
        "norm": {"scale": jnp.asarray(draw(size=(depth, 4)), jnp.float32)},
    }
    return params


def flat(values) -> dict[str, np.ndarray]:
    pairs = jax.tree_util.tree_leaves_with_path(values)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in pairs
    }


def moments(opt_state, name: str) -> dict[str, np.ndarray]:
    """{path of a parameter: its moment "mu" or "nu"}, whatever group holds it."""
    named = (path.split(f"/{name}/") + [x] for path, x in flat(opt_state).items())
    return {parts[1]: parts[2] for parts in named if len(parts) == 3}


def counts(opt_state) -> dict[str, int]:
    """{group: updates it has counted}."""
    return {
        path.split("/")[2]: int(x) for path, x in flat(opt_state).items() if path.endswith("/count")
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
        assert not moments(opt_state, moment)["head/last/direction"].any()
        assert moments(opt_state, moment)["backbone/cls"].all()
    assert counts(opt_state) == {"epoch_0": 4, "epoch_2": 0}
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
    assert counts(opt_state) == {"epoch_0": 5, "epoch_2": 3}


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
    for moment in ("mu", "nu"):
        assert set(moments(opt_state, moment)) == {
            "backbone/cls",
            "backbone/mask_token",
            "head/last/direction",
        }
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
    return {path: m / 0.1 for path, m in moments(opt_state, "mu").items()}, metrics


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
    assert float(moments(opt_state, "mu")["kernel"][0, 0]) == pytest.approx(
        0.1 * 3e-6 / 4, rel=1e-5
    )


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
    assert moments(opt_state, "mu")["kernel"].dtype == jnp.float32
    assert moments(opt_state, "nu")["kernel"].dtype == jnp.float32


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


# --- other update rules


def reference(name):
    """The transformation of optax for one decayed matrix, at lr 1e-2 and weight decay 0.1."""
    return {
        "lion": optax.lion(1e-2, 0.9, 0.99, weight_decay=0.1),
        "lars": optax.lars(1e-2, weight_decay=0.1, momentum=0.9),
        "sgd": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(1e-2, momentum=0.9)),
        "muon": optax.contrib.muon(1e-2, beta=0.9, weight_decay=0.1, consistent_rms=0.2),
    }[name]


OTHERS = ("lars", "lion", "muon", "sgd")
NAMES = ("adamw", *OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_chooses_the_update_of_optax(name):
    direct, kernel = reference(name), tree()["head"]["last"]["direction"]
    state = direct.init(kernel)
    for t in range(4):
        grad = tree(t + 1)["head"]["last"]["direction"]
        updates, state = direct.update(grad, state, kernel)
        kernel = optax.apply_updates(kernel, updates)
    optimizer = optim.make(settings(name=name, beta2=0.99), EVERYTHING, tree())
    got, _, _ = steps(optimizer, tree(), 4)
    np.testing.assert_allclose(got["head"]["last"]["direction"], kernel, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_update_keeps_the_rules_and_resumes_bit_for_bit(name):
    """Freezing, decay on matrices alone, factors of the learning rate, clipping; and the state is
    all that the next update needs.
    """
    rules = (
        ("head/last/gain", Rule(freeze_epochs=NEVER)),
        ("head/.*", Rule(freeze_epochs=2)),
        ("backbone/cls", Rule(lr=0.0)),
        *DEFAULT_RULES,
    )
    optimizer = optim.make(settings(name=name, clip=1.0, clip_by="tensor"), rules, tree())
    update = jax.jit(optimizer.update)

    def run(params, state, epochs):
        for epoch in epochs:
            params, state, metrics = update(
                tree(epoch), state, params, lr=1e-2, weight_decay=0.1, epoch=jnp.int32(epoch)
            )
        return params, state, metrics

    before = run(tree(), optimizer.init(tree()), (0, 1))
    old, new = flat(tree()), flat(before[0])
    still = {path for path in old if np.array_equal(old[path], new[path])}
    assert still == {"head/last/gain", "head/last/direction", "backbone/cls"}
    frozen = {k: x for k, x in flat(before[1]).items() if "epoch_2" in k and not k.endswith("step")}
    fresh = flat(optimizer.init(tree()))
    assert frozen and all(np.array_equal(x, fresh[k]) for k, x in frozen.items())
    assert 0 < before[2]["clipped"] <= 1 and np.isfinite(before[2]["update_norm"])

    after = run(*before[:2], (2, 3))
    moved = flat(after[0])
    assert not np.array_equal(moved["head/last/direction"], old["head/last/direction"])
    copied = jax.tree.map(lambda x: jnp.asarray(np.array(x)), before[:2])
    again = run(*copied, (2, 3))
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(again), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_every_update_decays_by_the_rules(name):
    """Weight decay makes a difference for matrices and for nothing else."""
    optimizer = optim.make(settings(name=name), DEFAULT_RULES, tree())
    with_decay, without = (flat(steps(optimizer, tree(), 1, weight_decay=w)[0]) for w in (0.5, 0.0))
    assert {path for path, x in with_decay.items() if not np.array_equal(x, without[path])} == {
        "backbone/blocks/0/attn/qkv/kernel",
        "backbone/cls",
        "backbone/mask_token",
        "head/last/direction",
        "head/last/gain",
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_state_is_saved_and_restored(name, tmp_path):
    """Structure, dtypes and bits, cut over two devices."""
    from ssl_jax.train import checkpoint, sharding
    from ssl_jax.train.state import TrainState

    optimizer = optim.make(settings(name=name), FREEZE, tree())
    params, opt_state, _ = steps(optimizer, tree(), 3)
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(
        jnp.int32(3), params, None, opt_state, None, None, jax.random.key(0), {"a": zero}
    )
    mesh = sharding.make_mesh(1, 2)
    shardings = sharding.state_shardings(mesh, state, min_size=2)
    abstract = checkpoint.abstract(jax.eval_shape(lambda: state), shardings)
    checkpoints = checkpoint.Checkpoints(tmp_path)
    checkpoints.save(jax.device_put(state, shardings), {})
    checkpoints.wait()
    restored = checkpoints.restore(3, abstract)
    checkpoints.close()
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(restored.opt_state), jax.tree.leaves(opt_state), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    leaves = jax.tree_util.tree_leaves_with_path(restored.opt_state)
    kernels = [x for path, x in leaves if jax.tree_util.keystr(path[-2:]) == "['qkv']['kernel']"]
    assert kernels and all("fsdp" in x.sharding.spec for x in kernels)


def apart(params):
    """The same parameters, each block in a branch of its own."""
    return trees.nest(trees.per_block(params))


_BY_BLOCK = (
    ("backbone/blocks/0/.*", Rule(lr=0.25, freeze_epochs=NEVER)),
    ("backbone/blocks/1/attn/.*", Rule(lr=0.5, freeze_epochs=1)),
    ("backbone/blocks/2/.*", Rule(lr=0.5, clip_group="last")),
    ("backbone/cls", Rule(decay=False, clip_group="last")),
    ("head/.*", Rule(freeze_epochs=2)),
    *DEFAULT_RULES,
)


@pytest.mark.parametrize("rules", [DEFAULT_RULES, _BY_BLOCK], ids=["one rule", "by block"])
@pytest.mark.parametrize("name", NAMES)
def test_stacked_blocks_move_as_if_each_were_alone(name, rules):
    """Every update rule, with clipping by tensor, by group and over all."""
    for clip_by in ("tensor", "global"):
        config = settings(name=name, clip_by=clip_by, clip=0.5)
        grads = [stack(seed + 1) for seed in range(3)]
        outcomes = []
        for params, given in ((stack(), grads), (apart(stack()), map(apart, grads))):
            optimizer = optim.make(config, rules, params)
            update, opt_state, found = jax.jit(optimizer.update), optimizer.init(params), []
            for epoch, g in enumerate(given):
                params, opt_state, metrics = update(
                    g, opt_state, params, lr=0.1, weight_decay=0.3, epoch=jnp.int32(epoch)
                )
                found.append((apart(params), metrics))
            outcomes.append(found)
        for one, other in zip(jax.tree.leaves(outcomes[0]), jax.tree.leaves(outcomes[1])):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
        first, last = outcomes[0][0][0], outcomes[0][2][0]
        still = np.array_equal(flat(last)["backbone/blocks/0/norm/scale"], flat(stack())[_SCALE][0])
        assert still == (rules is _BY_BLOCK)
        assert not np.array_equal(flat(last)["head/last/gain"], flat(first)["head/last/gain"])


_SCALE = "backbone/blocks/norm/scale"


def test_the_state_of_a_stack_is_stacked_and_never_trained_blocks_have_none():
    optimizer = optim.make(settings(), DEFAULT_RULES, stack())
    state = flat(optimizer.init(stack()))
    assert {x.shape for path, x in state.items() if path.startswith("backbone_blocks/")} == {
        *((3,), (3, 4, 6), (3, 6), (3, 4))
    }
    frozen = (("backbone/blocks/.*", Rule(freeze_epochs=NEVER)), *DEFAULT_RULES)
    state = flat(optim.make(settings(), frozen, stack()).init(stack()))
    assert state and not any(path.startswith("backbone_blocks/") for path in state)


def test_blocks_of_which_only_some_decay_are_refused():
    rules = (("backbone/blocks/1/norm/.*", Rule(decay=True)), *DEFAULT_RULES)
    with pytest.raises(InputError, match=r"blocks/1/norm/scale decays, by another .*blocks/0/norm"):
        optim.make(settings(), rules, stack())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r'optim.name is "adam"; .* did you mean "adamw"'):
        optim.make(settings(name="adam"), EVERYTHING, tree())


def test_lars_scales_by_the_ratio_of_norms_only_what_decays():
    lars, sgd = (
        flat(steps(optim.make(settings(name=name), DEFAULT_RULES, tree()), tree(), 1)[0])
        for name in ("lars", "sgd")
    )
    same = {path for path, x in lars.items() if np.allclose(x, sgd[path], rtol=1e-6)}
    assert same == {"backbone/blocks/0/attn/qkv/bias", "backbone/blocks/0/norm/scale"}


@pytest.mark.parametrize("beta2", [0.999, 0.9999])
def test_the_first_steps_are_exact(beta2):
    """To float32's digits: 1 - beta2^t computed in float32 is off by 1e-5 and more."""
    optimizer = optim.make(settings(beta2=beta2), EVERYTHING, tree())
    params = jax.tree.map(jnp.zeros_like, tree())
    got = flat(steps(optimizer, params, 2, weight_decay=0.0)[0])
    for path, x in got.items():
        grads = [flat(tree(t + 1))[path] for t in range(2)]
        exact = torch_adamw(np.zeros_like(x), grads, lr=1e-2, weight_decay=0.0, beta2=beta2)
        np.testing.assert_allclose(x, exact, rtol=2e-6)


def test_muon_leaves_vectors_and_single_rows_to_adam():
    optimizer = optim.make(settings(name="muon"), DEFAULT_RULES, tree())
    second = set(moments(optimizer.init(tree()), "nu"))  # Adam's alone
    assert second == {
        "backbone/blocks/0/attn/qkv/bias",
        "backbone/blocks/0/norm/scale",
        "backbone/cls",
        "backbone/mask_token",
        "head/last/gain",
    }


# --- the section of the config


def test_the_section_is_declared_as_the_config_has_it():
    keys, section = optim.defaults(), base_config("dino").optim
    assert {name: k.default for name, k in keys.items()} == section.to_dict()
    for name, k in keys.items():
        k.check(f"optim.{name}", section[name])
    assert [name for name, k in keys.items() if k.free] == ["chunks"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", 0.0, "optim.lr is 0.0; it must be above 0"),
        ("beta2", 1.0, "optim.beta2 is 1.0; it must be at least 0 and below 1"),
        ("weight_decay", -0.1, "optim.weight_decay is -0.1; it must be between 0 and 1000"),
        ("name", "adam", 'did you mean "adamw"'),
        ("clip_by", "tensors", 'did you mean "tensor"'),
    ],
)
def test_a_value_out_of_range_is_refused(name, value, message):
    with pytest.raises(InputError, match=message):
        optim.defaults()[name].check(f"optim.{name}", value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0.0}, "optim.epochs and optim.steps are both 0"),
        ({"epochs": 5.0}, "optim.warmup_epochs is 10.0, longer than the run"),
        ({"clip": 0.0}, "optim.clip is 0.0; it must be above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, message):
    config = base_config("dino")
    optim.check(config)
    config.optim.update(changes)
    with pytest.raises(InputError, match=message):
        optim.check(config)


@pytest.mark.parametrize("changes", [{"epochs": 5.0, "steps": 7}, {"clip": 0.0, "clip_by": "none"}])
def test_settings_that_only_look_contradictory_are_allowed(changes):
    config = base_config("dino")
    config.optim.update(changes)
    optim.check(config)
