"""What every method must keep, whatever it computes: a tenth method gets these tests free."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.methods import METHODS
from ssl_jax.train import loop, sharding, step
from ssl_jax.views import recipe
from tests import tiny

NAMES = sorted(METHODS)
# Compiling takes nearly all of the time: in the quick run two methods stand for all where a test
# compiles several programs.
MOST = [
    name if name in ("dino", "sop") else pytest.param(name, marks=pytest.mark.slow)
    for name in NAMES
]


@pytest.fixture(autouse=True, scope="module")
def small_arrays_are_cut():
    """With mesh.fsdp; the tiny networks have no others."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sharding, "_MIN_SIZE", 64)
        yield


@functools.cache
def run_of(name, *, float_source=False, **changes):
    return api.prepare(tiny.config(name, **changes), tiny.float_source() if float_source else None)


@functools.cache
def batches_of(name, count):
    return tiny.batches(run_of(name), count)


@functools.cache
def jitted(name, **changes):
    run = run_of(name, **changes)
    traces, train_step = [], step.make_step(run.method, run.optimizer, run.config)

    @functools.wraps(
        train_step
        # under its name the program is the one that test_resume.py compiles: the cache on disk has
        # it
    )
    def counted(state, batch):
        traces.append(1)
        return train_step(state, batch)

    shardings = jax.tree.map(lambda x: x.sharding, run.abstract)
    return run, step.compile_step(counted, run.mesh, shardings), traces


def follow(name, count, **changes):
    """Losses and last state of `count` steps."""
    run, train_step, _ = jitted(name, **changes)
    state, losses = loop.fresh_state(run), []
    for batch in batches_of(name, count):
        state, metrics = train_step(state, sharding.put_batch(batch, run.mesh))
        losses.append(float(metrics["loss"]))
    return np.array(losses), state


@pytest.mark.parametrize("name", NAMES)
def test_one_trace_and_no_hidden_transfer(name):
    run, train_step, traces = jitted(name)
    state = loop.fresh_state(run)
    batches = [sharding.put_batch(b, run.mesh) for b in batches_of(name, 4)]
    with jax.transfer_guard("disallow"):
        for batch in batches:
            state, _ = train_step(state, batch)
    assert int(state.step) == 4
    assert len(traces) == 1


@pytest.mark.parametrize("name", MOST)
def test_meanings_are_of_metrics_and_every_entropy_has_its_limit(name):
    run = run_of(name)
    batch = batches_of(name, 1)[0]
    _, metrics = jax.eval_shape(
        step.make_step(run.method, run.optimizer, run.config), run.abstract, batch
    )
    meanings = run.method.meanings
    assert set(meanings) <= set(metrics)
    assert {m.rises_with for m in meanings.values()} - {""} <= set(metrics)
    limited = {n for n in metrics if n.endswith(("teacher_entropy", "marginal_entropy"))}
    assert limited == {n for n, meaning in meanings.items() if meaning.classes > 1}


MESHES = [
    pytest.param(name, 8, 1, marks=() if name in ("dino", "sop") else pytest.mark.slow)
    for name in (*NAMES, *tiny.VARIANTS)
] + [
    pytest.param(name, *mesh, marks=() if (name, mesh) == ("sop", (2, 4)) else pytest.mark.slow)
    for name in (*NAMES, "cribo_cut")
    for mesh in ((1, 8), (2, 4))
]


@pytest.mark.parametrize("name, data, fsdp", MESHES)
def test_eight_devices_give_the_losses_of_one(name, data, fsdp):
    one, state_one = follow(name, 10)
    eight, state_eight = follow(name, 10, mesh_data=data, mesh_fsdp=fsdp)
    np.testing.assert_allclose(eight, one, rtol=5e-6)
    for a, b in zip(
        jax.tree.leaves(state_one.carry), jax.tree.leaves(state_eight.carry), strict=True
    ):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=2e-3)
    assert cut(state_eight.params) == cut(state_eight.opt_state) == (fsdp > 1)
    if name == "cribo_cut":
        assert cut(state_eight.carry)


def cut(tree):
    """Whether devices hold different parts of some array."""
    return not all(x.sharding.is_fully_replicated for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", MOST)
def test_initial_bits_do_not_depend_on_the_mesh(name):
    one = loop.fresh_state(run_of(name))
    eight = loop.fresh_state(run_of(name, mesh_data=2, mesh_fsdp=4))
    assert tiny.identical(one, eight)


@pytest.mark.parametrize("name", MOST)
def test_chunked_encoding_gives_the_same_gradient(name):
    run = run_of(name)
    state = loop.fresh_state(run)
    batch = batches_of(name, 1)[0]
    views = recipe.prepare(run.method.views, batch, 0)
    keys = jax.random.split(jax.random.key(3), batch["index"].shape[0])
    progress = step.progress_at(jnp.int32(1), run.config)

    def gradient(chunks):
        def loss(params):
            def encode(v, k):
                return run.method.encode(params, state.teacher, state.constants, v, k, progress)

            outputs = step.in_chunks(encode, chunks)(views, keys)
            return run.method.objective(
                params, state.teacher, outputs, state.carry, jax.random.key(4), progress
            )[0]

        return jax.jit(jax.value_and_grad(loss))(state.params)

    whole, pieces = gradient(1), gradient(4)
    np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-6)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(whole[1]))
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(pieces[1]), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-6 * scale)


