"""FLSL's objective against float64 loops: every term and gradient, its alternatives, and the
invariants the paper implies.
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
from ssl_jax.losses.flsl import batch_softmax, flsl
from ssl_jax.ops.mean_shift import mean_shift
from tests.finite import assert_finite
from tests.losses import reference
from tests.losses.reference import close

ARRAYS = ("tokens", "modes", "student_logits", "teacher_logits")


def objective(
    tokens,
    modes,
    student,
    teacher,
    v=0.03,
    eta=1.0,
    gamma=5.0,
    tau_s=0.1,
    tau_t=0.04,
    targets="softmax",
    center=None,
    prior=None,
):
    """Terms of the loss with the targets that the method makes."""
    if targets == "batch_softmax":
        log_targets = batch_softmax(teacher, temperature=tau_t)
    else:
        center = jnp.zeros(teacher.shape[-1]) if center is None else center
        log_targets = ops.centered_softmax(teacher, center, temperature=tau_t, log=True)
    weights = (v, eta, gamma)
    return flsl(
        tokens, modes, student, log_targets, weights=weights, temperature=tau_s, prior=prior
    )


@functools.partial(jax.jit, static_argnames=("targets",))
def run(tokens, modes, student, teacher, *numbers, **options):
    """Gradient of the loss by each of the four arrays, and the terms; weights and temperatures are
    traced.
    """

    def loss(*arrays):
        terms = objective(*arrays, *numbers, **options)
        return terms["loss"], terms

    return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(tokens, modes, student, teacher)


def inputs(seed=0, lead=(2, 3), d=4, k=5, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = ((*lead, d), (*lead, d), (*lead, k), (*lead, k))
    return [(rng.normal(size=shape) * scale).astype(np.float32) for shape in shapes]


def loops(
    queries,
    modes,
    student,
    teacher,
    v,
    eta,
    gamma,
    tau_s,
    tau_t,
    targets="softmax",
    prior=None,
    center=None,
):
    """The equations, token by token: the loss and its terms."""
    q, z, s, t = (
        np.asarray(x, np.float64).reshape(-1, x.shape[-1])
        for x in (queries, modes, student, teacher)
    )
    n, k = s.shape
    scores = (t - (0 if center is None else center)) / tau_t
    if targets == "batch_softmax":
        scores = reference.log_softmax(scores.T).T
    intra = inter = 0.0
    mean_prediction, mean_target, each = np.zeros(k), np.zeros(k), 0.0
    for i in range(n):
        intra += (2 - 2 * (q[i] @ z[i]) / (np.linalg.norm(q[i]) * np.linalg.norm(z[i]))) / n
        target, log_p = (
            np.exp(reference.log_softmax(scores[i])),
            reference.log_softmax(s[i] / tau_s),
        )
        inter -= (target * log_p).sum() / n
        mean_prediction += np.exp(log_p) / n
        mean_target += target / n
        each += reference.entropy(target) / n
    prior = np.full(k, 1 / k) if prior is None else np.asarray(prior, np.float64)
    volume = -reference.entropy(mean_prediction) - mean_prediction @ np.log(prior)
    terms = dict(
        intra_loss=intra,
        inter_loss=inter,
        volume_loss=volume,
        teacher_entropy=each,
        kl=inter - each,
    )
    terms["usage"] = reference.usage(scores)
    terms |= dict(
        marginal_entropy=reference.entropy(mean_target),
        prediction_entropy=reference.entropy(mean_prediction),
    )
    return terms | {"loss": v * intra + eta * inter + gamma * volume}


def slopes(f, x, step=1e-5):
    """Central differences of f at x, float64."""
    x, result = np.asarray(x, np.float64).copy(), np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        kept = x[place]
        x[place] = kept + step
        up = f(x)
        x[place] = kept - step
        result[place] = (up - f(x)) / (2 * step)
        x[place] = kept
    return result


CENTER, PRIOR = (
    np.linspace(-1, 1, 5, dtype=np.float32),
    np.array([0.1, 0.3, 0.2, 0.35, 0.05], np.float32),
)


@pytest.mark.parametrize("lead", [(2, 3), (7,)])
@pytest.mark.parametrize(
    "options",
    [{}, {"targets": "batch_softmax"}, {"center": CENTER}, {"prior": PRIOR}],
    ids=lambda o: next(iter(o), "plain"),
)
def test_terms_and_gradients_equal_the_loops(options, lead):
    arrays, numbers = inputs(lead=lead), (0.3, 0.7, 2.0, 0.5, 0.3)
    gradients, terms = run(*arrays, *numbers, **options)
    want = loops(*arrays, *numbers, **options)
    assert set(terms) == set(want)
    for name, value in want.items():
        close(terms[name], value)
    for i, name in enumerate(ARRAYS[:3]):

        def changed(x, i=i):
            return loops(*arrays[:i], x, *arrays[i + 1 :], *numbers, **options)["loss"]

        close(gradients[i], slopes(changed, arrays[i])), name
    assert not np.any(gradients[3])


def test_by_hand():
    """Two queries at right angles to, and along, their modes: intra (2 + 0) / 2. Students (3/4,
    1/4) and (1/4, 3/4): their mean is uniform. Targets (1, 0) in the limit and (1/2, 1/2): inter
    (log 4/3 + (log 4 + log 4/3) / 2) / 2.
    """
    x, y = np.eye(2, dtype=np.float32)
    student = np.log(np.array([[3.0, 1.0], [1.0, 3.0]], np.float32))
    teacher = np.array([[100.0, 0.0], [1.0, 1.0]], np.float32)
    terms = run(np.stack([x, x]), np.stack([y, 2 * x]), student, teacher, 1.0, 1.0, 1.0, 1.0, 1.0)[
        1
    ]
    close(terms["intra_loss"], 1.0)
    close(terms["inter_loss"], (1.5 * np.log(4 / 3) + 0.5 * np.log(4)) / 2)
    close(terms["volume_loss"], 0.0)
    close(terms["marginal_entropy"], -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    close(terms["loss"], terms["intra_loss"] + terms["inter_loss"])


def test_weights_choose_the_terms():
    arrays = inputs()
    none = run(*arrays, 0.0, 0.0, 0.0)
    assert none[1]["loss"] == 0 and not any(np.any(g) for g in none[0])
    for i, name in enumerate(("intra_loss", "inter_loss", "volume_loss")):
        terms = run(*arrays, *np.eye(3)[i])[1]
        close(terms["loss"], terms[name])
    by_query, by_mode, by_student, _ = run(*arrays, 0.0)[
        0
    ]  # v = 0, the ablation that collapses, is a legal setting
    assert not np.any(by_query) and not np.any(by_mode) and np.any(by_student)


def test_teacher_and_center_have_no_gradient_in_any_term():
    def total(student, teacher, center):
        tokens = inputs()[0]
        terms = objective(tokens, tokens, student, teacher, center=center)
        return sum((x**2).sum() for x in terms.values())

    by_student, by_teacher, by_center = jax.jit(jax.grad(total, (0, 1, 2)))(*inputs()[2:], CENTER)
    assert np.any(by_student) and not np.any(by_teacher) and not np.any(by_center)


def test_targets_have_no_gradient():
    """Whoever made them."""

    def total(log_targets, teacher):
        tokens, modes, student, _ = inputs()
        settings = dict(weights=(1.0, 1.0, 1.0), temperature=0.1)
        terms = flsl(tokens, modes, student, log_targets, **settings)
        return sum(terms.values()) + batch_softmax(teacher, temperature=0.1)[0, 0, 0]

    teacher = inputs()[3]
    gradients = jax.jit(jax.grad(total, (0, 1)))(jax.nn.log_softmax(teacher), teacher)
    assert not any(np.any(g) for g in gradients)


def test_center_is_taken_from_the_teachers_logits():
    arrays = inputs()
    assert run(*arrays, center=CENTER)[1]["loss"] != run(*arrays)[1]["loss"]
    close(run(*arrays[:3], arrays[3] + CENTER, center=CENTER)[1]["loss"], run(*arrays)[1]["loss"])


def test_batch_softmax_forgets_what_all_queries_share():
    arrays = inputs()
    shared = run(*arrays[:3], arrays[3] + CENTER, targets="batch_softmax")[1]
    close(shared["loss"], run(*arrays, targets="batch_softmax")[1]["loss"])
    equal = run(*arrays[:3], 0 * arrays[3] + CENTER, targets="batch_softmax")[1]
    close(
        equal["teacher_entropy"], np.log(5)
    )  # one centroid for everything becomes all centroids for everything


# Invariants that the paper implies, over drawn inputs.

seeds = st.integers(0, 10_000)
check = functools.partial(hypothesis.settings, deadline=None, derandomize=True, database=None)


@check(max_examples=20)
@hypothesis.given(seed=seeds, tau=st.floats(0.0, 100.0))
def test_equal_tokens_are_their_own_modes_at_any_temperature(seed, tau):
    token = np.tile(np.random.default_rng(seed).normal(size=8).astype(np.float32), (6, 1))
    modes = mean_shift(token, token, inverse_temperature=tau)
    gradients, terms = run(token, modes, *inputs(lead=(6,))[2:])
    assert_finite(gradients, terms)
    close(terms["intra_loss"], 0, absolute=1e-9)


@check(max_examples=30)
@hypothesis.given(
    seed=seeds,
    scales=st.tuples(*2 * [st.sampled_from((1e-6, 1e-2, 1.0, 1e6))]),
    opposite=st.booleans(),
)
def test_intra_is_0_to_4_and_forgets_lengths(seed, scales, opposite):
    queries, modes, *logits = inputs(seed)
    modes = -queries if opposite else modes
    gradients, terms = run(queries, modes, *logits)
    assert_finite(gradients, terms)
    base = terms["intra_loss"]
    assert 0 <= base <= 4 + 1e-6 and (not opposite or base > 4 - 1e-5)
    close(run(queries * scales[0], modes * scales[1], *logits)[1]["intra_loss"], base)


@check(max_examples=30)
@hypothesis.given(seed=seeds, peaked=st.sampled_from((0.0, 0.3, 3.0)))
def test_volume_is_0_for_uniform_and_log_k_for_one_centroid(seed, peaked):
    """The mean over queries counts: each may be sharp as long as together they use all
    centroids.
    """
    queries, modes, student, teacher = inputs(seed, lead=(10,))
    gradients, terms = run(queries, modes, student * peaked, teacher)
    assert_finite(gradients, terms)
    volume = terms["volume_loss"]
    assert 0 <= volume <= np.log(5) + 1e-6
    sharp = 10 * np.tile(np.eye(5, dtype=np.float32), (2, 1))
    close(run(queries, modes, sharp, teacher)[1]["volume_loss"], 0)
    close(run(queries, modes, sharp[[0] * 10], teacher)[1]["volume_loss"], np.log(5))
    assert volume > 1e-6 or peaked == 0


def test_one_of_4096_centroids_costs_8_318():
    queries = np.ones((2, 4), np.float32)
    logits = np.zeros((2, 4096), np.float32)
    close(run(queries, queries, logits, logits)[1]["inter_loss"], np.log(4096))
    logits[:, 7] = 10
    close(run(queries, queries, logits, logits)[1]["volume_loss"], 8.318, absolute=1e-3)


@check(max_examples=20)
@hypothesis.given(seed=seeds)
def test_gamma_above_0_pushes_a_peaked_prediction_towards_uniform(seed):
    """The sign: a step against the gradient must raise the entropy of the mean
    prediction.
    """
    queries, modes, student, teacher = inputs(seed, lead=(10,), scale=0.1)
    student[:, 2] += 0.2
    gradients, terms = run(queries, modes, student, teacher, 0.0, 0.0, 1.0)
    after = run(queries, modes, student - 0.01 * gradients[2], teacher, 0.0, 0.0, 1.0)[1]
    assert_finite(gradients, terms, after)
    assert (
        after["prediction_entropy"] > terms["prediction_entropy"]
        and after["volume_loss"] < terms["volume_loss"]
    )
    assert gradients[2][:, 2].sum() > 0  # the peak goes down


def test_volume_is_of_the_global_batch_sharded_or_not():
    """Per-device means give another, larger number; a sharded batch gives that of one
    device.
    """
    rng = np.random.default_rng(0)
    arrays = inputs(lead=(16, 3), k=8)
    arrays[2] = (np.eye(8)[np.arange(16) // 2][:, None] + 0.1 * rng.normal(size=(16, 3, 8))).astype(
        np.float32
    )  # a centroid per device
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(arrays, jax.NamedSharding(mesh, jax.P("data")))
    compiled = run.lower(*sharded).compile()
    assert not re.search("all-gather|all-to-all|collective-permute", compiled.as_text())
    gradients, terms = compiled(*sharded)
    want_gradients, want = run(*arrays)
    for name in want:
        np.testing.assert_allclose(terms[name], want[name], rtol=2e-6, atol=1e-6)
    for mine, theirs in zip(gradients, want_gradients):
        close(mine, theirs)
    each = [float(run(*(x[2 * i : 2 * i + 2] for x in arrays))[1]["volume_loss"]) for i in range(8)]
    assert np.mean(each) > want["volume_loss"] + 1


@check(max_examples=30)
@hypothesis.given(seed=seeds, scale=st.sampled_from((0.0, 0.1, 1.0)))
def test_inter_is_at_least_the_entropy_of_the_targets_and_log_k_for_uniform_predictions(
    seed, scale
):
    queries, modes, student, teacher = inputs(seed, scale=scale)
    gradients, terms = run(queries, modes, student, teacher)
    assert_finite(gradients, terms)
    assert terms["inter_loss"] >= terms["teacher_entropy"] - 1e-6 and terms["kl"] >= -1e-6
    close(run(queries, modes, 0 * student + 3, teacher)[1]["inter_loss"], np.log(5))


@check(max_examples=20)
@hypothesis.given(seed=seeds, tau=st.floats(0.0, 3.0))
def test_identical_views_and_networks_cost_the_entropy_and_pull_nowhere(seed, tau):
    """Same tokens, weights and temperatures give p_s = p_t."""
    rng = np.random.default_rng(seed)
    tokens, head = (
        rng.normal(size=(2, 6, 4)).astype(np.float32),
        rng.normal(size=(4, 5)).astype(np.float32),
    )
    modes, found = (
        mean_shift(tokens, keys, inverse_temperature=tau) for keys in (tokens, tokens.copy())
    )
    gradients, terms = run(tokens, modes, modes @ head, found @ head, 0.0, 1.0, 0.0, 0.1, 0.1)
    assert_finite(gradients, terms)
    close(terms["inter_loss"], terms["teacher_entropy"])
    close(gradients[2], np.zeros_like(gradients[2]), absolute=1e-5)


@check(max_examples=25)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    targets=st.sampled_from(("softmax", "batch_softmax")),
    duplicates=st.booleans(),
    seed=seeds,
)
def test_finite_and_right_for_every_input(dtype, scale, targets, duplicates, seed):
    arrays = inputs(seed, scale=scale)
    if duplicates:
        for x in arrays:
            x[:] = x[:1, :1]
    low = [jnp.asarray(x, dtype) for x in arrays]
    gradients, terms = run(*low, targets=targets)
    assert_finite(gradients, terms)
    assert all(value.dtype == jnp.float32 for value in terms.values()) and all(
        g.dtype == dtype for g in gradients
    )
    if scale:  # zero vectors have no direction: the loops divide by 0
        want = loops(*(np.asarray(x, np.float32) for x in low), 0.03, 1.0, 5.0, 0.1, 0.04, targets)
        for name in want:  # logits of 1e5 have steps of 0.008
            close(terms[name], want[name], absolute=1e-5 if scale <= 1 else 8e-3)


def test_vmap_and_remat_agree():
    arrays = inputs(lead=(4, 3))

    def one(*x):
        return objective(*x)["loss"]

    close(jax.jit(jax.vmap(one))(*arrays), [one(*(x[i] for x in arrays)) for i in range(4)])
    remat = jax.jit(jax.grad(jax.checkpoint(one), (0, 1, 2)))(*arrays)
    for mine, theirs in zip(remat, run(*arrays)[0]):
        close(mine, theirs)


def test_errors():
    tokens, modes, student, targets = inputs()
    call = functools.partial(flsl, weights=(0.03, 1.0, 5.0), temperature=0.1)
    for wrong, message in (
        ((tokens[:0], modes[:0], student[:0], targets[:0]), r"shape of tokens is \(0, 3, 4\)"),
        (
            (tokens, modes[:, :2], student, targets),
            r"shape of modes is \(2, 2, 4\); it must be \[2, 3, 4\] as tokens",
        ),
        (
            (tokens, modes, student[:1], targets),
            r"shape of student_logits is \(1, 3, 5\); it must be \[2, 3, K\] as tokens",
        ),
        (
            (tokens, modes, student, targets[..., :4]),
            r"log_targets is \(2, 3, 4\); it must be \[2, 3, 5\] as tokens and student_logits",
        ),
        ((tokens, modes, student[..., :0], targets[..., :0]), r"\[2, 3, K\] as tokens with K >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call(*wrong)
    for name, changes in (
        ("v is -1", {"weights": (-1, 1.0, 5.0)}),
        ("eta is -0.1", {"weights": (0.0, -0.1, 5.0)}),
        ("gamma is nan", {"weights": (0.0, 1.0, float("nan"))}),
        ("weights is", {"weights": (0.0, 1.0)}),
        ("temperature is 0", {"temperature": 0}),
    ):
        with pytest.raises(ValueError, match=f"{name}.*; it must be"):
            call(*inputs(), **changes)
    with pytest.raises(ValueError, match="temperature is 0; it must be"):
        batch_softmax(targets, temperature=0)
    with pytest.raises(ValueError, match="lowest entry of prior is 0.0"):
        call(*inputs(), prior=np.array([0.5, 0.5, 0, 0, 0]))
