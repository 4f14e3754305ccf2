"""Anchors, SOPs and their votes against the dense form in float64, and the invariants of the
method.
"""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from tests.finite import assert_finite
from tests.losses import reference
from tests.losses.reference import close, unit

RULES = ("similarity", "smoothed", "onehot")
SHAPES = ((6, 3), (5, 1), (2, 4), (1, 3), (1, 1), (49, 2))  # (K, M); 49 * float32(1 / 49) < 1


def random_sops(seed, num_anchors, num_members, width=8, rule="similarity"):
    rng = np.random.default_rng(seed)
    members = unit(rng, num_anchors, num_members, width)
    weights = reference.shares(rng.uniform(0.1, 1, (num_anchors, num_members)), rule).astype(
        np.float32
    )
    return rng, members, weights


sop_vote = jax.jit(ops.sop_vote)  # the temperature is traced: one program per shape


@jax.jit
def vote_and_gradient(queries, members, weights, temperature, cotangent):
    log_p, pull = jax.vjp(
        lambda q: ops.sop_vote(q, members, weights, temperature=temperature), queries
    )
    return log_p, pull(cotangent.astype(log_p.dtype))[0]


# sample_anchors


def test_anchors_are_distinct_within_a_task_and_drawn_anew_for_each():
    rows = np.asarray(ops.sample_anchors(jax.random.key(1), 50, 20, num_tasks=3))
    assert rows.shape == (3, 20) and rows.dtype == np.int32
    assert rows.min() >= 0 and rows.max() < 50
    assert all(len(set(task)) == 20 for task in rows.tolist())
    assert len({tuple(sorted(task)) for task in rows.tolist()}) == 3
    again = ops.sample_anchors(jax.random.key(1), 50, 20, num_tasks=3)
    other = ops.sample_anchors(jax.random.key(2), 50, 20, num_tasks=3)
    assert np.array_equal(rows, again) and not np.array_equal(rows, other)


def test_every_row_is_equally_likely():
    rows = np.asarray(ops.sample_anchors(jax.random.key(0), 10, 3, num_tasks=3000))
    counts = np.bincount(rows.reshape(-1), minlength=10)
    assert np.abs(counts - 900).max() < 5 * np.sqrt(
        900 * 0.7
    )  # five standard deviations of a binomial


def test_partition_uses_every_row_once():
    rows = np.asarray(
        ops.sample_anchors(jax.random.key(3), 24, 6, num_tasks=4, strategy="partition")
    )
    assert rows.shape == (4, 6)
    assert sorted(rows.reshape(-1).tolist()) == list(range(24))


def test_anchor_errors():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="size is 5; it must be at least 6"):
        ops.sample_anchors(key, 5, 6)
    with pytest.raises(ValueError, match="size is 11; it must be at least 12"):
        ops.sample_anchors(key, 11, 6, num_tasks=2, strategy="partition")
    with pytest.raises(ValueError, match="strategy is 'fixed'"):
        ops.sample_anchors(key, 5, 2, strategy="fixed")
    with pytest.raises(ValueError, match="num_tasks is 0"):
        ops.sample_anchors(key, 5, 2, num_tasks=0)


# build_sops


def brute_force(memory, vectors, allowed, extra):
    """Indices [K, extra] of the most similar allowed rows; allowed [K, N]."""
    scores = np.where(allowed, vectors.astype(np.float64) @ memory.astype(np.float64).T, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :extra]


@pytest.mark.parametrize("pool", ["exclude_anchors", "self"])
@pytest.mark.parametrize("num_members", [1, 4])
def test_sops_hold_the_nearest_rows_and_the_anchor(pool, num_members):
    rng = np.random.default_rng(0)
    memory = unit(rng, 40, 6)
    anchors = rng.permutation(40)[:9].astype(np.int32)
    build = jax.jit(functools.partial(ops.build_sops, num_members=num_members, pool=pool, chunk=4))
    members, similarity = build(memory, anchors)
    allowed = np.ones((9, 40), bool)
    if pool == "exclude_anchors":
        allowed[:, anchors] = False
    else:
        allowed[np.arange(9), anchors] = False
    want = np.concatenate(
        [brute_force(memory, memory[anchors], allowed, num_members - 1), anchors[:, None]], axis=1
    )
    np.testing.assert_array_equal(members, memory[want])
    close(similarity, np.einsum("kmd,kd->km", memory[want].astype(np.float64), memory[anchors]))
    close(similarity[:, -1], np.ones(9))


