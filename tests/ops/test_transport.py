"""Entropic transport and set alignment against float64 iterations, scipy's assignment, and other
libraries.
"""

import functools
import itertools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import scipy.optimize

from ssl_jax.ops import alignment, assignment, transport
from tests.finite import assert_finite
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
    return np.sqrt(
        ((source[..., :, None, :].astype(np.float64) - target[..., None, :, :]) ** 2).sum(axis=-1)
    )


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
        plan = transport.entropic_transport(
            cost, a, b, epsilon=epsilon, num_iters=num_iters, form=form
        )
        return jnp.sum(plan * weight), plan

    (_, plan), gradients = jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True)(
        cost, a, b, epsilon
    )
    return plan, gradients


# entropic_transport


@pytest.mark.parametrize("form", FORMS)
def test_by_hand(form):
    """K = [[1, 1/2], [1/4, 1]]: rows sum to 3/2 and 5/4, hence u = 1/3, 2/5; columns of u K: 13/30
    and 17/30; halved each.
    """
    cost = jnp.log(jnp.array([[1.0, 2.0], [4.0, 1.0]]))
    got = transported(cost, epsilon=1.0, num_iters=1, form=form)
    close(
        got,
        [
            [(1 / 3) / (13 / 30) / 2, (1 / 6) / (17 / 30) / 2],
            [(1 / 10) / (13 / 30) / 2, (2 / 5) / (17 / 30) / 2],
        ],
    )


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
    cost, a, b = (
        rng.uniform(size=(3, 5, 6)).astype(np.float32),
        rng.dirichlet(np.ones(5), 3),
        rng.dirichlet(np.ones(6)),
    )
    a[1, 2], a[2], b[3] = 0, 0, 0
    a, b = np.float32(a), np.float32(b)
    dirty = np.where((a > 0)[:, :, None] & (b > 0), cost, np.nan)
    dirty[1, 2, 0] = np.inf
    got, (by_cost, by_a, by_b, by_epsilon) = plan_and_gradient(
        dirty, a, b, jnp.asarray(cost), 0.1, 20, form
    )
    close(got, np.stack([iterate(c, 0.1, 20, x, b) for c, x in zip(cost, a)]))
    assert np.isfinite(by_a).all() and np.isfinite(by_b).all() and np.isfinite(by_epsilon)
    assert np.isfinite(by_cost).all() and not np.any(np.where(np.isfinite(dirty), 0, by_cost))
    close(
        transported(cost[0], a[0], epsilon=0.1, num_iters=5, form=form),
        iterate(cost[0], 0.1, 5, a[0]),
    )
    close(
        transported(cost[0], None, b, epsilon=0.1, num_iters=5, form=form),
        iterate(cost[0], 0.1, 5, None, b),
    )


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
    assert (
        np.isfinite(clamped).all()
        and np.abs(clamped - iterate_all(cost, 1 / 4000, 20)).max() > 1e-3
    )
    # Which one was taken: the other fails to be a plan.
    automatic = functools.partial(transport.entropic_transport, num_iters=3, form="auto")
    monkeypatch.setattr(
        transport, "log_domain_plan", lambda negative, *args, num_iters: 0 * negative
    )
    assert np.any(automatic(cost, epsilon=1 / 39)) and not np.any(automatic(cost, epsilon=1 / 41))
    shifted = cost + 1000 * rng.integers(0, 3, size=(4, 6, 1)).astype(
        np.float32
    )  # the range is that of a row
    assert np.any(automatic(shifted, epsilon=1 / 39))
    cost[0, 0, :2] = 0, 100
    b = np.float32([0.2, 0, 0.2, 0.2, 0.2, 0.2])  # a column without mass has no say
    assert np.any(automatic(cost, None, b, epsilon=1 / 39))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_against_finite_differences(form):
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        cost, a, b = (
            rng.uniform(size=(2, 3, 4)),
            rng.dirichlet(np.ones(3)),
            rng.dirichlet(np.ones(4)),
        )

        def plan(cost, a, b, epsilon):
            return transport.entropic_transport(cost, a, b, epsilon=epsilon, num_iters=6, form=form)

        plan = jax.jit(plan)  # traced: finite differences leave the sums of a and b unequal
        jax.test_util.check_grads(
            plan, (cost, a, b, 0.2), order=1, modes=("rev",), atol=1e-6, rtol=1e-6
        )
        np.testing.assert_allclose(
            plan(cost, a, b, 0.2)[0], iterate(cost[0], 0.2, 6, a, b), rtol=1e-11
        )


