"""DINO's objective against float64: values, gradients, center, and what the paper says about
collapse.
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
from tests.losses.reference import close


@jax.jit
def dino(student, teacher, center, tau_s=0.1, tau_t=0.04, momentum=0.9):
    """Gradient and terms; temperatures and momentum are traced."""

    def loss(student):
        temperatures = dict(student_temperature=tau_s, teacher_temperature=tau_t)
        terms = losses.dino(student, teacher, center, **temperatures)
        terms["center"] = ops.ema_center(center, teacher, momentum=momentum)
        return terms["loss"], terms

    return jax.grad(loss, has_aux=True)(student)


def inputs(seed=0, student_views=5, teacher_views=2, batch=3, width=7, scale=1.0):
    rng = np.random.default_rng(seed)
    student, teacher = (
        rng.normal(size=(n, batch, width)) * scale for n in (student_views, teacher_views)
    )
    return (
        student.astype(np.float32),
        teacher.astype(np.float32),
        rng.normal(size=width).astype(np.float32) * scale,
    )


@pytest.mark.parametrize(("student_views", "teacher_views"), [(5, 2), (2, 2), (3, 1)])
def test_equals_the_reference(student_views, teacher_views):
    arguments = inputs(student_views=student_views, teacher_views=teacher_views)
    gradient, terms = dino(*arguments, 0.1, 0.07, 0.8)
    loss, by_student, center = reference.dino(*arguments, 0.1, 0.07, 0.8)
    close(terms["loss"], loss)
    close(gradient, by_student)
    close(terms["center"], center)
    q = np.exp(reference.log_softmax((arguments[1].astype(np.float64) - arguments[2]) / 0.07))
    close(terms["teacher_entropy"], reference.entropy(q).mean())
    close(terms["marginal_entropy"], reference.entropy(q.mean(axis=(0, 1))))
    close(terms["usage"], reference.usage(q))
    close(terms["kl"], loss - reference.entropy(q).mean())


def test_terms_split_by_kind_of_view():
    student, teacher, center = inputs()
    terms = dino(student, teacher, center)[1]
    close(terms["global_loss"], dino(student[:2], teacher, center)[1]["loss"])
    close((2 * terms["global_loss"] + 6 * terms["local_loss"]) / 8, terms["loss"])
    assert "local_loss" not in dino(student[:2], teacher, center)[1]
    assert "global_loss" not in dino(student[:3], teacher[:1], center)[1]


def test_no_view_is_compared_with_itself():
    student, teacher, center = inputs()
    base = np.asarray(dino(student, teacher, center)[0])
    changed = np.asarray(dino(student, np.stack([teacher[0] + student[3], teacher[1]]), center)[0])
    np.testing.assert_array_equal(base[0], changed[0])
    assert np.all(np.any(base[1:] != changed[1:], axis=(1, 2)))
    gradient = np.asarray(dino(student[:3], teacher[:1], center)[0])
    assert not np.any(gradient[0]) and np.any(gradient[1:])


def test_center_follows_the_batch_and_only_the_old_one_enters_the_loss():
    student, teacher, center = inputs()
    _, slow = dino(student, teacher, center, 0.1, 0.04, 1.0)
    _, fast = dino(student, teacher, center, 0.1, 0.04, 0.0)
    close(slow["center"], center)
    close(fast["center"], teacher.mean(axis=(0, 1), dtype=np.float64))
    assert slow["loss"] == fast["loss"]
    # Centering takes away what all images share.
    close(
        dino(student, teacher + center, center)[1]["loss"],
        dino(student, teacher, 0 * center)[1]["loss"],
    )


def test_meters_tell_both_kinds_of_collapse():
    student, teacher, center = inputs()
    uniform = dino(student, 0 * teacher, 0 * center)[1]
    close(uniform["teacher_entropy"], np.log(7))
    close(uniform["marginal_entropy"], np.log(7))
    one = dino(student, 0 * teacher + 10 * np.eye(7, dtype=np.float32)[2], 0 * center)[1]
    close(one["marginal_entropy"], 0)
    close(one["usage"], 1 / 7)
    each = dino(*[10 * np.eye(7, dtype=np.float32)[None, :].repeat(2, 0)] * 2, 0 * center)[1]
    close(each["teacher_entropy"], 0)
    close(each["marginal_entropy"], np.log(7))
    close(each["usage"], 1)


def test_equal_predictions_cost_the_entropy_and_pull_nowhere():
    _, teacher, center = inputs()
    same = np.broadcast_to(teacher[:1] - center, (4, 3, 7))
    gradient, terms = dino(same, np.stack([teacher[0]] * 2), center, 0.1, 0.1)
    close(terms["loss"], terms["teacher_entropy"])
    close(gradient, np.zeros_like(gradient))


def test_only_the_student_has_a_gradient():
    """Of all terms and of the new center, not of the loss alone."""

    def total(*arrays):
        terms = losses.dino(*arrays, student_temperature=0.1, teacher_temperature=0.04)
        return sum((value**2).sum() for value in terms.values())

    by_student, by_teacher, by_center = jax.jit(jax.grad(total, (0, 1, 2)))(*inputs())
    assert np.any(by_student) and not np.any(by_teacher) and not np.any(by_center)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    tau_t=st.sampled_from((0.02, 0.07)),
    duplicates=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finite_and_right_for_every_input(dtype, scale, tau_t, duplicates, seed):
    student, teacher, center = inputs(seed, scale=scale)
    if duplicates:
        student[:], teacher[:] = student[:1, :1], teacher[:1, :1]
    low = jnp.asarray(student, dtype), jnp.asarray(teacher, dtype)
    gradient, terms = dino(*low, center, 0.1, tau_t)
    assert terms["loss"].dtype == terms["center"].dtype == jnp.float32 and gradient.dtype == dtype
    assert_finite(terms, gradient)
    wide = [np.asarray(x, np.float32) for x in low]
    loss, by_student, new_center = reference.dino(*wide, center, 0.1, tau_t, 0.9)
    close(terms["loss"], loss, absolute=1e-5)
    close(terms["center"], new_center)
    if scale <= 1:
        close(gradient, by_student, relative=max(1e-5, float(jnp.finfo(dtype).eps)))


def test_softmax_of_all_views_is_never_held():
    s, b, k = 12, 16, 4096
    shapes = (s, b, k), (2, b, k), (k,)
    compiled = dino.lower(
        *(jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes), 0.1, 0.04
    ).compile()
    assert (
        compiled.memory_analysis().temp_size_in_bytes < s * b * k * 4
    )  # the gradient itself is an output of that size


def test_sharded_batch_agrees_with_a_single_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def place(x, *axes):
        return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*axes)))

    student, teacher, center = inputs(batch=16)
    arrays = place(student, None, "data"), place(teacher, None, "data"), place(center)
    compiled = dino.lower(*arrays).compile()
    assert not re.search("all-gather|all-to-all|collective-permute", compiled.as_text())
    gradient, terms = compiled(*arrays)
    want = dino(student, teacher, center)
    np.testing.assert_allclose(terms["loss"], want[1]["loss"], rtol=1e-6)
    close(terms["center"], want[1]["center"])
    close(gradient, want[0])


def test_errors():
    student, teacher, center = inputs()
    dino = functools.partial(losses.dino, student_temperature=0.1, teacher_temperature=0.04)
    for wrong, message in (
        (
            (student[0], teacher, center),
            r"shape of student_logits is \(3, 7\); it must be \[S, B, K\]",
        ),
        (
            (student, teacher[..., :6], center),
            r"shape of teacher_logits is \(2, 3, 6\); it must be \[T, 3, 7\]",
        ),
        ((student, teacher, center[:6]), r"shape of center is \(6,\); it must be \[7\]"),
        ((student[:1], teacher[:1], center), r"number of views \(S, T\) is \(1, 1\)"),
        ((teacher, student, center), r"number of views \(S, T\) is \(2, 5\)"),
        ((student[:, :0], teacher[:, :0], center), "S, B, K >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            dino(*wrong)
    for name, value in (("student_temperature", 0), ("teacher_temperature", float("nan"))):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
            dino(student, teacher, center, **{name: value})
