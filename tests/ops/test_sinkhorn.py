"""Sinkhorn-Knopp, its potentials and the fused cross-entropy against the iteration in float64."""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from ssl_jax.ops import sinkhorn
from tests.finite import assert_finite
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


def exponential(scores, temperature, num_iters=3):
    """The form of SwAV's pseudo-code, in the type of its input."""
    q = jnp.exp(scores / temperature)
    for _ in range(num_iters):
        q = q / q.sum(axis=0)
        q = q / q.sum(axis=1, keepdims=True)
    return q


def cross_entropy(targets, logits, temperature):
    return -(targets * reference.log_softmax(np.asarray(logits, np.float64) / temperature)).sum(
        axis=-1
    )


def unit_scores(rng, *shape, width=16):
    """Cosines of unit features and prototypes."""
    features, prototypes = (
        reference.unit(rng, *shape[:-1], width),
        reference.unit(rng, shape[-1], width),
    )
    return (features @ prototypes.T).astype(np.float32)


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


@functools.partial(jax.jit, static_argnames=("chunk", "num_iters"))
def loss_and_gradient(scores, logits, weight, temperature=0.12, **options):
    def total(logits, temperature):
        loss = fused(scores, logits, temperature, **options)
        return jnp.sum(loss * weight), loss

    (_, loss), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(logits, temperature)
    return loss, *gradients


# sinkhorn_knopp, sinkhorn_potentials


def test_by_hand():
    """Columns of [[1, 1], [3, 1]] sum to 4 and 2; then rows to 3/4 and 5/4; once more 14/15, 16/15;
    55/56, 57/56.
    """
    scores = 0.5 * jnp.log(jnp.array([[1.0, 1.0], [3.0, 1.0]]))
    close(knopp(scores, temperature=0.5, num_iters=1), [[1 / 3, 2 / 3], [3 / 5, 2 / 5]])
    close(knopp(scores, temperature=0.5, num_iters=2), [[20 / 55, 35 / 55], [36 / 57, 21 / 57]])
    close(potentials(scores, temperature=0.5, num_iters=1), -np.log([4, 2]))
    close(potentials(scores, temperature=0.5, num_iters=2), -np.log([4 * 14 / 15, 2 * 16 / 15]))


@pytest.mark.parametrize(
    ("shape", "num_iters", "chunk"),
    [
        ((24, 9), 3, None),
        ((24, 9), 3, 1),
        ((24, 9), 3, 5),
        ((24, 9), 1, 12),
        ((2, 3, 24, 9), 1, None),
        ((2, 3, 23, 9), 4, 7),
    ],
)  # in one pass or several, with padding (23 rows) and without
def test_equals_the_iteration(shape, num_iters, chunk):
    scores = unit_scores(np.random.default_rng(0), *shape)
    for temperature in (0.03, 0.06, 1.0):
        want = iterate(scores, temperature, num_iters)
        close(assign(scores, temperature, num_iters=num_iters, chunk=chunk), want)
        if chunk in (None, 12):
            got = knopp(scores, temperature=temperature, num_iters=num_iters)
            assert got.dtype == jnp.float32
            close(got, want)


@pytest.mark.parametrize("shape", [(1, 5), (4, 1), (7, 40)])
def test_single_samples_single_prototypes_and_more_prototypes_than_samples(shape):
    scores = unit_scores(np.random.default_rng(1), *shape)
    close(knopp(scores, temperature=0.1), iterate(scores, 0.1))
    close(assign(scores, 0.1, chunk=1), iterate(scores, 0.1))


def test_float64_to_1e_12():
    with jax.enable_x64(True):
        scores = np.random.default_rng(2).normal(size=(30, 7))
        got = knopp(scores, temperature=0.2)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, iterate(scores, 0.2), rtol=1e-12)


