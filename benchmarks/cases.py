"""The cases of `python -m benchmarks ops`: each op at the sizes of the papers, or small, beside its
naive form and the libraries.

A case is a function of (paper: bool, key) that makes its arrays; it is called only when it is to be
measured.
"""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import libraries
from benchmarks import plain as naive
from benchmarks.ops import Case, Library
from ssl_jax import ops

# Nothing to compare: a few elementwise operations, or the making of an array.
WITHOUT_CASE = set(
    "linear_warmup warmup_cosine Alignment Cycle Memory centered_softmax ema_center memory_init"
    " memory_valid patchify sop_weights unpatchify".split()
)


def _normal(key, *shape):
    return jax.random.normal(key, shape, jnp.float32)


def _unit(key, *shape):
    return naive.unit(_normal(key, *shape))


def _torch(name: str, **options) -> Library:
    """A function of with_torch.py, of the arguments of the case."""

    def make(arguments, argument, weights):
        forms = importlib.import_module("benchmarks.with_torch")
        arguments, weights = jax.device_put((arguments, weights), jax.devices("cpu")[0])
        function = functools.partial(getattr(forms, name), **options)
        return forms.call(function, arguments, argument, weights)

    return Library("torch", make, gradient=True)


def _other(module: str, function, *options, count: int | None = None) -> Library:
    """A function of libraries.py, of the first `count` arguments of the case."""

    def make(arguments, argument, weights):
        return function(*map(np.asarray, arguments[:count]), *options)

    return Library(module, make)


def _scores(paper, key, rows):
    rows, width, classes = (rows, 256, 16384) if paper else (256, 32, 64)
    keys = jax.random.split(key, 3)
    samples, prototypes, others = (_unit(k, n, width) for k, n in zip(keys, (rows, classes, rows)))
    return f"[{rows}, {classes}], 3 iterations", samples @ prototypes.T, others @ prototypes.T


def sinkhorn_knopp(paper, key):
    size, scores, _ = _scores(paper, key, 8192)
    forms = {
        "ops": lambda s: ops.sinkhorn_knopp(s, temperature=0.05),
        "naive, exponentials": lambda s: naive.sinkhorn_knopp(s, 0.05, 3)[0],
    }
    return Case(size, (scores,), forms)


def sinkhorn_potentials(paper, key):
    size, scores, _ = _scores(paper, key, 8192)
    forms = {
        "ops": lambda s: ops.sinkhorn_potentials(s, temperature=0.05),
        "naive, exponentials": lambda s: naive.sinkhorn_knopp(s, 0.05, 3)[1],
    }
    return Case(size, (scores,), forms)


def sinkhorn_potentials_fused(paper, key):
    rows, width, classes = (8192, 256, 16384) if paper else (256, 32, 64)
    keys = jax.random.split(key)
    samples, prototypes = _unit(keys[0], rows, width), _unit(keys[1], classes, width).T
    forms = {
        "ops": lambda x, w: ops.sinkhorn_potentials_fused(x, w, temperature=0.05),
        "ops, stored scores": lambda x, w: ops.sinkhorn_potentials(x @ w, temperature=0.05),
        "naive, exponentials": lambda x, w: naive.sinkhorn_knopp(x @ w, 0.05, 3)[1],
    }
    size = f"[{rows}, {width}] @ [{width}, {classes}], 3 iterations"
    return Case(size, (samples, prototypes), forms)


def sinkhorn_cross_entropy(paper, key):
    size, scores, logits = _scores(paper, key, 32768)

    def ours(scores, logits):
        return ops.sinkhorn_cross_entropy(scores, logits, target_temperature=0.05, temperature=0.1)

    def plain(scores, logits):
        q = jax.lax.stop_gradient(naive.sinkhorn_knopp(scores, 0.05, 3)[0])
        return naive.cross_entropy(q, logits, 0.1)

    forms = {"ops": ours, "naive, stored targets": plain}
    others = {"torch, stored targets": _torch("sinkhorn_cross_entropy")}
    return Case(size, (scores, logits), forms, others, gradient=1)