def test_gradient_under_vmap_where_both_forms_run():
    """Forms that were not chosen must not leak: one problem in range, one far out of it."""
    cost = (
        np.random.default_rng(4).uniform(size=(2, 5, 5)).astype(np.float32)
        * np.float32([1, 1e4])[:, None, None]
    )
    a = np.full(5, 0.2, np.float32)

    def one(c, form):
        return plan_and_gradient(c, a, a, jnp.eye(5), 0.05, 10, form)

    got = jax.vmap(lambda c: one(c, "auto"))(cost)
    for i, form in ((0, "scaling"), (1, "log")):
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(one(cost[i], form))):
            assert np.isfinite(x[i]).all()
            close(x[i], y)


def test_symmetries():
    """Order of either set, and a constant per row or per column at convergence."""
    rng = np.random.default_rng(5)
    cost = rng.uniform(size=(6, 6)).astype(np.float32)
    base = np.asarray(transported(cost, epsilon=0.1, num_iters=300))
    rows, columns = rng.permutation(6), rng.permutation(6)
    close(transported(cost[rows][:, columns], epsilon=0.1, num_iters=300), base[rows][:, columns])
    for shift in (rng.uniform(size=(6, 1)), rng.uniform(size=6)):
        close(transported(cost + np.float32(shift), epsilon=0.1, num_iters=300), base)
    close(base.sum(axis=-1), np.full(6, 1 / 6))
    close(transported(cost.T, epsilon=0.1, num_iters=300), base.T)
    close(transported(2 * cost, epsilon=0.2, num_iters=300), base)


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    problem=st.sampled_from(
        (
            *(((4, 4), jnp.float32, form) for form in FORMS),
            ((4, 4), jnp.bfloat16, "log"),
            ((1, 3), jnp.float16, "auto"),
        )
    ),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    epsilon=st.sampled_from((0.01, 0.1, 10.0)),
    kind=st.sampled_from(("random", "duplicates", "ties", "negative")),
    masked=st.sampled_from(("none", "some", "rows", "all")),
    seed=st.integers(0, 1000),
)
def test_finite_for_every_input(problem, scale, epsilon, kind, masked, seed):
    shape, dtype, form = problem
    rng = np.random.default_rng(seed)
    cost = rng.uniform(size=shape) * scale
    if kind == "duplicates":
        cost[..., :] = cost[..., :1, :]
    if kind == "ties":
        cost = np.round(cost / max(scale, 1e-9) * 2) * scale
    if kind == "negative":
        cost = -cost
    a, b = rng.uniform(size=shape[-2]), rng.uniform(size=shape[-1])
    if masked == "some":
        a[0], b[-1] = 0, 0
    if masked in ("rows", "all"):
        a[:] = 0
    if masked == "all":
        b[:] = 0
    a, b = (np.float32(x / max(x.sum(), 1e-30)) for x in (a, b))
    cost = jnp.asarray(cost, dtype)
    plan, gradients = plan_and_gradient(
        cost, a, b, rng.normal(size=shape).astype(np.float32), epsilon, 5, form
    )
    plan = np.asarray(plan)
    assert plan.dtype == np.float32 and (plan >= 0).all()
    # float16 does not hold gradients of 1 / eps times costs of 1e4.
    assert_finite(plan, [g for g in gradients if g.dtype != jnp.float16])
    # Columns are exact while any row has mass.
    np.testing.assert_allclose(
        plan.sum(axis=-2), np.broadcast_to(b * a.any(), plan.sum(axis=-2).shape), atol=1e-5
    )
    np.testing.assert_array_equal(plan[..., a == 0, :], 0)


