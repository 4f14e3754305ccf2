"""The cases of `bench.py ops`: every op at the sizes of the papers, or small, beside its naive form
and the libraries.

A case is a function of (paper: bool, key) that makes its arrays; it is called only when it is to be
measured.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import libraries as libraries
from benchmarks import naive as naive
from benchmarks.measure import Case, Library, cotangent
from ssl_jax import ops

# Nothing to compare: a few elementwise operations, or the making of an array.
WITHOUT_CASE = {
    "linear_warmup",
    "warmup_cosine",
    "Alignment",
    "Cycle",
    "Memory",
    "centered_softmax",
    "ema_center",
    "memory_init",
    "memory_valid",
    "patchify",
    "sop_weights",
    "unpatchify",
}


def _normal(key, *shape):
    return jax.random.normal(key, shape, jnp.float32)


def _unit(key, *shape):
    return naive.unit(_normal(key, *shape))


def _on_host(arrays):
    return jax.device_put(arrays, jax.devices("cpu")[0])  # no copy where they lie there


def _with_gradient(module: str, make, shape, *arrays, **options) -> Library:
    """A library whose maker knows both directions; the gradient is weighted as that of the other
    forms.
    """

    def maker(gradient):
        *inputs, last = _on_host((*arrays, cotangent(shape)))
        return make(*inputs, cotangent=last, gradient=gradient, **options)

    return Library(module, functools.partial(maker, False), functools.partial(maker, True))


def _scores(paper, key, rows):
    rows, width, classes = (rows, 256, 16384) if paper else (256, 32, 64)
    samples, prototypes, others = (
        _unit(k, n, width) for k, n in zip(jax.random.split(key, 3), (rows, classes, rows))
    )
    return f"[{rows}, {classes}]", samples @ prototypes.T, others @ prototypes.T


def sinkhorn_knopp(paper, key):
    size, scores, _ = _scores(paper, key, 8192)
    forms = {
        "ops": lambda s: ops.sinkhorn_knopp(s, temperature=0.05),
        "naive, exponentials": lambda s: naive.sinkhorn_knopp(s, 0.05, 3)[0],
    }
    return Case(f"{size}, 3 iterations", (scores,), forms)


def sinkhorn_potentials(paper, key):
    size, scores, _ = _scores(paper, key, 8192)
    forms = {
        "ops": lambda s: ops.sinkhorn_potentials(s, temperature=0.05),
        "naive, exponentials": lambda s: naive.sinkhorn_knopp(s, 0.05, 3)[1],
    }
    return Case(f"{size}, 3 iterations", (scores,), forms)


def sinkhorn_cross_entropy(paper, key):
    size, scores, logits = _scores(paper, key, 32768)

    def plain(scores, logits):
        return naive.cross_entropy(
            jax.lax.stop_gradient(naive.sinkhorn_knopp(scores, 0.05, 3)[0]), logits, 0.1
        )

    forms = {
        "ops": lambda s, x: ops.sinkhorn_cross_entropy(
            s, x, target_temperature=0.05, temperature=0.1
        ),
        "naive, stored targets": plain,
    }
    options = dict(target_temperature=0.05, temperature=0.1, num_iters=3)
    torch = _with_gradient(
        "torch", libraries.torch_sinkhorn_cross_entropy, scores.shape[:1], scores, logits, **options
    )
    return Case(
        f"{size}, 3 iterations",
        (scores, logits),
        forms,
        {"torch, stored targets": torch},
        gradient=1,
    )


def entropic_transport(paper, key):
    cost = jax.random.uniform(key, (2048 if paper else 8, 16, 16))
    forms = {
        "ops": lambda c: ops.entropic_transport(c, epsilon=0.05, num_iters=30),
        "naive, log domain": lambda c: naive.transport_log(c, 0.05, 30),
        "naive, exponentials": lambda c: naive.transport_exp(c, 0.05, 30),
    }
    host = np.asarray(cost)
    others = {
        "ott-jax, fixed iterations": Library("ott", lambda: libraries.ott(host, 0.05, 30)),
        "POT loop": Library("ot", lambda: libraries.pot_loop(host, 0.05, 30)),
        "scipy Hungarian loop (exact matching)": Library(
            "scipy", lambda: libraries.hungarian(host)
        ),
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
    others = {
        "scipy cdist and Hungarian loop": Library(
            "scipy", lambda: libraries.hungarian_of_tokens(*map(np.asarray, (source, target)))
        )
    }

    def matches(output):
        """Index and cost; the plan of an exact matching is another."""
        return output[:2]

    return Case(
        f"[{batch}, 16, {width}], eps .1, 5 iterations",
        (source, target),
        forms,
        others,
        compared=matches,
    )


def localization(paper, key):
    batch, places, width = (64, 196, 768) if paper else (2, 16, 32)
    first, second = jax.random.split(key)
    forms = {
        "ops": lambda d, s: ops.localization(d, s),
        "naive": lambda d, s: naive.localization(d, s, 0.06),
    }
    arrays = _normal(first, batch, places, width), _normal(second, batch, 16, width)
    return Case(f"[{batch}, {places}, {width}], 16 tokens", arrays, forms, gradient=0)


def koleo(paper, key):
    tokens = _normal(key, *((256, 16, 768) if paper else (4, 8, 32)))
    return Case(
        f"{list(tokens.shape)}",
        (tokens,),
        {"ops": ops.koleo, "naive, all differences": naive.koleo},
        gradient=0,
    )


def mean_shift(paper, key):
    batch, tokens, width = (32, 196, 384) if paper else (2, 16, 32)
    first, second = jax.random.split(key)
    queries, keys = _normal(first, batch, tokens, width), _normal(second, batch, tokens, width)
    tau = 0.1 / width**0.5

    def attention(q, k):
        return jax.nn.dot_product_attention(q[:, :, None], k[:, :, None], k[:, :, None], scale=tau)[
            :, :, 0
        ]

    forms = {
        "ops": lambda q, k: ops.mean_shift(q, k, inverse_temperature=tau),
        "naive": lambda q, k: naive.mean_shift(q, k, tau),
        "jax.nn.dot_product_attention": attention,
    }
    torch = _with_gradient(
        "torch", libraries.torch_attention, queries.shape, queries, keys, inverse_temperature=tau
    )
    return Case(
        f"{list(queries.shape)}", (queries, keys), forms, {"torch attention": torch}, gradient=0
    )


def _views(paper, key):
    """Tokens around a few centres and their places, two views of each image: 2N tokens."""
    batch, side, width, clusters = (8, 14, 384, 32) if paper else (2, 4, 32, 4)
    keys = jax.random.split(key, 5)
    count = 2 * side * side
    kind = jax.random.randint(keys[0], (batch, count, 1), 0, clusters)
    tokens = jnp.take_along_axis(_normal(keys[1], batch, clusters, width), kind, axis=1) + _normal(
        keys[2], batch, count, width
    )
    grid = (
        jnp.stack(jnp.meshgrid(jnp.arange(side), jnp.arange(side)), axis=-1).reshape(1, 1, -1, 2)
        / side
    )
    positions = (grid + 0.3 * jax.random.uniform(keys[3], (batch, 2, 1, 2))).reshape(
        batch, count, 2
    )
    seeds = jax.lax.top_k(jax.random.bits(keys[4], (batch, count)), clusters)[1]
    return tokens, positions, seeds


def joint_view_clustering(paper, key):
    tokens, positions, seeds = _views(paper, key)
    options = dict(position_weight=1.0, temperature=0.05, num_iters=5, sinkhorn_iters=5)
    clusters = seeds.shape[1]
    forms = {
        "ops": lambda t, p, s: ops.joint_view_clustering(
            t, p, num_clusters=clusters, seeds=s, **options
        ),
        "naive, [B, 2N, 2N, K]": lambda t, p, s: naive.joint_view_clustering(t, p, s, **options),
    }
    others = {
        "torch, [B, 2N, 2N, K]": Library(
            "torch",
            lambda: libraries.torch_joint_view_clustering(
                *map(_on_host, (tokens, positions, seeds)), **options
            ),
        )
    }
    return Case(
        f"{list(tokens.shape)}, K = {clusters}, 5 iterations",
        (tokens, positions, seeds),
        forms,
        others,
    )


def object_tokens(paper, key):
    tokens, _, seeds = _views(paper, key)
    clusters = seeds.shape[1]
    assignments = jax.nn.one_hot(jax.random.randint(key, tokens.shape[:2], 0, clusters), clusters)
    forms = {"ops": ops.object_tokens, "naive, view by view": naive.object_tokens}
    return Case(f"{list(tokens.shape)}, K = {clusters}", (tokens, assignments), forms, gradient=0)


def _bank(paper, key, k):
    count, size, width = (256, 800_000, 256) if paper else (8, 1000, 16)
    first, second = jax.random.split(key)
    queries, bank = _normal(first, count, width), _normal(second, size, width)
    return (
        f"{count} of {size} x {width}, k = {k}",
        queries,
        bank,
        1 / jnp.linalg.norm(bank, axis=-1),
    )


def nearest(paper, key):
    size, *arrays = _bank(paper, key, 1)
    forms = {
        "ops, norms stored": lambda q, b, n: ops.nearest(q, b, inverse_norms=n),
        "naive, bank normalised each call": lambda q, b, n: naive.nearest(q, b, 1),
        "naive, norms stored": lambda q, b, n: naive.nearest_scaled(q, b, n, 1),
        "naive, argmax": naive.nearest_argmax,
        "ops": lambda q, b, n: ops.nearest(q, b),
    }
    others = {
        "torch, as published": Library("torch", lambda: libraries.torch_nearest(*arrays[:2], 1)),
        "faiss flat": Library(
            "faiss", lambda: libraries.faiss_flat(*map(np.asarray, arrays[:2]), 1)
        ),
    }
    return Case(size, tuple(arrays), forms, others)


def nearest_approximate(paper, key):
    size, *arrays = _bank(paper, key, 8)
    forms = {
        "ops, approx": lambda q, b, n: ops.nearest(q, b, k=8, inverse_norms=n, method="approx"),
        "naive, norms stored": lambda q, b, n: naive.nearest_scaled(q, b, n, 8),
        "ops, exact": lambda q, b, n: ops.nearest(q, b, k=8, inverse_norms=n),
    }
    return Case(f"{size}, recall_target .95", tuple(arrays), forms, tolerance=None)


def cycle_consistent(paper, key):
    objects, size, width = (256, 65536, 256) if paper else (16, 128, 16)
    keys = jax.random.split(key, 4)
    first, bank = _normal(keys[0], objects, width), _normal(keys[1], size, width)
    second, second_bank = (
        first + _normal(keys[2], objects, width),
        bank + _normal(keys[3], size, width),
    )
    forms = {"ops": lambda *x: tuple(ops.cycle_consistent(*x)), "naive": naive.cycle_consistent}
    return Case(
        f"{objects} objects, bank {size} x {width}", (first, second, bank, second_bank), forms
    )


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
    others = {
        "faiss flat": Library(
            "faiss", lambda: libraries.faiss_sops(*map(np.asarray, (memory, anchors)), members)
        )
    }

    # Members are compared by their similarity too: rounding may exchange two of nearly the same.
    def compared(out):
        return (out[1], np.einsum("kmd,kd->km", *map(np.asarray, (out[0], out[0][:, -1]))))

    return Case(
        f"{len(anchors)} anchors, memory {list(memory.shape)}, M = {members}",
        (memory, anchors),
        forms,
        others,
        compared=compared,
    )


def sop_vote(paper, key, rule="smoothed"):
    queries, memory, anchors, target, slots, draw = _sop_arrays(paper, key)
    members = (
        memory[jax.random.randint(draw, (len(anchors), slots), 0, len(memory))]
        .at[:, -1]
        .set(memory[anchors])
    )
    weights = ops.sop_weights(jax.random.uniform(draw, members.shape[:2]), rule=rule)
    forms = {
        "ops": lambda u, d, s, q: -jnp.sum(q * ops.sop_vote(u, d, s, temperature=0.1), axis=-1),
        "naive, Y as a matrix": lambda u, d, s, q: (
            -jnp.sum(q * naive.sop_vote(u, d, s, 0.1), axis=-1)
        ),
    }
    arrays = (queries, members, weights, target)
    torch = {
        name: _with_gradient(
            "torch",
            libraries.torch_sop_vote,
            queries.shape[:1],
            *arrays,
            temperature=0.1,
            published=published,
        )
        for name, published in (("torch, as published", True), ("torch, sums over blocks", False))
    }
    size = f"{list(queries.shape)}, K = {len(anchors)}, M = {slots}, {rule}, with cross-entropy"
    return Case(size, arrays, forms, torch, gradient=0)


def sop_step(paper, key):
    queries, memory, anchors, target, slots, _ = _sop_arrays(paper, key)

    def step(build, vote):
        def loss(u, memory, anchors, q):
            members, similarity = build(memory, anchors, num_members=slots)
            return -jnp.sum(
                q * vote(u, members, ops.sop_weights(similarity, rule="smoothed"), temperature=0.1),
                axis=-1,
            )

        return loss

    forms = {
        "ops": step(ops.build_sops, ops.sop_vote),
        "naive": step(naive.build_sops, naive.sop_vote),
    }
    arrays = (queries, memory, anchors, target)
    options = dict(num_members=slots, share=0.9, temperature=0.1)
    torch = {
        "torch, as published": _with_gradient(
            "torch", libraries.torch_sop_step, queries.shape[:1], *arrays, **options
        )
    }
    size = f"build and vote, memory {list(memory.shape)}, K = {len(anchors)}"
    return Case(size, arrays, forms, torch, gradient=0)


def memory_push(paper, key):
    size, count, width = (65536, 1024, 256) if paper else (64, 8, 16)
    first, second = jax.random.split(key)
    rows, new = _normal(first, size, width), _normal(second, count, width)

    def push(rows, new):
        memory = dict(rows={"x": rows}, valid=jnp.ones(size, bool), cursor=jnp.zeros((), jnp.int32))
        memory = ops.memory_push(memory, {"x": new})
        return memory["rows"]["x"], memory["cursor"]

    def in_order(output):  # oldest row first
        return (
            np.roll(np.asarray(output[0]), -int(output[1]), axis=0)
            if isinstance(output, tuple)
            else output
        )

    forms = {"ops, ring": push, "naive, queue shifted": naive.memory_push}
    return Case(f"{count} rows into {size} x {width}", (rows, new), forms, compared=in_order)


def _distributions(paper, key):
    shape = (512, 65536) if paper else (8, 64)
    first, second = jax.random.split(key)
    logits = 0.5 * _normal(second, *shape)  # within reach of the naive form
    return str(list(shape)), jax.nn.softmax(3 * _normal(first, *shape)), logits


def cross_entropy(paper, key):
    size, target, logits = _distributions(paper, key)
    forms = {
        "ops": lambda p, x: ops.cross_entropy(p, x, temperature=0.1),
        "naive, log of softmax": lambda p, x: (
            -jnp.sum(p * jnp.log(jax.nn.softmax(x / 0.1)), axis=-1)
        ),
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
    case.__name__: case
    for case in (
        sinkhorn_knopp,
        sinkhorn_potentials,
        sinkhorn_cross_entropy,
        entropic_transport,
        align_sets,
        localization,
        koleo,
        mean_shift,
        joint_view_clustering,
        object_tokens,
        nearest,
        nearest_approximate,
        cycle_consistent,
        sample_anchors,
        build_sops,
        sop_vote,
        sop_step,
        memory_push,
        cross_entropy,
        entropy,
        volume_regularizer,
    )
}
CASES["sop_vote_similarity"] = functools.partial(sop_vote, rule="similarity")