def test_no_anchor_supports_another_and_own_first_hit():
    memory = unit(np.random.default_rng(1), 64, 4)
    anchors = ops.sample_anchors(jax.random.key(0), 64, 30)[0]
    members, _ = ops.build_sops(memory, anchors, num_members=5)
    of_anchors = {tuple(row) for row in memory[anchors].tolist()}
    assert not of_anchors & {
        tuple(row) for row in np.asarray(members[:, :-1]).reshape(-1, 4).tolist()
    }

    values, first = ops.nearest(memory[anchors], memory, k=5, metric="dot")
    np.testing.assert_array_equal(first[:, 0], anchors)
    close(values[:, 0], np.ones(30))
    members, _ = ops.build_sops(memory, anchors, num_members=5, pool="self")
    for sop, hits in zip(
        np.asarray(members), np.asarray(first)
    ):  # the same set: anchor first there, last here
        assert {tuple(row) for row in sop.tolist()} == {tuple(row) for row in memory[hits].tolist()}


def test_self_pool_never_holds_the_anchor_twice_among_duplicates():
    memory = np.repeat(
        unit(np.random.default_rng(2), 3, 4), 5, axis=0
    )  # 5 copies of each of 3 rows
    memory = np.concatenate([memory, 2 * memory[:1]])  # and a row of norm 2 that beats every copy
    members, similarity = ops.build_sops(memory, jnp.array([4, 9]), num_members=4, pool="self")
    close(similarity[:, -1], np.ones(2))
    np.testing.assert_array_equal(members[1], memory[[5, 6, 7, 9]])
    np.testing.assert_array_equal(members[0], memory[[15, 0, 1, 4]])


def test_sops_of_fixed_vectors():
    rng = np.random.default_rng(3)
    memory, anchors = unit(rng, 30, 5), unit(rng, 4, 5)
    members, similarity = ops.build_sops(memory, jnp.asarray(anchors), num_members=3)
    want = brute_force(memory, anchors, np.ones((4, 30), bool), 2)
    np.testing.assert_array_equal(members[:, :2], memory[want])
    np.testing.assert_array_equal(members[:, 2], anchors)
    close(similarity, np.einsum("kmd,kd->km", np.asarray(members, np.float64), anchors))


def test_sops_carry_no_gradient():
    memory = unit(np.random.default_rng(4), 12, 3)

    def total(m):
        return sum(x.sum() for x in ops.build_sops(m, jnp.arange(3), num_members=3))

    assert not np.any(jax.grad(total)(memory))


def test_build_errors():
    memory = np.ones((10, 3), np.float32)
    with pytest.raises(
        ValueError, match=r"num_members is 8; it must be at most 7, as the pool has 6 rows"
    ):
        ops.build_sops(memory, jnp.arange(4), num_members=8)
    ops.build_sops(memory, jnp.arange(4), num_members=8, pool="self")
    with pytest.raises(
        ValueError, match=r"index in anchors is outside the memory; it must be in \[0, 10\)"
    ):
        ops.build_sops(memory, jnp.array([3, 10]), num_members=2)
    with pytest.raises(ValueError, match=r"shape of anchors is \(4, 2\)"):
        ops.build_sops(memory, jnp.ones((4, 2)), num_members=2)
    with pytest.raises(ValueError, match="pool is 'all'"):
        ops.build_sops(memory, jnp.arange(4), num_members=2, pool="all")


# sop_weights


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights(rule, shape):
    similarity = np.random.default_rng(0).uniform(-1, 1.2, shape).astype(np.float32)
    got = ops.sop_weights(similarity, rule=rule, smoothing=0.2)
    close(got, reference.shares(similarity, rule, 0.2))
    close(
        jax.vmap(lambda s: ops.sop_weights(s, rule=rule, smoothing=0.2))(similarity[None]),
        np.asarray(got)[None],
    )
    close(
        ops.sop_weights(np.stack([similarity] * 2), rule=rule, smoothing=0.2), np.stack([got] * 2)
    )


def test_weight_errors():
    with pytest.raises(ValueError, match="rule is 'soft'"):
        ops.sop_weights(jnp.ones((3, 2)), rule="soft")
    with pytest.raises(ValueError, match=r"smoothing is 1.0; it must be in \[0, 1\)"):
        ops.sop_weights(jnp.ones((3, 2)), smoothing=1.0)
    with pytest.raises(ValueError, match="shape of similarity"):
        ops.sop_weights(jnp.ones(3))