def test_against_pot():
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(6)
    cost, a, b = rng.uniform(size=(7, 9)), rng.dirichlet(np.ones(7)), rng.dirichlet(np.ones(9))
    want = ot.sinkhorn(a, b, cost, 0.05, numItermax=5000, stopThr=1e-14)
    for form in FORMS:
        close(
            transported(
                np.float32(cost),
                np.float32(a),
                np.float32(b),
                epsilon=0.05,
                num_iters=1000,
                form=form,
            ),
            want,
        )


def test_against_ott():
    pytest.importorskip("ott")
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    cost = np.random.default_rng(7).uniform(size=(7, 9)).astype(np.float32)
    solver = sinkhorn.Sinkhorn(threshold=-1, max_iterations=500, min_iterations=500)
    want = solver(
        linear_problem.LinearProblem(geometry.Geometry(cost_matrix=jnp.asarray(cost), epsilon=0.05))
    ).matrix
    close(transported(cost, epsilon=0.05, num_iters=500), want)


def test_transport_errors():
    cost = jnp.ones((2, 3, 4))
    call = functools.partial(transport.entropic_transport, epsilon=0.1, num_iters=5)
    with pytest.raises(ValueError, match=r"shape of cost is \(3,\); it must be \[..., n, m\]"):
        call(jnp.ones(3))
    with pytest.raises(
        ValueError, match=r"shape of cost is \(3, 0\); it must be \[..., n, m\] with n, m >= 1"
    ):
        call(jnp.ones((3, 0)))
    with pytest.raises(
        ValueError, match=r"shape of a is \(4,\); it must be \[3\] as cost or \[2, 3\] as cost"
    ):
        call(cost, jnp.ones(4) / 4)
    with pytest.raises(
        ValueError, match=r"shape of b is \(3,\); it must be \[4\] as cost or \[2, 4\] as cost"
    ):
        call(cost, None, jnp.ones(3) / 3)
    with pytest.raises(ValueError, match="least entry of a is -0.5; it must be at least 0"):
        call(cost, jnp.array([1.0, 0.5, -0.5]))
    with pytest.raises(
        ValueError, match="relative difference of the sums of a and b is 0.5; it must be 0"
    ):
        call(cost, jnp.array([0.5, 0, 0]))
    with pytest.raises(ValueError, match="epsilon is 0"):
        call(cost, epsilon=0)
    with pytest.raises(ValueError, match="num_iters is 0"):
        call(cost, num_iters=0)
    with pytest.raises(ValueError, match="form is 'exp'"):
        call(cost, form="exp")


# align_sets


@pytest.mark.parametrize("solver", ["sinkhorn", "hungarian"])
@hypothesis.settings(max_examples=12, deadline=None, derandomize=True, database=None)
@hypothesis.given(noise=st.sampled_from((0.0, 0.5, 1.0, 3.0)), seed=st.integers(0, 1000))
def test_finds_the_permutation_of_the_same_tokens(solver, noise, seed):
    """LayerNorm-ed 768-d tokens with noise up to 3; one-to-one, as scipy's
    assignment.
    """
    rng = np.random.default_rng(seed)
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
    assert_finite(cost, plan)


def test_sinkhorn_plan_and_cost():
    rng = np.random.default_rng(9)
    source, target = (
        rng.normal(size=(2, 3, 6, 5)).astype(np.float32),
        rng.normal(size=(2, 1, 4, 5)).astype(np.float32),
    )
    for epsilon, num_iters in ((0.1, 5), (1.0, 2)):
        index, cost, plan = aligned(source, target, epsilon=epsilon, num_iters=num_iters)
        want = distances(source, target)
        close(cost, want)
        close(plan, 6 * iterate_all(want, epsilon, num_iters), relative=5e-5)
        np.testing.assert_array_equal(
            index, np.argmax(iterate_all(want, epsilon, num_iters), axis=-1)
        )
        close(plan.sum(axis=-2), np.full((2, 3, 4), 6 / 4))