def entropic_transport(paper, key):
    cost = jax.random.uniform(key, (2048 if paper else 8, 16, 16))
    forms = {
        "ops": lambda c: ops.entropic_transport(c, epsilon=0.05, num_iters=30),
        "naive, log domain": lambda c: naive.transport_log(c, 0.05, 30),
        "naive, exponentials": lambda c: naive.transport_exp(c, 0.05, 30),
    }
    others = {
        "ott-jax, fixed iterations": _other("ott", libraries.ott, 0.05, 30),
        "POT loop": _other("ot", libraries.pot_loop, 0.05, 30),
        "scipy Hungarian loop (exact matching)": _other("scipy", libraries.hungarian),
    }
    return Case(f"{list(cost.shape)}, eps .05, 30 iterations", (cost,), forms, others, gradient=0)


def align_sets(paper, key):
    batch, width = (512, 384) if paper else (4, 32)
    first, second, third = jax.random.split(key, 3)
    target = _unit(first, batch, 16, width)
    source = jax.random.permutation(second, target, axis=1) + 0.5 * _unit(third, batch, 16, width)
    forms = {
        "ops": lambda s, t: ops.align_sets(s, t, epsilon=0.1, num_iters=5),
        "naive, all differences": lambda s, t: naive.align_sets(s, t, 0.1, 5),
        "ops, hungarian": lambda s, t: ops.align_sets(s, t, solver="hungarian"),
    }
    others = {"scipy cdist and Hungarian loop": _other("scipy", libraries.hungarian_of_tokens)}
    size = f"[{batch}, 16, {width}], eps .1, 5 iterations"
    # Index and cost; the plan of an exact matching is another.
    return Case(size, (source, target), forms, others, compared=lambda output: output[:2])


def localization(paper, key):
    batch, places, width = (64, 196, 768) if paper else (2, 16, 32)
    first, second = jax.random.split(key)
    forms = {"ops": ops.localization, "naive": lambda d, s: naive.localization(d, s, 0.06)}
    arrays = _normal(first, batch, places, width), _normal(second, batch, 16, width)
    return Case(f"[{batch}, {places}, {width}], 16 tokens", arrays, forms, gradient=0)


def koleo(paper, key):
    tokens = _normal(key, *((256, 16, 768) if paper else (4, 8, 32)))
    forms = {"ops": ops.koleo, "naive, all differences": naive.koleo}
    return Case(f"{list(tokens.shape)}", (tokens,), forms, gradient=0)


def mean_shift(paper, key):
    batch, tokens, width = (32, 196, 384) if paper else (2, 16, 32)
    queries, keys = (_normal(k, batch, tokens, width) for k in jax.random.split(key))
    tau = 0.1 / width**0.5

    def attention(q, k):
        q, k = q[:, :, None], k[:, :, None]
        return jax.nn.dot_product_attention(q, k, k, scale=tau)[:, :, 0]

    forms = {
        "ops": lambda q, k: ops.mean_shift(q, k, inverse_temperature=tau),
        "naive": lambda q, k: naive.mean_shift(q, k, tau),
        "jax.nn.dot_product_attention": attention,
    }
    others = {"torch attention": _torch("attention", inverse_temperature=tau)}
    return Case(f"{list(queries.shape)}", (queries, keys), forms, others, gradient=0)


def _views(paper, key):
    """Tokens around a few centres and their places, two views of each image: 2N tokens."""
    batch, side, width, clusters = (8, 14, 384, 32) if paper else (2, 4, 32, 4)
    keys = jax.random.split(key, 5)
    count = 2 * side * side
    kind = jax.random.randint(keys[0], (batch, count, 1), 0, clusters)
    tokens = jnp.take_along_axis(_normal(keys[1], batch, clusters, width), kind, axis=1)
    tokens = tokens + _normal(keys[2], batch, count, width)
    grid = jnp.stack(jnp.meshgrid(jnp.arange(side), jnp.arange(side)), axis=-1) / side
    moved = 0.3 * jax.random.uniform(keys[3], (batch, 2, 1, 2))
    positions = (grid.reshape(1, 1, -1, 2) + moved).reshape(batch, count, 2)
    seeds = jax.lax.top_k(jax.random.bits(keys[4], (batch, count)), clusters)[1]
    return tokens, positions, seeds


def joint_view_clustering(paper, key):
    arrays = tokens, _, seeds = _views(paper, key)
    options: dict[str, Any] = dict(
        position_weight=1.0, temperature=0.05, num_iters=5, sinkhorn_iters=5
    )
    k = seeds.shape[1]
    forms = {
        "ops": lambda t, p, s: ops.joint_view_clustering(t, p, num_clusters=k, seeds=s, **options),
        "naive, [B, 2N, 2N, K]": lambda t, p, s: naive.joint_view_clustering(t, p, s, **options),
    }
    torch = _torch("joint_view_clustering", **options)._replace(gradient=False)
    size = f"{list(tokens.shape)}, K = {k}, 5 iterations"
    return Case(size, arrays, forms, {"torch, [B, 2N, 2N, K]": torch})