def test_where_leaves_samples_out_of_the_balance():
    rng = np.random.default_rng(3)
    scores, where = unit_scores(rng, 2, 24, 9), rng.uniform(size=(2, 24)) < 0.6
    want = np.zeros((2, 24, 9))
    for i in range(2):
        want[i, where[i]] = iterate(scores[i, where[i]], 0.06)
    dirty = np.where(where[..., None], scores, np.nan)
    got = knopp(dirty, temperature=0.06, where=where)
    close(got, want)
    for chunk in (4, 5):
        h = potentials(dirty, temperature=0.06, where=where, chunk=chunk)
        close(
            np.where(
                where[..., None],
                np.exp(reference.log_softmax(scores / 0.06 + np.asarray(h)[:, None])),
                0,
            ),
            want,
        )
    where[1] = False
    np.testing.assert_array_equal(knopp(dirty, temperature=0.06, where=where)[1], 0)
    np.testing.assert_array_equal(potentials(dirty, temperature=0.06, where=where, chunk=4)[1], 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("deviation", [1.5, 4.0, 30.0, 100.0])
def test_no_bad_value_at_any_logit_where_the_exponential_form_has_only_bad_ones(dtype, deviation):
    rng = np.random.default_rng(4)
    scores = jnp.asarray(rng.normal(size=(512, 256)) * deviation, dtype)
    assert np.isnan(exponential(scores, 0.03)).any()
    got = np.asarray(knopp(scores, temperature=0.03))
    assert got.dtype == np.float32 and np.isfinite(got).all() and (got >= 0).all()
    np.testing.assert_allclose(got.sum(axis=-1), 1, atol=1e-6)
    # Exponents of up to 5 deviation / T are rounded to 2^-24 of themselves, and passed on by three
    # iterations.
    want, rounding = iterate(np.asarray(scores, np.float32), 0.03), 5 * deviation / 0.03 * 2**-24
    assert np.abs(got - want).max() < 10 * rounding + 1e-6
    weight = jnp.ones(512)
    loss, gradient, by_temperature = loss_and_gradient(
        scores, scores, weight, 0.06, target_temperature=0.03, chunk=64
    )
    assert gradient.dtype == dtype
    assert all(
        np.isfinite(np.asarray(x, np.float32)).all() for x in (loss, gradient, by_temperature)
    )
    close(
        loss,
        cross_entropy(want, np.asarray(scores, np.float32), 0.06),
        relative=1e-5 + 10 * rounding,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_official_form_within_what_its_1e_8_cuts_off(seed):
    """At the paper's two samples per prototype and logits of standard deviation 1; cosines lose
    nothing.
    """
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(1024, 512)).astype(np.float32)
    want = official(scores, 0.06)
    assert 1e-4 < np.abs(knopp(scores, temperature=0.06) - want).max() < 1e-2
    assert np.abs(iterate(scores, 0.06) - want).max() > 1e-4  # so it is not our rounding
    cosines = unit_scores(rng, 1024, 512)
    close(knopp(cosines, temperature=0.06), official(cosines, 0.06))


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    temperature=st.sampled_from((0.05, 0.1, 0.3)),
    size=st.sampled_from((1.0, 10.0)),
    seed=st.integers(0, 1000),
)
def test_adding_to_a_prototype_changes_nothing_and_to_a_sample_something(temperature, size, seed):
    """Exact up to 1e-12, so in float64; the fixed point does not depend on
    the samples' shift either.
    """
    rng = np.random.default_rng(seed)
    scores = unit_scores(rng, 24, 9).astype(np.float64)
    by_prototype, by_sample = size * rng.normal(size=9), size * rng.normal(size=(24, 1))
    with jax.enable_x64(True):
        base = np.asarray(knopp(scores, temperature=temperature))
        np.testing.assert_allclose(base.sum(axis=-1), 1, atol=1e-12)
        np.testing.assert_allclose(
            knopp(scores + by_prototype, temperature=temperature), base, atol=1e-12
        )
        shifted = np.asarray(knopp(scores + by_sample, temperature=temperature))
        assert np.abs(shifted - base).max() > 1e-6
        many = [
            knopp(x, temperature=temperature, num_iters=300) for x in (scores, scores + by_sample)
        ]
    close(many[1], many[0], absolute=1e-4)
    assert_finite(base, shifted, many)


@pytest.mark.parametrize("shape", [(256, 64), (32, 128)])
def test_many_iterations_balance_the_prototypes(shape):
    scores = np.random.default_rng(7).normal(size=shape).astype(np.float32)
    many = np.asarray(knopp(scores, temperature=0.1, num_iters=300))
    np.testing.assert_allclose(many.sum(axis=0), shape[0] / shape[1], rtol=0.05)
    np.testing.assert_allclose(many.sum(axis=1), 1, atol=1e-6)


