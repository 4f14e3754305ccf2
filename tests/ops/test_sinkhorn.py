"""Sinkhorn-Knopp, its potentials and the fused cross-entropy against the iteration in float64."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.ops import devices, sinkhorn
from tests.losses import reference
from tests.losses.reference import close


def iterate(scores, temperature, num_iters=3):
    """STELLAR eq. 4: columns, then rows, divided by their sums; logarithms only
    against overflow.
    """
    log_q = np.asarray(scores, np.float64) / temperature
    for _ in range(num_iters):
        log_q = log_q - reference.log_sum_exp(log_q, -2)[..., None, :]
        log_q = log_q - reference.log_sum_exp(log_q, -1)[..., :, None]
    return np.exp(log_q)


def official(scores, temperature, num_iters=3):
    """The same as the released code has it: shifted by the column's maximum, plus 50, and
    with the 1e-8.
    """
    scaled = np.asarray(scores, np.float64) / temperature
    q = np.exp(scaled - scaled.max(axis=0) + 50)
    for _ in range(num_iters):
        q = q / (q.sum(axis=0) + 1e-8)
        q = q / (q.sum(axis=1, keepdims=True) + 1e-8)
    return q


def expected(targets, logits, temperature=0.12):
    """Loss, and its gradient by the logits."""
    log_p = reference.log_softmax(np.asarray(logits, np.float64) / temperature)
    mass = targets.sum(axis=-1, keepdims=True)
    return -(targets * log_p).sum(axis=-1), (mass * np.exp(log_p) - targets) / temperature


def unit_scores(rng, *shape, width=16):
    """Cosines of unit features and prototypes."""
    features = reference.unit(rng, *shape[:-1], width)
    return (features @ reference.unit(rng, shape[-1], width).T).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("num_iters", "chunk"))
def assign(scores, temperature, where=None, num_iters=3, chunk=None):
    """Assignments by way of the public potentials."""
    h = sinkhorn.sinkhorn_potentials(
        scores, temperature=temperature, num_iters=num_iters, where=where, chunk=chunk
    )
    return jax.nn.softmax(scores.astype(jnp.float32) / temperature + h[..., None, :])


knopp = jax.jit(sinkhorn.sinkhorn_knopp, static_argnames="num_iters")
potentials = jax.jit(sinkhorn.sinkhorn_potentials, static_argnames=("num_iters", "chunk"))


def fused(scores, logits, temperature=0.12, **options):
    options = dict(target_temperature=0.06) | options
    return sinkhorn.sinkhorn_cross_entropy(scores, logits, temperature=temperature, **options)


jitted = jax.jit(fused)  # the temperatures are traced


@functools.partial(jax.jit, static_argnames=("chunk", "num_iters"))
def loss_and_gradient(scores, logits, weight, temperature=0.12, **options):
    def total(logits, temperature):
        loss = fused(scores, logits, temperature, **options)
        return jnp.sum(loss * weight), loss

    (_, loss), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(logits, temperature)
    return loss, *gradients


# sinkhorn_knopp, sinkhorn_potentials


@pytest.mark.parametrize(
    ("shape", "num_iters", "chunk"),
    [
        ((24, 9), 3, None),
        ((24, 9), 3, 5),
        ((24, 9), 1, 12),
        ((2, 3, 23, 9), 4, 7),  # padded
        ((1, 5), 3, 1),
        ((4, 1), 3, 1),
        ((7, 40), 3, 1),
    ],
)
def test_equals_the_iteration(shape, num_iters, chunk):
    scores = unit_scores(np.random.default_rng(0), *shape)
    for temperature in (0.03, 0.06, 1.0):
        want = iterate(scores, temperature, num_iters)
        close(assign(scores, temperature, num_iters=num_iters, chunk=chunk), want)
        close(knopp(scores, temperature=temperature, num_iters=num_iters), want)


def test_float64_to_1e_12():
    """A shift of a prototype changes nothing, one of a sample does, but not the fixed point."""
    rng = np.random.default_rng(2)
    scores, by_sample = rng.normal(size=(30, 7)), rng.normal(size=(30, 1))
    with jax.enable_x64(True):
        got = knopp(scores, temperature=0.2)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, iterate(scores, 0.2), rtol=1e-12)
        moved = knopp(scores + 10 * rng.normal(size=7), temperature=0.2)
        np.testing.assert_allclose(moved, got, atol=1e-12)
        assert np.abs(knopp(scores + by_sample, temperature=0.2) - got).max() > 1e-6
        many = [knopp(x, temperature=0.2, num_iters=300) for x in (scores, scores + by_sample)]
    close(many[1], many[0], absolute=1e-4)
    np.testing.assert_allclose(np.asarray(many[0]).sum(axis=0), 30 / 7, rtol=0.05)


def test_where_leaves_samples_out_of_the_balance():
    rng = np.random.default_rng(3)
    scores, where = unit_scores(rng, 2, 24, 9), rng.uniform(size=(2, 24)) < 0.6
    where[1, :20] = False
    want = np.zeros((2, 24, 9))
    for i in range(2):
        want[i, where[i]] = iterate(scores[i, where[i]], 0.06)
    dirty = np.where(where[..., None], scores, np.nan)
    close(knopp(dirty, temperature=0.06, where=where), want)
    for chunk in (4, 5):
        h = np.asarray(potentials(dirty, temperature=0.06, where=where, chunk=chunk))
        got = np.exp(reference.log_softmax(scores / 0.06 + h[:, None]))
        close(np.where(where[..., None], got, 0), want)
    where[1] = False
    np.testing.assert_array_equal(knopp(dirty, temperature=0.06, where=where)[1], 0)
    np.testing.assert_array_equal(potentials(dirty, temperature=0.06, where=where, chunk=4)[1], 0)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("chunk", [None, 5, 12])
def test_of_embeddings_as_of_their_scores(monkeypatch, platform, chunk):
    monkeypatch.setattr(devices, "platform", lambda: platform)
    monkeypatch.setattr(devices, "knows_bfloat16", lambda: False)  # else products are rounded
    rng = np.random.default_rng(5)
    rows, prototypes = unit_scores(rng, 24, 6), unit_scores(rng, 6, 9)
    where = rng.uniform(size=24) < 0.6
    for keep in (None, where):
        dirty = rows if keep is None else np.where(keep[:, None], rows, np.nan).astype(np.float32)
        got = sinkhorn.sinkhorn_potentials_fused(
            dirty, prototypes, temperature=0.06, where=keep, chunk=chunk
        )
        want = iterate(rows[slice(None) if keep is None else keep] @ prototypes, 0.06)
        balanced = np.exp(reference.log_softmax(rows @ prototypes / 0.06 + np.asarray(got)))
        close(balanced if keep is None else balanced[keep], want)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_bad_value_at_any_logit_where_the_exponential_form_has_only_bad_ones(dtype):
    normal = np.random.default_rng(4).normal(size=(512, 256))
    for deviation in (1.5, 4.0, 30.0, 100.0):
        scores = jnp.asarray(normal * deviation, dtype)
        wide = np.asarray(scores, np.float32)
        with np.errstate(over="ignore"):  # SwAV's pseudo-code, in float32
            assert np.isinf(np.exp(wide / np.float32(0.03))).any()
        got = np.asarray(knopp(scores, temperature=0.03))
        np.testing.assert_allclose(got.sum(axis=-1), 1, atol=1e-6)
        # Exponents of up to 5 deviation / T are rounded to 2^-24 of themselves, and passed on by
        # three iterations.
        want, rounding = iterate(wide, 0.03), 5 * deviation / 0.03 * 2**-24
        assert np.abs(got - want).max() < 10 * rounding + 1e-6
        loss, *gradients = loss_and_gradient(
            scores, scores, np.ones(512), 0.06, target_temperature=0.03, chunk=64
        )
        assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradients)
        close(loss, expected(want, wide, 0.06)[0], relative=1e-5 + 10 * rounding)


def test_official_form_within_what_its_1e_8_cuts_off():
    """At the paper's two samples per prototype and logits of standard deviation 1; cosines lose
    nothing.
    """
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1024, 512)).astype(np.float32)
    want = official(scores, 0.06)
    assert 1e-4 < np.abs(knopp(scores, temperature=0.06) - want).max() < 1e-2
    assert np.abs(iterate(scores, 0.06) - want).max() > 1e-4  # so it is not our rounding
    cosines = unit_scores(rng, 1024, 512)
    close(knopp(cosines, temperature=0.06), official(cosines, 0.06))


# sinkhorn_cross_entropy


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [((24, 9), None), ((24, 9), 1), ((24, 9), 5), ((24, 9), 12), ((2, 3, 23, 9), 7)],
)
def test_loss_and_gradients(shape, chunk):
    rng = np.random.default_rng(11)
    scores, logits = unit_scores(rng, *shape), rng.normal(size=shape).astype(np.float32)
    weight = rng.normal(size=shape[:-1]).astype(np.float32)
    loss, by_logits, by_temperature = loss_and_gradient(scores, logits, weight, chunk=chunk)
    want, difference = expected(iterate(scores, 0.06), logits)
    close(loss, want)
    close(by_logits, difference * weight[..., None])
    close(by_temperature, -(difference * weight[..., None] * logits).sum() / 0.12)


@pytest.mark.parametrize("chunk", [None, 7])
def test_targets_by_match_with_one_set_of_potentials(chunk):
    """Balanced over all images, matched within each, as in STELLAR."""
    rng = np.random.default_rng(12)
    scores, logits = unit_scores(rng, 5, 4, 9), rng.normal(size=(5, 12, 9)).astype(np.float32)
    index = rng.integers(0, 4, size=(5, 12))
    options = dict(potentials=potentials(scores.reshape(20, 9), temperature=0.06), chunk=chunk)
    balanced = iterate(scores.reshape(20, 9), 0.06).reshape(5, 4, 9)
    targets = np.take_along_axis(balanced, index[..., None], axis=1)
    for got, want in zip(
        loss_and_gradient(scores, logits, 1.0, index=index, **options), expected(targets, logits)
    ):
        close(got, want)
    # Without an index, row to row.
    loss, _, _ = loss_and_gradient(scores, logits[:, :4], 1.0, **options)
    close(loss, expected(balanced, logits[:, :4])[0])


@pytest.mark.parametrize(("indexed", "chunk"), [(False, None), (False, 7), (True, 3), (True, 7)])
def test_rows_of_targets_that_do_not_count_cost_nothing(indexed, chunk):
    rng = np.random.default_rng(13)
    scores, logits = unit_scores(rng, 2, 23, 9), rng.normal(size=(2, 23, 9)).astype(np.float32)
    where = rng.uniform(size=(2, 23)) < 0.6
    index = rng.integers(0, 23, size=(2, 23)) if indexed else np.stack([np.arange(23)] * 2)
    targets = np.zeros((2, 23, 9))
    for b in range(2):
        targets[b, where[b]] = iterate(scores[b, where[b]], 0.06)
    targets = np.take_along_axis(targets, index[..., None], axis=1)
    dirty = np.where(where[..., None], scores, np.inf)
    options = dict(where=where, chunk=chunk) | (dict(index=index) if indexed else {})
    for got, want in zip(
        loss_and_gradient(dirty, logits, 1.0, **options), expected(targets, logits)
    ):
        close(got, want)


def test_impossible_classes_cost_nothing_where_the_target_is_zero():
    scores = np.float32([[500.0, 500.0, 0.0], [500.0, 500.0, 1000.0]])
    logits, weight = np.float32([[1.0, 1.0, -np.inf]] * 2), np.float32([1.0, 0.0])
    loss, by_logits, by_temperature = loss_and_gradient(
        scores, logits, weight, 1.0, target_temperature=1.0
    )
    close(loss[0], np.log(2))
    close(by_logits[0], [0, 0, 0])
    assert loss[1] == np.inf and np.isfinite(by_temperature)


def test_empty_batches():
    assert jitted(np.ones((0, 3, 4)), np.ones((0, 3, 4))).shape == (0, 3)
    none = jitted(np.ones((2, 3, 4)), np.ones((2, 0, 4)), index=np.zeros((2, 0), int))
    assert none.shape == (2, 0)


def test_one_bad_score_does_not_pass_for_balanced_targets():
    scores = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    scores[0, 0] = np.nan
    assert np.isnan(ops.sinkhorn_knopp(scores, temperature=0.5)).all()


@pytest.mark.parametrize(
    "dtype, chunk", [(jnp.float32, None), (jnp.bfloat16, None), (jnp.bfloat16, 2)]
)
def test_the_second_derivative_is_that_of_stored_targets(dtype, chunk):
    rng = np.random.default_rng(0)
    scores, logits = (jnp.asarray(rng.normal(size=(6, 4)), dtype) for _ in range(2))
    targets = ops.sinkhorn_knopp(scores, temperature=0.5)

    def fused(x):
        how = dict(target_temperature=0.5, temperature=0.7, chunk=chunk)
        return ops.sinkhorn_cross_entropy(scores, x, **how).sum()

    def stored(x):
        return ops.cross_entropy(targets, x, temperature=0.7).sum()

    found, wanted = jax.hessian(fused)(logits), jax.hessian(stored)(logits)
    assert np.abs(wanted).max() > 0.1
    atol = 1e-5 if dtype == jnp.float32 else 0.02
    np.testing.assert_allclose(*(np.float32(x) for x in (found, wanted)), atol=atol)
