"""Joint-view clustering against the dense formula in float64, and object tokens against loops."""

import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops import clustering
from ssl_jax.ops.clustering import joint_view_clustering, object_tokens
from tests.finite import assert_finite
from tests.losses.reference import close

CLUSTER_STATIC = (
    "num_clusters",
    "num_iters",
    "sinkhorn_iters",
    "normalize",
    "update_marginals",
    "hard",
)
cluster = jax.jit(joint_view_clustering, static_argnames=CLUSTER_STATIC)
objects_jit = jax.jit(object_tokens)


def normalized(x):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(norm > 0, norm, 1)


def dense_positional_cost(places, members):
    """CrIBo eq. 17 for one image, with all pairs of tokens for all clusters: members [n, K]."""
    distance = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    pairs = np.where(
        members[None] & (distance > 0)[:, :, None], distance[:, :, None], np.inf
    )  # [n, l, K]
    nearest = pairs.min(axis=1)
    exists = np.isfinite(nearest)
    cost = np.where(exists, nearest, np.where(exists, nearest, 0).mean())
    return cost / cost.max() if cost.max() > 0 else cost


def dense_clustering(
    tokens,
    places,
    seeds,
    weight=1.0,
    temperature=0.05,
    iters=5,
    inner=5,
    normalize="image",
    update=True,
):
    """Clustering of a batch [B, n, d] in float64 -> hard assignments and plans, both [B, n, K]."""
    tokens, places, seeds = (
        normalized(np.asarray(tokens, np.float64)),
        np.asarray(places, np.float64),
        np.asarray(seeds),
    )
    (images, n, _), k = tokens.shape, seeds.shape[1]
    a = np.zeros((images, n, k))
    centroids = np.zeros((images, k, tokens.shape[-1]))
    for i in range(images):
        a[i, seeds[i], np.arange(k)] = 1
        centroids[i] = tokens[i, seeds[i]]
    columns = np.full((images, k), 1 / k)
    for _ in range(iters):
        cost = np.stack(
            [
                weight * dense_positional_cost(places[i], a[i] > 0) - tokens[i] @ centroids[i].T
                for i in range(images)
            ]
        )
        for part in [cost] if normalize == "batch" else cost:
            part -= part.min()
            part /= part.max() or 1
        plans = []
        for i in range(images):
            plan = np.exp(-cost[i] / temperature)
            plan /= plan.sum()
            for _ in range(inner):
                plan *= (1 / n / plan.sum(axis=1))[:, None]
                plan *= (columns[i] / plan.sum(axis=0))[None]
            plans.append(plan)
            a[i] = np.eye(k)[plan.argmax(axis=1)]
            if update:
                columns[i] = (a[i].sum(0) + 0.01) / (a[i].sum(0) + 0.01).sum()
            centroids[i] = normalized(a[i].T @ tokens[i])
    return a, np.stack(plans)


def scene(seed, images, n, width, k, groups=4):
    """Tokens around a few directions, places in a picture of 224 pixels, distinct seeds."""
    rng = np.random.default_rng(seed)
    centers, kind = rng.normal(size=(images, groups, width)), rng.integers(0, groups, (images, n))
    tokens = 2 * np.take_along_axis(centers, kind[..., None], axis=1) + rng.normal(
        size=(images, n, width)
    )
    seeds = np.stack([rng.permutation(n)[:k] for _ in range(images)])
    return (
        tokens.astype(np.float32),
        rng.uniform(0, 224, (images, n, 2)).astype(np.float32),
        seeds.astype(np.int32),
    )


# joint_view_clustering


def test_positional_cost_by_hand():
    """Places 0, 3, 4 on a line; 0 and 3 in cluster 0, 4 alone in cluster 1: its own cost is the
    mean of the others and 0.
    """
    distances = clustering._distances(jnp.array([[[0.0], [3.0], [4.0]]]))
    assert distances[0].tolist() == [[np.inf, 3, 4], [3, np.inf, 1], [4, 1, np.inf]]
    got = clustering._positional_cost(
        distances, jnp.array([[0, 0, 1]]), 2
    )  # 3 4 / 3 1 / 1 (3+3+1+4+1+0)/6
    close(got, [[[3 / 4, 1], [3 / 4, 1 / 4], [1 / 4, 2 / 4]]])