def test_duplicated_batch_and_order_of_samples():
    """Both duplicate or permute the result; so do permutations of the prototypes."""
    rng = np.random.default_rng(8)
    scores = unit_scores(rng, 24, 9)
    base = np.asarray(knopp(scores, temperature=0.06))
    close(knopp(np.concatenate([scores, scores]), temperature=0.06), np.concatenate([base, base]))
    samples, prototypes = rng.permutation(24), rng.permutation(9)
    close(knopp(scores[samples][:, prototypes], temperature=0.06), base[samples][:, prototypes])


@pytest.mark.parametrize("function", [knopp, functools.partial(potentials, chunk=6)])
def test_constants(function):
    scores = unit_scores(np.random.default_rng(9), 24, 9)
    got = jax.jit(jax.grad(lambda s, t: (function(s, temperature=t) ** 2).sum(), (0, 1)))(
        scores, 0.1
    )
    assert not np.any(got[0]) and not np.any(got[1])


def test_vmap_equals_leading_axes():
    scores = jnp.asarray(unit_scores(np.random.default_rng(10), 4, 24, 9), jnp.bfloat16)
    close(
        jax.jit(jax.vmap(lambda s: potentials(s, temperature=0.06, chunk=6)))(scores),
        potentials(scores, temperature=0.06),
    )
    got = jax.jit(jax.vmap(lambda s: loss_and_gradient(s, s, 1.0, chunk=6)))(scores)
    loss, by_logits, by_temperature = loss_and_gradient(scores, scores, 1.0)
    close(got[0], loss)
    close(np.float32(got[1]), np.float32(by_logits))
    close(got[2].sum(), by_temperature)


# sinkhorn_cross_entropy


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [
        ((24, 9), None),
        ((24, 9), 1),
        ((24, 9), 5),
        ((24, 9), 12),
        ((2, 3, 24, 9), None),
        ((2, 3, 23, 9), 7),
    ],
)
def test_loss_and_gradients(shape, chunk):
    rng = np.random.default_rng(11)
    scores, logits = unit_scores(rng, *shape), rng.normal(size=shape).astype(np.float32)
    weight = rng.normal(size=shape[:-1]).astype(np.float32)
    loss, by_logits, by_temperature = loss_and_gradient(scores, logits, weight, chunk=chunk)
    targets = iterate(scores, 0.06)
    close(loss, cross_entropy(targets, logits, 0.12))
    difference = (np.exp(reference.log_softmax(logits / 0.12)) - targets) * weight[..., None]
    close(by_logits, difference / 0.12)
    close(by_temperature, -(difference * logits).sum() / 0.12**2)


@pytest.mark.parametrize("chunk", [None, 3, 7])
def test_targets_by_match_with_one_set_of_potentials(chunk):
    """Balanced over all images, matched within each, as in STELLAR; and where masks targets, not
    rows of logits.
    """
    rng = np.random.default_rng(12)
    scores, logits = unit_scores(rng, 5, 4, 9), rng.normal(size=(5, 12, 9)).astype(np.float32)
    index, weight = rng.integers(0, 4, size=(5, 12)), rng.normal(size=(5, 12)).astype(np.float32)
    options = dict(potentials=potentials(scores.reshape(20, 9), temperature=0.06), chunk=chunk)
    balanced = iterate(scores.reshape(20, 9), 0.06).reshape(5, 4, 9)
    targets = np.stack([balanced[b][index[b]] for b in range(5)])
    loss, by_logits, _ = loss_and_gradient(scores, logits, weight, index=index, **options)
    close(loss, cross_entropy(targets, logits, 0.12))
    difference = (np.exp(reference.log_softmax(logits / 0.12)) - targets) * weight[..., None] / 0.12
    close(by_logits, difference)
    # Without an index, row to row.
    logits = logits[:, :4]
    loss, _, _ = loss_and_gradient(scores, logits, 1.0, **options)
    close(loss, cross_entropy(balanced, logits, 0.12))


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
    counts = np.take_along_axis(where, index, axis=1)
    dirty = np.where(where[..., None], scores, np.inf)
    loss, by_logits, _ = loss_and_gradient(
        dirty, logits, 1.0, where=where, chunk=chunk, **(dict(index=index) if indexed else {})
    )
    close(loss, cross_entropy(targets, logits, 0.12))
    difference = (np.exp(reference.log_softmax(logits / 0.12)) - targets) / 0.12
    close(by_logits, np.where(counts[..., None], difference, 0))