# sop_vote


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_vote_equals_the_dense_form_with_its_gradient(rule, shape):
    rng, members, weights = random_sops(0, *shape, rule=rule)
    queries, cotangent = unit(rng, 7, 8), rng.normal(size=(7, shape[0])).astype(np.float32)
    for temperature in (0.1, 0.02):
        log_p, gradient = vote_and_gradient(queries, members, weights, temperature, cotangent)
        assert log_p.dtype == gradient.dtype == jnp.float32
        want = reference.vote(queries, members, weights, temperature)
        close(log_p, want)
        close(np.exp(log_p).sum(axis=-1), np.ones(7))
        want = reference.vote_gradient(queries, members, weights, temperature, cotangent)
        # Logits of up to 1 / tau are rounded to 1 / tau * 2^-24, once or more, as it was compiled.
        close(gradient, want, relative=2e-6 / temperature)


def test_vote_in_float64_to_1e_12():
    with jax.enable_x64(True):
        for rule in RULES:
            rng, members, weights = random_sops(1, 7, 3, rule=rule)
            members, weights = members.astype(np.float64), weights.astype(np.float64)
            queries, cotangent = rng.normal(size=(4, 8)), rng.normal(size=(4, 7))
            log_p, gradient = vote_and_gradient(queries, members, weights, 0.3, cotangent)
            assert log_p.dtype == jnp.float64
            if (
                rule != "onehot"
            ):  # the reference needs P itself, which stays above 1e-4 / 6 otherwise
                weights = np.clip(weights, 1 / 7, 1 - 1e-4)
            want = reference.vote(queries, members, weights, 0.3)
            np.testing.assert_allclose(log_p, want, rtol=1e-12, atol=1e-12)
            want = reference.vote_gradient(queries, members, weights, 0.3, cotangent)
            np.testing.assert_allclose(gradient, want, rtol=1e-11, atol=1e-11)


def test_members_far_below_the_best_keep_their_log_probability():
    """One-hot at a low temperature: P underflows, log P does not; the gradient is the exact one."""
    members = np.eye(3, dtype=np.float32)[:, None]
    weights = np.ones((3, 1), np.float32)
    query, cotangent = (
        np.array([1.0, 0.0, -1.0], np.float32),
        np.array([0.2, -0.5, 2.0], np.float32),
    )
    log_p, gradient = vote_and_gradient(query, members, weights, 0.001, cotangent)
    close(log_p, [0, -1000, -2000])
    close(gradient, (cotangent - [cotangent.sum(), 0, 0]) / 0.001)


def test_weights_are_clipped_unless_all_one():
    rng, members, _ = random_sops(2, 6, 3)
    queries = unit(rng, 7, 8)
    for some in (0.0, 0.1, (1.0, 0.5, 0.7), 0.99999):
        weights = np.broadcast_to(np.float32(some), (6, 3))
        got = sop_vote(queries, members, weights, temperature=0.05)
        close(
            got,
            reference.vote(
                queries, members, np.clip(weights, np.float32(1 / 6), np.float32(1 - 1e-4)), 0.05
            ),
        )


def test_shares_of_one_kth_stay_finite_where_k_times_one_kth_rounds_below_one():
    k = next(k for k in range(2, 100) if np.float32(k) * np.float32(1 / k) < 1)
    rng, members, _ = random_sops(2, k, 2)
    weights = ops.sop_weights(jnp.full((k, 2), -1.0), smoothing=0.999)
    close(sop_vote(unit(rng, 7, 8), members, weights, temperature=0.1), np.full((7, k), -np.log(k)))


