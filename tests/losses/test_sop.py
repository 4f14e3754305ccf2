"""SOP's objectives against float64 with dense contributions: values, gradients, and the invariants
of the method.
"""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses, ops
from tests.finite import assert_finite
from tests.losses import reference
from tests.losses.reference import close, unit

RULES = ("similarity", "smoothed", "onehot")


@jax.jit
def class_loss(student, teacher, members, weights, tau_s=0.1, tau_t=0.04):
    """Gradient and terms; the temperatures are traced."""

    def loss(student):
        terms = losses.sop(
            student, teacher, members, weights, student_temperature=tau_s, teacher_temperature=tau_t
        )
        return terms["loss"], terms

    return jax.grad(loss, has_aux=True)(student)


@jax.jit
def patch_loss(student, teacher, members, weights, masks, tau_s=0.1, tau_t=0.04):
    temperatures = dict(student_temperature=tau_s, teacher_temperature=tau_t)

    def loss(student):
        terms = losses.sop_patch(student, teacher, members, weights, masks, **temperatures)
        return terms["loss"], terms

    return jax.grad(loss, has_aux=True)(student)


def class_inputs(seed=0, views=4, batch=3, tasks=2, sops=5, slots=3, width=6, rule="similarity"):
    rng = np.random.default_rng(seed)
    members = unit(rng, tasks, sops, slots, width)
    weights = [reference.shares(rng.uniform(0.1, 1, (sops, slots)), rule) for _ in range(tasks)]
    student, teacher = unit(rng, views, batch, width), unit(rng, 2, batch, width)
    return student, teacher, members, np.stack(weights).astype(np.float32)


def patch_inputs(seed=0, batch=3, patches=4, rule="similarity", slots=3):
    student, teacher, members, weights = class_inputs(
        seed, 2, batch * patches, rule=rule, slots=slots
    )
    masks = np.random.default_rng(seed + 100).uniform(size=(2, batch, patches)) < 0.5
    masks[0, 1] = False  # an image without a masked patch
    masks[1, 0] = True
    shape = (2, batch, patches, student.shape[-1])
    return student.reshape(shape), teacher.reshape(shape), members, weights, masks


@pytest.mark.parametrize("rule", RULES)
def test_class_loss_equals_the_reference(rule):
    arguments = class_inputs(rule=rule)
    gradient, terms = class_loss(*arguments)
    loss, by_student, entropy, marginal = reference.sop(*arguments, 0.1, 0.04)
    close(terms["loss"], loss)
    close(gradient, by_student)
    close(terms["teacher_entropy"], entropy)
    close(terms["marginal_entropy"], marginal)
    _, teacher, members, weights = arguments
    close(
        terms["usage"],
        np.mean(
            [reference.usage(reference.vote(teacher, m, w, 0.04)) for m, w in zip(members, weights)]
        ),
    )
    close(terms["kl"], loss - entropy)
    close(
        (2 * terms["global_loss"] + 4 * terms["local_loss"]) / 6, loss
    )  # 2 global and 4 local pairs
    two = class_inputs(rule=rule)
    global_only = reference.sop(two[0][:2], *two[1:], 0.1, 0.04)[0]
    close(terms["global_loss"], global_only)


def test_two_views_have_two_pairs():
    arguments = class_inputs(1, views=2, tasks=1, slots=1)
    gradient, terms = class_loss(*arguments, 0.2, 0.05)
    loss, by_student, *_ = reference.sop(*arguments, 0.2, 0.05)
    close(terms["loss"], loss)
    close(gradient, by_student)
    assert "local_loss" not in terms and all(value.shape == () for value in terms.values())


@pytest.mark.parametrize("rule", RULES)
def test_patch_loss_equals_the_reference(rule):
    arguments = patch_inputs(rule=rule)
    gradient, terms = patch_loss(*arguments)
    loss, by_student, kl = reference.sop_patch(*arguments, 0.1, 0.04)
    close(terms["loss"], loss)
    close(gradient, by_student)
    close(terms["kl"], kl)
    close(terms["masked"], arguments[-1].mean())
    _, teacher, members, weights, _ = arguments
    q = np.stack([np.exp(reference.vote(teacher, m, w, 0.04)) for m, w in zip(members, weights)])
    close(terms["teacher_entropy"], reference.entropy(q).mean())
    close(terms["marginal_entropy"], reference.entropy(q.mean(axis=(1, 2, 3))).mean())
    close(terms["usage"], np.mean([reference.usage(task) for task in q]))


