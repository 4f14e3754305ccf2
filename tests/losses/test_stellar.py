"""STELLAR's objective against float64 NumPy written from its equations: every term, in value and
gradient, and what must not change.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses
from ssl_jax.losses.stellar import Tokens, class_tokens
from tests.finite import assert_finite
from tests.losses.reference import close, entropy, log_softmax, log_sum_exp

B, V, W, R, MASKED_R, TEACHER_R, K, KC, E, D, N = 3, 2, 2, 4, 3, 5, 7, 6, 5, 6, 4
HEAT = dict(target_temperature=0.3, temperature=0.5)
STUDENT = (
    "token_logits",
    "masked_token_logits",
    "cls_logits",
    "masked_cls_logits",
    "local_cls_logits",
    "tokens",
    "masked_tokens",
    "reconstruction",
    "token_prototypes",
    "cls_prototypes",
)


# The reference: eq. 3 to 6 with loops over images, views and tokens where the equations have sums.


def sinkhorn(scores, temperature, iterations=3):
    """Balanced assignments of the rows of [n, K]: columns divided by their sum, then rows, from
    exp(scores / T); in logarithms.
    """
    log_q = np.asarray(scores, np.float64) / temperature
    for _ in range(iterations):
        log_q = log_q - log_sum_exp(log_q, 0)[None]
        log_q = log_q - log_sum_exp(log_q, 1)[:, None]
    return np.exp(log_q)


def product(x, prototypes):
    return x if prototypes is None else x @ np.asarray(prototypes, np.float64).T


def targets_of(inputs):
    """{"token": [B, s, K], "cls": [B, K]} from the teacher where there is one, else from the main
    view.
    """
    found = {}
    for kind in ("token", "cls"):
        scores = inputs.get(f"teacher_{kind}_logits")
        if scores is None and inputs.get(f"{kind}_logits") is not None:
            scores = product(
                np.asarray(inputs[f"{kind}_logits"], np.float64), inputs.get(f"{kind}_prototypes")
            )
        if scores is not None:
            scores = np.asarray(scores, np.float64)
            found[kind] = sinkhorn(
                scores.reshape(-1, scores.shape[-1]), HEAT["target_temperature"]
            ).reshape(scores.shape)
    return found


def cross_entropy(q, logits):
    return -(q * log_softmax(logits / HEAT["temperature"])).sum(axis=-1)


def koleo(tokens):
    total, count = 0.0, 0
    for image in tokens.reshape(-1, *tokens.shape[-2:]):
        unit = image / np.linalg.norm(image, axis=-1, keepdims=True)
        for i in range(len(unit)):
            others = [j for j in range(len(unit)) if j != i]
            count += 1
            if others:
                near = max(others, key=lambda j: unit[i] @ unit[j])
                total -= np.log(0.5 * np.sqrt(np.square(unit[i] - unit[near] + 1e-8).sum()) + 1e-8)
    return total / count


def terms_of(inputs, targets):
    """All terms of the loss; `targets` are constants."""
    x = {
        k: None if v is None else np.asarray(v, np.float64)
        for k, v in inputs.items()
        if k in STUDENT
    }
    get, terms = x.get, {}
    c, cc = get("token_prototypes"), get("cls_prototypes")
    if get("token_logits") is not None:
        logits, q = product(get("token_logits"), c), targets["token"]
        match = inputs.get("token_matches")
        pick = (
            (lambda b, j: j)
            if inputs.get("teacher_token_logits") is None
            else (lambda b, j: match[b, j])
        )
        terms["cluster_loss"] = np.mean(
            [cross_entropy(q[b, pick(b, j)], logits[b, j]) for b in range(B) for j in range(R)]
        )
    if get("masked_token_logits") is not None:
        logits, match = product(get("masked_token_logits"), c), inputs["matches"]
        values = [
            cross_entropy(targets["token"][b, match[b, v, j]], logits[b, v, j])
            for b in range(B)
            for v in range(V)
            for j in range(logits.shape[2])
        ]
        terms["align_loss"] = np.mean(values)
    if get("cls_logits") is not None:
        terms["cls_cluster_loss"] = np.mean(
            [cross_entropy(targets["cls"][b], product(get("cls_logits")[b], cc)) for b in range(B)]
        )
    for name, term in (
        ("masked_cls_logits", "cls_align_loss"),
        ("local_cls_logits", "cls_local_loss"),
    ):
        if get(name) is not None:
            views = get(name).shape[1]
            values = [
                cross_entropy(targets["cls"][b], product(get(name)[b, v], cc))
                for b in range(B)
                for v in range(views)
            ]
            terms[term] = np.mean(values)
    for name, term in (("tokens", "koleo"), ("masked_tokens", "masked_koleo")):
        if get(name) is not None:
            terms[term] = koleo(get(name))
    if get("reconstruction") is not None:
        guess, goal = get("reconstruction"), np.asarray(inputs["target"])
        if goal.dtype.kind == "i":
            log_p = log_softmax(guess)
            terms["reconstruction_loss"] = -np.mean(
                [log_p[b, i, goal[b, i]] for b in range(B) for i in range(N)]
            )
        else:
            terms["reconstruction_loss"] = np.mean((guess - goal) ** 2)
    return terms


PART = {
    "reconstruction_loss": "reconstruction",
    "cluster_loss": "cluster",
    "cls_cluster_loss": "cluster",
    "koleo": "koleo",
}
PART |= {
    "masked_koleo": "koleo",
    "align_loss": "align",
    "cls_align_loss": "align",
    "cls_local_loss": "align",
}


def total(inputs, targets, weights):
    return sum(weights[PART[name]] * value for name, value in terms_of(inputs, targets).items())


def numeric_gradient(inputs, targets, weights, name, step=1e-5):
    base = np.asarray(inputs[name], np.float64)
    gradient = np.zeros_like(base)
    for place in np.ndindex(base.shape):
        ends = []
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * step
            ends.append(total(inputs | {name: moved}, targets, weights))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def stellar(*, weights=None, target_temperature=0.06, temperature=0.12, **x):
    """`losses.stellar` of the flat inputs of `make`."""
    get = x.get
    token = cls = None
    if any(get(f"{name}token_logits") is not None for name in ("", "teacher_", "masked_")):
        views = {}
        if get("masked_token_logits") is not None:
            views["align"] = (x["masked_token_logits"], get("matches"))
        token = Tokens(
            get("token_logits"),
            get("token_prototypes"),
            get("teacher_token_logits"),
            get("token_matches"),
            views,
        )
    if any(get(f"{name}cls_logits") is not None for name in ("", "teacher_", "masked_")):
        views = {"align": get("masked_cls_logits"), "local": get("local_cls_logits")}
        views = {name: value for name, value in views.items() if value is not None}
        cls = class_tokens(
            get("cls_logits"), get("cls_prototypes"), get("teacher_cls_logits"), views
        )
    return losses.stellar(
        token,
        cls,
        embeddings=[x[name] for name in ("tokens", "masked_tokens") if name in x],
        rebuilt=(x["reconstruction"], get("target")) if "reconstruction" in x else None,
        target_temperature=target_temperature,
        temperature=temperature,
        weights=weights,
    )


# Inputs. A case switches parts off or on.


def make(case=(), seed=0, scale=1.0):
    """All parts, except those that the words of `case` take out: a dict of float32 (and integer)
    arrays.
    """
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    wide, wide_cls = (E, E) if "embeddings" in case else (K, KC)
    goals = TEACHER_R if "teacher" in case else R
    x = {
        "token_logits": draw(B, R, wide),
        "masked_token_logits": draw(B, V, MASKED_R, wide),
        "cls_logits": draw(B, wide_cls),
        "masked_cls_logits": draw(B, V, wide_cls),
        "local_cls_logits": draw(B, W, wide_cls),
        "tokens": draw(B, R, D),
        "masked_tokens": draw(B, V, MASKED_R, D),
        "matches": rng.integers(goals, size=(B, V, MASKED_R)),
        "reconstruction": draw(B, N, K),
        "target": rng.integers(K, size=(B, N)) if "codes" in case else draw(B, N, K),
    }
    x["matches"][0, 0] = 1  # many to one
    if "embeddings" in case:
        x |= {"token_prototypes": draw(K, E), "cls_prototypes": draw(KC, E)}
    if "teacher" in case:
        x |= {"teacher_token_logits": draw(B, TEACHER_R, K), "teacher_cls_logits": draw(B, KC)}
        x["token_matches"] = rng.integers(TEACHER_R, size=(B, R))
    for word, names in {
        "no cls": [n for n in x if "cls" in n],
        "no masked": [n for n in x if "masked" in n or n == "matches"],
        "no local": ["local_cls_logits"],
        "no rebuild": ["reconstruction", "target"],
        "no main": ["token_logits", "cls_logits", "token_matches"],
        "no clustering": [n for n in x if "logits" in n or "prototypes" in n],
    }.items():
        if word in case:
            x = {name: value for name, value in x.items() if name not in names}
    return x


CASES = [
    (),
    ("teacher", "embeddings", "codes"),
    ("embeddings", "no cls", "no masked", "no local", "codes"),
    ("teacher", "no cls", "no rebuild"),
    ("no clustering", "no masked"),
    ("teacher", "no main", "no local", "no rebuild"),
]
WEIGHTS = {"reconstruction": 0.7, "cluster": 1.3, "align": 0.9, "koleo": 0.2}


@functools.partial(jax.jit, static_argnames=("weights", "heat"))
def differentiated(student, fixed, weights, heat):
    def loss(student):
        terms = stellar(**student, **fixed, **dict(heat), weights=dict(weights))
        return terms["loss"], terms

    gradients, terms = jax.grad(loss, has_aux=True)(student)
    return terms, gradients


def value_and_gradients(inputs, weights=WEIGHTS, heat=HEAT):
    """Terms, and the gradient of the loss with respect to everything that has one."""
    student = {name: value for name, value in inputs.items() if name in STUDENT}
    fixed = {name: value for name, value in inputs.items() if name not in STUDENT}
    return differentiated(student, fixed, tuple(weights.items()), tuple(heat.items()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(case) or "all")
def test_every_term_and_gradient_equals_the_reference(case):
    inputs = make(case)
    targets = targets_of(inputs)
    terms, gradients = value_and_gradients(inputs)
    wanted = terms_of(inputs, targets)
    assert {name for name in terms if name in PART} == set(wanted)
    for name, value in wanted.items():
        close(terms[name], value)
    close(terms["loss"], total(inputs, targets, WEIGHTS))
    for name, gradient in gradients.items():
        close(gradient, numeric_gradient(inputs, targets, WEIGHTS, name))
    for kind, q in targets.items():
        flat = q.reshape(-1, q.shape[-1])
        close(terms[f"{kind}_teacher_entropy"], entropy(flat).mean())
        close(terms[f"{kind}_marginal_entropy"], entropy(flat.mean(axis=0)))
        close(terms[f"{kind}_usage"], len(set(flat.argmax(axis=1))) / flat.shape[1])


@jax.jit
def evaluated(inputs):
    """All terms with the published weights; one trace for all inputs of the same parts."""
    return stellar(**inputs, **HEAT)


def test_a_weight_of_zero_takes_a_part_out_even_if_it_is_not_finite():
    inputs = make(("no clustering", "no masked"))
    weights = {**WEIGHTS, "reconstruction": 0.0}
    broken = inputs | {"reconstruction": np.full((B, N, K), np.inf, np.float32)}
    terms, gradients = value_and_gradients(broken, weights)
    close(terms["loss"], WEIGHTS["koleo"] * koleo(inputs["tokens"].astype(np.float64)))
    assert not np.any(gradients["reconstruction"]) and np.isinf(terms["reconstruction_loss"])


def test_default_weights_are_the_published_ones():
    inputs = make()
    published = {"reconstruction": 10.0, "cluster": 1.0, "align": 1.0, "koleo": 0.1}
    close(evaluated(inputs)["loss"], total(inputs, targets_of(inputs), published))
    codes = make(("codes", "no clustering", "no masked"))
    close(evaluated(codes)["loss"], total(codes, {}, published | {"reconstruction": 0.05}))


def test_meters_of_matching_and_reconstruction():
    inputs = make()
    likeliest = targets_of(inputs)["token"].argmax(axis=-1)
    said = inputs["masked_token_logits"].argmax(axis=-1)
    same = [
        said[b, v, j] == likeliest[b, inputs["matches"][b, v, j]]
        for b in range(B)
        for v in range(V)
        for j in range(MASKED_R)
    ]
    terms = evaluated(inputs)
    close(terms["match_agreement"], np.mean(same))
    close(
        terms["cls_agreement"],
        np.mean(
            inputs["masked_cls_logits"].argmax(-1) == targets_of(inputs)["cls"].argmax(-1)[:, None]
        ),
    )
    error = np.square(inputs["reconstruction"].astype(np.float64) - inputs["target"]).mean(
        axis=(1, 2)
    )
    close(terms["psnr"], np.mean(-10 * np.log10(error)))
    codes = make(("codes", "no clustering", "no masked"))
    close(
        evaluated(codes)["code_accuracy"],
        np.mean(codes["reconstruction"].argmax(-1) == codes["target"]),
    )


def test_targets_are_constants():
    """No gradient reaches the teacher, and the main view has none through its own targets (checked
    against the reference above).
    """
    inputs = make(("teacher",))

    def loss(token, cls):
        terms = stellar(
            **inputs | {"teacher_token_logits": token, "teacher_cls_logits": cls}, **HEAT
        )
        return sum(terms.values())

    gradients = jax.jit(jax.grad(loss, (0, 1)))(
        *(jnp.asarray(inputs[f"teacher_{kind}_logits"]) for kind in ("token", "cls"))
    )
    assert not any(np.any(g) for g in gradients)


SCALES = st.sampled_from((0.1, 1.0, 3.0))  # of the logits, and of the tokens


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(scale=SCALES, seed=st.integers(0, 1000))
def test_order_of_the_tokens_does_not_matter(scale, seed):
    """No term moves with the queries, those of the masked views included."""
    inputs, rng = make(seed=seed, scale=scale), np.random.default_rng(seed)
    order, masked_order = rng.permutation(R), rng.permutation(MASKED_R)
    moved = inputs | {name: inputs[name][:, order] for name in ("token_logits", "tokens")}
    moved |= {
        name: inputs[name][:, :, masked_order] for name in ("masked_token_logits", "masked_tokens")
    }
    moved["matches"] = np.argsort(order)[inputs["matches"][:, :, masked_order]]
    terms, again = evaluated(inputs), evaluated(moved)
    assert set(again) == set(terms)
    for name in terms:
        close(again[name], terms[name])
    assert_finite(terms)


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(scale=SCALES, size=st.sampled_from((0.1, 1.0, 10.0)), seed=st.integers(0, 1000))
def test_a_constant_per_prototype_changes_no_target(scale, size, seed):
    """The shifted logits, up to about 50 / T, are rounded to 1e-5."""
    given = make(("teacher",), seed, scale)
    inputs = {
        name: given[name] for name in ("token_logits", "token_matches", "teacher_token_logits")
    }
    shift = (size * np.random.default_rng(seed).normal(size=K)).astype(np.float32)
    moved, still = (
        evaluated(inputs | {"teacher_token_logits": given["teacher_token_logits"] + shift}),
        evaluated(inputs),
    )
    for name in still:
        close(moved[name], still[name], relative=2e-5, absolute=2e-5)
    assert_finite(moved, still)


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(scale=SCALES, seed=st.integers(0, 1000))
def test_bounds_of_the_cross_entropy(scale, seed):
    """Uniform predictions cost log K, the target itself its entropy, and
    any other prediction more.
    """
    given = make(("teacher",), seed, scale)
    inputs = {
        "teacher_token_logits": given["teacher_token_logits"][:, :R],
        "token_matches": np.tile(np.arange(R), (B, 1)),
    }
    q = targets_of(inputs)["token"]

    def cost(logits):
        return evaluated({"token_logits": logits.astype(np.float32), **inputs})

    close(cost(np.zeros((B, R, K)))["cluster_loss"], np.log(K))
    best, other = cost(HEAT["temperature"] * np.log(q)), cost(given["token_logits"])
    close(best["cluster_loss"], best["token_teacher_entropy"])
    assert other["cluster_loss"] > best["cluster_loss"]
    assert_finite(best, other)


def test_balance_is_over_all_tokens_of_the_batch():
    """Two copies of every image change nothing but the column sums; another image in the batch does
    change a target.
    """
    inputs = {"token_logits": make()["token_logits"]}
    doubled = {"token_logits": np.concatenate([inputs["token_logits"]] * 2)}
    together = float(evaluated(inputs)["cluster_loss"])
    close(evaluated(doubled)["cluster_loss"], together)
    alone = [
        float(evaluated({"token_logits": inputs["token_logits"][b : b + 1]})["cluster_loss"])
        for b in range(B)
    ]
    assert abs(np.mean(alone) - together) > 1e-3


def test_a_code_that_does_not_exist_is_no_silent_target():
    inputs = make(("codes", "no clustering", "no masked"))
    inputs["target"][1, 2] = K
    assert np.isnan(evaluated(inputs)["loss"])


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    duplicates=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finite_for_every_input(dtype, scale, duplicates, seed):
    inputs = make(("teacher", "embeddings"), seed, scale)
    inputs |= {
        name: value / max(scale, 1e-30) for name, value in inputs.items() if "prototypes" in name
    }  # they stay of order 1
    if duplicates:
        inputs = {
            n: np.broadcast_to(x[:1], x.shape).copy() if x.dtype.kind == "f" else x
            for n, x in inputs.items()
        }
        inputs["tokens"][:] = inputs["tokens"][:, :1]
    low = {
        n: jnp.asarray(x, dtype) if x.dtype.kind == "f" else jnp.asarray(x)
        for n, x in inputs.items()
    }
    terms, gradients = value_and_gradients(low, heat={})
    assert_finite(terms, gradients)
    assert all(value.dtype == jnp.float32 for value in terms.values()) and all(
        g.dtype == dtype for g in gradients.values()
    )


def test_single_token_single_image_single_view():
    x = {
        name: value[:1, :1]
        for name, value in make().items()
        if "token_logits" in name or name in ("tokens", "matches")
    }
    x = {
        name: value[:, :, :1] if value.ndim > 2 and "masked" in name or name == "matches" else value
        for name, value in x.items()
    }
    terms = evaluated(x | {"matches": 0 * x["matches"]})
    assert all(np.isfinite(value) for value in terms.values())
    assert terms["koleo"] == 0  # no neighbour


def test_logits_of_all_views_are_never_held():
    """With prototypes the logits of one view live at a time, in the gradient too."""
    b, v, r, k, e = 4, 12, 8, 4096, 16
    shapes = {
        "token_logits": (b, r, e),
        "masked_token_logits": (b, v, r, e),
        "token_prototypes": (k, e),
        "matches": (b, v, r),
    }
    x = {
        n: jax.ShapeDtypeStruct(s, jnp.int32 if n == "matches" else jnp.float32)
        for n, s in shapes.items()
    }
    student = {n: s for n, s in x.items() if n != "matches"}
    gradient = jax.jit(jax.grad(lambda s, m: stellar(**s, matches=m)["loss"]))
    compiled = gradient.lower(student, x["matches"]).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.75 * b * v * r * k * 4


def test_sharded_batch_agrees_with_a_single_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(1)
    b = 16
    x = {
        "token_logits": (b, R, E),
        "masked_token_logits": (b, V, R, E),
        "cls_logits": (b, E),
        "masked_cls_logits": (b, V, E),
        "tokens": (b, R, D),
        "token_prototypes": (K, E),
        "cls_prototypes": (KC, E),
    }
    x = {name: rng.normal(size=shape).astype(np.float32) for name, shape in x.items()} | {
        "matches": rng.integers(R, size=(b, V, R))
    }

    def place(n, a):
        return jax.device_put(
            a, jax.NamedSharding(mesh, jax.P() if "prototypes" in n else jax.P("data"))
        )

    fixed = {"matches": x.pop("matches")}
    step = jax.jit(jax.value_and_grad(lambda s, f: stellar(**s, **f)["loss"]))
    one = step(x, fixed)
    eight = step({n: place(n, a) for n, a in x.items()}, {n: place(n, a) for n, a in fixed.items()})
    np.testing.assert_allclose(eight[0], one[0], rtol=1e-6)
    for name in x:
        close(eight[1][name], one[1][name])


def test_errors():
    x = make(("teacher",))

    def without(*names):
        return {n: v for n, v in x.items() if n not in names}

    y = make()
    for wrong, message in (
        ({}, "the input is empty"),
        (without("matches"), "matches is None; it must be given"),
        (without("token_matches"), "token_matches is None; it must be given"),
        (
            {n: v for n, v in y.items() if n != "token_logits"},
            "targets of the token views is absent",
        ),
        (without("target"), "target is None; it must be an array"),
        (x | {"token_logits": x["token_logits"][0]}, r"shape of token_logits is \(4, 7\)"),
        (
            x | {"token_logits": x["token_logits"][..., :6]},
            r"shape of token_logits is \(3, 4, 6\); it must be \[3, r, 7\]",
        ),
        (x | {"masked_token_logits": x["masked_token_logits"][:1]}, "shape of align token logits"),
        (x | {"matches": x["matches"][..., :1]}, r"shape of matches is \(3, 2, 1\)"),
        (
            x | {"target": x["target"][:, :2]},
            r"shape of target is \(3, 2, 7\); it must be .* as predicted",
        ),
        (
            make(("codes",)) | {"target": make(("codes",))["target"][:, :2]},
            r"shape of target is \(3, 2\); it must be .* as predicted",
        ),
        (
            make(("embeddings",)) | {"token_prototypes": np.zeros((K, E + 1))},
            r"token_logits is \(3, 4, 5\); it must be embeddings",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            stellar(**wrong)
    for name in ("temperature", "target_temperature"):
        with pytest.raises(ValueError, match=f"^{name} is 0"):
            stellar(**y, **{name: 0})
    with pytest.raises(ValueError, match="key of weights is kole"):
        stellar(**y, weights={"kole": 1.0})