@pytest.mark.parametrize("eps", [0.1, 0.3])
def test_smoothed_prediction_is_an_affine_map_of_the_plain_softmax(eps):
    rng, members, _ = random_sops(3, 5, 1)
    queries, tau, k = unit(rng, 7, 8), 0.1, 5
    plain = np.exp(
        reference.log_softmax(queries.astype(np.float64) @ members[:, 0].T.astype(np.float64) / tau)
    )
    onehot = sop_vote(
        queries, members, ops.sop_weights(jnp.ones((k, 1)), rule="onehot"), temperature=tau
    )
    close(np.exp(onehot), plain)
    weights = ops.sop_weights(jnp.ones((k, 1)), rule="smoothed", smoothing=eps)
    smoothed = np.exp(sop_vote(queries, members, weights, temperature=tau))
    close(smoothed, eps / (k - 1) + plain * (1 - eps * k / (k - 1)))
    assert smoothed.min() >= eps / (k - 1) - 1e-6 and smoothed.max() <= 1 - eps + 1e-6


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    rule=st.sampled_from(RULES),
    temperature=st.sampled_from((0.02, 0.1, 1.0)),
    seed=st.integers(0, 1000),
)
def test_order_of_sops_permutes_and_order_of_members_changes_nothing(rule, temperature, seed):
    """With another order of the members in every SOP."""
    rng, members, weights = random_sops(seed, 6, 3, rule=rule)
    queries = unit(rng, 7, 8)
    base = np.asarray(sop_vote(queries, members, weights, temperature=temperature))
    sops, slots = rng.permutation(6), rng.permuted(np.tile(np.arange(3), (6, 1)), axis=1)
    moved = sop_vote(queries, members[sops], weights[sops], temperature=temperature)
    close(moved, base[:, sops])
    each = np.arange(6)[:, None]
    close(
        sop_vote(queries, members[each, slots], weights[each, slots], temperature=temperature), base
    )
    assert_finite(base, moved)


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    rule=st.sampled_from(RULES), temperature=st.sampled_from((1e6, 1e9)), seed=st.integers(0, 1000)
)
def test_high_temperature_gives_the_column_means_of_the_contributions(rule, temperature, seed):
    """Logits of at most 1e-6 move a probability by 2e-6 of itself."""
    rng, members, weights = random_sops(seed, 6, 3, rule=rule)
    p = np.exp(sop_vote(unit(rng, 7, 8), members, weights, temperature=temperature))
    close(p, np.broadcast_to(reference.contributions(weights).mean(axis=0), (7, 6)))
    if rule != "similarity":
        close(p, np.full((7, 6), 1 / 6))
    assert_finite(p)


def test_any_leading_axes_and_vmap():
    rng, members, weights = random_sops(6, 5, 2)
    queries = unit(rng, 2, 3, 4, 8)
    vote = jax.jit(functools.partial(ops.sop_vote, temperature=0.1))
    want = reference.vote(queries, members, weights, 0.1)
    close(vote(queries, members, weights), want)
    close(vote(queries[0, 0, 0], members, weights), want[0, 0, 0])
    close(vote(queries[:0], members, weights), np.zeros((0, 3, 4, 5)))
    close(jax.vmap(vote, (0, None, None))(queries, members, weights), want)
    # Independent tasks: members and weights mapped, in value and gradient.
    tasks = np.stack([members, members[::-1]]), np.stack([weights, weights[::-1]])

    def total(q, m, w):
        return (vote(q, m, w) ** 2).sum()

    got = jax.jit(jax.vmap(jax.grad(total), (None, 0, 0)))(queries, *tasks)
    close(got[1], jax.jit(jax.grad(total))(queries, tasks[0][1], tasks[1][1]))


def test_only_queries_and_temperature_have_a_gradient():
    rng, members, weights = random_sops(7, 5, 3)
    queries = unit(rng, 4, 8)
    target = np.exp(reference.log_softmax(rng.normal(size=(4, 5))))

    def loss(q, m, w, tau):
        return -(target * ops.sop_vote(q, m, w, temperature=tau)).sum()

    by_query, by_member, by_weight, by_tau = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(
        queries, members, weights, 0.2
    )
    assert np.any(by_query) and not np.any(by_member) and not np.any(by_weight)

    def value(tau):
        return -(target * reference.vote(queries, members, weights, tau)).sum()

    close(by_tau, (value(0.2 + 1e-5) - value(0.2 - 1e-5)) / 2e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_inputs_are_computed_in_float32(dtype):
    rng, members, weights = random_sops(8, 5, 3)
    low = [jnp.asarray(x, dtype) for x in (unit(rng, 4, 8), members, weights)]
    queries, members, weights = (np.asarray(x, np.float32) for x in low)
    log_p, gradient = vote_and_gradient(*low, 0.04, jnp.ones((4, 5)))
    assert log_p.dtype == jnp.float32 and gradient.dtype == dtype
    # Shares of 0.2 and 0.9999 may round to outside of the allowed range.
    weights = np.clip(weights, np.float32(0.2), np.float32(1 - 1e-4))
    close(log_p, reference.vote(queries, members, weights, 0.04))


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(((6, 3), (1, 1))),
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    temperature=st.sampled_from((0.001, 0.02, 0.1, 10.0)),
    rule=st.sampled_from(RULES),
    kind=st.sampled_from(("random", "duplicates", "opposite")),
    seed=st.integers(0, 1000),
)
def test_finite_for_every_input(shape, dtype, scale, temperature, rule, kind, seed):
    rng = np.random.default_rng(seed)
    members = rng.normal(size=(*shape, 4)) * scale
    if kind == "duplicates":
        members[:] = members[0, 0]
    if kind == "opposite":
        members[1::2] = -members[:1]
    queries = rng.normal(size=(3, 4)) * scale
    weights = reference.shares(rng.uniform(-1, 1.5, shape), rule)
    cotangent = np.asarray(rng.dirichlet(np.ones(shape[0]), 3), np.float32)
    arrays = [jnp.asarray(x, dtype) for x in (queries, members)]
    log_p, gradient = vote_and_gradient(
        *arrays, jnp.asarray(weights, jnp.float32), temperature, cotangent
    )
    assert_finite(log_p)
    assert np.max(log_p) <= 1e-5
    np.testing.assert_allclose(np.exp(np.asarray(log_p)).sum(axis=-1), 1, atol=1e-4)
    wide = [np.asarray(x, np.float32) for x in arrays]
    # A gradient of at most 2 max|member| / tau: beyond the range of float16 it may not fit its
    # type.
    limit = 2.5 * np.abs(wide[1]).max() / temperature
    if limit < jnp.finfo(dtype).max:
        assert_finite(gradient)
        assert np.abs(np.asarray(gradient, np.float32)).max() <= limit
    if scale <= 1 and temperature >= 0.02:
        close(
            log_p,
            reference.vote(*wide, np.asarray(weights, np.float32), temperature),
            absolute=1e-5,
        )


