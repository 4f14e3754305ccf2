"""AdamW against torch's documented update in float64, the others against optax; rules by path,
freezing, clipping, stacked blocks.
"""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.methods import finetune
from ssl_jax.methods.base import DEFAULT_RULES, NEVER, Rule
from ssl_jax.runtime import decay, sharding
from ssl_jax.train import checkpoint, optim, optim_settings
from ssl_jax.train.state import TrainState

EVERYTHING = ((".*", Rule(decay=True)),)
NAMES = ("adamw", "lars", "lion", "muon", "sgd")
DECAYED = {
    "backbone/blocks/0/attn/qkv/kernel",
    "backbone/cls",
    "backbone/mask_token",
    "head/last/direction",
    "head/last/gain",
}


def settings(**changes) -> ConfigDict:
    config = config_lib.build(optim_settings.defaults())
    config.update(dict(clip_by="none") | changes)
    return config


def tree(seed=0, scale=1.0, depth=None):
    """Parameters of the shapes that matter, of one block or of a stack of `depth`."""
    rng = np.random.default_rng(seed)
    lead = (depth,) if depth else ()

    def draw(*shape):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    block = {
        "attn": {"qkv": {"kernel": draw(*lead, 4, 6), "bias": draw(*lead, 6)}},
        "norm": {"scale": draw(*lead, 4)},
    }
    return {
        "backbone": {
            "blocks": block if depth else {"0": block},
            "cls": draw(1, 4),
            "mask_token": draw(1, 4),
        },
        "head": {"last": {"direction": draw(4, 5), "gain": draw(1, 5)}},
    }


def flat(values) -> dict[str, np.ndarray]:
    """{path: array} of any pytree."""
    pairs = jax.tree_util.tree_leaves_with_path(values)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): np.asarray(x) for p, x in pairs}


def moved(params, old=None) -> set[str]:
    """Paths of what is not as in `tree()`, or in `old`."""
    old = flat(tree() if old is None else old)
    return {path for path, x in flat(params).items() if not np.array_equal(x, old[path])}


def moments(opt_state, name: str) -> dict[str, np.ndarray]:
    """{path of a parameter: its moment "mu" or "nu"}, whatever group holds it."""
    parts = [(*path.split(f"/{name}/"), x) for path, x in flat(opt_state).items()]
    return {part[1]: part[2] for part in parts if len(part) == 3}


def counts(opt_state) -> dict[str, int]:
    """{group: updates it has counted}."""
    found = flat(opt_state).items()
    return {path.split("/")[2]: int(x) for path, x in found if path.endswith("/count")}


@functools.cache
def built(rules, name="adamw", beta2=0.999, clip_by="none", clip=1.0, depth=None):
    """(optimizer, its compiled update) for `tree()`."""
    config = settings(name=name, beta2=beta2, clip_by=clip_by, clip=clip)
    optimizer = optim.make(config, rules, tree(depth=depth))
    return optimizer, jax.jit(optimizer.update)


def steps(how, params, epochs, *, state=None, scale=1.0, lr=1e-2, weight_decay=0.1, grads=None):
    """An update for each epoch, with gradients tree(1), tree(2), ...; params, opt_state and the
    last metrics. how: what `built` gives."""
    optimizer, update = how
    state, metrics = optimizer.init(params) if state is None else state, None
    for t, epoch in enumerate(epochs, 1):
        given = tree(t, scale) if grads is None else grads
        rates = dict(lr=np.float32(lr), weight_decay=np.float32(weight_decay))
        params, state, metrics = update(given, state, params, **rates, epoch=np.float32(epoch))
    return params, state, metrics


def torch_adamw(p, grads, *, lr=1e-2, weight_decay=0.1, beta1=0.9, beta2=0.999, eps=1e-8):
    """torch.optim.AdamW as documented, in float64: decay, moments, bias correction, step."""
    p, m, v = p.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(np.asarray(grads, np.float64), start=1):
        p = p - lr * weight_decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p


