"""Formulas of the papers written down plainly in JAX: what the ops are compared with, in value,
time and memory.

No chunks, no log domain unless the paper says so, no care for scale. Symbols and shapes as in the
docstrings of ssl_jax.ops.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def sinkhorn_knopp(scores, temperature, num_iters):
    """SwAV's listing: columns, then rows, of exp(S / T); with the logarithms of the column sums,
    which add up to -h.
    """
    q, potentials = jnp.exp(scores / temperature), jnp.zeros(())
    for _ in range(num_iters):
        columns = jnp.sum(q, axis=0, keepdims=True)
        potentials = potentials - jnp.log(columns[0])
        q = q / columns
        q = q / jnp.sum(q, axis=1, keepdims=True)
    return q, potentials


def cross_entropy(target, logits, temperature):
    return -jnp.sum(target * jax.nn.log_softmax(logits / temperature, axis=-1), axis=-1)


def transport_log(cost, epsilon, num_iters):
    """Sinkhorn in the log domain: Peyre and Cuturi 2019, section 4.4, uniform marginals."""
    rows, columns = cost.shape[-2:]
    v = jnp.zeros((*cost.shape[:-2], 1, columns))
    for _ in range(num_iters):
        u = -jnp.log(rows) - logsumexp(v - cost / epsilon, axis=-1, keepdims=True)
        v = -jnp.log(columns) - logsumexp(u - cost / epsilon, axis=-2, keepdims=True)
    return jnp.exp(u + v - cost / epsilon)


def transport_exp(cost, epsilon, num_iters):
    """Cuturi 2013, algorithm 1: products with exp(-C / eps)."""
    kernel = jnp.exp(-cost / epsilon)
    rows, columns = cost.shape[-2:]
    v = jnp.ones((*cost.shape[:-2], 1, columns))
    for _ in range(num_iters):
        u = 1 / rows / jnp.sum(kernel * v, axis=-1, keepdims=True)
        v = 1 / columns / jnp.sum(kernel * u, axis=-2, keepdims=True)
    return u * kernel * v


def align_sets(source, target, epsilon, num_iters):
    """STELLAR eq. 5, the differences of all pairs written out."""
    cost = jnp.sqrt(jnp.sum((source[..., :, None, :] - target[..., None, :, :]) ** 2, axis=-1))
    plan = source.shape[-2] * transport_log(cost, epsilon, num_iters)
    return jnp.argmax(plan, axis=-1), cost, plan


def localization(dense, sparse, temperature):
    """STELLAR eq. 7."""
    return jax.nn.softmax(
        jnp.einsum("bnd,brd->bnr", unit(dense), unit(sparse)) / temperature, axis=-1
    )


def koleo(tokens):
    """- log of half the distance to the nearest other token, from the distances of all pairs."""
    tokens = unit(tokens)
    square = jnp.sum((tokens[..., :, None, :] - tokens[..., None, :, :]) ** 2, axis=-1)
    distance = jnp.sqrt(square + 9 * jnp.eye(tokens.shape[-2]))  # a token is not its own neighbour
    return -jnp.log(jnp.min(distance, axis=-1) / 2)


def mean_shift(queries, keys, inverse_temperature):
    """FLSL eq. 4."""
    return (
        jax.nn.softmax(inverse_temperature * queries @ jnp.swapaxes(keys, -1, -2), axis=-1) @ keys
    )


def joint_view_clustering(
    tokens, positions, seeds, position_weight, temperature, num_iters, sinkhorn_iters
):
    """CrIBo section 3.2.1 and eq. 17, with the [2N, 2N, K] array of distances to the members of
    every cluster.
    """
    tokens = unit(tokens)
    count, clusters = tokens.shape[1], seeds.shape[1]
    distance = jnp.linalg.norm(positions[:, :, None] - positions[:, None], axis=-1)
    members = jnp.swapaxes(jax.nn.one_hot(seeds, count), 1, 2)  # [B, 2N, K]
    centroids = jnp.take_along_axis(tokens, seeds[..., None], axis=1)
    columns = jnp.full((tokens.shape[0], 1, clusters), 1 / clusters)
    for _ in range(num_iters):
        eligible = (members[:, None] > 0) & (distance[..., None] > 0)
        nearest = jnp.min(jnp.where(eligible, distance[..., None], jnp.inf), axis=2)
        exists = jnp.isfinite(nearest)
        finite = jnp.where(exists, nearest, 0)
        near = jnp.where(exists, nearest, jnp.mean(finite, axis=(1, 2), keepdims=True))
        near = near / jnp.max(near, axis=(1, 2), keepdims=True)
        cost = position_weight * near - jnp.einsum("bnd,bkd->bnk", tokens, centroids)
        low, high = (
            jnp.min(cost, axis=(1, 2), keepdims=True),
            jnp.max(cost, axis=(1, 2), keepdims=True),
        )
        plan = jnp.exp(-(cost - low) / (high - low) / temperature)
        for _ in range(sinkhorn_iters):
            plan = plan / jnp.sum(plan, axis=2, keepdims=True) / count
            plan = plan / jnp.sum(plan, axis=1, keepdims=True) * columns
        members = jax.nn.one_hot(jnp.argmax(plan, axis=-1), clusters)
        columns = jnp.sum(members, axis=1, keepdims=True) + 0.01
        columns = columns / jnp.sum(columns, axis=-1, keepdims=True)
        total = jnp.einsum("bnk,bnd->bkd", members, tokens)
        centroids = total / jnp.maximum(jnp.linalg.norm(total, axis=-1, keepdims=True), 1e-12)
    return members


def object_tokens(tokens, assignments):
    """CrIBo eq. 1, view by view."""
    views = []
    for z, q in zip(jnp.split(tokens, 2, axis=1), jnp.split(assignments, 2, axis=1)):
        mass = jnp.sum(q, axis=1)[..., None]
        views.append(
            jnp.where(mass > 0, jnp.swapaxes(q, 1, 2) @ z / jnp.where(mass > 0, mass, 1), 0)
        )
    valid = jnp.stack([jnp.sum(q, axis=1) > 0 for q in jnp.split(assignments, 2, axis=1)])
    return jnp.stack(views, axis=1), jnp.all(valid, axis=0)


def nearest(queries, bank, k):
    """The published form: the whole bank normalised at every call, all similarities, top k."""
    return jax.lax.top_k(unit(queries) @ unit(bank).T, k)


def nearest_scaled(queries, bank, inverse_norms, k):
    """The same with the norms known."""
    return jax.lax.top_k((unit(queries) @ bank.T) * inverse_norms, k)


def nearest_argmax(queries, bank, inverse_norms):
    """The same for one neighbour, by maximum and argmax."""
    scores = (unit(queries) @ bank.T) * inverse_norms
    return jnp.max(scores, axis=-1, keepdims=True), jnp.argmax(scores, axis=-1, keepdims=True)


def cycle_consistent(first, second, first_bank, second_bank):
    """CrIBo eq. 4: there and back."""
    index = jnp.argmax(unit(first) @ unit(first_bank).T, axis=-1)
    back = jnp.argmax(unit(second_bank[index]) @ unit(second).T, axis=-1)
    return back == jnp.arange(first.shape[0]), index


def sample_anchors(key, size, num_anchors, num_tasks):
    return jax.vmap(lambda key: jax.random.permutation(key, size)[:num_anchors])(
        jax.random.split(key, num_tasks)
    )


def build_sops(memory, anchors, num_members):
    """SOP section 2.2: all similarities of anchors and memory, those of the anchors struck out, top
    M - 1.
    """
    vectors = memory[anchors]
    similarity = (vectors @ memory.T).at[:, anchors].set(-jnp.inf)
    values, index = jax.lax.top_k(similarity, num_members - 1)
    own = jnp.sum(vectors * vectors, axis=-1, keepdims=True)
    return jnp.concatenate([memory[index], vectors[:, None]], axis=1), jnp.concatenate(
        [values, own], axis=1
    )


def sop_vote(queries, members, weights, temperature):
    """SOP eq. 1: log(softmax(u D^T / tau) Y) with the contributions Y [K*M, K] as a matrix."""
    count, slots, width = members.shape
    others = (1 - weights) / (count - 1)
    own = jnp.eye(count, dtype=bool)[:, None]  # [K, 1, K]
    contributions = jnp.where(own, weights[..., None], others[..., None]).reshape(-1, count)
    return jnp.log(
        jax.nn.softmax(queries @ members.reshape(-1, width).T / temperature, axis=-1)
        @ contributions
    )


def memory_push(rows, new):
    """The queue shifted: oldest rows dropped in front, new ones appended."""
    return jnp.concatenate([rows[new.shape[0] :], new])


def entropy(probs):
    return -jnp.sum(probs * jnp.log(probs), axis=-1)


def volume_regularizer(mean_probs):
    """FLSL eq. 11: log K - H(p)."""
    return jnp.log(mean_probs.shape[-1]) - entropy(mean_probs)