def test_patch_loss_sees_masked_patches_only():
    """Even where the student is NaN."""
    student, teacher, members, weights, masks = patch_inputs(2)
    gradient, terms = patch_loss(student, teacher, members, weights, masks)
    hidden = np.where(masks[..., None], student, np.nan).astype(np.float32)
    other_gradient, other = patch_loss(hidden, teacher, members, weights, masks)
    assert terms["loss"] == other["loss"] and terms["kl"] == other["kl"]
    np.testing.assert_array_equal(gradient, other_gradient)
    assert not np.any(np.asarray(gradient)[~masks]) and np.all(
        np.any(np.asarray(gradient)[masks], axis=-1)
    )


def test_images_without_a_masked_patch_count_in_the_mean():
    student, teacher, members, weights, masks = patch_inputs(3)
    gradient, terms = patch_loss(student, teacher, members, weights, np.zeros_like(masks))
    assert terms["loss"] == 0 and terms["kl"] == 0 and not np.any(gradient)
    masks = np.zeros_like(masks)
    masks[0, 0, 1] = True
    one = patch_loss(student, teacher, members, weights, masks)[1]
    alone = losses.sop_patch(
        student[:1, :1],
        teacher[:1, :1],
        members,
        weights,
        masks[:1, :1],
        student_temperature=0.1,
        teacher_temperature=0.04,
    )
    close(one["loss"], alone["loss"] / 6)  # 2 views of 3 images


def test_patches_that_may_be_masked_suffice():
    student, teacher, members, weights, masks = patch_inputs(4)
    masks[..., 2:] = False
    full = patch_loss(student, teacher, members, weights, masks)[1]
    part = patch_loss(student[:, :, :2], teacher[:, :, :2], members, weights, masks[:, :, :2])[1]
    close(full["loss"], part["loss"])
    close(full["kl"], part["kl"])


@pytest.mark.parametrize("rule", RULES)
def test_loss_is_at_least_the_entropy_with_equality_where_predictions_coincide(rule):
    """Then the gradient is zero as well."""
    student, teacher, members, weights = class_inputs(5, rule=rule)
    terms = class_loss(student, teacher, members, weights)[1]
    assert terms["kl"] > 0.01
    same = np.broadcast_to(teacher[:1], (4, *teacher.shape[1:]))
    gradient, terms = class_loss(same, np.stack([teacher[0]] * 2), members, weights, 0.07, 0.07)
    close(terms["loss"], terms["teacher_entropy"])
    close(terms["kl"], 0, absolute=2e-6)
    close(gradient, np.zeros_like(gradient), absolute=2e-6)


def test_views_are_never_compared_with_themselves():
    """Student view 0 does not see the teacher's view 0, but the patch loss sees only that."""
    student, teacher, members, weights = class_inputs(6)
    other = np.stack([-teacher[0], teacher[1]])
    base = np.asarray(class_loss(student, teacher, members, weights)[0])
    changed = np.asarray(class_loss(student, other, members, weights)[0])
    np.testing.assert_array_equal(base[0], changed[0])
    assert np.all(np.any(base[1:] != changed[1:], axis=(1, 2)))
    student, teacher, members, weights, masks = patch_inputs(6)
    other = np.stack([-teacher[0], teacher[1]])
    base = np.asarray(patch_loss(student, teacher, members, weights, masks)[0])
    changed = np.asarray(patch_loss(student, other, members, weights, masks)[0])
    np.testing.assert_array_equal(base[1], changed[1])
    assert np.any(base[0] != changed[0])


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    rule=st.sampled_from(RULES), tau_t=st.sampled_from((0.02, 0.07)), seed=st.integers(0, 1000)
)
def test_order_of_sops_and_members_does_not_matter(rule, tau_t, seed):
    """Of loss and gradient, whether SOPs move or the members within each."""
    student, teacher, members, weights = class_inputs(seed, rule=rule)
    rng = np.random.default_rng(seed)
    sops, slots = rng.permutation(5), rng.permuted(np.tile(np.arange(3), (5, 1)), axis=1)
    gradient, terms = class_loss(student, teacher, members, weights, 0.1, tau_t)
    for order in ((slice(None), sops), (slice(None), np.arange(5)[:, None], slots)):
        again = class_loss(student, teacher, members[order], weights[order], 0.1, tau_t)
        close(again[1]["loss"], terms["loss"])
        close(again[0], gradient)
    assert_finite(gradient, terms)