def grads_of(path, times, scale=1.0):
    return [flat(tree(t, scale))[path] for t in times]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_equals_torch_in_float64(scale):
    got = flat(steps(built(EVERYTHING), tree(), range(7), scale=scale)[0])
    for path, start in flat(tree()).items():
        exact = torch_adamw(start, grads_of(path, range(1, 8), scale))
        np.testing.assert_allclose(got[path], exact, atol=5e-7, rtol=1e-6)


@pytest.mark.parametrize("beta2", [0.999, 0.9999])
def test_the_first_steps_are_exact(beta2):
    """To float32's digits: 1 - beta2^t computed in float32 is off by 1e-5 and more."""
    zeros = jax.tree.map(np.zeros_like, tree())
    got = flat(steps(built(EVERYTHING, beta2=beta2), zeros, range(2), weight_decay=0.0)[0])
    for path, x in got.items():
        exact = torch_adamw(0 * x, grads_of(path, (1, 2)), weight_decay=0.0, beta2=beta2)
        np.testing.assert_allclose(x, exact, rtol=2e-6)


OPTAX = {  # for one decayed matrix, at lr 1e-2 and weight decay 0.1
    "adamw": optax.adamw(1e-2, 0.9, 0.99, weight_decay=0.1),
    "lars": optax.lars(1e-2, weight_decay=0.1, momentum=0.9),
    "lion": optax.lion(1e-2, 0.9, 0.99, weight_decay=0.1),
    "muon": optax.contrib.muon(1e-2, beta=0.9, weight_decay=0.1, consistent_rms=0.2),
    "sgd": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(1e-2, momentum=0.9)),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_chooses_the_update_of_optax(name):
    direct, kernel = OPTAX[name], tree()["head"]["last"]["direction"]
    state, update = direct.init(kernel), jax.jit(direct.update)
    for grad in grads_of("head/last/direction", range(1, 5)):
        updates, state = update(grad, state, kernel)
        kernel = kernel + np.asarray(updates)
    got, _, _ = steps(built(EVERYTHING, name, beta2=0.99), tree(), range(4))
    np.testing.assert_allclose(got["head"]["last"]["direction"], kernel, rtol=1e-5, atol=1e-6)


def test_decay_alone_moves_what_the_default_rules_name():
    """With zero gradients: matrices, tokens, the [1, K] gain; no bias, no norm gain."""
    old, zeros = flat(tree()), jax.tree.map(np.zeros_like, tree())
    more = dict(grads=zeros, lr=0.1, weight_decay=0.5)
    new, _, metrics = steps(built(DEFAULT_RULES), tree(), [0], **more)
    assert moved(new) == DECAYED
    np.testing.assert_allclose(flat(new)["backbone/cls"], 0.95 * old["backbone/cls"], rtol=1e-6)
    change = math.sqrt(sum(((0.05 * old[path]) ** 2).sum() for path in DECAYED))
    assert metrics["grad_norm"] == 0
    assert metrics["update_norm"] == pytest.approx(change, rel=1e-5)
    assert not optim.is_decayed("qkv/bias", np.ones((3, 4)), Rule())  # whatever its rank


def test_the_first_rule_that_matches_a_whole_path_counts():
    rules = (("last|cls|head", Rule(lr=4.0)),)  # no path is just that
    rules += (("head/last/gain", Rule(lr=2.0)), ("head/last/.*", Rule(lr=3.0)), *DEFAULT_RULES)
    assigned = optim.assign_rules(rules, tree())
    special = {path: rule.lr for path, rule in assigned.items() if rule.lr != 1}
    assert special == {"head/last/gain": 2.0, "head/last/direction": 3.0}


