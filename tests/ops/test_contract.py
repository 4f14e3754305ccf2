"""What every op keeps, whatever it computes: finite values and gradients at any scale, the same
result under vmap, as leading axes and on eight devices, no array beyond what its docstring says,
and ValueError for bad arguments.
"""

import functools
import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.ops import clustering
from tests.finite import assert_finite
from tests.losses.reference import close


@pytest.fixture(autouse=True)
def strict():
    """As in a program that lets JAX mix neither ranks nor types."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


class How(NamedTuple):
    """How the inputs of a case are drawn."""

    dtype: Any = np.float32
    scale: float = 1.0
    kind: str = "random"
    mask: str = "some"


class Input(NamedTuple):
    draw: Callable  # (rng, shape, how) -> array
    shape: tuple
    shared: bool  # by all leading axes
    constant: bool  # has no gradient


class Case(NamedTuple):
    inputs: dict[str, Input]
    static: dict = {}
    call: Callable | None = None
    leading: bool = True  # leading axes are separate problems
    scales: tuple = (0.0, 1e-30, 1e-4, 1.0, 1e4)
    holds: Callable | None = None  # (inputs, outputs): asserts what is true at any scale
    narrow: bool = False  # results have the type of the inputs, else float32
    infinite: bool = False  # -inf is a result
    sends: tuple = ()  # what devices that hold problems of their own may do


def _input(draw):
    def make(*shape, shared=False, constant=False):
        return Input(draw, shape, shared, constant)

    return make


@_input
def real(rng, shape, how):
    x, axis = rng.normal(size=shape), -2 if len(shape) > 1 else -1
    first = np.take(x, [0], axis=axis)
    if how.kind == "duplicates":
        x = np.broadcast_to(first, shape)
    if how.kind == "opposite":
        x = first * np.expand_dims((-1) ** np.arange(shape[axis]), (-1,) if axis == -2 else ())
    if how.kind == "ties":
        x = x.round()
    most = 6e4 if how.dtype == jnp.float16 else np.inf
    return np.clip(x * how.scale, -most, most).astype(how.dtype)


@_input
def probabilities(rng, shape, how):
    concentration = {"random": 0.3, "duplicates": 1e6, "opposite": 1e-4, "ties": 5.0}[how.kind]
    x = rng.dirichlet(np.full(shape[-1], concentration), shape[:-1])
    return np.where(np.isfinite(x), x, 1 / shape[-1]).astype(how.dtype)


@_input
def shares(rng, shape, how):
    """Of the members of SOPs: all 1 too."""
    x = {"ties": np.ones(shape), "duplicates": np.full(shape, 0.9)}
    return np.float32(x.get(how.kind, rng.uniform(-1, 1.5, shape).clip(0, 1)))


@_input
def mask(rng, shape, how):
    some = rng.uniform(size=shape) < 0.6
    return {"all": np.ones(shape, bool), "some": some, "none": np.zeros(shape, bool)}[how.mask]


@_input
def rows(rng, shape, how):
    """A marginal, of which a part has no mass."""
    x = rng.uniform(0.1, 1, shape) * mask().draw(rng, shape, how)
    return np.float32(x / max(x.sum(), 1e-30))


@_input
def columns(rng, shape, how):
    return rows().draw(rng, shape, how._replace(mask=rng.choice(["all", how.mask])))


@_input
def key(rng, shape, how):
    return jax.random.key(rng.integers(1000))


def integers(high, *shape, shared=False, distinct=False):
    def draw(rng, shape, how):
        picked = rng.permutation(high)[: shape[0]] if distinct else rng.integers(high, size=shape)
        return picked.astype(np.int32)

    return Input(draw, shape, shared, True)


def number(*values, constant=False):
    def draw(rng, shape, how):
        return np.float32(rng.choice(values))

    return Input(draw, (), True, constant)


fixed = functools.partial(real, constant=True)
everywhere = functools.partial(real, shared=True)
UNIT = (0.0, 1e-30, 1e-4, 1.0, 1e4, 1e15)  # where vectors are divided by their norms
TEMPERATURES = (0.02, 0.1, 1.0)
FIXED = number(*TEMPERATURES, constant=True)


def sums_to(axis, wanted=lambda inputs: 1, atol=1e-5):
    def holds(inputs, out):
        assert (out >= 0).all()
        total = out.sum(axis)
        np.testing.assert_allclose(total, np.broadcast_to(wanted(inputs), total.shape), atol=atol)

    return holds


def assigned(inputs, out):
    sums_to(-1, lambda inputs: inputs["where"])(inputs, out)
    assert not out[~inputs["where"]].any()


def costs(inputs, out):
    assert out.min() >= -1e-5


def aligned(one_to_one):
    def holds(inputs, out):
        size = len(inputs["target"])
        assert ((0 <= out.index) & (out.index < size)).all()
        assert not one_to_one or len(set(out.index.tolist())) == len(out.index)

    return holds


def transported(inputs, out):
    sums_to(-2, lambda inputs: inputs["b"] * inputs["a"].any())(inputs, out)
    assert not out[inputs["a"] == 0].any()


def scattered(inputs, out):
    assert -1e-6 <= out.min() and out.max() <= 18.43 and not out[~inputs["where"]].any()


def shifted(inputs, out):
    keys = np.float64(inputs["keys"])[inputs["where"]]
    low, high = (keys.min(0), keys.max(0)) if len(keys) else (0, 0)
    slack = 1e-6 * np.abs(keys).max(initial=0)
    assert (low - slack <= out).all() and (out <= high + slack).all()


def clustered(inputs, out):
    sums_to(-1)(inputs, out)
    assert np.isin(out, (0, 1)).all()


def separated(inputs, out):
    """Objects times their masses add up to all tokens of their view."""
    objects, valid = out
    mass = np.float64(inputs["assignments"]).reshape(2, 4, 3).sum(1)
    np.testing.assert_array_equal(valid, (mass > 0).all(0))
    tokens = np.float64(inputs["tokens"]).reshape(2, 4, -1)
    weighted = np.einsum("vnk,vnd->vkd", inputs["assignments"].reshape(2, 4, 3), tokens)
    close(objects * mass[..., None], weighted, absolute=1e-5 * max(np.abs(tokens).max(), 1))


def consistent(inputs, out):
    where, bank = inputs["where"], inputs["bank_where"]
    assert not (out.consistent & ~where).any()
    assert ((0 <= out.index) & (out.index < len(bank))).all()
    assert bank[out.index].all() if bank.any() else not out.consistent.any()
    # Of a group at most as many objects come back as rows of the bank lead to it.
    for part in (slice(0, 4), slice(4, 8)):
        assert out.consistent[part].sum() <= len(set(out.index[part][out.consistent[part]]))


def voted(inputs, out):
    assert out.max() <= 1e-5
    np.testing.assert_allclose(np.exp(np.float64(out)).sum(-1), 1, atol=1e-4)


def negative_entropy(log_probs):
    return ops.entropy(log_probs=-abs(log_probs))


def valid_rows(valid):
    return ops.memory_valid({"valid": valid})


def push(old, valid, cursor, new):
    memory = dict(rows={"x": old}, valid=valid, cursor=cursor % 8)
    return ops.memory_push(memory, {"x": new}, where=valid[0])


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
REDUCES = COLLECTIVES[:1]
TAU = number(*TEMPERATURES)
SETS = dict(source=fixed(4, 3), target=fixed(8, 3), epsilon=FIXED)
BUILT = dict(memory=fixed(16, 3), anchors=integers(16, 8, distinct=True))
CENTER = dict(logits=fixed(8, 5), center=fixed(5, shared=True), temperature=FIXED)
MOVED = dict(center=fixed(5), logits=fixed(8, 5), momentum=number(0, 0.9, 1, constant=True))
CROSS = dict(target_probs=probabilities(8, 5), logits=real(8, 5), temperature=TAU)
CYCLE = dict(first=fixed(8, 3), second=fixed(8, 3), first_bank=fixed(16, 3))
CYCLE |= dict(second_bank=fixed(16, 3), where=mask(8), bank_where=mask(16))
TRANSPORT = dict(cost=real(8, 4), a=rows(8), b=columns(4), epsilon=number(0.01, 0.1, 10.0))
CLUSTERS = dict(tokens=fixed(8, 3), positions=fixed(8, 2), seeds=integers(8, 3, distinct=True))
CLUSTERS |= dict(position_weight=number(0.0, 1.0, 100.0, constant=True))
CLUSTERS |= dict(temperature=number(1e-4, 0.05, 10.0, constant=True))
LOCAL = dict(dense=real(8, 3), sparse=real(4, 3), temperature=TAU)
SHIFT = dict(queries=real(8, 3), keys=real(6, 3), where=mask(6))
SHIFT |= dict(inverse_temperature=number(0.0, 0.3, 50.0))
PUSHED = dict(old=real(8, 3), valid=mask(8), cursor=integers(8), new=fixed(5, 3))
SEARCH = dict(queries=real(8, 3), bank=everywhere(16, 3), where=mask(16)._replace(shared=True))
ROUND = dict(group_size=4, cut_bank=True)
DOT = dict(k=2, metric="dot", chunk=3, bank_chunk=5, cut_bank=True)
GROUPS = dict(queries=real(16, 3), bank=everywhere(16, 3))
BALANCE = dict(scores=fixed(8, 5), temperature=FIXED, where=mask(8))
BALANCE_FUSED = dict(embeddings=fixed(8, 3), prototypes=fixed(3, 5), temperature=FIXED)
BALANCE_FUSED |= dict(where=mask(8))
PREDICT = dict(scores=fixed(8, 5), logits=real(8, 5), target_temperature=FIXED)
PREDICT |= dict(temperature=TAU, where=mask(8))
VOTE = dict(queries=real(8, 3), members=everywhere(4, 2, 3, constant=True))
VOTE |= dict(weights=shares(4, 2, shared=True, constant=True), temperature=TAU)
OBJECTS = dict(tokens=real(8, 3), assignments=probabilities(8, 3))
SEARCHED = dict(infinite=True, sends=COLLECTIVES)
WHOLE = dict(leading=False)
TRANSPORTED = dict(holds=transported, sends=REDUCES)
ROW = {"x": ((3,), jnp.float32)}

# "op" or "op variant": its inputs and what else it is called with
CASES = {
    "align_sets": Case(SETS, holds=aligned(False)),
    "align_sets hungarian": Case(
        SETS, dict(solver="hungarian"), holds=aligned(True), sends=REDUCES
    ),
    "build_sops": Case(BUILT, dict(num_members=3), **WHOLE),
    "build_sops self": Case(BUILT, dict(num_members=3, pool="self", chunk=3), **WHOLE),
    "centered_softmax": Case(CENTER, holds=sums_to(-1)),
    "centered_softmax log": Case(CENTER, dict(log=True)),
    "cross_entropy": Case(CROSS),
    "cycle_consistent": Case(CYCLE, ROUND, holds=consistent, **WHOLE),
    "ema_center": Case(MOVED, **WHOLE),
    "entropic_transport": Case(TRANSPORT, dict(num_iters=5), **TRANSPORTED),
    "entropic_transport log": Case(TRANSPORT, dict(num_iters=5, form="log"), holds=transported),
    "entropic_transport scaling": Case(TRANSPORT, dict(num_iters=5, form="scaling"), **TRANSPORTED),
    "entropy": Case(dict(probs=probabilities(8, 5))),
    "entropy of logarithms": Case(dict(log_probs=real(8, 5)), call=negative_entropy),
    "joint_view_clustering": Case(CLUSTERS, dict(num_clusters=3), holds=clustered),
    "joint_view_clustering soft": Case(
        CLUSTERS, dict(num_clusters=3, hard=False), holds=sums_to(-1)
    ),
    "koleo": Case(dict(tokens=real(8, 3), where=mask(8)), scales=UNIT, holds=scattered),
    "linear_warmup": Case(dict(step=integers(20, 8)), dict(start=0.1, end=2.0, warmup=5)),
    "localization": Case(LOCAL, scales=UNIT, holds=sums_to(-1)),
    "mean_shift": Case(SHIFT, holds=shifted),
    "memory_init": Case(dict(filled=key()), dict(spec=ROW, size=8), **WHOLE),
    "memory_push": Case(PUSHED, call=push, narrow=True, **WHOLE),
    "memory_valid": Case(dict(valid=mask(8)), call=valid_rows, **WHOLE),
    "nearest": Case(SEARCH, dict(k=3), scales=UNIT, **SEARCHED),
    "nearest dot": Case(SEARCH, DOT, **SEARCHED),
    "nearest groups": Case(GROUPS, dict(k=3, group_size=5), **SEARCHED),
    "object_tokens": Case(OBJECTS, holds=separated),
    "patchify": Case(dict(images=real(8, 4, 3)), dict(patch=2), narrow=True),
    "sample_anchors": Case(dict(key=key()), dict(size=16, num_anchors=5, num_tasks=3), **WHOLE),
    "sinkhorn_cross_entropy": Case(PREDICT, dict(chunk=3), holds=costs),
    "sinkhorn_cross_entropy by index": Case(PREDICT | dict(index=integers(8, 8)), holds=costs),
    "sinkhorn_knopp": Case(BALANCE, holds=assigned),
    "sinkhorn_potentials": Case(BALANCE, dict(chunk=3)),
    "sinkhorn_potentials_fused": Case(BALANCE_FUSED, dict(chunk=3), **WHOLE),
    "sop_vote": Case(VOTE, holds=voted),
    "sop_weights": Case(dict(similarity=fixed(8, 2))),
    "unpatchify": Case(dict(patches=real(8, 12)), dict(patch=2, grid=(4, 2)), narrow=True),
    "volume_regularizer": Case(dict(mean_probs=probabilities(8, 5))),
    "warmup_cosine": Case(dict(step=integers(20, 8)), dict(base=1, end=0.1, total=18, warmup=5)),
}
names = pytest.mark.parametrize("name", CASES)


def test_every_op_has_a_case():
    functions = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
    assert functions == {name.split()[0] for name in CASES}


def draw(name, seed, how=None):
    rng, how = np.random.default_rng(seed), how or How()
    return {n: x.draw(rng, x.shape, how) for n, x in CASES[name].inputs.items()}


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def evaluate(name, inputs, lead=0, by=None):
    """The op's outputs, and the gradient of their weighted sum by all float inputs, or those `by`.

    Problems along leading axes have the same weights.
    """
    case = CASES[name]
    op = case.call or getattr(ops, name.split()[0])

    def total(floats):
        out = op(**inputs | floats, **case.static)
        floats = [x.astype(jnp.float32) for x in jax.tree.leaves(out) if is_float(x)]
        weights = [np.cos(np.arange(x[(0,) * lead].size)).reshape(x.shape[lead:]) for x in floats]
        weights = [w[(None,) * lead] for w in weights]
        sums = [jnp.sum(jnp.where(jnp.isfinite(x), x, 0) * w) for x, w in zip(floats, weights)]
        return sum(sums, jnp.float32(0)), out

    floats = {n: x for n, x in inputs.items() if is_float(x) and (by is None or n in by)}
    (_, out), gradients = jax.value_and_grad(total, has_aux=True)(floats)
    return out, gradients


@functools.cache
def program(name):
    return jax.jit(functools.partial(evaluate, name))


TYPES = [jnp.float32, jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", TYPES)
@names
def test_finite_for_every_input(name, dtype):
    case = CASES[name]
    masks = ("some", "all", "none") if {"where", "a", "valid"} & set(case.inputs) else ("some",)
    kinds = ("random", "duplicates", "opposite", "ties")
    scales = [x for x in case.scales if 1e-8 < x < 1e5 or x == 0 or dtype != jnp.float16]
    for seed, (scale, kind, mask) in enumerate(itertools.product(scales, kinds, masks)):
        inputs = draw(name, seed, How(dtype, scale, kind, mask))
        out, gradients = jax.device_get(program(name)(inputs))
        floats = [x for x in jax.tree.leaves(out) if is_float(x)]
        assert all(x.dtype == (dtype if case.narrow else np.float32) for x in floats)
        if case.infinite:
            assert not any(np.isnan(x).any() or np.isposinf(x).any() for x in floats)
        else:
            assert_finite(floats)
        # Gradients scale with 1 / |x| or 1 / T: float16 need not hold them.
        if dtype != jnp.float16 or (scale, kind) == (1, "random") or name == "koleo":
            assert_finite(gradients)
        assert all(gradients[n].dtype == inputs[n].dtype for n in gradients)
        if case.holds:
            case.holds(inputs, out)
        # Computed in float32.
        if dtype != jnp.float32 and not case.narrow and (scale, kind) == (1, "random"):
            wide = {n: np.float32(x) if is_float(x) else x for n, x in inputs.items()}
            same(out, program(name)(wide)[0])


@names
def test_gradients_reach_all_but_the_constants(name):
    gradients = [program(name)(draw(name, seed, How(mask="all")))[1] for seed in range(4)]
    for n in gradients[0]:
        assert CASES[name].inputs[n].constant != any(np.any(x[n]) for x in gradients), n


def same(got, want):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not is_float(y):
            np.testing.assert_array_equal(x, y)
            continue
        x, y = np.asarray(x), np.asarray(y)
        there = np.isfinite(y)
        np.testing.assert_array_equal(np.isfinite(x), there)
        close(np.where(there, x, 0), np.where(there, y, 0))


@functools.cache
def problems(name):
    """Eight of them, with the same shared inputs: stacked inputs, and what the op gives for each by
    itself, stacked.
    """
    case = CASES[name]
    shared = {n for n, x in case.inputs.items() if x.shared and (case.leading or x.shape == ())}
    first, *others = (draw(name, seed) for seed in range(8))
    each = [first, *(x | {n: first[n] for n in shared} for x in others)]
    want = jax.tree.map(lambda *x: np.stack(x), *map(jax.device_get, map(program(name), each)))
    batch = {n: first[n] if n in shared else stack([x[n] for x in each]) for n in first}
    return batch, shared, want


def stack(arrays):
    return (jnp if isinstance(arrays[0], jax.Array) else np).stack(arrays)


@pytest.mark.slow
@names
def test_vmap_gives_the_same(name):
    same(mapped(name)(problems(name)[0]), problems(name)[2])


def mapped(name):
    batch, shared, _ = problems(name)
    axes = {n: None if n in shared else 0 for n in batch}
    return jax.jit(jax.vmap(program(name), in_axes=(axes,)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nearest", "nearest groups", "cycle_consistent"])
def test_vmap_over_an_axis_that_is_cut_along_explicit_ones(name):
    """Of ops that share out their work, which is shared out then."""
    (batch, shared, want), explicit = problems(name), jax.make_mesh((8,), ("data",))
    specs = {n: jax.P() if n in shared else jax.P("data") for n in batch}
    batch = {n: jax.device_put(x, jax.NamedSharding(explicit, specs[n])) for n, x in batch.items()}
    with jax.set_mesh(explicit):
        same(mapped(name)(batch), want)


@functools.cache
def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def cut(array, condition):
    """On eight devices, cut along its first axis."""
    spec = jax.P("data") if condition else jax.P()
    return jax.device_put(array, jax.NamedSharding(mesh(), spec))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.leading])
def test_leading_axes_give_the_same_and_their_devices_send_nothing(name):
    """Two of them, [8, 1]: an axis counted from the left would be another one."""
    case, (batch, shared, (out, gradients)) = CASES[name], problems(name)
    by = set(gradients) - shared
    spread = {n: cut(x if n in shared else x[:, None], n not in shared) for n, x in batch.items()}
    compiled = jax.jit(functools.partial(evaluate, name, lead=2, by=by)).lower(spread).compile()
    text = compiled.as_text()
    assert not [word for word in COLLECTIVES if f" {word}" in text and word not in case.sends]
    got = jax.tree.map(lambda x: x.squeeze(1), compiled(spread))
    same(got, (out, {n: gradients[n] for n in by}))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.leading])
def test_explicit_axes_and_shard_map(name):
    """What JAX's default mesh and its checks of types ask for: results are cut as the problems."""
    case, explicit = CASES[name], jax.make_mesh((8,), ("data",))
    op = case.call or getattr(ops, name.split()[0])
    own = {n for n, x in case.inputs.items() if not x.shared}
    each = [draw(name, seed) for seed in range(8)]
    specs = {n: jax.P("data") if n in own else jax.P() for n in each[0]}
    batch = {n: stack([x[n] for x in each]) if n in own else x for n, x in each[0].items()}
    batch = {n: jax.device_put(x, jax.NamedSharding(explicit, specs[n])) for n, x in batch.items()}

    def both(inputs):
        def total(floats):
            out = op(**inputs | floats, **case.static)
            floats = [x for x in jax.tree.leaves(out) if is_float(x)]
            return sum([jnp.where(jnp.isfinite(x), x, 0).sum() for x in floats], 0.0), out

        floats = {n: x for n, x in inputs.items() if is_float(x) and n in own}
        return jax.value_and_grad(total, has_aux=True)(floats)

    def alone(inputs):
        return jax.tree.map(
            lambda x: x[None], both({n: x[0] if n in own else x for n, x in inputs.items()})
        )

    with jax.set_mesh(explicit):
        (_, out), _ = jax.eval_shape(both, batch)
        assert all(x.sharding.spec[0] == "data" for x in jax.tree.leaves(out))
        jax.jit(jax.shard_map(alone, in_specs=(specs,), out_specs=jax.P("data"))).trace(batch)


