"""Entropic transport and set alignment against float64 iterations and scipy's assignment."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import scipy.optimize

from ssl_jax.ops import alignment, assignment, transport
from tests.losses.reference import close, log_sum_exp

FORMS = ("log", "scaling", "auto")


def iterate(cost, epsilon, num_iters, a=None, b=None):
    """STELLAR eq. 5: row potential first, column potential second, P = exp((u + v - C) /
    eps); one problem.
    """
    cost = np.asarray(cost, np.float64)
    n, m = cost.shape
    a = np.full(n, 1 / n) if a is None else np.asarray(a, np.float64)
    b = np.full(m, 1 / m) if b is None else np.asarray(b, np.float64)
    plan, rows, columns = np.zeros((n, m)), a > 0, b > 0
    if rows.any() and columns.any():
        cost, a, b = cost[rows][:, columns], a[rows], b[columns]
        v = np.zeros(len(b))
        for _ in range(num_iters):
            u = epsilon * (np.log(a) - log_sum_exp((v - cost) / epsilon, 1))
            v = epsilon * (np.log(b) - log_sum_exp((u[:, None] - cost) / epsilon, 0))
        plan[np.ix_(rows, columns)] = np.exp((u[:, None] + v - cost) / epsilon)
    return plan


def iterate_all(cost, *args, **kwargs):
    flat = cost.reshape(-1, *cost.shape[-2:])
    return np.stack([iterate(c, *args, **kwargs) for c in flat]).reshape(cost.shape)


def distances(source, target):
    """|x - y| pair by pair."""
    return np.linalg.norm(np.float64(source)[..., :, None, :] - target[..., None, :, :], axis=-1)


def normed(rng, *shape):
    """Tokens after a LayerNorm."""
    x = rng.normal(size=shape)
    x = x - x.mean(axis=-1, keepdims=True)
    return (x / x.std(axis=-1, keepdims=True)).astype(np.float32)


transported = jax.jit(transport.entropic_transport, static_argnames=("num_iters", "form"))
aligned = jax.jit(alignment.align_sets, static_argnames=("num_iters", "solver"))


@functools.partial(jax.jit, static_argnames=("num_iters", "form"))
def plan_and_gradient(cost, a, b, weight, epsilon, num_iters, form):
    def total(cost, a, b, epsilon):
        options = dict(epsilon=epsilon, num_iters=num_iters, form=form)
        plan = transport.entropic_transport(cost, a, b, **options)
        return jnp.sum(plan * weight), plan

    run = jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True)
    (_, plan), gradients = run(cost, a, b, epsilon)
    return plan, gradients


# entropic_transport


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("shape", "num_iters"), [((16, 16), 30), ((2, 3, 5, 7), 2), ((1, 4), 3), ((4, 1), 3)]
)
def test_equals_the_iteration(shape, num_iters, form):
    cost = np.random.default_rng(0).uniform(size=shape).astype(np.float32)
    for epsilon in (0.05, 1.0):
        got = transported(cost, epsilon=epsilon, num_iters=num_iters, form=form)
        assert got.dtype == jnp.float32
        close(got, iterate_all(cost, epsilon, num_iters))
        close(got.sum(axis=-2), np.full((*shape[:-2], shape[-1]), 1 / shape[-1]))


@pytest.mark.parametrize("form", FORMS)
def test_marginals_with_zeros_leave_out_rows_and_columns(form):
    rng = np.random.default_rng(1)
    cost = rng.uniform(size=(3, 5, 6)).astype(np.float32)
    a, b = rng.dirichlet(np.ones(5), 3), rng.dirichlet(np.ones(6))
    a[1, 2], a[2], b[3] = 0, 0, 0
    a, b = np.float32(a), np.float32(b)
    dirty = np.where((a > 0)[:, :, None] & (b > 0), cost, np.nan)
    dirty[1, 2, 0] = np.inf
    got, gradients = plan_and_gradient(dirty, a, b, cost, 0.1, 20, form)
    close(got, np.stack([iterate(c, 0.1, 20, x, b) for c, x in zip(cost, a)]))
    assert all(np.isfinite(x).all() for x in gradients)
    assert not np.any(np.where(np.isfinite(dirty), 0, gradients[0]))
    run = functools.partial(transported, cost[0], epsilon=0.1, num_iters=5, form=form)
    close(run(a[0]), iterate(cost[0], 0.1, 5, a[0]))
    close(run(None, b), iterate(cost[0], 0.1, 5, None, b))


def test_automatic_form_takes_scaling_within_its_range_only(monkeypatch):
    rng = np.random.default_rng(2)
    cost = rng.uniform(size=(4, 6, 6)).astype(np.float32)
    cost[0, 0, :2] = 0, 1
    for epsilon in (1 / 39, 1 / 41):  # nearly the same problem, and each form can do it
        for form in FORMS:
            plan = transported(cost, epsilon=epsilon, num_iters=20, form=form)
            close(plan, iterate_all(cost, epsilon, 20), relative=2e-5)
    # Far beyond the range the scaling form is finite, but not the answer.
    clamped = transported(cost, epsilon=1 / 4000, num_iters=20, form="scaling")
    off = np.abs(clamped - iterate_all(cost, 1 / 4000, 20)).max()
    assert np.isfinite(clamped).all() and off > 1e-3
    # Which one was taken: the other fails to be a plan.
    monkeypatch.setattr(transport, "log_domain_plan", lambda negative, *_, num_iters: 0 * negative)

    @jax.jit
    def scales(cost, b, epsilon):
        options = dict(num_iters=3, form="auto")
        return jnp.any(transport.entropic_transport(cost, None, b, epsilon=epsilon, **options) > 0)

    b = np.full(6, 1 / 6, np.float32)
    assert scales(cost, b, 1 / 39) and not scales(cost, b, 1 / 41)
    shift = 1000 * rng.integers(0, 3, size=(4, 6, 1)).astype(np.float32)
    assert scales(cost + shift, b, 1 / 39)  # the range is that of a row
    cost[0, 0, :2] = 0, 100
    assert scales(cost, np.float32([0.2, 0, 0.2, 0.2, 0.2, 0.2]), 1 / 39)  # b = 0 has no say


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_gradients_against_finite_differences(form):
    rng = np.random.default_rng(3)
    cost, a, b = rng.uniform(size=(2, 3, 4)), rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4))
    with jax.enable_x64(True):

        @jax.jit  # traced: finite differences leave the sums of a and b unequal
        def plan(cost, a, b, epsilon):
            return transport.entropic_transport(cost, a, b, epsilon=epsilon, num_iters=6, form=form)

        steps = dict(order=1, modes=("rev",), atol=1e-6, rtol=1e-6)
        jax.test_util.check_grads(plan, (cost, a, b, 0.2), **steps)
        got = plan(cost, a, b, 0.2)[0]
    np.testing.assert_allclose(got, iterate(cost[0], 0.2, 6, a, b), rtol=1e-11)


def test_gradient_under_vmap_where_both_forms_run():
    """Forms that were not chosen must not leak: one problem in range, one far out of it."""
    cost = np.random.default_rng(4).uniform(size=(2, 5, 5)).astype(np.float32)
    cost[1] *= 1e4
    a = np.full(5, 0.2, np.float32)

    def one(c, form):
        return plan_and_gradient(c, a, a, jnp.eye(5), 0.05, 10, form)

    got = jax.vmap(lambda c: one(c, "auto"))(cost)
    for i, form in ((0, "scaling"), (1, "log")):
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(one(cost[i], form))):
            close(x[i], y)


# align_sets


@pytest.mark.parametrize("solver", ["sinkhorn", "hungarian"])
@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0, 3.0])
def test_finds_the_permutation_of_the_same_tokens(solver, noise):
    """LayerNorm-ed 768-d tokens with noise up to 3; one-to-one, as scipy's assignment."""
    rng = np.random.default_rng(8)
    target, order = normed(rng, 3, 16, 768), np.stack([rng.permutation(16) for _ in range(3)])
    source = np.take_along_axis(target, order[..., None], axis=1)
    source = (source + noise * rng.normal(size=source.shape)).astype(np.float32)
    index, cost, plan = aligned(source, target, solver=solver)
    assert index.dtype == jnp.int32
    np.testing.assert_array_equal(index, order)
    want = distances(source, target)
    for i in range(3):
        np.testing.assert_array_equal(index[i], scipy.optimize.linear_sum_assignment(want[i])[1])
    close(plan.sum(axis=-2), np.ones((3, 16)))
    # A distance of 0 is the root of what is left of squares of about 768.
    close(cost, want, absolute=0.05 if noise == 0 else 1e-6)