def test_a_backbone_from_elsewhere_may_wait_and_learn_more_slowly():
    rules = (("backbone/(cls|mask_token)", Rule(lr=0.5, freeze_epochs=3)), *DEFAULT_RULES)
    config = settings(backbone_lr=0.1, backbone_freeze_epochs=2.0)
    assigned = optim.assign_rules(optim.of_backbone(rules, config, 2), tree())
    for path, rule in assigned.items():
        lr, wait = (0.05, 3) if path.endswith(("cls", "mask_token")) else (0.1, 2)
        expected = (lr, wait) if path.startswith("backbone/") else (1.0, 0)
        assert (rule.lr, rule.freeze_epochs) == pytest.approx(expected), path


def test_layers_of_a_backbone_from_elsewhere_learn_more_slowly_towards_its_input():
    config = settings(backbone_lr=0.5, backbone_layer_decay=0.1)
    assigned = optim.assign_rules(optim.of_backbone(DEFAULT_RULES, config, 2), tree())
    for path, rule in assigned.items():
        lr = 0.5 if path.startswith("backbone/") else 1.0
        if path.startswith("backbone/") and not path.startswith("backbone/norm/"):
            block = int(path.split("/")[2]) if "/blocks/" in path else -1
            lr *= 0.1 ** (2 - block)
        assert rule.lr == pytest.approx(lr), path


def test_layers_of_a_swin_transformer_learn_more_slowly_towards_its_input():
    """Fine-tuning's rules, those of optim.backbone_layer_decay and segmentation's factors agree;
    tokens are merged at the rate of the block before."""
    swin = {
        "patch": {"kernel": np.ones((3, 4))},
        "stages": {
            "0": {
                "blocks": {"norm": {"scale": np.ones((2, 4))}},
                "merge_norm": {"scale": np.ones(16)},
                "merge": {"kernel": np.ones((16, 8))},
            },
            "1": {"blocks": {"norm": {"scale": np.ones((1, 8))}}},
        },
        "norm": {"scale": np.ones(8)},
    }
    params = {"backbone": swin, "head": {"kernel": np.ones((8, 2))}}
    shape = decay.depths(swin)
    assert shape == (3, (2, 1))
    rules = optim.of_backbone(DEFAULT_RULES, settings(backbone_layer_decay=0.5), *shape)
    of_optim = {path: rule.lr for path, rule in optim.assign_rules(rules, params).items()}
    assert of_optim == {
        "backbone/patch/kernel": 0.5**4,
        "backbone/stages/0/blocks/0/norm/scale": 0.5**3,
        "backbone/stages/0/blocks/1/norm/scale": 0.5**2,
        "backbone/stages/0/merge/kernel": 0.5**2,
        "backbone/stages/0/merge_norm/scale": 0.5**2,
        "backbone/stages/1/blocks/0/norm/scale": 0.5,
        "backbone/norm/scale": 1.0,
        "head/kernel": 1.0,
    }
    of_finetune = optim.assign_rules(finetune.rules(*shape, 0.5), params)
    assert {path: rule.lr for path, rule in of_finetune.items()} == of_optim
    factors = trees.per_block(jax.tree.map(np.multiply, params, decay.layer_factors(params, 0.5)))
    assert {path: x.flat[0] for path, x in factors.items()} == of_optim


_SOME = (("backbone/blocks/1/norm/.*", Rule(decay=True)), *DEFAULT_RULES)