def object_tokens(paper, key):
    tokens, _, seeds = _views(paper, key)
    k = seeds.shape[1]
    assignments = jax.nn.one_hot(jax.random.randint(key, tokens.shape[:2], 0, k), k)
    forms = {"ops": ops.object_tokens, "naive, view by view": naive.object_tokens}
    return Case(f"{list(tokens.shape)}, K = {k}", (tokens, assignments), forms, gradient=0)


def _bank(paper, key, k):
    count, size, width = (256, 800_000, 256) if paper else (8, 1000, 16)
    first, second = jax.random.split(key)
    queries, bank = _normal(first, count, width), _normal(second, size, width)
    norms = 1 / jnp.linalg.norm(bank, axis=-1)
    return f"{count} of {size} x {width}, k = {k}", (queries, bank, norms)


def nearest(paper, key):
    size, arrays = _bank(paper, key, 1)
    forms = {
        "ops, norms stored": lambda q, b, n: ops.nearest(q, b, inverse_norms=n),
        "naive, bank normalised each call": lambda q, b, n: naive.nearest(q, b, 1),
        "naive, norms stored": lambda q, b, n: naive.nearest_scaled(q, b, n, 1),
        "naive, argmax": naive.nearest_argmax,
        "ops": lambda q, b, n: ops.nearest(q, b),
    }
    faiss = _other("faiss", libraries.faiss_flat, 1, count=2)
    return Case(
        size, arrays, forms, {"torch, as published": _torch("nearest"), "faiss flat": faiss}
    )


def nearest_approximate(paper, key):
    size, arrays = _bank(paper, key, 8)
    forms = {
        "ops, approx": lambda q, b, n: ops.nearest(q, b, k=8, inverse_norms=n, method="approx"),
        "naive, norms stored": lambda q, b, n: naive.nearest_scaled(q, b, n, 8),
        "ops, exact": lambda q, b, n: ops.nearest(q, b, k=8, inverse_norms=n),
    }
    return Case(f"{size}, recall_target .95", arrays, forms, tolerance=None)


def cycle_consistent(paper, key):
    objects, size, width = (256, 65536, 256) if paper else (16, 128, 16)
    keys = jax.random.split(key, 4)
    first, bank = _normal(keys[0], objects, width), _normal(keys[1], size, width)
    second, others = (x + _normal(k, *x.shape) for x, k in zip((first, bank), keys[2:]))
    forms = {"ops": lambda *x: tuple(ops.cycle_consistent(*x)), "naive": naive.cycle_consistent}
    return Case(f"{objects} objects, bank {size} x {width}", (first, second, bank, others), forms)


def sample_anchors(paper, key):
    size, count, tasks = (65536, 4096, 4) if paper else (64, 16, 2)
    forms = {
        "ops": lambda k: ops.sample_anchors(k, size, count, num_tasks=tasks),
        "naive, permutation": lambda k: naive.sample_anchors(k, size, count, tasks),
    }

    def distinct(index):
        """The draws differ; only how many rows each task has is compared."""
        return np.array([len(np.unique(task)) for task in np.asarray(index)])

    return Case(f"{count} of {size}, {tasks} tasks", (key,), forms, compared=distinct)


def _sop_arrays(paper, key):
    batch, size, anchors, members, width = (
        (256, 65536, 4096, 9, 256) if paper else (8, 256, 16, 4, 16)
    )
    keys = jax.random.split(key, 5)
    queries, memory = _unit(keys[0], batch, width), _unit(keys[1], size, width)
    target = jax.nn.softmax(5 * _normal(keys[2], batch, anchors))
    return queries, memory, ops.sample_anchors(keys[3], size, anchors)[0], target, members, keys[4]


def build_sops(paper, key):
    _, memory, anchors, _, members, _ = _sop_arrays(paper, key)
    forms = {
        "ops": lambda m, a: ops.build_sops(m, a, num_members=members),
        "naive, all similarities": lambda m, a: naive.build_sops(m, a, members),
    }

    def compared(out):
        """Members by their similarity too: rounding may exchange two of nearly the same."""
        return out[1], np.einsum("kmd,kd->km", *map(np.asarray, (out[0], out[0][:, -1])))

    others = {"faiss flat": _other("faiss", libraries.faiss_sops, members)}
    size = f"{len(anchors)} anchors, memory {list(memory.shape)}, M = {members}"
    return Case(size, (memory, anchors), forms, others, compared=compared)


