"""SOP's objectives: the invariants of the method."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from ssl_jax import losses, ops
from tests.losses import cases, reference
from tests.losses.reference import close, unit

RULES = ("similarity", "smoothed", "onehot")
NAMES = ("student_embeddings", "teacher_embeddings", "members", "weights", "masks")


def run(*arrays, **settings):
    """Terms and the student's gradient, of `losses.sop_patch` where there are masks."""
    loss = "sop_patch" if len(arrays) == 5 else "sop"
    terms, gradients = cases.run(loss, dict(zip(NAMES, arrays)), **settings)
    return terms, np.asarray(gradients["student_embeddings"])


def class_inputs(seed=0, **sizes):
    return cases.make("sop", seed, **sizes).values()


def patch_inputs(seed=0, **sizes):
    return cases.make("sop_patch", seed, **sizes).values()


def test_patch_loss_sees_masked_patches_only():
    """Even where the student is NaN."""
    student, *others, masks = patch_inputs(2)
    terms, gradient = run(student, *others, masks)
    hidden = np.where(masks[..., None], student, np.nan).astype(np.float32)
    same, again = run(hidden, *others, masks)
    assert terms["loss"] == same["loss"] and terms["kl"] == same["kl"]
    np.testing.assert_array_equal(gradient, again)
    assert not np.any(gradient[~masks]) and np.all(np.any(gradient[masks], axis=-1))


@pytest.mark.parametrize("rule", RULES)
def test_loss_is_at_least_the_entropy_with_equality_where_predictions_coincide(rule):
    """Then the gradient is zero as well."""
    student, teacher, *sops = class_inputs(5, rule=rule)
    assert run(student, teacher, *sops)[0]["kl"] > 0.01
    same = np.broadcast_to(teacher[:1], (4, *teacher.shape[1:]))
    temperatures = {"student_temperature": 0.07, "teacher_temperature": 0.07}
    terms, gradient = run(same, np.stack([teacher[0]] * 2), *sops, **temperatures)
    close(terms["loss"], terms["teacher_entropy"])
    close(terms["kl"], 0, absolute=2e-6)
    close(gradient, np.zeros_like(gradient), absolute=2e-6)


def test_views_are_never_compared_with_themselves():
    """Student view 0 does not see the teacher's view 0, but the patch loss sees only that."""
    student, teacher, *sops = class_inputs(6)
    other = np.stack([-teacher[0], teacher[1]])
    base, changed = run(student, teacher, *sops)[1], run(student, other, *sops)[1]
    np.testing.assert_array_equal(base[0], changed[0])
    assert np.all(np.any(base[1:] != changed[1:], axis=(1, 2)))
    student, teacher, *sops = patch_inputs(6)
    other = np.stack([-teacher[0], teacher[1]])
    base, changed = run(student, teacher, *sops)[1], run(student, other, *sops)[1]
    np.testing.assert_array_equal(base[1], changed[1])
    assert np.any(base[0] != changed[0])


@hypothesis.given(
    rule=st.sampled_from(RULES), tau_t=st.sampled_from((0.02, 0.07)), seed=st.integers(0, 1000)
)
def test_order_of_sops_and_members_does_not_matter(rule, tau_t, seed):
    """Of loss and gradient, whether SOPs move or the members within each."""
    student, teacher, members, weights = class_inputs(seed, rule=rule)
    rng = np.random.default_rng(seed)
    sops, slots = rng.permutation(5), rng.permuted(np.tile(np.arange(3), (5, 1)), axis=1)
    terms, gradient = run(student, teacher, members, weights, teacher_temperature=tau_t)
    for order in ((slice(None), sops), (slice(None), np.arange(5)[:, None], slots)):
        moved = members[order], weights[order]
        again, slope = run(student, teacher, *moved, teacher_temperature=tau_t)
        close(again["loss"], terms["loss"])
        close(slope, gradient)
    chex.assert_tree_all_finite((terms, gradient))


def test_uniform_predictions_cost_log_k():
    student, teacher, *sops = class_inputs(9, rule="smoothed")
    close(run(0 * student, 0 * teacher, *sops)[0]["loss"], np.log(5))
    student, teacher, *sops, masks = patch_inputs(9, rule="smoothed")
    close(run(0 * student, 0 * teacher, *sops, masks | True)[0]["loss"], np.log(5))


def test_onehot_tasks_that_partition_the_memory_give_massl():
    """Plain softmax cross-entropy over blocks of the memory, all blocks used, averaged."""
    rng = np.random.default_rng(10)
    memory, student, teacher = unit(rng, 12, 6), unit(rng, 2, 3, 6), unit(rng, 2, 3, 6)

    @jax.jit
    def sops(key):
        anchors = ops.sample_anchors(key, 12, 4, num_tasks=3, strategy="partition")
        members, shares = jax.vmap(lambda a: ops.build_sops(memory, a, num_members=1))(anchors)
        return anchors, members, ops.sop_weights(shares, rule="onehot")

    anchors, members, weights = sops(jax.random.key(0))
    temperatures = {"student_temperature": 0.1, "teacher_temperature": 0.04}
    terms = losses.sop(student, teacher, members, weights, **temperatures)
    want = 0
    for block in np.asarray(anchors):
        q = np.exp(reference.log_softmax(teacher @ memory[block].T / 0.04))
        log_p = reference.log_softmax(student @ memory[block].T / 0.1)
        want -= (q[0] * log_p[1] + q[1] * log_p[0]).sum(axis=-1).mean() / 2 / 3
    close(terms["loss"], want)