def test_no_gradient_to_teacher_members_and_weights():
    *arrays, masks = patch_inputs(8)
    temperatures = dict(student_temperature=0.1, teacher_temperature=0.04)
    patch = jax.jit(
        jax.grad(lambda *a: losses.sop_patch(*a, masks, **temperatures)["loss"], (0, 1, 2, 3))
    )
    by_student, *others = patch(*arrays)
    assert np.any(by_student) and not any(np.any(g) for g in others)
    whole = jax.jit(jax.grad(lambda *a: losses.sop(*a, **temperatures)["loss"], (0, 1, 2, 3)))
    by_student, *others = whole(*class_inputs(8))
    assert np.any(by_student) and not any(np.any(g) for g in others)


def test_uniform_predictions_cost_log_k():
    student, teacher, members, weights = class_inputs(9, rule="smoothed")
    close(class_loss(0 * student, 0 * teacher, members, weights)[1]["loss"], np.log(5))
    student, teacher, members, weights, masks = patch_inputs(9, rule="smoothed")
    masks[:] = True
    close(patch_loss(0 * student, 0 * teacher, members, weights, masks)[1]["loss"], np.log(5))


def test_onehot_tasks_that_partition_the_memory_give_massl():
    """Plain softmax cross-entropy over blocks of the memory, all blocks used, averaged."""
    rng = np.random.default_rng(10)
    memory, student, teacher = unit(rng, 12, 6), unit(rng, 2, 3, 6), unit(rng, 2, 3, 6)
    anchors = ops.sample_anchors(jax.random.key(0), 12, 4, num_tasks=3, strategy="partition")
    members, similarity = jax.vmap(lambda a: ops.build_sops(memory, a, num_members=1))(anchors)
    terms = class_loss(student, teacher, members, ops.sop_weights(similarity, rule="onehot"))[1]
    want = 0
    for block in np.asarray(anchors):
        q = np.exp(reference.log_softmax(teacher @ memory[block].T / 0.04))
        log_p = reference.log_softmax(student @ memory[block].T / 0.1)
        want -= (q[0] * log_p[1] + q[1] * log_p[0]).sum(axis=-1).mean() / 2 / 3
    close(terms["loss"], want)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    rule=st.sampled_from(RULES),
    tau_t=st.sampled_from((0.02, 0.07)),
    duplicates=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finite_and_right_for_every_input(dtype, scale, rule, tau_t, duplicates, seed):
    student, teacher, members, weights = class_inputs(seed, rule=rule)
    if duplicates:
        members[:] = members[:, :1]
    low = [jnp.asarray(x * scale, dtype) for x in (student, teacher, members)]
    gradient, terms = class_loss(*low, weights, 0.1, tau_t)
    assert_finite(terms, gradient)
    assert gradient.dtype == dtype
    if scale <= 1:
        wide = [np.asarray(x, np.float32) for x in low]
        loss, by_student, *_ = reference.sop(*wide, weights, 0.1, tau_t)
        close(terms["loss"], loss, absolute=1e-5)
        close(gradient, by_student, relative=max(1e-5, float(jnp.finfo(dtype).eps)))


