"""Joint-view clustering against the dense formula in float64; axes and gradients of objects."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops import clustering
from ssl_jax.ops.clustering import joint_view_clustering, object_tokens
from tests.losses.reference import close

STATIC = "num_clusters num_iters sinkhorn_iters normalize update_marginals hard"
cluster = jax.jit(joint_view_clustering, static_argnames=STATIC.split())
seven = functools.partial(cluster, num_clusters=7)
objects_jit = jax.jit(object_tokens)


def normalized(x):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(norm > 0, norm, 1)


def dense_positional_cost(places, members):
    """CrIBo eq. 17 for one image, with all pairs of tokens for all clusters: members [n, K]."""
    distance = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    apart = members[None] & (distance > 0)[:, :, None]
    nearest = np.where(apart, distance[:, :, None], np.inf).min(axis=1)  # of [n, l, K]
    exists = np.isfinite(nearest)
    cost = np.where(exists, nearest, np.where(exists, nearest, 0).mean())
    return cost / cost.max() if cost.max() > 0 else cost


def dense_clustering(
    tokens,
    places,
    seeds,
    position_weight=1.0,
    temperature=0.05,
    num_iters=5,
    sinkhorn_iters=5,
    normalize="image",
    update_marginals=True,
):
    """Clustering of a batch [B, n, d] in float64 -> hard assignments and plans, both [B, n, K]."""
    tokens, places = normalized(np.asarray(tokens, np.float64)), np.asarray(places, np.float64)
    (images, n, _), k = tokens.shape, seeds.shape[1]
    a = np.zeros((images, n, k))
    centroids = np.zeros((images, k, tokens.shape[-1]))
    for i in range(images):
        a[i, seeds[i], np.arange(k)] = 1
        centroids[i] = tokens[i, seeds[i]]
    columns = np.full((images, k), 1 / k)
    for _ in range(num_iters):
        cost = np.stack(
            [
                position_weight * dense_positional_cost(places[i], a[i] > 0)
                - tokens[i] @ centroids[i].T
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
            for _ in range(sinkhorn_iters):
                plan *= (1 / n / plan.sum(axis=1))[:, None]
                plan *= (columns[i] / plan.sum(axis=0))[None]
            plans.append(plan)
            a[i] = np.eye(k)[plan.argmax(axis=1)]
            if update_marginals:
                columns[i] = (a[i].sum(0) + 0.01) / (a[i].sum(0) + 0.01).sum()
            centroids[i] = normalized(a[i].T @ tokens[i])
    return a, np.stack(plans)


def scene(seed, images=2, n=40, width=12, k=7, groups=4):
    """Tokens around a few directions, places in a picture of 224 pixels, distinct seeds."""
    rng = np.random.default_rng(seed)
    centers, kind = rng.normal(size=(images, groups, width)), rng.integers(0, groups, (images, n))
    tokens = 2 * np.take_along_axis(centers, kind[..., None], axis=1)
    tokens = (tokens + rng.normal(size=(images, n, width))).astype(np.float32)
    seeds = np.stack([rng.permutation(n)[:k] for _ in range(images)]).astype(np.int32)
    return tokens, rng.uniform(0, 224, (images, n, 2)).astype(np.float32), seeds


# joint_view_clustering


def test_positional_cost_by_hand():
    """Places 0, 3, 4 on a line; 0 and 3 in cluster 0, 4 alone in cluster 1: its own cost is the
    mean of the others and 0.
    """
    distances = place_distances(np.float32([[[0.0], [3.0], [4.0]]]))
    assert distances[0].tolist() == [[np.inf, 3, 4], [3, np.inf, 1], [4, 1, np.inf]]
    got = positional_cost(distances, np.array([[0, 0, 1]]), 2)
    close(got, [[[3 / 4, 1], [3 / 4, 1 / 4], [1 / 4, 2 / 4]]])  # of 3 4, 3 1, 1 (3+3+1+4+1+0)/6


place_distances = jax.jit(clustering._distances)
position_forms = [
    jax.jit(form, static_argnums=2)
    for form in (clustering._nearest_by_label, clustering._nearest_by_cluster)
]
positional_cost = jax.jit(clustering._positional_cost, static_argnums=2)


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
    want = [
        dense_positional_cost(np.float64(p), label[:, None] == np.arange(7))
        for p, label in zip(places, labels)
    ]
    close(positional_cost(distances, labels, 7), want)


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
    tokens, places, seeds = scene(1, images=3)
    tokens[1] *= 0.01  # lengths do not matter
    tokens[2] = np.abs(tokens[2])  # another range of costs
    want, plan = dense_clustering(tokens, places, seeds, **options)
    got = seven(tokens, places, seeds=seeds, **options)
    np.testing.assert_array_equal(got, want)
    soft = seven(tokens, places, seeds=seeds, hard=False, **options)
    close(soft, plan / plan.sum(-1, keepdims=True), absolute=2e-5)
    np.testing.assert_array_equal(np.argmax(soft, -1), np.argmax(got, -1))


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_every_token_at_paper_scale(weight):
    tokens, places, seeds = scene(2, 2, 392, 64, 32, groups=9)
    want, _ = dense_clustering(tokens, places, seeds, position_weight=weight)
    got = cluster(tokens, places, num_clusters=32, seeds=seeds, position_weight=weight)
    np.testing.assert_array_equal(got, want)


def test_an_image_does_not_depend_on_its_neighbours_unless_asked():
    """Costs of image 1 spread further once its places matter more; the common scale then flattens
    image 0.
    """
    tokens, places, seeds = scene(12)
    tokens[0, 1:] = tokens[0, :1] + 0.05 * tokens[0, 1:]
    pair, alone = (
        [
            seven(tokens[:n], places[:n], seeds=seeds[:n], normalize=how, hard=False)
            for how in ("image", "batch")
        ]
        for n in (2, 1)
    )
    close(pair[0][:1], alone[0])
    close(alone[1], alone[0])
    assert np.abs(pair[1][:1] - alone[1]).max() > 0.01


@pytest.mark.parametrize("normalize", ["image", "batch"])
def test_equal_costs_go_to_the_first_cluster(normalize):
    """One token five times in one place: minimum = maximum, nothing is divided by zero."""
    run = functools.partial(cluster, np.ones((5, 3)), np.ones((5, 2)), seeds=np.arange(2))
    options = dict(num_clusters=2, normalize=normalize)
    assert run(**options).tolist() == [[1, 0]] * 5
    close(run(num_iters=1, hard=False, **options), np.full((5, 2), 0.5))


@pytest.mark.parametrize("iters", [1, 2, 5])
def test_without_scaling_and_places_it_is_k_means_of_unit_vectors(iters):
    tokens, places, seeds = scene(21, images=3)
    run = functools.partial(seven, tokens, places, seeds=seeds, position_weight=0.0)
    got = run(sinkhorn_iters=0, num_iters=iters)
    for image in range(3):
        points = normalized(np.float64(tokens[image]))
        centroids = points[seeds[image]]
        for _ in range(iters):
            labels = (points @ centroids.T).argmax(axis=1)
            centroids = np.stack([normalized(points[labels == k].sum(0)) for k in range(7)])
        np.testing.assert_array_equal(got[image], np.eye(7)[labels])
    balanced = run(update_marginals=False, num_iters=iters)
    assert np.ptp(got.sum(1), axis=-1).mean() > np.ptp(balanced.sum(1), axis=-1).mean()


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (4, 4)])
def test_smallest_sizes(n, k):
    tokens, places, seeds = scene(13, 2, n, 5, k)
    got = cluster(tokens, places, num_clusters=k, seeds=seeds)
    np.testing.assert_array_equal(got, dense_clustering(tokens, places, seeds)[0])


def test_seeds_from_keys():
    tokens, places, _ = scene(14, images=3)
    key = jax.random.key(0)
    drawn = clustering._seeds(key, (3,), 40, 7)
    assert all(len(set(row)) == 7 and 0 <= min(row) and max(row) < 40 for row in drawn.tolist())
    assert len({tuple(row) for row in drawn.tolist()}) == 3
    got = seven(tokens, places, seeds=key)
    np.testing.assert_array_equal(got, seven(tokens, places, seeds=drawn))
    keys = jax.random.split(key, 3)
    each = [seven(*x[:2], seeds=x[2]) for x in zip(tokens, places, keys)]
    np.testing.assert_array_equal(seven(tokens, places, seeds=keys), np.stack(each))
    many = np.asarray(clustering._seeds(key, (4000,), 10, 3)).reshape(-1)
    deviation = np.sqrt(1200 * 0.7)  # of a binomial
    assert np.abs(np.bincount(many, minlength=10) - 1200).max() < 5 * deviation


# object_tokens


def test_objects_broadcast():
    rng = np.random.default_rng(19)
    tokens = rng.normal(size=(3, 2, 8, 4)).astype(np.float32)  # 3 networks, 2 images
    weights = np.eye(3, dtype=np.float32)[rng.integers(0, 3, (2, 8))]
    objects, valid = objects_jit(tokens, weights)
    assert objects.shape == (3, 2, 2, 3, 4) and valid.shape == (3, 2, 3)
    close(objects[1], objects_jit(tokens[1], weights)[0])


def test_object_gradients():
    rng = np.random.default_rng(20)
    weights = rng.uniform(0.1, 1, size=(6, 3)).astype(np.float32)
    tokens = rng.normal(size=(6, 4)).astype(np.float32)
    objects = jax.jit(lambda t, w: object_tokens(t, w)[0])
    steps = dict(order=1, modes=["rev"], atol=1e-2, rtol=1e-2)
    check_grads(objects, (tokens, weights), **steps)
    weights[:3, 1] = 0  # an empty cluster: its object is 0 and so is its gradient
    check_grads(lambda t: objects(t, weights), (tokens,), **steps)