@pytest.mark.slow
@names
def test_eight_devices_give_the_same(name):
    """With every array cut along its first axis that they divide."""
    inputs = draw(name, 0)
    spread = {n: cut(x, x.shape and x.shape[0] % 8 == 0) for n, x in inputs.items()}
    with jax.set_mesh(mesh()):
        got = program(name)(spread)
    same(got, program(name)(inputs))


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def total(op):
    """A sum of what it gives, with its gradient by the first argument."""
    return jax.value_and_grad(lambda *x: jax.tree.leaves(op(*x))[0].sum())


def option(name, **options):
    return functools.partial(getattr(ops, name), **options)


def fused(logits, scores, potentials):
    return ops.sinkhorn_cross_entropy(
        scores, logits, potentials=potentials, target_temperature=0.06, temperature=0.12
    )


def cluster(tokens, places, seeds):
    return ops.joint_view_clustering(tokens, places, seeds=seeds, num_clusters=32)


# The papers' sizes, and the most numbers of 32 bits that an array of the program may have. Inputs
# that are larger are of 16 bits: nothing may convert them as a whole.
SCORES, POTENTIALS = shape(32768, 16384, dtype=jnp.bfloat16), shape(16384)
MEMORY = shape(256, 256), shape(800_000, 256, dtype=jnp.float16)
PAIR = shape(4096, 64), shape(65536, 64)
OWN = shape(32768, 16), shape(32768, 16)
MEMBERS = shape(64, 16), shape(4096, 9, 16), shape(4096, 9)
IMAGES = shape(4, 392, 384), shape(4, 392, 2), shape(4, 32, dtype=jnp.int32)
PLACES = shape(4, 392, 392), shape(4, 392, dtype=jnp.int32)
TOKENS = shape(64, 16, 384), shape(64, 16, 384)
by_cluster = functools.partial(clustering._nearest_by_cluster, num_clusters=32)
plan = functools.partial(option, "entropic_transport", epsilon=0.1, num_iters=100)
potentials = option("sinkhorn_potentials", temperature=0.06)
PRODUCT = shape(32768, 64, dtype=jnp.bfloat16), shape(64, 16384)
HELD = {
    "sinkhorn_potentials_fused": (
        option("sinkhorn_potentials_fused", temperature=0.06),
        PRODUCT,
        32768 * 16384 // 20,
    ),
    "sinkhorn_potentials": (potentials, (SCORES,), 32768 * 16384 // 20),
    "sinkhorn_cross_entropy": (total(fused), (SCORES, SCORES, POTENTIALS), 32768 * 16384 // 20),
    # The logits of all members would be 4 times as many, Y 256 times.
    "sop_vote": (total(option("sop_vote", temperature=0.1)), MEMBERS, 4096 * 9 * 16),
    "nearest": (ops.nearest, MEMORY, 256 * 800_000 // 20),
    "nearest dot": (option("nearest", k=8, metric="dot"), PAIR, 4096 * 65536 // 10),
    "nearest gradient": (total(option("nearest", k=2)), PAIR, 4096 * 65536 // 10),
    "nearest groups": (option("nearest", group_size=4096), OWN, 32768 * 4096 // 5),
    "joint_view_clustering": (cluster, IMAGES, 4 * 392 * 392),
    "joint_view_clustering on accelerators": (by_cluster, PLACES, 4 * 392 * 392),
    # One number per column and iteration.
    "entropic_transport": (total(plan(form="log")), (shape(256, 16, 16),), 256 * 16 * 100),
    "entropic_transport scaling": (
        total(plan(form="scaling")),
        (shape(256, 16, 16),),
        256 * 16 * 100,
    ),
    "koleo": (total(ops.koleo), (shape(4, 196, 384),), 4 * 196 * 384),
    "align_sets": (ops.align_sets, TOKENS, 64 * 16 * 384),
}


@pytest.mark.parametrize("name", HELD)
def test_never_holds_more(name):
    function, shapes, most = HELD[name]
    text = jax.jit(function).lower(*shapes).compile().as_text()
    found = re.findall(r"\b(?:f32|s32|u32|pred)\[([\d,]+)\]", text)
    sizes = {dims: np.prod([int(n) for n in dims.split(",")]) for dims in found}
    assert {dims: size for dims, size in sizes.items() if size > most} == {}


NAN, INF = float("nan"), float("inf")


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def masked(*shape):
    return np.ones(shape, bool)


NO_TEMPERATURE = [0, -0.1, NAN, INF, jnp.float32(0), ones(1)]
SCORES_REFUSED = dict(scores=[ones(3), ones(0, 5)], where=[masked(5)], num_iters=[0, 3.0, None])
SCORES_REFUSED |= dict(temperature=NO_TEMPERATURE)
SEEDS = [0, 0, 1], [0, 1, 8], [0, 1, -1], [0, 1], [0.0, 1.0, 2.0]
# op -> argument -> what it refuses in place of its case's
REFUSED = {
    "align_sets": dict(
        source=[ones(3), ones(0, 3)], target=[ones(8, 5)], epsilon=[-1], num_iters=[0], solver=["x"]
    ),
    "build_sops": dict(num_members=[10, 0], pool=["all"], chunk=[0])  # anchors are left out
    | dict(anchors=[np.array([3, 16]), np.array([-1, 3]), ones(4, 2)]),
    "centered_softmax": dict(center=[ones(4)], temperature=NO_TEMPERATURE),
    "cross_entropy": dict(
        logits=[ones(8, 4), ones(4, 5)], target_probs=[ones()], temperature=NO_TEMPERATURE
    ),
    "cycle_consistent": dict(second=[ones(4, 3)], where=[masked(9)], bank_where=[masked(8)])
    | dict(first_bank=[ones(9, 4)], second_bank=[ones(6, 3)])
    | dict(inverse_norms=[ones(8)], group_size=[0]),
    "ema_center": dict(logits=[ones(8, 4), ones(0, 5)], momentum=[-0.1, 1.5]),
    "entropic_transport": dict(cost=[ones(3), ones(3, 0)], b=[ones(8) / 8, ones(4)])
    | dict(a=[ones(4) / 4, np.float32([2, -1, 0, 0, 0, 0, 0, 0]), ones(8) / 16])
    | dict(epsilon=NO_TEMPERATURE, num_iters=[0], form=["exp"]),
    "entropy": dict(probs=[None, ones()], log_probs=[ones(8, 5)]),
    "joint_view_clustering": dict(tokens=[ones(3)], positions=[ones(7, 2), ones(8, 0)])
    | dict(num_clusters=[0, 9], num_iters=[0], sinkhorn_iters=[-1], normalize=["device"])
    | dict(seeds=[*map(np.array, SEEDS), jax.random.split(jax.random.key(0), 3)])
    | dict(temperature=NO_TEMPERATURE, position_weight=[-1.0]),
    "koleo": dict(tokens=[ones(3), ones(0, 3)], where=[masked(4), masked(2, 8)]),
    "localization": dict(
        dense=[ones(3)], sparse=[ones(4, 2), ones(0, 3)], temperature=NO_TEMPERATURE
    ),
    "mean_shift": dict(queries=[ones(3)], keys=[ones(6, 2), ones(0, 3)])
    | dict(where=[masked(4), masked(2, 6)], inverse_temperature=[-0.1, NAN, INF, ones(1)]),
    "memory_init": dict(
        size=[0], spec=[{}, {"spec": ((), jnp.float32)}, {"spec": ((3,), jnp.int32)}]
    ),
    "nearest": dict(k=[0, 17, 3.0], bank=[ones(16, 4)], where=[masked(4)], inverse_norms=[ones(4)])
    | dict(method=["fast"], metric=["l2"], chunk=[0], bank_chunk=[2], group_size=[0])
    | dict(recall_target=[0, 1.5]),
    "object_tokens": dict(tokens=[ones(8)], assignments=[ones(4, 3)]),
    "patchify": dict(images=[ones(6, 5, 3), ones(5, 6, 3), ones(6, 6)], patch=[0, 2.0]),
    "sample_anchors": dict(
        size=[4, 16.0], strategy=["fixed"], num_anchors=[0], num_tasks=[0], key=[np.uint32(0)]
    ),
    "sinkhorn_cross_entropy": dict(logits=[ones(4, 5), ones(8, 2)], potentials=[ones(8)])
    | dict(index=[np.zeros(4, int), np.zeros(8), np.arange(8) + 1, np.arange(8) - 1])
    | dict(where=[masked(5)], chunk=[0], num_iters=[0])
    | dict(target_temperature=[-1], temperature=NO_TEMPERATURE),
    "sinkhorn_knopp": SCORES_REFUSED | dict(temperature=["0.1"]),
    "sinkhorn_potentials": SCORES_REFUSED | dict(chunk=[0]),
    "sinkhorn_potentials_fused": dict(embeddings=[ones(3)], prototypes=[ones(4, 5)])
    | dict(where=[masked(5)], chunk=[0], num_iters=[0], temperature=NO_TEMPERATURE),
    "sop_vote": dict(
        members=[ones(4, 3), ones(4, 2, 4)], weights=[ones(2, 4)], temperature=NO_TEMPERATURE
    ),
    "sop_weights": dict(rule=["soft"], smoothing=[1.0, -0.1], similarity=[ones(3)]),
    "unpatchify": dict(patches=[ones(5, 12), ones(8, 13)], patch=[0])
    | dict(grid=[(-4, -2), (8,), (4.0, 2.0)]),
    "volume_regularizer": dict(
        mean_probs=[ones(), ones(0)], prior=[ones(2) / 2, np.array([0.5, 0.5, 0.0, 0, 0]), ones(5)]
    ),
    "warmup_cosine": dict(total=[-3, NAN], warmup=[19, -1]),
}
# Several arguments that do not fit; the error names the first
MISFITS = [
    ("align_sets", dict(target=ones(3, 4, 3), source=ones(2, 4, 3))),
    ("align_sets", dict(source=ones(4, 3), target=ones(3, 3), solver="hungarian")),
    ("build_sops", dict(num_members=17, pool="self")),
    ("cycle_consistent", dict(first=ones(3), second=ones(3), where=None)),
    ("localization", dict(sparse=ones(3, 4, 3), dense=ones(2, 8, 3))),
    ("mean_shift", dict(keys=ones(3, 6, 3), queries=ones(2, 8, 3), where=None)),
    ("nearest", dict(k=3, queries=ones(16, 3), group_size=2)),
    ("nearest", dict(queries=ones(8, 3), group_size=4)),
    ("nearest", dict(inverse_norms=ones(16), metric="dot")),
    ("object_tokens", dict(tokens=ones(5, 3), assignments=ones(5, 3))),
    ("sample_anchors", dict(size=14, strategy="partition")),
]


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name):
    good = draw(name, 0) | CASES[name].static
    single = [{argument: x} for argument, values in REFUSED[name].items() for x in values]
    for change in single + [change for op, change in MISFITS if op == name]:
        try:
            getattr(ops, name)(**good | change)
        except ValueError as error:
            assert re.search(rf"\b{next(iter(change))}\b", str(error)), (change, error)
        else:
            pytest.fail(f"{change} passed")