@pytest.mark.parametrize("name", NAMES)
def test_teacher_is_the_ema_of_the_student_and_an_own_copy(name):
    run, train_step, _ = jitted(name)
    before = loop.fresh_state(run)
    kept = jax.tree.map(np.array, (before.teacher, run.method.teacher_of(before.params)))
    assert tiny.identical(*kept)
    after, _ = train_step(before, sharding.put_batch(batches_of(name, 1)[0], run.mesh))
    m = run.config.teacher.momentum
    for old, student, new in zip(
        jax.tree.leaves(kept[0]),
        jax.tree.leaves(run.method.teacher_of(after.params)),
        jax.tree.leaves(after.teacher),
        strict=True,
    ):
        np.testing.assert_allclose(
            np.asarray(new), m * old + (1 - m) * np.asarray(student), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("name", MOST)
def test_a_nan_batch_leaves_the_weights_alone_and_is_counted(name):
    run, train_step, _ = jitted(name, float_source=True)
    state = loop.fresh_state(run)
    kept = jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))
    batch = dict(tiny.batches(run, 1)[0])
    batch["source"] = np.array(batch["source"])
    batch["source"][1, 3, 3, 0] = np.nan
    state, metrics = train_step(state, sharding.put_batch(batch, run.mesh))
    assert (
        not bool(metrics["finite"])
        and int(state.counters["nonfinite"]) == 1
        and int(state.step) == 1
    )
    for field in ("params", "teacher", "opt_state", "carry"):
        assert tiny.identical(getattr(kept, field), getattr(state, field)), field
    state, metrics = train_step(state, sharding.put_batch(tiny.batches(run, 1)[0], run.mesh))
    assert bool(metrics["finite"]) and int(state.counters["nonfinite"]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_state_changes_only_by_state_and_batch(name):
    """The step is a function: same state, same batch, same bits; another batch, other bits."""
    run, train_step, _ = jitted(name)
    first, second = (sharding.put_batch(b, run.mesh) for b in batches_of(name, 2))
    a, metrics_a = train_step(loop.fresh_state(run), first)
    b, metrics_b = train_step(loop.fresh_state(run), first)
    c, metrics_c = train_step(loop.fresh_state(run), second)
    assert tiny.identical(a, b) and tiny.identical(metrics_a, metrics_b)
    assert not tiny.identical(metrics_a, metrics_c)


@pytest.mark.parametrize("name", NAMES)
def test_features_take_teacher_or_student_weights(name):
    run = run_of(name)
    state = loop.fresh_state(run)
    images = jnp.linspace(0, 1, 2 * 16 * 16 * 3).reshape(2, 16, 16, 3)
    for weights in (state.params, *((state.teacher,) if state.teacher is not None else ())):
        out = run.method.features(weights, images, attention=True)
        grid = 16 // run.config.model.patch
        assert out.image.shape == (2, run.config.model.width) and out.patches.shape == (
            2,
            grid,
            grid,
            run.config.model.width,
        )
        assert np.isfinite(out.image).all() and np.isfinite(out.patches).all()
        np.testing.assert_allclose(out.attention.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MOST)
def test_loss_and_gradient_are_finite_whatever_comes_in(name, dtype):
    """Constant images, and values 1e-4 and 1e4 times what a network expects."""
    run = run_of(name, model__dtype=dtype)
    state, batch = loop.fresh_state(run), batches_of(name, 1)[0]
    views = recipe.prepare(run.method.views, batch, 0)
    keys = jax.random.split(jax.random.key(3), batch["index"].shape[0])
    progress = step.progress_at(jnp.int32(5), run.config)

    @jax.jit
    def gradient(scale):
        scaled = {
            k: v._replace(images=v.images * scale) if isinstance(v, recipe.Group) else v
            for k, v in views.items()
        }

        def loss(params):
            outputs = run.method.encode(
                params, state.teacher, state.constants, scaled, keys, progress
            )
            return run.method.objective(
                params, state.teacher, outputs, state.carry, jax.random.key(4), progress
            )

        return jax.value_and_grad(loss, has_aux=True)(state.params)

    for scale in (0.0, 1e-4, 1.0, 1e4):
        results = {
            jax.tree_util.keystr(path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(scale))
        }
        assert [
            path
            for path, leaf in results.items()
            if not np.isfinite(np.asarray(leaf, np.float32)).all()
        ] == [], scale
