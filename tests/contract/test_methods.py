"""What every method must keep, whatever it computes: a tenth method gets these tests free."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import trees
from ssl_jax.models import lora
from ssl_jax.train import step
from ssl_jax.views import recipe
from tests import tiny
from tests.contract import steps

methods = pytest.mark.parametrize("case", steps.cases(), indirect=True)
# What else lies cut among devices (a memory, a Gram teacher), masks, and adapters.
_ALSO = ("cribo_cut", "cribo_masks", "dinov2_gram", "dinov2_lora")
on_devices = pytest.mark.parametrize("case", steps.cases([*steps.NAMES, *_ALSO]), indirect=True)


@on_devices
def test_one_trace_and_no_hidden_transfer(case):
    state, batches = case.start(), [case.put(batch) for batch in case.batches[:4]]
    with jax.transfer_guard("disallow"):
        for batch in batches:
            state, _ = case.step(state, batch)
    assert int(state.step) == 4
    assert len(case.traces) == 1


@on_devices
def test_every_product_of_float32_states_its_precision(case):
    """GPUs and TPUs would keep fewer bits, see `ops.numerics.precision_of`."""
    program = case.step.trace(case.fresh, case.put(case.batches[0])).jaxpr
    products = [one for one in equations(program.jaxpr) if one.primitive.name == "dot_general"]
    of_float32 = [one for one in products if {x.aval.dtype.name for x in one.invars} == {"float32"}]
    assert of_float32
    assert not [str(one) for one in of_float32 if one.params["precision"] is None]


def equations(jaxpr):
    """Those of a program and of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