place_distances = jax.jit(clustering._distances)
position_forms = [
    jax.jit(form, static_argnums=2)
    for form in (clustering._nearest_by_label, clustering._nearest_by_cluster)
]
positional_cost = jax.jit(clustering._positional_cost, static_argnums=2)


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(side=st.sampled_from((1, 3, 12, 224)), seed=st.integers(0, 1000))
def test_positional_cost_is_that_of_the_dense_formula_in_every_form(side, seed):
    """On a grid where some tokens coincide, or all."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, side, (3, 40, 2)).astype(np.float32)
    labels = rng.integers(0, 7, (3, 40)).astype(np.int32)
    labels[labels == 3] = 7  # cluster 3 is empty, and some tokens are in no cluster
    labels[:, 0] = 4
    labels[0, labels[0] == 5] = 2
    labels[0, 9] = 5  # a single member
    distances = place_distances(places)
    forms = [form(distances, labels, 7) for form in position_forms]
    np.testing.assert_array_equal(*forms)
    assert np.isinf(forms[0][:, :, 3]).all() and np.isinf(forms[0][0, 9, 5])
    got = positional_cost(distances, labels, 7)
    close(
        got,
        [
            dense_positional_cost(np.float64(p), label[:, None] == np.arange(7))
            for p, label in zip(places, labels)
        ],
    )
    assert_finite(got)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": "batch"},
        {"update_marginals": False},
        {"position_weight": 0.0},
        {"position_weight": 2.0, "temperature": 0.1},
        {"num_iters": 1, "sinkhorn_iters": 1},
        {"num_iters": 2, "sinkhorn_iters": 9, "temperature": 0.02},
    ],
    ids=str,
)
def test_equals_the_dense_formula(options):
    tokens, places, seeds = scene(1, 3, 40, 12, 7)
    tokens[1] *= 0.01  # lengths do not matter
    tokens[2] = np.abs(tokens[2])  # another range of costs
    names = {
        "position_weight": "weight",
        "num_iters": "iters",
        "sinkhorn_iters": "inner",
        "update_marginals": "update",
    }
    want, plan = dense_clustering(
        tokens, places, seeds, **{names.get(name, name): value for name, value in options.items()}
    )
    got = cluster(tokens, places, num_clusters=7, seeds=seeds, **options)
    np.testing.assert_array_equal(got, want)
    soft = cluster(tokens, places, num_clusters=7, seeds=seeds, hard=False, **options)
    close(soft, plan / plan.sum(-1, keepdims=True), absolute=2e-5)
    np.testing.assert_array_equal(np.argmax(soft, -1), np.argmax(got, -1))


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_every_token_at_paper_scale(weight):
    tokens, places, seeds = scene(2, 2, 392, 64, 32, groups=9)
    want, _ = dense_clustering(tokens, places, seeds, weight=weight)
    np.testing.assert_array_equal(
        cluster(tokens, places, num_clusters=32, seeds=seeds, position_weight=weight), want
    )


@pytest.mark.parametrize("form", ["_nearest_by_label", "_nearest_by_cluster"])
def test_never_builds_the_dense_array(form, monkeypatch):
    """Not as a buffer and, on this backend, not even as the shape of a fused intermediate."""
    monkeypatch.setattr(clustering, "_nearest_by_label", getattr(clustering, form))
    images, n, k = 4, 392, 32
    shapes = [jax.ShapeDtypeStruct((images, n, size), jnp.float32) for size in (384, 2)]
    seeds = jax.ShapeDtypeStruct((images, k), jnp.int32)
    run = jax.jit(lambda t, p, s: joint_view_clustering(t, p, num_clusters=k, seeds=s))
    compiled = run.lower(*shapes, seeds).compile()
    dense = images * n * n * k
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * dense / 8
    sizes = [
        np.prod([int(size) for size in dims.split(",")])
        for dims in re.findall(r"\w\[([\d,]+)\]", compiled.as_text())
    ]
    assert max(sizes) == images * n * n


@pytest.mark.parametrize("uniform", [True, False])
def test_plan_is_that_of_the_scaled_exponential(uniform):
    """Columns are exact; rows are within 1 percent (worst row of 200 such draws in float64: 0.1 to
    0.8, median 0.3 percent).
    """
    rng = np.random.default_rng(3)
    cost = rng.uniform(size=(392, 32)).astype(np.float32)
    columns = (np.full(32, 1 / 32) if uniform else rng.dirichlet(np.full(32, 5.0))).astype(
        np.float32
    )
    got = jnp.exp(
        clustering._log_plan(-20 * cost, jnp.float32(-np.log(392)), jnp.log(columns)[None], 5)
    )
    plan = np.exp(-20 * np.float64(cost))
    for _ in range(5):
        plan *= 1 / 392 / plan.sum(1, keepdims=True)
        plan *= columns / plan.sum(0)
    close(got, plan)
    np.testing.assert_allclose(got.sum(0), columns, rtol=5e-6)
    np.testing.assert_allclose(got.sum(), 1, rtol=5e-6)
    if uniform:
        np.testing.assert_allclose(got.sum(1), 1 / 392, rtol=1e-2)


def test_plan_converges_to_that_of_pot():
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(4)
    cost, columns = rng.uniform(size=(30, 6)), rng.dirichlet(np.full(6, 5.0))
    plan = jnp.exp(
        clustering._log_plan(
            jnp.float32(-20 * cost),
            jnp.float32(-np.log(30)),
            jnp.log(jnp.float32(columns))[None],
            200,
        )
    )
    close(
        plan,
        ot.sinkhorn(np.full(30, 1 / 30), columns, cost, 0.05, numItermax=5000, stopThr=1e-13),
        absolute=1e-7,
    )


def test_plan_is_finite_where_the_exponential_is_not():
    scores = jnp.array([[0.0, -3e4], [-1e4, -2e4], [-1e-3, 0.0]])
    plan = jnp.exp(
        clustering._log_plan(scores, jnp.float32(-np.log(3)), jnp.log(jnp.array([[0.5, 0.5]])), 5)
    )
    np.testing.assert_allclose(plan.sum(0), 0.5, rtol=1e-2)
    assert np.isfinite(plan).all()


# Sums in another order round otherwise: a token within 1e-6 of a tie could change its cluster, and
# the examples below, which are always the same, have none.


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(weight=st.sampled_from((0.0, 1.0, 2.0)), seed=st.integers(0, 1000))
def test_order_of_tokens_and_seeds_only_renames(weight, seed):
    """Tokens move with their places and seeds; the clusters move with the
    seeds.
    """
    (tokens, places, seeds), rng = scene(seed, 2, 40, 12, 7), np.random.default_rng(seed)
    options = dict(num_clusters=7, position_weight=weight)
    base = cluster(tokens, places, seeds=seeds, **options)
    order, columns = rng.permutation(40), rng.permutation(7)
    moved = np.argsort(order)[seeds].astype(np.int32)
    np.testing.assert_array_equal(
        cluster(tokens[:, order], places[:, order], seeds=moved, **options), base[:, order]
    )
    np.testing.assert_array_equal(
        cluster(tokens, places, seeds=seeds[:, columns], **options), base[:, :, columns]
    )
    assert_finite(base)


def test_unit_and_origin_of_places_and_lengths_of_tokens_do_not_matter():
    tokens, places, seeds = scene(8, 2, 40, 12, 7)
    base = cluster(tokens, places, num_clusters=7, seeds=seeds)
    lengths = np.exp(np.random.default_rng(9).normal(size=(2, 40, 1))).astype(np.float32)
    np.testing.assert_array_equal(
        cluster(tokens * lengths, places * 64 + 1000, num_clusters=7, seeds=seeds), base
    )


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(weight=st.sampled_from((1e9, 1e12)), seed=st.integers(0, 1000))
def test_a_large_weight_leaves_only_the_places(weight, seed):
    """A weight of 0 leaves only the tokens."""
    tokens, places, seeds = scene(seed, 2, 40, 12, 7)
    groups = [
        cluster(x, places, num_clusters=7, seeds=seeds, position_weight=weight)
        for x in (tokens, tokens[:, ::-1])
    ]
    np.testing.assert_array_equal(*groups)
    without = [
        cluster(tokens, x, num_clusters=7, seeds=seeds, position_weight=0.0)
        for x in (places, places[:, ::-1])
    ]
    np.testing.assert_array_equal(*without)
    assert (groups[0] != without[0]).any()
    assert_finite(groups, without)


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(seed=st.integers(0, 1000))
def test_exchanging_the_views_exchanges_objects_and_keeps_validity(seed):
    tokens, places, seeds = scene(seed, 2, 40, 12, 16)
    base = cluster(tokens, places, num_clusters=16, seeds=seeds)
    swap = np.roll(np.arange(40), 20)
    other = cluster(tokens[:, swap], places[:, swap], num_clusters=16, seeds=(seeds + 20) % 40)
    np.testing.assert_array_equal(other, base[:, swap])
    (objects, valid), (swapped, still) = (
        objects_jit(tokens, base),
        objects_jit(tokens[:, swap], other),
    )
    np.testing.assert_array_equal(valid, still)
    assert 0 < valid.sum() < valid.size
    close(swapped, objects[:, ::-1])
    assert_finite(objects)


def test_an_image_does_not_depend_on_its_neighbours_unless_asked():
    """Costs of image 1 spread further once its places matter more; the common scale then flattens
    image 0.
    """
    tokens, places, seeds = scene(12, 2, 40, 12, 7)
    tokens[0, 1:] = tokens[0, :1] + 0.05 * tokens[0, 1:]
    pair, alone = (
        [
            cluster(
                *(x[part] for x in (tokens, places)),
                num_clusters=7,
                seeds=seeds[part],
                normalize=how,
                hard=False,
            )
            for how in ("image", "batch")
        ]
        for part in (slice(None), slice(0, 1))
    )
    close(pair[0][:1], alone[0])
    close(alone[1], alone[0])
    assert np.abs(pair[1][:1] - alone[1]).max() > 0.01


def test_equal_costs_go_to_the_first_cluster():
    """One token five times in one place: minimum = maximum, nothing is divided by zero."""
    tokens, places, seeds = jnp.ones((5, 3)), jnp.ones((5, 2)), jnp.arange(2)
    for normalize in ("image", "batch"):
        hard = joint_view_clustering(
            tokens, places, num_clusters=2, seeds=seeds, normalize=normalize
        )
        assert hard.tolist() == [[1, 0]] * 5
        soft = joint_view_clustering(
            tokens,
            places,
            num_clusters=2,
            seeds=seeds,
            normalize=normalize,
            num_iters=1,
            hard=False,
        )
        close(soft, np.full((5, 2), 0.5))


@pytest.mark.parametrize("iters", [1, 2, 5])
def test_without_scaling_and_places_it_is_k_means_of_unit_vectors(iters):
    tokens, places, seeds = scene(21, 3, 40, 12, 7)
    got = cluster(
        tokens,
        places,
        num_clusters=7,
        seeds=seeds,
        position_weight=0.0,
        sinkhorn_iters=0,
        num_iters=iters,
    )
    for image in range(3):
        points = normalized(np.float64(tokens[image]))
        centroids = points[seeds[image]]
        for _ in range(iters):
            labels = np.array(
                [np.argmax([point @ centroid for centroid in centroids]) for point in points]
            )
            centroids = np.stack([normalized(points[labels == k].sum(0)) for k in range(7)])
        np.testing.assert_array_equal(got[image], np.eye(7)[labels])
    balanced = cluster(
        tokens,
        places,
        num_clusters=7,
        seeds=seeds,
        position_weight=0.0,
        update_marginals=False,
        num_iters=iters,
    )
    assert np.ptp(got.sum(1), axis=-1).mean() > np.ptp(balanced.sum(1), axis=-1).mean()


def test_without_scaling_the_objective_of_k_means_never_falls():
    """The sum of the cosines of tokens with their centroids, which both half-steps of k-means
    raise.
    """
    tokens, places, seeds = scene(22, 2, 40, 12, 7)
    points = normalized(np.float64(tokens))
    options = dict(num_clusters=7, seeds=seeds, position_weight=0.0, sinkhorn_iters=0)
    values = []
    for iters in (1, 2, 3, 6):
        members = np.float64(cluster(tokens, places, num_iters=iters, **options))
        values.append(np.linalg.norm(np.einsum("bnk,bnd->bkd", members, points), axis=-1).sum())
    assert np.all(np.diff(values) >= -1e-9) and values[-1] > values[0]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (4, 4)])
def test_smallest_sizes(n, k):
    tokens, places, seeds = scene(13, 2, n, 5, k)
    got = cluster(tokens, places, num_clusters=k, seeds=seeds)
    np.testing.assert_array_equal(got, dense_clustering(tokens, places, seeds)[0])


def test_seeds_from_keys():
    tokens, places, _ = scene(14, 3, 40, 12, 7)
    key = jax.random.key(0)
    drawn = clustering._seeds(key, (3,), 40, 7)
    assert all(len(set(row)) == 7 and 0 <= min(row) and max(row) < 40 for row in drawn.tolist())
    assert len({tuple(row) for row in drawn.tolist()}) == 3
    got = cluster(tokens, places, num_clusters=7, seeds=key)
    np.testing.assert_array_equal(got, cluster(tokens, places, num_clusters=7, seeds=drawn))
    keys = jax.random.split(key, 3)
    by_image = jax.vmap(lambda t, p, s: joint_view_clustering(t, p, num_clusters=7, seeds=s))(
        tokens, places, keys
    )
    np.testing.assert_array_equal(cluster(tokens, places, num_clusters=7, seeds=keys), by_image)
    counts = np.bincount(
        np.asarray(clustering._seeds(key, (4000,), 10, 3)).reshape(-1), minlength=10
    )
    assert np.abs(counts - 1200).max() < 5 * np.sqrt(
        1200 * 0.7
    )  # five standard deviations of a binomial


def test_leading_axes_and_no_gradient():
    tokens, places, seeds = scene(15, 4, 20, 6, 5)

    def fold(x):
        return x.reshape(2, 2, *x.shape[1:])

    got = cluster(fold(tokens), fold(places), num_clusters=5, seeds=fold(seeds))
    np.testing.assert_array_equal(got, fold(cluster(tokens, places, num_clusters=5, seeds=seeds)))

    def total(tokens, places, weight, temperature):
        return cluster(
            tokens,
            places,
            num_clusters=5,
            seeds=seeds,
            position_weight=weight,
            temperature=temperature,
            hard=False,
        )[..., 0].sum()

    for gradient in jax.grad(jax.checkpoint(total), (0, 1))(tokens, places, 1.0, 0.05):
        assert not gradient.any()


def test_sharded_images_stay_where_they_are():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    tokens, places, seeds = scene(16, 16, 20, 6, 5)
    run = jax.jit(lambda t, p, s: joint_view_clustering(t, p, num_clusters=5, seeds=s))
    arguments = jax.device_put((tokens, places, seeds), jax.NamedSharding(mesh, jax.P("data")))
    text = run.lower(*arguments).compile().as_text()
    assert not any(
        word in text
        for word in ("all-reduce(", "all-gather(", "all-to-all(", "collective-permute(")
    )
    np.testing.assert_array_equal(run(*arguments), dense_clustering(tokens, places, seeds)[0])
    common = jax.jit(
        lambda t, p, s: joint_view_clustering(t, p, num_clusters=5, seeds=s, normalize="batch")
    )
    np.testing.assert_array_equal(
        common(*arguments), dense_clustering(tokens, places, seeds, normalize="batch")[0]
    )


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(((2, 12, 3), (1, 2, 2), (3, 8, 8))),
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    place=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    weight=st.sampled_from((0.0, 1.0, 100.0)),
    temperature=st.sampled_from((1e-4, 0.05, 10.0)),
    kind=st.sampled_from(("random", "duplicates", "opposite", "grid")),
    hard=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finite_for_every_input(shape, dtype, scale, place, weight, temperature, kind, hard, seed):
    images, n, k = shape
    rng = np.random.default_rng(seed)
    tokens, places = rng.normal(size=(images, n, 4)), rng.normal(size=(images, n, 2))
    if kind == "duplicates":
        tokens, places = tokens[:, rng.integers(0, 2, n)], places[:, rng.integers(0, 2, n)]
    if kind == "opposite":
        tokens = tokens[:, :1] * np.where(np.arange(n) % 2, 1, -1)[None, :, None]
    if kind == "grid":  # ties
        tokens, places = np.round(tokens), np.round(places)
    tokens, places = jnp.asarray(tokens * scale, dtype), jnp.asarray(places * place, dtype)
    seeds = np.stack([rng.permutation(n)[:k] for _ in range(images)]).astype(np.int32)
    got = cluster(
        tokens,
        places,
        num_clusters=k,
        seeds=seeds,
        position_weight=weight,
        temperature=temperature,
        hard=hard,
    )
    assert got.dtype == jnp.float32 and got.shape == (images, n, k)
    assert (got >= 0).all()
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)
    objects, valid = objects_jit(tokens, got)
    assert_finite(got, objects)
    if hard:
        assert set(np.unique(got)) <= {0.0, 1.0}
        halves = np.asarray(got).reshape(images, 2, n // 2, k)
        np.testing.assert_array_equal(valid, (halves.sum(2) > 0).all(1))
        total = np.einsum("bvk,bvkd->bd", halves.sum(2), np.asarray(objects, np.float64))
        close(total, np.asarray(tokens, np.float64).sum(1), absolute=1e-5 * max(scale, 1) * n)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(tokens=jnp.ones(3)), r"shape of tokens is \(3,\); it must be \[..., 2N, d\]"),
        (
            dict(positions=jnp.ones((2, 5, 2))),
            r"shape of positions is \(2, 5, 2\); it must be \[2, 6, p\] as tokens",
        ),
        (dict(positions=jnp.ones((2, 6, 0))), r"shape of positions is \(2, 6, 0\)"),
        (dict(num_clusters=7), "num_clusters is 7; it must be between 1 and 6"),
        (dict(num_clusters=0), "num_clusters is 0"),
        (dict(seeds=jnp.zeros((2, 2), jnp.int32)), "seeds is repeated; it must be distinct"),
        (
            dict(seeds=jnp.array([[0, 6], [0, 1]])),
            r"seeds is outside the tokens; it must be in \[0, 6\)",
        ),
        (dict(seeds=jnp.array([[0, -1], [0, 1]])), "seeds is outside the tokens"),
        (dict(seeds=jnp.array([0, 1])), r"shape of seeds is \(2,\); it must be \[2, K\] as tokens"),
        (dict(seeds=jnp.ones((2, 2))), "type of seeds is float32; it must be integer or PRNG key"),
        (
            dict(seeds=jax.random.split(jax.random.key(0), 3)),
            r"shape of seeds is \(3,\); it must be \[\] or \[2\] as tokens",
        ),
        (dict(normalize="device"), "normalize is 'device'"),
        (dict(temperature=0.0), "temperature is 0.0; it must be a finite number above 0"),
        (dict(position_weight=-1.0), "position_weight is -1.0"),
        (dict(num_iters=0), "num_iters is 0"),
        (dict(sinkhorn_iters=-1), "sinkhorn_iters is -1; it must be 0 or more"),
    ],
)
def test_errors(change, message):
    good = dict(
        tokens=jnp.ones((2, 6, 3)),
        positions=jnp.ones((2, 6, 2)),
        num_clusters=2,
        seeds=jnp.array([[0, 1], [2, 3]]),
    )
    options = good | change
    with pytest.raises(ValueError, match=message):
        joint_view_clustering(options.pop("tokens"), options.pop("positions"), **options)


# object_tokens


@pytest.mark.parametrize("hard", [True, False])
def test_objects_are_means_within_a_view(hard):
    rng = np.random.default_rng(17)
    tokens, weights = (
        rng.normal(size=(3, 10, 4)).astype(np.float32),
        rng.uniform(size=(3, 10, 6)).astype(np.float32),
    )
    if hard:
        weights = np.eye(6, dtype=np.float32)[weights.argmax(-1)]
    want, exists = np.zeros((3, 2, 6, 4)), np.ones((3, 6), bool)
    for image, view, k in np.ndindex(3, 2, 6):
        part = slice(5 * view, 5 * view + 5)
        q = np.float64(weights[image, part, k])
        exists[image, k] &= q.sum() > 0
        if q.sum() > 0:
            want[image, view, k] = (q[:, None] * tokens[image, part]).sum(0) / q.sum()
    objects, valid = object_tokens(tokens, weights)
    close(objects, want)
    np.testing.assert_array_equal(valid, exists)
    assert valid.all() != hard  # clusters that one view lacks do occur


def test_one_cluster_is_the_mean_token():
    tokens = np.random.default_rng(18).normal(size=(2, 8, 3)).astype(np.float32)
    objects, valid = object_tokens(tokens, jnp.ones((2, 8, 1)))
    close(objects[:, :, 0], tokens.reshape(2, 2, 4, 3).mean(2))
    assert valid.all()


def test_objects_broadcast_and_stay_in_float32():
    rng = np.random.default_rng(19)
    tokens = jnp.asarray(rng.normal(size=(3, 2, 8, 4)), jnp.bfloat16)  # 3 networks, 2 images
    weights = jnp.asarray(np.eye(3)[rng.integers(0, 3, (2, 8))], jnp.float16)
    objects, valid = object_tokens(tokens, weights)
    assert (
        objects.shape == (3, 2, 2, 3, 4)
        and valid.shape == (3, 2, 3)
        and objects.dtype == jnp.float32
    )
    close(objects[1], object_tokens(tokens[1].astype(jnp.float32), weights)[0])


def test_object_gradients():
    rng = np.random.default_rng(20)
    weights = rng.uniform(0.1, 1, size=(6, 3)).astype(np.float32)
    weights[:3, 1] = 0  # an empty cluster: its object is 0 and so is its gradient
    tokens = rng.normal(size=(6, 4)).astype(np.float32)
    check_grads(lambda t: object_tokens(t, weights)[0], (tokens,), order=1, atol=1e-2, rtol=1e-2)
    full = weights + 0.1
    check_grads(
        lambda w: object_tokens(tokens, w)[0], (full,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2
    )
    gradients = jax.grad(lambda t, w: (object_tokens(t, w)[0] ** 2).sum(), (0, 1))(tokens, weights)
    assert all(np.isfinite(g).all() for g in gradients)


def test_object_errors():
    with pytest.raises(ValueError, match="number of tokens is 5; it must be even"):
        object_tokens(jnp.ones((5, 2)), jnp.ones((5, 3)))
    with pytest.raises(
        ValueError, match=r"shape of assignments is \(4, 3\); it must be \[..., 6, K\]"
    ):
        object_tokens(jnp.ones((6, 2)), jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"shape of tokens is \(6,\)"):
        object_tokens(jnp.ones(6), jnp.ones((6, 3)))