def test_against_finite_differences():
    rng = np.random.default_rng(14)
    with jax.enable_x64(True):
        scores, logits = rng.normal(size=(6, 5)), rng.normal(size=(6, 5))

        def loss(x, t):
            return fused(scores, x, t, target_temperature=0.3, chunk=2)

        jax.test_util.check_grads(
            jax.jit(loss), (logits, 0.4), order=1, modes=("rev",), atol=1e-6, rtol=1e-6
        )


def test_only_logits_and_temperature_have_a_gradient():
    rng = np.random.default_rng(15)
    scores, logits = unit_scores(rng, 24, 9), rng.normal(size=(24, 9)).astype(np.float32)

    def total(scores, target_temperature, potentials):
        return fused(
            scores, logits, target_temperature=target_temperature, potentials=potentials, chunk=6
        ).sum()

    h = potentials(scores, temperature=0.06)
    assert not any(np.any(g) for g in jax.jit(jax.grad(total, (0, 1, 2)))(scores, 0.06, h))
    # The scores as their own logits: the gradient through the prediction alone, recomputed or not.
    want = (np.exp(reference.log_softmax(scores / 0.12)) - iterate(scores, 0.06)) / 0.12
    own = jax.checkpoint(lambda x: fused(x, x, chunk=6).sum())
    close(jax.jit(jax.grad(own))(scores), want)


jitted = jax.jit(fused)  # the temperatures are traced


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    target_temperature=st.sampled_from((0.06, 0.3)),
    temperature=st.sampled_from((0.12, 1.0)),
    scale=st.sampled_from((0.01, 1.0)),
    seed=st.integers(0, 1000),
)
def test_never_below_the_entropy_of_the_target_and_equal_at_the_target(
    target_temperature, temperature, scale, seed
):
    """The excess is KL(target || prediction), 0 only where the two
    coincide; uniform costs log K.
    """
    rng = np.random.default_rng(seed)
    scores, logits = unit_scores(rng, 24, 9), (scale * rng.normal(size=(24, 9))).astype(np.float32)
    targets = iterate(scores, target_temperature)
    loss = jitted(scores, logits, temperature, target_temperature=target_temperature)
    divergence = (targets * (np.log(targets) - reference.log_softmax(logits / temperature))).sum(
        axis=-1
    )
    assert (divergence > 1e-4).all()
    close(loss - reference.entropy(targets), divergence, absolute=1e-5)
    best = jitted(scores, np.float32(np.log(targets)), 1.0, target_temperature=target_temperature)
    close(best, reference.entropy(targets), absolute=1e-5)
    close(
        jitted(scores, 0 * logits, temperature, target_temperature=target_temperature),
        np.full(24, np.log(9)),
    )
    assert_finite(loss, best)


def test_impossible_classes_cost_nothing_where_the_target_is_zero():
    scores, logits = (
        jnp.array([[500.0, 500.0, 0.0], [500.0, 500.0, 1000.0]]),
        jnp.array([[1.0, 1.0, -jnp.inf]] * 2),
    )
    loss, by_logits, by_temperature = loss_and_gradient(
        scores, logits, jnp.array([1.0, 0.0]), 1.0, target_temperature=1.0
    )
    close(loss[0], np.log(2))
    close(by_logits[0], [0, 0, 0])
    assert loss[1] == np.inf and np.isfinite(by_temperature)