def test_vote_errors():
    members, weights = jnp.ones((4, 2, 3)), jnp.full((4, 2), 0.9)
    with pytest.raises(
        ValueError, match=r"shape of members is \(4, 2, 3\); it must be \[K, M, 2\] as queries"
    ):
        ops.sop_vote(jnp.ones((5, 2)), members, weights, temperature=0.1)
    with pytest.raises(
        ValueError, match=r"shape of weights is \(2, 4\); it must be \[4, 2\] as members"
    ):
        ops.sop_vote(jnp.ones(3), members, weights.T, temperature=0.1)
    with pytest.raises(ValueError, match=r"shape of members"):
        ops.sop_vote(jnp.ones(3), members[0], weights, temperature=0.1)
    for bad in (0, -0.1, float("nan"), float("inf"), jnp.float32(0)):
        with pytest.raises(
            ValueError, match="temperature is .*; it must be a finite number above 0"
        ):
            ops.sop_vote(jnp.ones(3), members, weights, temperature=bad)
    with pytest.raises(ValueError, match="temperature is an array of shape"):
        ops.sop_vote(jnp.ones(3), members, weights, temperature=np.ones(4))


# Memory and devices


def test_no_large_buffer_at_full_size():
    """Largest tensor of the lowered loss and gradient: the members, 38 MB; Y would have 604 MB."""
    n, k, m, d = 64, 4096, 9, 256

    def loss(queries, target, members, weights):
        return (
            -(target * ops.sop_vote(queries, members, weights, temperature=0.1)).sum(axis=-1).mean()
        )

    shapes = ((n, d), (n, k), (k, m, d), (k, m))
    lowered = jax.jit(jax.value_and_grad(loss)).lower(
        *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    )
    assert largest_tensor(lowered) <= k * m * d
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 100e6


def largest_tensor(lowered) -> int:
    """Most elements of any tensor in the lowered program (all are of 4 bytes or less)."""
    text = lowered.as_text()
    shapes = re.findall(r"tensor<((?:\d+x)+)\w+>", text)
    sizes = [np.prod([int(n) for n in shape.split("x")[:-1]]) for shape in shapes]
    assert len(sizes) > 20 and "f64" not in text
    return max(sizes)


def test_sharded_batch_agrees_and_needs_no_communication():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    rng, members, weights = random_sops(9, 6, 3)
    queries, cotangent = unit(rng, 16, 8), rng.normal(size=(16, 6)).astype(np.float32)
    arguments = [
        jax.device_put(x, s)
        for x, s in ((queries, across), (members, everywhere), (weights, everywhere))
    ]
    cotangent = jax.device_put(cotangent, across)
    compiled = vote_and_gradient.lower(*arguments, 0.1, cotangent).compile()
    text = compiled.as_text()
    assert not any(
        word in text for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute")
    )
    single = vote_and_gradient(queries, members, weights, 0.1, np.asarray(cotangent))
    for got, want in zip(compiled(*arguments, 0.1, cotangent), single):
        close(got, want)