@pytest.mark.parametrize(
    "rules, named",
    [
        ((("head/.*", Rule()), ("backbone/blocks/.*", Rule())), "backbone/cls"),
        (((".*", Rule(lr=-1.0)),), "lr"),
        (((".*", Rule(freeze_epochs=-1)),), "freeze_epochs"),
        (((".*", Rule(decay="matrix")),), "decay"),
        (_SOME, "blocks/1/norm/scale"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules, named):
    with pytest.raises(InputError, match=named):
        optim.make(settings(), rules, tree(depth=3))


FREEZE = (
    ("head/last/.*", Rule(decay=True, freeze_epochs=2)),
    ("backbone/mask_token", Rule(lr=0.5, decay=True)),
    *EVERYTHING,
)


def test_a_frozen_group_does_not_move_and_thaws_with_a_count_of_its_own():
    """torch skips a parameter whose gradient is None: its first real update is its step 1."""
    how, old = built(FREEZE), flat(tree())
    params, state, metrics = steps(how, tree(), [0, 0, 1, 1])
    for path in ("head/last/direction", "head/last/gain"):  # no decay either
        np.testing.assert_array_equal(flat(params)[path], old[path])
        assert not moments(state, "mu")[path].any() and not moments(state, "nu")[path].any()
    assert moments(state, "mu")["backbone/cls"].all() and moments(state, "nu")["backbone/cls"].all()
    assert counts(state) == {"epoch_0": 4, "epoch_2": 0}
    trained = norm(*(g for path, g in flat(tree(4)).items() if not path.startswith("head")))
    assert metrics["grad_norm"] == pytest.approx(trained, rel=1e-6)

    params, state, _ = steps(how, tree(), [0, 1, 2, 2, 3])
    for path, times, lr in (
        ("head/last/gain", (3, 4, 5), 1e-2),
        ("backbone/cls", range(1, 6), 1e-2),
        ("backbone/mask_token", range(1, 6), 0.5e-2),  # of the step and of the decay
    ):
        exact = torch_adamw(old[path], grads_of(path, times), lr=lr)
        np.testing.assert_allclose(flat(params)[path], exact, atol=5e-7)
    assert counts(state) == {"epoch_0": 5, "epoch_2": 3}


def test_a_group_thaws_within_an_epoch():
    half, later = Rule(freeze_epochs=0.5), Rule(freeze_epochs=0.5000001)
    rules = (("head/last/gain", half), ("head/last/.*", later), *EVERYTHING)
    _, state, _ = steps(built(rules), tree(), [0, 0.25, 0.5, 0.75])
    assert counts(state) == {"epoch_0": 4, "epoch_0.5": 2, "epoch_0.5000001": 1}


def test_never_trained_parameters_have_no_moments():
    never = Rule(freeze_epochs=NEVER)
    rules = (("head/last/gain", never), ("backbone/blocks/.*", never), *EVERYTHING)
    params, state, _ = steps(built(rules), tree(), [0, 10**6, 2**31 - 1])
    trained = {"backbone/cls", "backbone/mask_token", "head/last/direction"}
    assert set(moments(state, "mu")) == set(moments(state, "nu")) == trained
    assert moved(params) == trained


def norm(*arrays) -> float:
    return math.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in arrays))


def clipped(clip_by, clip, rules=EVERYTHING, grads=None):
    """What reaches the moments at the first step, mu / (1 - beta1), and the metrics."""
    how, grads = built(rules, clip_by=clip_by, clip=clip), grads or tree(1)
    _, state, metrics = steps(how, tree(), [0], grads=grads, weight_decay=0.0)
    return {path: m / 0.1 for path, m in moments(state, "mu").items()}, metrics


HEAD = (("head/.*", Rule(decay=True, clip_group="head")), *EVERYTHING)


@pytest.mark.parametrize(
    "clip_by, limit, rules, group",
    [
        ("tensor", 2.0, EVERYTHING, lambda path: path),
        ("global", 2.0, EVERYTHING, lambda path: ""),
        # Tensors of a group share one norm; the others are clipped without them.
        ("global", 0.5, HEAD, lambda path: path.startswith("head")),
    ],
)
def test_clipping_by_tensor_by_group_and_over_all(clip_by, limit, rules, group):
    grads = flat(tree(1))
    norms = {
        group(path): norm(*(g for p, g in grads.items() if group(p) == group(path)))
        for path in grads
    }
    got, metrics = clipped(clip_by, limit, rules)
    for path, g in grads.items():
        factor = min(1, limit / (norms[group(path)] + 1e-6))
        np.testing.assert_allclose(got[path], g * factor, rtol=1e-5)
    over = [value > limit for value in norms.values()]
    assert metrics["clipped"] == pytest.approx(np.mean(over))
    assert clip_by == "global" or 0 < sum(over) < len(over)  # both sides are seen
    assert metrics["grad_norm"] == pytest.approx(norm(*grads.values()), rel=1e-6)  # before