def test_sinkhorn_plan_and_cost():
    rng = np.random.default_rng(9)
    source = rng.normal(size=(2, 3, 6, 5)).astype(np.float32)
    target = rng.normal(size=(2, 1, 4, 5)).astype(np.float32)
    for epsilon, num_iters in ((0.1, 5), (1.0, 2)):
        index, cost, plan = aligned(source, target, epsilon=epsilon, num_iters=num_iters)
        close(cost, distances(source, target))
        want = iterate_all(distances(source, target), epsilon, num_iters)
        close(plan, 6 * want, relative=5e-5)
        np.testing.assert_array_equal(index, np.argmax(want, axis=-1))
        close(plan.sum(axis=-2), np.full((2, 3, 4), 6 / 4))


@pytest.mark.parametrize("shape", [(8, 8), (16, 16), (3, 7), (1, 1), (1, 5), (2, 2)])
def test_hungarian_cost_is_the_least(shape):
    rng = np.random.default_rng(10)
    size = (40, *shape)
    kinds = rng.uniform(size=size), rng.integers(0, 3, size), -1e4 * rng.uniform(size=size)
    solve = jax.jit(jax.vmap(assignment.assignment))
    for cost in kinds:
        for c, i in zip(cost, np.asarray(solve(np.float32(cost)))):
            assert len(set(i.tolist())) == shape[0] and i.min() >= 0 and i.max() < shape[1]
            least = c[scipy.optimize.linear_sum_assignment(c)].sum()
            np.testing.assert_allclose(c[np.arange(shape[0]), i].sum(), least, rtol=1e-5)


