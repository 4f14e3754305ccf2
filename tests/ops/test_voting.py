"""Anchors, SOPs and their votes against the dense form in float64, and the invariants of the
method.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from tests.losses import reference
from tests.losses.reference import close, unit

RULES = ("similarity", "smoothed", "onehot")
SHAPES = ((6, 3), (5, 1), (2, 4), (1, 3), (1, 1), (49, 2))  # (K, M); 49 * float32(1 / 49) < 1
sop_vote = jax.jit(ops.sop_vote)  # the temperature is traced: one program per shape
sample = jax.jit(
    ops.sample_anchors, static_argnums=(1, 2), static_argnames=("num_tasks", "strategy")
)
build = jax.jit(ops.build_sops, static_argnames=("num_members", "pool", "chunk"))


def random_sops(seed, num_anchors, num_members, width=8, rule="similarity"):
    rng = np.random.default_rng(seed)
    members = unit(rng, num_anchors, num_members, width)
    weights = reference.shares(rng.uniform(0.1, 1, (num_anchors, num_members)), rule)
    return rng, members, weights.astype(np.float32)


@jax.jit
def vote_and_gradient(queries, members, weights, temperature, cotangent):
    log_p, pull = jax.vjp(
        lambda q: ops.sop_vote(q, members, weights, temperature=temperature), queries
    )
    return log_p, pull(cotangent.astype(log_p.dtype))[0]


# sample_anchors


def test_anchors_are_distinct_within_a_task_and_drawn_anew_for_each():
    rows = np.asarray(sample(jax.random.key(1), 50, 20, num_tasks=3))
    assert rows.shape == (3, 20) and rows.dtype == np.int32
    assert rows.min() >= 0 and rows.max() < 50
    assert all(len(set(task)) == 20 for task in rows.tolist())
    assert len({tuple(sorted(task)) for task in rows.tolist()}) == 3
    assert not np.array_equal(rows, sample(jax.random.key(2), 50, 20, num_tasks=3))


def test_every_row_is_equally_likely():
    rows = np.asarray(sample(jax.random.key(0), 10, 3, num_tasks=3000))
    counts = np.bincount(rows.reshape(-1), minlength=10)
    deviation = np.sqrt(900 * 0.7)  # of a binomial
    assert np.abs(counts - 900).max() < 5 * deviation


def test_partition_uses_every_row_once():
    rows = np.asarray(sample(jax.random.key(3), 24, 6, num_tasks=4, strategy="partition"))
    assert rows.shape == (4, 6) and sorted(rows.reshape(-1).tolist()) == list(range(24))


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
    members, similarity = build(memory, anchors, num_members=num_members, pool=pool, chunk=4)
    allowed = np.ones((9, 40), bool)
    if pool == "exclude_anchors":
        allowed[:, anchors] = False
    else:
        allowed[np.arange(9), anchors] = False
    nearest = brute_force(memory, memory[anchors], allowed, num_members - 1)
    want = np.concatenate([nearest, anchors[:, None]], axis=1)
    np.testing.assert_array_equal(members, memory[want])
    close(similarity, np.einsum("kmd,kd->km", memory[want].astype(np.float64), memory[anchors]))
    close(similarity[:, -1], np.ones(9))


def test_a_pool_of_all_others_allows_as_many_members():
    memory = np.ones((10, 3), np.float32)
    members, _ = build(memory, np.arange(4), num_members=10, pool="self")
    assert members.shape == (4, 10, 3)


def test_self_pool_never_holds_the_anchor_twice_among_duplicates():
    memory = np.repeat(unit(np.random.default_rng(2), 3, 4), 5, axis=0)  # 5 copies of each
    memory = np.concatenate([memory, 2 * memory[:1]])  # and a row of norm 2 that beats every copy
    members, similarity = build(memory, np.array([4, 9]), num_members=4, pool="self")
    close(similarity[:, -1], np.ones(2))
    np.testing.assert_array_equal(members[1], memory[[5, 6, 7, 9]])
    np.testing.assert_array_equal(members[0], memory[[15, 0, 1, 4]])


def test_sops_of_fixed_vectors():
    rng = np.random.default_rng(3)
    memory, anchors = unit(rng, 30, 5), unit(rng, 4, 5)
    members, similarity = build(memory, anchors, num_members=3)
    want = brute_force(memory, anchors, np.ones((4, 30), bool), 2)
    np.testing.assert_array_equal(members[:, :2], memory[want])
    np.testing.assert_array_equal(members[:, 2], anchors)
    close(similarity, np.einsum("kmd,kd->km", np.asarray(members, np.float64), anchors))


# sop_weights


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights(rule, shape):
    similarity = np.random.default_rng(0).uniform(-1, 1.2, shape).astype(np.float32)
    got = ops.sop_weights(similarity, rule=rule, smoothing=0.2)
    close(got, reference.shares(similarity, rule, 0.2))


# sop_vote


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_vote_equals_the_dense_form_with_its_gradient(rule, shape):
    rng, members, weights = random_sops(0, *shape, rule=rule)
    queries, cotangent = unit(rng, 7, 8), rng.normal(size=(7, shape[0])).astype(np.float32)
    for temperature in (0.1, 0.02):
        log_p, gradient = vote_and_gradient(queries, members, weights, temperature, cotangent)
        close(log_p, reference.vote(queries, members, weights, temperature))
        want = reference.vote_gradient(queries, members, weights, temperature, cotangent)
        # Logits of up to 1 / tau are rounded to 1 / tau * 2^-24, once or more, as it was compiled.
        close(gradient, want, relative=2e-6 / temperature)


@pytest.mark.parametrize("rule", RULES)
def test_vote_in_float64_to_1e_12(rule):
    rng, members, weights = random_sops(1, 7, 3, rule=rule)
    members, weights = members.astype(np.float64), weights.astype(np.float64)
    queries, cotangent = rng.normal(size=(4, 8)), rng.normal(size=(4, 7))
    with jax.enable_x64(True):
        log_p, gradient = vote_and_gradient(queries, members, weights, 0.3, cotangent)
        assert log_p.dtype == jnp.float64
    if rule != "onehot":  # the reference needs P itself, which stays above 1e-4 / 6 otherwise
        weights = np.clip(weights, 1 / 7, 1 - 1e-4)
    want = reference.vote(queries, members, weights, 0.3)
    np.testing.assert_allclose(log_p, want, rtol=1e-12, atol=1e-12)
    want = reference.vote_gradient(queries, members, weights, 0.3, cotangent)
    np.testing.assert_allclose(gradient, want, rtol=1e-11, atol=1e-11)


def test_members_far_below_the_best_keep_their_log_probability():
    """One-hot at a low temperature: P underflows, log P does not; the gradient is the exact one."""
    members = np.eye(3, dtype=np.float32)[:, None]
    query, cotangent = np.float32([1.0, 0.0, -1.0]), np.float32([0.2, -0.5, 2.0])
    weights = np.ones((3, 1), np.float32)
    log_p, gradient = vote_and_gradient(query, members, weights, 0.001, cotangent)
    close(log_p, [0, -1000, -2000])
    close(gradient, (cotangent - [cotangent.sum(), 0, 0]) / 0.001)


def test_weights_are_clipped_unless_all_one():
    rng, members, _ = random_sops(2, 6, 3)
    queries = unit(rng, 7, 8)
    for some in (0.0, 0.1, (1.0, 0.5, 0.7), 0.99999):
        weights = np.broadcast_to(np.float32(some), (6, 3))
        clipped = np.clip(weights, np.float32(1 / 6), np.float32(1 - 1e-4))
        got = sop_vote(queries, members, weights, temperature=0.05)
        close(got, reference.vote(queries, members, clipped, 0.05))


def test_shares_of_one_kth_stay_finite_where_k_times_one_kth_rounds_below_one():
    k = next(k for k in range(2, 100) if np.float32(k) * np.float32(1 / k) < 1)
    rng, members, _ = random_sops(2, k, 2)
    weights = ops.sop_weights(np.full((k, 2), -1.0), smoothing=0.999)
    close(sop_vote(unit(rng, 7, 8), members, weights, temperature=0.1), np.full((7, k), -np.log(k)))


def test_gradient_by_the_temperature():
    rng, members, weights = random_sops(7, 5, 3)
    queries = unit(rng, 4, 8)
    target = np.exp(reference.log_softmax(rng.normal(size=(4, 5))))

    def value(vote, tau):
        return -(target * vote(queries, members, weights, tau)).sum()

    def vote(*arguments):
        return ops.sop_vote(*arguments[:3], temperature=arguments[3])

    by_tau = jax.jit(jax.grad(functools.partial(value, vote)))(0.2)
    high, low = (value(reference.vote, 0.2 + step) for step in (1e-5, -1e-5))
    close(by_tau, (high - low) / 2e-5)


def test_the_second_derivative_where_logits_are_equal():
    """Of a zero query all are."""
    rng, members, weights = random_sops(3, 4, 3)
    query = np.zeros((1, 8), np.float32)

    def vote(u):
        return ops.sop_vote(u, members, weights, temperature=0.5)[0, 0]

    step = 1e-2 * np.eye(8, dtype=np.float32)[:, None]
    gradient = jax.vmap(lambda u: jax.grad(vote)(u)[0])
    wanted = (gradient(query + step) - gradient(query - step)) / 2e-2
    np.testing.assert_allclose(jax.hessian(vote)(query)[0, :, 0], wanted, atol=2e-2)


def test_the_second_derivative_is_finite_where_nothing_is_shared():
    rng = np.random.default_rng(0)
    queries, members = rng.normal(size=(3, 4)), rng.normal(size=(5, 2, 4))
    queries, members = (jnp.asarray(x, jnp.float32) for x in (queries, members))

    def loss(u):
        return ops.sop_vote(u, members, jnp.ones((5, 2)), temperature=0.5)[:, 0].sum()

    def gradient(u):
        return jax.grad(loss)(u)[0, 0]

    found = jax.grad(gradient)(queries)[0, 0]
    step = jnp.zeros_like(queries).at[0, 0].set(1e-2)
    wanted = (gradient(queries + step) - gradient(queries - step)) / 2e-2
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3)