def test_gradients_that_are_hard_to_clip():
    for clip_by in ("tensor", "global"):
        got, metrics = clipped(clip_by, 2.0, grads=jax.tree.map(np.zeros_like, tree()))
        assert not any(g.any() for g in got.values()) and metrics["clipped"] == 0
    broken = tree(1)
    broken["backbone"]["cls"][0, 0] = np.nan
    assert not np.isfinite(clipped("tensor", 2.0, grads=broken)[1]["grad_norm"])
    # In a frozen group it stays out.
    broken = tree(1)
    broken["head"] = jax.tree.map(lambda x: x * np.nan, broken["head"])
    chex.assert_tree_all_finite(steps(built(FREEZE, clip_by="global"), tree(), [0], grads=broken))


@pytest.mark.parametrize(
    "shape, dtype, value, clip, expected",
    [
        # limit / (norm + 1e-6), as torch: visible where the norm itself is that small
        ((1, 1), "float32", 3e-6, 1e-6, 3e-6 / 4),
        # the norm of many entries, summed in bfloat16, would be far off
        ((64, 64), "bfloat16", 0.1, 1.0, 1 / 64),
    ],
)
def test_norms_are_exact(shape, dtype, value, clip, expected):
    params = {"kernel": np.zeros(shape, np.float32)}
    grads = {"kernel": jnp.full(shape, value, dtype)}
    optimizer = optim.make(settings(clip=clip, clip_by="tensor"), EVERYTHING, params)
    how = (optimizer, jax.jit(optimizer.update))
    _, state, metrics = steps(how, params, [0], grads=grads, weight_decay=0.0)
    exact = float(grads["kernel"][0, 0]) * shape[0]
    assert metrics["grad_norm"] == pytest.approx(exact, rel=1e-6)
    for name in ("mu", "nu"):
        assert moments(state, name)["kernel"].dtype == np.float32
    assert moments(state, "mu")["kernel"][0, 0] == pytest.approx(0.1 * expected, rel=1e-5)


MANY = (
    ("head/last/gain", Rule(freeze_epochs=NEVER)),
    ("head/.*", Rule(freeze_epochs=2)),
    ("backbone/cls", Rule(lr=0.0)),
    *DEFAULT_RULES,
)


@pytest.mark.parametrize(
    "name", ["adamw", *[pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:]]]
)
def test_every_update_keeps_the_rules_and_resumes_bit_for_bit(name, tmp_path, monkeypatch):
    """Freezing, factors of the learning rate, clipping, decay of matrices alone; and the state,
    saved in shares of two devices, is all that the next update needs."""
    how = built(MANY, name, clip_by="tensor")
    params, opt_state, metrics = steps(how, tree(), [0, 1])
    still = {"head/last/gain", "head/last/direction", "backbone/cls"}
    assert moved(params) == set(flat(params)) - still
    frozen, fresh = (
        {k: x for k, x in flat(s).items() if "epoch_2" in k and not k.endswith("step")}
        for s in (opt_state, how[0].init(tree()))
    )
    assert frozen
    chex.assert_trees_all_equal(frozen, fresh)
    assert 0 < metrics["clipped"] <= 1 and np.isfinite(metrics["update_norm"])
    one, other = (steps(how, tree(), [2], weight_decay=w)[0] for w in (0.5, 0.0))
    assert moved(one, other) == DECAYED - {"head/last/gain", "backbone/cls"}

    key = jax.random.key(0)
    state = TrainState(np.int32(2), params, None, opt_state, None, None, key, {"a": np.int32(0)})
    monkeypatch.setattr(sharding, "_MIN_SIZE", 2)
    shardings = sharding.state_shardings(sharding.make_mesh(1, 2), state)
    saved = checkpoint.Checkpoints(tmp_path)
    saved.save(jax.device_put(state, shardings), {})
    saved.wait()
    abstract = checkpoint.abstract(jax.eval_shape(lambda: state), shardings)
    restored = saved.restore(2, abstract)
    saved.close()
    leaves = jax.tree_util.tree_leaves_with_path(restored.opt_state)
    kernels = [x for path, x in leaves if jax.tree_util.keystr(path[-2:]) == "['qkv']['kernel']"]
    assert kernels and all("fsdp" in x.sharding.spec for x in kernels)
    chex.assert_trees_all_equal_shapes_and_dtypes(restored.opt_state, opt_state)
    copied = jax.tree.map(np.array, (restored.params, restored.opt_state))
    after = steps(how, params, [2, 3], state=opt_state)
    chex.assert_trees_all_equal(steps(how, copied[0], [2, 3], state=copied[1]), after)
    assert "head/last/direction" in moved(after[0])