def test_inputs_at_the_edge_of_the_memory_budget():
    """Batch 64 in 2 views at K = 4096, k = 8, d = 256: no tensor beyond the members, temporaries
    under 100 MB.
    """
    v, b, t, k, m, d = 2, 64, 1, 4096, 9, 256
    shapes = ((v, b, d), (2, b, d), (t, k, m, d), (t, k, m))
    lowered = class_loss.lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), 0.1, 0.04)
    tensors = re.findall(r"tensor<((?:\d+x)+)\w+>", lowered.as_text())
    assert len(tensors) > 20
    assert max(np.prod([int(n) for n in shape.split("x")[:-1]]) for shape in tensors) <= k * m * d
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 100e6


def test_memory_grows_neither_with_views_nor_with_tasks():
    """Views and tasks run one after another: holding the predictions of 8 views and 4 tasks would
    take 32 arrays.
    """

    def temporary(v, t, b=64, k=512, m=2, d=16):
        shapes = ((v, b, d), (2, b, d), (t, k, m, d), (t, k, m))
        lowered = class_loss.lower(
            *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), 0.1, 0.04
        )
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(8, 4) - temporary(2, 1) < 8 * (64 * 512 * 4)


def test_sharded_batch_agrees_with_a_single_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def place(x, *axes):
        return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*axes)))

    student, teacher, members, weights = class_inputs(11, batch=16)
    sops = place(members), place(weights)
    arrays = [place(x, None, "data") for x in (student, teacher)]
    compiled = class_loss.lower(*arrays, *sops).compile()
    assert not re.search("all-gather|all-to-all|collective-permute", compiled.as_text())
    gradient, terms = compiled(*arrays, *sops)
    want = class_loss(student, teacher, members, weights)
    np.testing.assert_allclose(terms["loss"], want[1]["loss"], rtol=1e-6)
    close(terms["marginal_entropy"], want[1]["marginal_entropy"])
    close(gradient, want[0])

    student, teacher, members, weights, masks = patch_inputs(11, batch=16)
    arrays = [place(x, None, "data") for x in (student, teacher)]
    gradient, terms = patch_loss(
        *arrays, place(members), place(weights), place(masks, None, "data")
    )
    want = patch_loss(student, teacher, members, weights, masks)
    np.testing.assert_allclose(terms["loss"], want[1]["loss"], rtol=1e-6)
    close(gradient, want[0])


def test_errors():
    student, teacher, members, weights = class_inputs()
    sop = functools.partial(losses.sop, student_temperature=0.1, teacher_temperature=0.04)
    for wrong, message in (
        (
            (student[0], teacher, members, weights),
            r"shape of student_embeddings is \(3, 6\); it must be \[V, B, d\]",
        ),
        ((student[:1], teacher, members, weights), "V >= 2"),
        (
            (student, student, members, weights),
            r"number of views \(student, teacher\) is \(4, 4\); it must be V >= 2 and 2",
        ),
        (
            (student, teacher, members[0], weights),
            r"shape of members is .* it must be \[T, K, M, 6\]",
        ),
        (
            (student, teacher, members[..., :4], weights),
            r"shape of members is .* it must be \[T, K, M, 6\]",
        ),
        (
            (student, teacher, members, weights[:1]),
            r"shape of weights is \(1, 5, 3\); it must be \[2, 5, 3\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            sop(*wrong)
    for name in ("student_temperature", "teacher_temperature"):
        with pytest.raises(ValueError, match=f"{name} is -1; it must be a finite number above 0"):
            sop(student, teacher, members, weights, **{name: -1})

    student, teacher, members, weights, masks = patch_inputs()
    patch = functools.partial(losses.sop_patch, student_temperature=0.1, teacher_temperature=0.04)
    for wrong, message in (
        (
            (student[0], teacher, members, weights, masks),
            r"shape of student_embeddings is .* it must be \[V, B, n, d\]",
        ),
        (
            (student, teacher[:1], members, weights, masks),
            r"shape of teacher_embeddings is \(1, 3, 4, 6\)",
        ),
        (
            (student, teacher, members, weights, masks[..., :3]),
            r"shape of masks is \(2, 3, 3\); it must be \[2, 3, 4\]",
        ),
        (
            (student, teacher, members, weights, masks * 1.0),
            "type of masks is float.*; it must be bool",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            patch(*wrong)