def test_empty_batches():
    run = jax.jit(fused)
    assert run(jnp.ones((0, 3, 4)), jnp.ones((0, 3, 4))).shape == (0, 3)
    assert run(
        jnp.ones((2, 3, 4)), jnp.ones((2, 0, 4)), index=jnp.zeros((2, 0), jnp.int32)
    ).shape == (2, 0)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    problem=st.sampled_from(
        (
            ((12, 5), jnp.float32),
            ((12, 5), jnp.bfloat16),
            ((12, 5), jnp.float16),
            ((1, 4), jnp.float32),
        )
    ),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 100.0, 1e4)),
    temperature=st.sampled_from((0.01, 0.03, 1.0)),
    kind=st.sampled_from(("random", "duplicates", "ties", "offset")),
    masked=st.sampled_from(("none", "some", "all")),
    seed=st.integers(0, 1000),
)
def test_finite_for_every_input(problem, scale, temperature, kind, masked, seed):
    shape, dtype = problem
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=shape) * scale
    if kind == "duplicates":
        scores[:] = scores[0]
    if kind == "ties":
        scores = np.round(scores / max(scale, 1e-9)) * scale
    if kind == "offset":
        scores = (
            scores + 6 * scale * (np.arange(shape[0]) % 2)[:, None]
        )  # up to 9e4: beyond float16
        scores = np.clip(scores, -6e4, 6e4)
    where = {
        "none": np.ones(shape[0], bool),
        "some": rng.uniform(size=shape[0]) < 0.5,
        "all": np.zeros(shape[0], bool),
    }
    where, scores = where[masked], jnp.asarray(scores, dtype)
    got = np.asarray(knopp(scores, temperature=temperature, where=where))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.sum(axis=-1), where, atol=1e-5)
    np.testing.assert_array_equal(got[~where], 0)
    logits = jnp.asarray(rng.normal(size=shape) * scale, dtype)
    loss, by_logits, by_temperature = loss_and_gradient(
        scores,
        logits,
        jnp.ones(shape[0]),
        temperature,
        target_temperature=temperature,
        where=where,
        chunk=4,
    )
    assert_finite(got, loss, by_logits, by_temperature)
    assert (loss >= -1e-5).all()
    assert np.abs(np.asarray(by_logits, np.float32)).max() <= 1.01 / temperature


def test_errors():
    scores, logits = jnp.ones((5, 3)), jnp.ones((5, 3))
    both = dict(target_temperature=0.06, temperature=0.12)
    loss = sinkhorn.sinkhorn_cross_entropy
    for function in (sinkhorn.sinkhorn_knopp, sinkhorn.sinkhorn_potentials):
        with pytest.raises(
            ValueError, match=r"shape of scores is \(3,\); it must be \[..., n, K\]"
        ):
            function(jnp.ones(3), temperature=1.0)
        with pytest.raises(
            ValueError,
            match=r"shape of scores is \(0, 3\); it must be \[..., n, K\] with n, K >= 1",
        ):
            function(jnp.ones((0, 3)), temperature=1.0)
        with pytest.raises(
            ValueError, match="temperature is 0; it must be a finite number above 0"
        ):
            function(scores, temperature=0)
        with pytest.raises(ValueError, match="num_iters is 0; it must be at least 1"):
            function(scores, temperature=1.0, num_iters=0)
        with pytest.raises(
            ValueError, match=r"shape of where is \(3,\); it must be \[5\] as scores"
        ):
            function(scores, temperature=1.0, where=jnp.ones(3, bool))
    with pytest.raises(ValueError, match="chunk is 0"):
        sinkhorn.sinkhorn_potentials(scores, temperature=1.0, chunk=0)
    with pytest.raises(ValueError, match=r"number of rows of logits is 4; it must be 5 as scores"):
        loss(scores, jnp.ones((4, 3)), **both)
    with pytest.raises(ValueError, match=r"shape of logits is \(4, 2\); it must be \[q, 3\]"):
        loss(scores, jnp.ones((4, 2)), index=jnp.zeros(4, int), **both)
    with pytest.raises(
        ValueError, match=r"shape of index is \(4,\); it must be \[5\] as scores and logits"
    ):
        loss(scores, logits, index=jnp.zeros(4, int), **both)
    with pytest.raises(ValueError, match="type of index is float32; it must be integer"):
        loss(scores, logits, index=jnp.zeros(5), **both)
    with pytest.raises(
        ValueError, match=r"an entry of index is outside the scores; it must be in \[0, 5\)"
    ):
        loss(scores, logits, index=jnp.array([0, 1, 2, 3, 5]), **both)
    with pytest.raises(ValueError, match="an entry of index is outside the scores"):
        loss(scores, logits, index=jnp.array([0, 1, 2, 3, -1]), **both)
    close(loss(scores, logits, index=jnp.arange(5), **both), np.log(3) * np.ones(5))
    with pytest.raises(ValueError, match=r"shape of potentials is \(5,\); it must be \[3\]"):
        loss(scores, logits, potentials=jnp.zeros(5), **both)
    with pytest.raises(ValueError, match="target_temperature is -1"):
        loss(scores, logits, target_temperature=-1, temperature=1)
    with pytest.raises(ValueError, match="temperature is nan"):
        loss(scores, logits, target_temperature=1, temperature=float("nan"))