def test_what_lars_scales_and_muon_orthogonalises():
    """By the ratio of norms only what decays; vectors and single rows are left to Adam."""
    lars, sgd = (flat(steps(built(DEFAULT_RULES, n), tree(), [0])[0]) for n in ("lars", "sgd"))
    same = {path for path, x in lars.items() if np.allclose(x, sgd[path], rtol=1e-6)}
    assert same == set(lars) - DECAYED
    adam = set(moments(built(DEFAULT_RULES, "muon")[0].init(tree()), "nu"))
    assert set(lars) - adam == {"backbone/blocks/0/attn/qkv/kernel", "head/last/direction"}


_BY_BLOCK = (
    ("backbone/blocks/0/.*", Rule(lr=0.25, freeze_epochs=NEVER)),
    ("backbone/blocks/1/attn/.*", Rule(lr=0.5, freeze_epochs=1)),
    ("backbone/blocks/2/.*", Rule(lr=0.5, clip_group="last")),
    ("backbone/cls", Rule(decay=False, clip_group="last")),
    ("head/.*", Rule(freeze_epochs=2)),
    *DEFAULT_RULES,
)
_MARKS = {("adamw", "by block", "tensor"): (), ("adamw", "default", "global"): pytest.mark.slow}
_MARKS |= {(name, "by block", "global"): pytest.mark.slow for name in NAMES}
_CASES = [(n, r, c) for n in NAMES for r in ("default", "by block") for c in ("tensor", "global")]


@pytest.mark.parametrize(
    "name, rules, clip_by",
    [pytest.param(*case, marks=_MARKS.get(case, pytest.mark.nightly)) for case in _CASES],
)
def test_stacked_blocks_move_as_if_each_were_alone(name, rules, clip_by):
    """By every update rule, with clipping by tensor, by group and over all."""

    def apart(params):
        return trees.nest(trees.per_block(params))

    config = settings(name=name, clip_by=clip_by, clip=0.5)
    chosen = _BY_BLOCK if rules == "by block" else DEFAULT_RULES
    outcomes, rates = [], dict(lr=0.1, weight_decay=0.3)
    for form in (lambda params: params, apart):
        params, found, state = form(tree(depth=3)), [], None
        optimizer = optim.make(config, chosen, params)
        how = (optimizer, jax.jit(optimizer.update))
        for epoch in range(3):
            more = dict(grads=form(tree(epoch + 1, depth=3)), state=state, **rates)
            params, state, metrics = steps(how, params, [epoch], **more)
            found.append((apart(params), metrics))
        outcomes.append(found)
    chex.assert_trees_all_close(*outcomes, rtol=2e-5, atol=1e-6)
    first, last, path = outcomes[0][0][0], outcomes[0][2][0], "backbone/blocks/0/norm/scale"
    still = np.array_equal(flat(last)[path], flat(apart(tree(depth=3)))[path])
    assert still == (rules == "by block")
    assert not np.array_equal(flat(last)["head/last/gain"], flat(first)["head/last/gain"])