def sop_vote(paper, key, rule="smoothed"):
    queries, memory, anchors, target, slots, draw = _sop_arrays(paper, key)
    members = memory[jax.random.randint(draw, (len(anchors), slots), 0, len(memory))]
    members = members.at[:, -1].set(memory[anchors])
    weights = ops.sop_weights(jax.random.uniform(draw, members.shape[:2]), rule=rule)

    def loss(vote):
        return lambda u, d, s, q: -jnp.sum(q * vote(u, d, s, temperature=0.1), axis=-1)

    forms = {"ops": loss(ops.sop_vote), "naive, Y as a matrix": loss(naive.sop_vote)}
    others = {"torch, as published": _torch("published_vote")}
    others["torch, sums over blocks"] = _torch("vote_by_block")
    size = f"{list(queries.shape)}, K = {len(anchors)}, M = {slots}, {rule}, with cross-entropy"
    return Case(size, (queries, members, weights, target), forms, others, gradient=0)


def sop_step(paper, key):
    queries, memory, anchors, target, slots, _ = _sop_arrays(paper, key)

    def step(build, vote):
        def loss(u, memory, anchors, q):
            members, similarity = build(memory, anchors, num_members=slots)
            weights = ops.sop_weights(similarity, rule="smoothed")
            return -jnp.sum(q * vote(u, members, weights, temperature=0.1), axis=-1)

        return loss

    forms = {
        "ops": step(ops.build_sops, ops.sop_vote),
        "naive": step(naive.build_sops, naive.sop_vote),
    }
    others = {"torch, as published": _torch("sop_step", num_members=slots, share=0.9)}
    size = f"build and vote, memory {list(memory.shape)}, K = {len(anchors)}"
    return Case(size, (queries, memory, anchors, target), forms, others, gradient=0)


def memory_push(paper, key):
    size, count, width = (65536, 1024, 256) if paper else (64, 8, 16)
    first, second = jax.random.split(key)
    rows, new = _normal(first, size, width), _normal(second, count, width)

    def push(rows, new):
        valid, cursor = jnp.ones(size, bool), jnp.zeros((), jnp.int32)
        memory = ops.memory_push(dict(rows={"x": rows}, valid=valid, cursor=cursor), {"x": new})
        return memory["rows"]["x"], memory["cursor"]

    def in_order(output):
        """Oldest row first."""
        if not isinstance(output, tuple):
            return output
        return np.roll(np.asarray(output[0]), -int(output[1]), axis=0)

    forms = {"ops, ring": push, "naive, queue shifted": naive.memory_push}
    return Case(f"{count} rows into {size} x {width}", (rows, new), forms, compared=in_order)


def _distributions(paper, key):
    shape = (512, 65536) if paper else (8, 64)
    first, second = jax.random.split(key)
    logits = 0.5 * _normal(second, *shape)  # within reach of the naive form
    return str(list(shape)), jax.nn.softmax(3 * _normal(first, *shape)), logits


def cross_entropy(paper, key):
    size, target, logits = _distributions(paper, key)

    def plain(p, x):
        return -jnp.sum(p * jnp.log(jax.nn.softmax(x / 0.1)), axis=-1)

    forms = {
        "ops": lambda p, x: ops.cross_entropy(p, x, temperature=0.1),
        "naive, log of softmax": plain,
    }
    return Case(size, (target, logits), forms, gradient=1)


def entropy(paper, key):
    size, probs, _ = _distributions(paper, key)
    return Case(size, (probs,), {"ops": ops.entropy, "naive": naive.entropy}, gradient=0)


def volume_regularizer(paper, key):
    size, _, logits = _distributions(paper, key)
    # Of logits: off the simplex the two forms, equal for distributions, have gradients that differ
    # by a constant.
    forms = {
        "ops": lambda x: ops.volume_regularizer(jax.nn.softmax(x)),
        "naive": lambda x: naive.volume_regularizer(jax.nn.softmax(x)),
    }
    return Case(size, (logits,), forms, gradient=0)


CASES = {
    name: value
    for name, value in globals().items()
    if not name.startswith("_") and getattr(value, "__module__", "") == __name__
}
CASES["sop_vote_similarity"] = functools.partial(sop_vote, rule="similarity")