@pytest.mark.parametrize("case", steps.cases(["dino"]), indirect=True)
def test_a_method_has_one_process_for_its_tests(case, request):
    """Otherwise each process compiles the steps anew, and nothing else tells of it."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("not run with --dist loadgroup")
    assert request.node.nodeid.endswith(f"@{case.name}")


@methods
def test_meanings_are_of_metrics_and_every_entropy_has_its_limit(case):
    metrics, meanings = case.one[0][0], case.run.method.meanings
    assert set(meanings) <= set(metrics)
    assert {m.rises_with for m in meanings.values()} - {""} <= set(metrics)
    limited = {n for n in metrics if n.endswith(("teacher_entropy", "marginal_entropy"))}
    assert limited == {n for n, meaning in meanings.items() if meaning.classes > 1}


def check_eight(case, data, fsdp):
    rows, state = case.one
    _, rows_eight, state_eight, _ = case.eight_on(data, fsdp)
    loss, loss_eight = ([row["loss"] for row in each] for each in (rows, rows_eight))
    # Gradients of 1e4 (of KoLeo, clipped) amplify rounding: up to 7e-6 on one processor.
    np.testing.assert_allclose(loss_eight, loss, rtol=2e-5 if case.name == "dinov2_gram" else 5e-6)
    for a, b in zip(*map(jax.tree.leaves, (state.carry, state_eight.carry)), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=2e-3)
    assert is_cut(state_eight.params) == is_cut(state_eight.opt_state) == (fsdp > 1)
    if case.name == "cribo_cut":
        assert is_cut(state_eight.carry)
    if case.name == "dinov2_gram":
        assert is_cut(state_eight.constants) == (fsdp > 1)
        assert not tiny.identical(case.fresh.constants, state.constants)


def is_cut(tree):
    """Whether devices hold different parts of some array."""
    return not all(x.sharding.is_fully_replicated for x in jax.tree.leaves(tree))


@on_devices
def test_eight_devices_give_the_losses_of_one(case):
    check_eight(case, *case.mesh)


@pytest.mark.nightly
@pytest.mark.parametrize("case", steps.cases([*steps.NAMES, *tiny.VARIANTS]), indirect=True)
@pytest.mark.parametrize("turn", [1, 2])
def test_other_meshes_give_the_losses_of_one(case, turn):
    mesh = steps.MESHES[(steps.MESHES.index(case.mesh) + turn) % 3]
    check_eight(case, *mesh)
    assert tiny.identical(case.fresh, case.eight_on(*mesh)[0])


@methods
def test_initial_bits_do_not_depend_on_the_mesh(case):
    assert tiny.identical(case.fresh, case.eight[0])


@methods
def test_chunked_encoding_gives_the_same_gradient(case):
    _, metrics = case.first
    batch = case.put(case.batches[0])
    (loss, _), gradient = case.chunked(case.fresh, batch, np.float32(1))
    np.testing.assert_allclose(loss, metrics["loss"], rtol=1e-6)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient))
    chex.assert_trees_all_close(gradient, metrics["gradient"], rtol=1e-7, atol=2e-6 * scale)


@methods
def test_teacher_is_the_ema_of_the_student_and_an_own_copy(case):
    before, (after, _) = case.fresh, case.first
    teacher_of, m = case.run.method.teacher_of, case.run.config.teacher.momentum
    assert tiny.identical(before.teacher, teacher_of(before.params))
    want = jax.tree.map(
        lambda old, student: m * np.asarray(old) + (1 - m) * np.asarray(student),
        before.teacher,
        teacher_of(after.params),
    )
    chex.assert_trees_all_close(after.teacher, want, rtol=1e-5, atol=1e-7)


@methods
def test_a_nan_batch_leaves_the_weights_alone_and_is_counted(case):
    good = case.batches[0]
    bad = good | {"source": np.array(good["source"])}
    bad["source"][1, 3, 3, 0] = np.nan
    before = case.fresh
    state, metrics = case.step(case.start(), case.put(bad))
    assert not metrics["finite"] and state.counters["nonfinite"] == state.step == 1
    for field in ("params", "teacher", "opt_state", "carry"):
        assert tiny.identical(getattr(before, field), getattr(state, field)), field
    state, metrics = case.step(state, case.put(good))
    assert metrics["finite"] and state.counters["nonfinite"] == 1


@methods
def test_state_changes_only_by_state_and_batch(case):
    """The step is a function: same state, same batch, same bits; another batch, other bits."""
    first, second = map(case.put, case.batches[:2])
    a, metrics_a = case.first
    b, metrics_b = case.step(case.start(), first)
    _, metrics_c = case.step(case.start(), second)
    assert tiny.identical(a, b) and tiny.identical(metrics_a, metrics_b)
    assert not tiny.identical(metrics_a, metrics_c)


@methods
def test_features_take_teacher_or_student_weights(case):
    state, model, grid = case.fresh, case.run.config.model, 16 // case.run.config.model.patch
    images = np.linspace(0, 1, 2 * 16 * 16 * 3, dtype=np.float32).reshape(2, 16, 16, 3)
    features = jax.jit(lambda w: case.run.method.features(w, images, attention=True))
    for weights in (state.params, *((state.teacher,) if state.teacher is not None else ())):
        out = features(weights)
        chex.assert_shape(out.image, (2, model.width))
        chex.assert_shape(out.patches, (2, grid, grid, model.width))
        chex.assert_tree_all_finite((out.image, out.patches))
        np.testing.assert_allclose(out.attention.sum(-1), 1, rtol=1e-5)


def check_finite(case, compute):
    """Constant images, and values 1e-4 and 1e4 times what a network expects."""
    at = jax.device_put(np.int32(5), case.fresh.step.sharding)
    state, batch = case.fresh._replace(step=at), case.put(case.batches[0])
    for scale in (0.0, 1e-4, 1.0, 1e4):
        result = compute(state, batch, np.float32(scale))
        chex.assert_tree_all_finite(jax.tree.map(lambda x: np.asarray(x, np.float32), result))


@methods
def test_loss_and_gradient_are_finite_whatever_comes_in(case):
    check_finite(case, case.chunked)


@pytest.mark.parametrize("case", steps.cases(mark=pytest.mark.nightly), indirect=True)
def test_loss_and_gradient_are_finite_in_bfloat16(case):
    check_finite(case, case.half)


@on_devices
def test_what_devices_send_each_other(case):
    """Weights that are cut, the gradient once, and of all that the networks say of the images at
    most once as much: no images, no memory."""
    fresh, _, _, program = case.eight
    run, (data, fsdp) = case.run, case.mesh
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    views = recipe.abstract_views(run.method.views, 8)
    inputs = fresh.params, fresh.teacher, fresh.constants, views, keys
    encode = functools.partial(run.method.encode, progress=step.progress_at(0, run.config))
    features = size(jax.eval_shape(encode, *inputs))
    held = fresh.params, fresh.teacher, fresh.constants
    cut, cut_teacher, cut_constants = (size(x, cut=True) for x in held)
    trained = trees.split(fresh.params, lora.FROZEN)[1] if run.config.model.lora else fresh.params
    summed_cut = size(trained, cut=True)
    # What a device has of it afterwards is what counts; cut parts are summed over "data" as well.
    gradient = size(trained) - summed_cut + summed_cut / fsdp * (1 + (fsdp > 1 and data > 1))
    gathered = program.volume("all-gather")
    summed = program.volume("reduce-scatter") + program.volume("all-reduce")
    assert gathered <= 1.01 * (cut + cut_teacher + cut_constants) + features
    assert 0.99 * gradient <= summed <= 1.01 * gradient + features
    # Images that are mixed with others (finetune), rows that go where a cut memory holds them.
    assert program.volume() - gathered - summed <= size(views) / 8


@on_devices
def test_eight_devices_share_the_products(case):
    """What each of them computes alone, as where weights are cut, is little beside its share."""
    fresh, _, _, program = case.eight
    c = case.run.config
    fair = step.flops_per_image(c, fresh) * c.optim.batch_size / 8
    assert fair < sum(program.flops.values()) < 1.5 * fair


def size(tree, cut=False):
    """Bytes of all arrays, or of those of which devices hold different parts."""
    leaves = [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(
        x.size * x.dtype.itemsize for x in leaves if not cut or not x.sharding.is_fully_replicated
    )
