"""FLSL's objective: terms by hand, its targets, and the invariants the paper implies."""

import chex
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ssl_jax.ops.mean_shift import mean_shift
from tests.losses import cases, reference
from tests.losses.reference import close

PLAIN = {"weights": (1.0, 1.0, 1.0), "temperature": 0.1}
ARRAYS = ("tokens", "modes", "student_logits")


def run(tokens, modes, student, log_targets, **settings):
    """Terms, and the gradients by tokens, modes and student."""
    arrays = dict(zip((*ARRAYS, "log_targets"), (tokens, modes, student, log_targets)))
    terms, gradients = cases.run("flsl", arrays, **PLAIN | settings)
    chex.assert_tree_all_finite((terms, gradients))
    return terms, [np.asarray(gradients[name]) for name in ARRAYS]


def inputs(seed=0, lead=(2, 3)):
    return list(cases.make("flsl", seed, lead=lead).values())


def test_by_hand():
    """Two queries at right angles to, and along, their modes: intra (2 + 0) / 2. Students (3/4,
    1/4) and (1/4, 3/4): their mean is uniform. Targets (1, 0) in the limit and (1/2, 1/2): inter
    (log 4/3 + (log 4 + log 4/3) / 2) / 2.
    """
    x, y = np.eye(2, dtype=np.float32)
    student = np.log(np.array([[3.0, 1.0], [1.0, 3.0]], np.float32))
    log_targets = reference.log_softmax([[100.0, 0.0], [1.0, 1.0]]).astype(np.float32)
    arrays = np.stack([x, x]), np.stack([y, 2 * x]), student, log_targets
    terms, _ = run(*arrays, temperature=1.0)
    close(terms["intra_loss"], 1.0)
    close(terms["inter_loss"], (1.5 * np.log(4 / 3) + 0.5 * np.log(4)) / 2)
    close(terms["volume_loss"], 0.0)
    close(terms["marginal_entropy"], -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    close(terms["loss"], terms["intra_loss"] + terms["inter_loss"])


def test_batch_softmax_forgets_what_all_queries_share():
    teacher, shared = inputs()[3], np.linspace(-1, 1, 5, dtype=np.float32)

    def targets(logits):
        return cases.run("batch_softmax", {"teacher_logits": logits})[0]["log_targets"]

    close(targets(teacher + shared), targets(teacher), 2e-6)
    # One centroid for everything becomes all centroids for everything.
    close(np.exp(targets(0 * teacher + shared)), np.full(teacher.shape, 0.2))


seeds = st.integers(0, 10_000)


@hypothesis.given(seed=seeds, tau=st.floats(0.0, 100.0))
def test_equal_tokens_are_their_own_modes_at_any_temperature(seed, tau):
    token = np.tile(np.random.default_rng(seed).normal(size=4).astype(np.float32), (6, 1))
    modes = mean_shift(token, token, inverse_temperature=tau)
    terms, _ = run(token, modes, *inputs(lead=(6,))[2:])
    close(terms["intra_loss"], 0, absolute=1e-9)


@hypothesis.given(
    seed=seeds,
    scales=st.tuples(*2 * [st.sampled_from((1e-6, 1e-2, 1.0, 1e6))]),
    opposite=st.booleans(),
)
def test_intra_is_0_to_4_and_forgets_lengths(seed, scales, opposite):
    queries, modes, *logits = inputs(seed)
    modes = -queries if opposite else modes
    base = run(queries, modes, *logits)[0]["intra_loss"]
    assert 0 <= base <= 4 + 1e-6 and (not opposite or base > 4 - 1e-5)
    close(run(queries * scales[0], modes * scales[1], *logits)[0]["intra_loss"], base)


@pytest.mark.parametrize("peaked", [0.0, 0.3, 3.0])
def test_volume_is_0_for_uniform_and_log_k_for_one_centroid(peaked):
    """The mean over queries counts: each may be sharp as long as together they use all
    centroids.
    """
    queries, modes, student, teacher = inputs(lead=(10,))

    def volume(student):
        return run(queries, modes, student, teacher)[0]["volume_loss"]

    assert 0 <= volume(student * peaked) <= np.log(5) + 1e-6
    assert volume(student * peaked) > 1e-6 or peaked == 0
    sharp = 10 * np.tile(np.eye(5, dtype=np.float32), (2, 1))
    close(volume(sharp), 0)
    close(volume(sharp[[0] * 10]), np.log(5))


def test_gamma_above_0_pushes_a_peaked_prediction_towards_uniform():
    """The sign: a step against the gradient must raise the entropy of the mean prediction."""
    queries, modes, student, teacher = inputs(lead=(10,))
    student = 0.1 * student
    student[:, 2] += 0.2
    volume = {"weights": (0.0, 0.0, 1.0)}
    terms, (*_, gradient) = run(queries, modes, student, teacher, **volume)
    after, _ = run(queries, modes, student - 0.01 * gradient, teacher, **volume)
    assert after["prediction_entropy"] > terms["prediction_entropy"]
    assert after["volume_loss"] < terms["volume_loss"]
    assert gradient[:, 2].sum() > 0  # the peak goes down


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_inter_is_at_least_the_entropy_of_the_targets_and_log_k_for_uniform_predictions(scale):
    queries, modes, student, teacher = inputs()
    terms, _ = run(queries, modes, scale * student, teacher)
    assert terms["inter_loss"] >= terms["teacher_entropy"] - 1e-6 and terms["kl"] >= -1e-6
    close(run(queries, modes, 0 * student + 3, teacher)[0]["inter_loss"], np.log(5))


@hypothesis.given(seed=seeds, tau=st.floats(0.0, 3.0))
def test_identical_views_and_networks_cost_the_entropy_and_pull_nowhere(seed, tau):
    """Same tokens, weights and temperatures give p_s = p_t."""
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(2, 6, 4)).astype(np.float32)
    head = rng.normal(size=(4, 5)).astype(np.float32)
    logits = np.asarray(mean_shift(tokens, tokens, inverse_temperature=tau)) @ head
    log_targets = reference.log_softmax(logits / 0.1).astype(np.float32)
    terms, gradients = run(tokens, tokens, logits, log_targets, weights=(0.0, 1.0, 0.0))
    close(terms["inter_loss"], terms["teacher_entropy"])
    close(gradients[2], np.zeros_like(gradients[2]), absolute=1e-5)