# Memory and devices


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_holds_potentials_and_a_chunk_only(dtype):
    """At 32,768 x 16,384 the scores are 2 GB; stored targets would be another 2."""
    n, k = 32768, 16384
    scores, h = jax.ShapeDtypeStruct((n, k), dtype), jax.ShapeDtypeStruct((k,), jnp.float32)
    loss = jax.jit(lambda s, x, h: fused(s, x, potentials=h))
    for lowered in (potentials.lower(scores, temperature=0.06), loss.lower(scores, scores, h)):
        assert lowered.compile().memory_analysis().temp_size_in_bytes < 4 * n * k / 20
    # The gradient itself is as large as the logits; beside it, 16-bit floats are written as
    # integers and renamed.
    gradient = jax.jit(jax.grad(lambda x, s, h: fused(s, x, potentials=h).sum())).lower(
        scores, scores, h
    )
    spare = 2 * n * k if dtype == jnp.bfloat16 else 0
    assert gradient.compile().memory_analysis().temp_size_in_bytes < spare + 4 * n * k / 20


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sharded_samples_agree_and_send_one_sum_per_iteration(dtype):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    rng = np.random.default_rng(17)
    n, k = 256, 48
    scores, logits = (
        jnp.asarray(unit_scores(rng, n, k), dtype),
        jnp.asarray(rng.normal(size=(n, k)), dtype),
    )
    spread = [jax.device_put(x, across) for x in (scores, logits)]
    balance = jax.jit(lambda s: sinkhorn.sinkhorn_potentials(s, temperature=0.06, chunk=32))
    with jax.set_mesh(mesh):
        compiled = balance.lower(spread[0]).compile()
    h = compiled(spread[0])
    close(h, balance(scores), relative=2e-6)
    sent = communication(compiled.as_text())
    # A maximum and a sum at first, then one sum in the body of the loop over iterations, after its
    # loop over chunks.
    assert [(shape, looped) for _, shape, looped in sent] == [(f"f32[1,{k}]", True)] + [
        (f"f32[1,{k}]", False)
    ] * 2

    loss = jax.jit(jax.value_and_grad(lambda x, s, h: fused(s, x, potentials=h, chunk=32).mean()))
    compiled = loss.lower(spread[1], spread[0], jax.device_put(h, everywhere)).compile()
    assert [(op, shape) for op, shape, _ in communication(compiled.as_text())] == [
        ("all-reduce", "f32[]")
    ]
    got = compiled(spread[1], spread[0], jax.device_put(h, everywhere))
    assert got[1].sharding.is_equivalent_to(across, 2)
    for one, other in zip(got, loss(logits, scores, h)):
        close(np.float32(one), np.float32(other), relative=1e-5 if dtype == jnp.float32 else 1e-2)

    if dtype == jnp.bfloat16:
        return
    # Matches within an image need nothing from other devices.
    images, views = scores.reshape(32, 8, k), logits.reshape(32, 8, k)
    index = rng.integers(0, 8, size=(32, 8)).astype(np.int32)
    matched = jax.jit(lambda x, s, h, i: fused(s, x, potentials=h, index=i, chunk=32))
    inputs = [
        jax.device_put(x, s)
        for x, s in ((views, across), (images, across), (h, everywhere), (index, across))
    ]
    compiled = matched.lower(*inputs).compile()
    assert communication(compiled.as_text()) == []
    close(compiled(*inputs), matched(views, images, h, index))


def communication(text) -> list:
    """(operation, shape, whether its computation also holds a loop and is none of the program's top
    level).
    """
    operations = []
    for computation in re.split(r"\n(?=%|ENTRY)", text):
        looped = " while(" in computation and not computation.startswith("ENTRY")
        for shape, op in re.findall(
            r"= (\w+\[[\d,]*\])\S* (all-\w+|collective-permute|reduce-scatter)(?:-start)?\(",
            computation,
        ):
            operations.append((op, shape, looped))
    return operations