def test_hungarian_ends_on_bad_costs():
    """A batch with NaN is survived: any one-to-one matching will do."""
    solve = jax.jit(assignment.assignment)
    for bad in (np.nan, np.inf, -np.inf):
        cost = np.ones((16, 16), np.float32)
        for where in (slice(0, 3), slice(None)):
            cost[where] = bad
            assert sorted(solve(cost).tolist()) == list(range(16))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_hungarian_token_that_is_not_finite_disturbs_no_other(bad):
    rng = np.random.default_rng(20)
    source, target = (rng.normal(size=(24, n, 3)).astype(np.float32) for n in (6, 7))
    rows = rng.integers(0, 6, 24)
    source[np.arange(24), rows, 0] = bad
    index = np.asarray(aligned(source, target, solver="hungarian").index)
    for i, row in enumerate(rows):
        others = np.arange(6) != row
        want = distances(source[i, others], target[i])
        assert len(set(index[i].tolist())) == 6
        least = want[scipy.optimize.linear_sum_assignment(want)].sum()
        np.testing.assert_allclose(want[np.arange(5), index[i, others]].sum(), least, rtol=1e-5)


def test_every_source_token_keeps_a_target_however_sharp():
    """Nothing of the matrix exp(-C / eps) is left in float32, yet no row of the plan vanishes (here
    6 on 4).
    """
    rng = np.random.default_rng(16)
    source, target = (100 * rng.normal(size=(10, n, 3)).astype(np.float32) for n in (6, 4))
    for num_iters in (1, 5):
        index, _, plan = aligned(source, target, epsilon=0.001, num_iters=num_iters)
        want = iterate_all(distances(source, target), 0.001, num_iters)
        # A token that owns two targets whole may name either.
        chosen = np.take_along_axis(want, np.asarray(index)[..., None], axis=-1)
        close(chosen, want.max(axis=-1, keepdims=True))
        assert np.isfinite(plan).all() and np.max(plan, axis=-1).min() > 1 / 24


def test_distances_keep_their_precision_far_from_the_origin():
    rng = np.random.default_rng(13)
    source, target = (rng.normal(size=(5, 4)).astype(np.float32) + 1000 for _ in range(2))
    close(aligned(source, target).cost, distances(source, target), relative=1e-4)