@pytest.mark.parametrize("shape", [(8, 8), (16, 16), (3, 7), (1, 1), (1, 5), (2, 2)])
def test_hungarian_cost_is_the_least(shape):
    rng = np.random.default_rng(10)
    costs = [
        rng.uniform(size=(40, *shape)),
        rng.integers(0, 3, size=(40, *shape)),
        -1e4 * rng.uniform(size=(40, *shape)),
    ]
    solve = jax.jit(jax.vmap(assignment.assignment))
    for cost in costs:
        index = np.asarray(solve(np.float32(cost)))
        for c, i in zip(cost, index):
            assert len(set(i.tolist())) == shape[0] and i.min() >= 0 and i.max() < shape[1]
            np.testing.assert_allclose(
                c[np.arange(shape[0]), i].sum(),
                c[scipy.optimize.linear_sum_assignment(c)].sum(),
                rtol=1e-5,
            )


def test_hungarian_tries_all_permutations_of_a_small_set():
    cost = np.random.default_rng(11).uniform(size=(5, 5)).astype(np.float32)
    best = min(itertools.permutations(range(5)), key=lambda p: sum(cost[i, p[i]] for i in range(5)))
    assert tuple(np.asarray(jax.jit(assignment.assignment)(cost)).tolist()) == best


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
    source, target = (
        rng.normal(size=(24, 6, 3)).astype(np.float32),
        rng.normal(size=(24, 7, 3)).astype(np.float32),
    )
    rows = rng.integers(0, 6, 24)
    for i, row in enumerate(rows):
        source[i, row, 0] = bad
    index = np.asarray(aligned(source, target, solver="hungarian").index)
    for i, row in enumerate(rows):
        others = np.arange(6) != row
        want = distances(source[i, others], target[i])
        assert len(set(index[i].tolist())) == 6
        chosen = want[np.arange(5), index[i, others]].sum()
        np.testing.assert_allclose(
            chosen, want[scipy.optimize.linear_sum_assignment(want)].sum(), rtol=1e-5
        )


def test_small_epsilon_needs_many_iterations_to_equal_hungarian():
    """On arbitrary costs: converged it is the assignment, after 5 iterations
    it is not.
    """
    cost = np.random.default_rng(12).uniform(size=(60, 8, 8)).astype(np.float32)
    want = np.asarray(jax.jit(jax.vmap(assignment.assignment))(cost))
    many = np.argmax(transported(cost, epsilon=0.002, num_iters=2000, form="log"), axis=-1)
    few = np.argmax(transported(cost, epsilon=0.1, num_iters=5), axis=-1)
    assert np.mean(many == want) > 0.99
    assert 0.7 < np.mean(few == want) < 0.95


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
        close(
            np.take_along_axis(want, np.asarray(index)[..., None], axis=-1),
            want.max(axis=-1, keepdims=True),
        )
        assert np.isfinite(plan).all() and np.max(plan, axis=-1).min() > 1 / 24


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    solver=st.sampled_from(("sinkhorn", "hungarian")),
    problem=st.sampled_from(((4, jnp.float32), (4, jnp.bfloat16), (1, jnp.float16))),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    kind=st.sampled_from(("random", "duplicates", "same", "far")),
    seed=st.integers(0, 1000),
)
def test_alignment_is_finite_for_every_input(solver, problem, scale, kind, seed):
    size, dtype = problem
    rng = np.random.default_rng(seed)
    source, target = rng.normal(size=(size, 6)) * scale, rng.normal(size=(4, 6)) * scale
    if kind == "duplicates":
        source[:], target[:] = source[0], target[0]
    if kind == "same":
        source = target[:size]
    if kind == "far":
        target = np.clip(target + 5 * scale, -6e4, 6e4)
    index, cost, plan = aligned(
        jnp.asarray(source, dtype), jnp.asarray(target, dtype), solver=solver
    )
    assert cost.dtype == jnp.float32
    assert_finite(cost, plan)
    assert 0 <= np.min(index) and np.max(index) < 4
    if solver == "hungarian":
        assert len(set(np.asarray(index).tolist())) == size
    if kind == "same" and solver == "hungarian" and scale == 1:
        np.testing.assert_array_equal(index, np.arange(size))


def test_distances_keep_their_precision_far_from_the_origin():
    rng = np.random.default_rng(13)
    source, target = (rng.normal(size=(5, 4)).astype(np.float32) + 1000 for _ in range(2))
    close(aligned(source, target).cost, distances(source, target), relative=1e-4)


def test_alignment_is_constant_and_maps():
    rng = np.random.default_rng(14)
    source, target = (
        rng.normal(size=(2, 3, 6, 5)).astype(np.float32),
        rng.normal(size=(2, 1, 6, 5)).astype(np.float32),
    )
    for solver in ("sinkhorn", "hungarian"):

        def total(source, target, epsilon, solver=solver):
            aligned = alignment.align_sets(source, target, epsilon=epsilon, solver=solver)
            return sum(jnp.sum(x**2) for x in aligned[1:])

        assert not any(np.any(g) for g in jax.jit(jax.grad(total, (0, 1, 2)))(source, target, 0.1))
        mapped = jax.vmap(functools.partial(aligned, solver=solver))(source, target)
        for one, other in zip(mapped, aligned(source, target, solver=solver)):
            close(one, other)


def test_alignment_errors():
    tokens = jnp.ones((2, 4, 3))
    with pytest.raises(ValueError, match=r"shape of source is \(3,\)"):
        alignment.align_sets(jnp.ones(3), tokens)
    with pytest.raises(
        ValueError, match=r"shape of target is \(2, 4, 5\); it must be \[..., s, 3\] as source"
    ):
        alignment.align_sets(tokens, jnp.ones((2, 4, 5)))
    with pytest.raises(ValueError, match=r"leading axes of target is \(3,\)"):
        alignment.align_sets(tokens, jnp.ones((3, 4, 3)))
    with pytest.raises(
        ValueError, match=r"shape of source is \(2, 0, 3\); it must be .* with r, d >= 1"
    ):
        alignment.align_sets(tokens[:, :0], tokens)
    with pytest.raises(ValueError, match="solver is 'greedy'"):
        alignment.align_sets(tokens, tokens, solver="greedy")
    with pytest.raises(ValueError, match="number of source tokens is 4; it must be at most 3"):
        alignment.align_sets(tokens, tokens[:, :3], solver="hungarian")
    with pytest.raises(ValueError, match="epsilon is -1"):
        alignment.align_sets(tokens, tokens, epsilon=-1)
    with pytest.raises(ValueError, match="num_iters is 0"):
        alignment.align_sets(tokens, tokens, num_iters=0)


# Memory and devices


def test_gradient_keeps_one_number_per_column_and_iteration():
    shape = jax.ShapeDtypeStruct((256, 16, 16), jnp.float32)
    for form in ("log", "scaling"):
        plan = functools.partial(
            transport.entropic_transport, epsilon=0.1, num_iters=100, form=form
        )
        lowered = jax.jit(jax.grad(lambda c, plan=plan: (plan(c) ** 2).sum())).lower(shape)
        assert lowered.compile().memory_analysis().temp_size_in_bytes < 4 * 256 * 16 * (
            100 + 20 * 16
        )


@pytest.mark.parametrize("solver", ["sinkhorn", "hungarian"])
def test_sharded_images_need_no_communication(solver):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across = jax.NamedSharding(mesh, jax.P("data"))
    rng = np.random.default_rng(15)
    source, target = normed(rng, 16, 3, 4, 8), normed(rng, 16, 1, 4, 8)
    spread = [jax.device_put(x, across) for x in (source, target)]
    compiled = aligned.lower(*spread, solver=solver).compile()
    moved = re.findall(
        r"= (\S+) (?:all-gather|all-to-all|collective-permute)\(", compiled.as_text()
    )
    assert moved == []
    for one, other in zip(compiled(*spread), aligned(source, target, solver=solver)):
        close(one, other)
