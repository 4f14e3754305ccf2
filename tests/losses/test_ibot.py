"""iBOT's objective against float64: values, gradients, centers, and what masks may and may not
change.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses
from ssl_jax.losses.ibot import ibot, ibot_patch
from tests.finite import assert_finite
from tests.losses import reference
from tests.losses.reference import close

TEMPERATURES = dict(student_temperature=0.1, teacher_temperature=0.04)


def patch_reference(student, teacher, masks, center, tau_s, tau_t):
    """Loss of eq. 2, its gradient with respect to student [V, B, n, K], and mean KL over masked
    patches; one patch at a time.
    """
    num_views, batch, num_patches, _ = student.shape
    loss, gradient, kl = 0.0, np.zeros(student.shape), 0.0
    for v in range(num_views):
        for b in range(batch):
            for patch in range(num_patches):
                if masks[v, b, patch]:
                    scale = 1 / (num_views * batch * masks[v, b].sum())
                    q = np.exp(
                        reference.log_softmax(
                            (teacher[v, b, patch].astype(np.float64) - center) / tau_t
                        )
                    )
                    log_p = reference.log_softmax(student[v, b, patch].astype(np.float64) / tau_s)
                    h = -(q * log_p).sum()
                    loss += scale * h
                    kl += (h - reference.entropy(q)) / masks.sum()
                    gradient[v, b, patch] = scale * (np.exp(log_p) - q) / tau_s
    return loss, gradient, kl


def inputs(seed=0, views=2, batch=3, patches=5, width=7, scale=1.0, share=0.5):
    rng = np.random.default_rng(seed)
    student, teacher = (
        rng.normal(size=(views, batch, patches, width)).astype(np.float32) * scale for _ in range(2)
    )
    return (
        student,
        teacher,
        rng.random((views, batch, patches)) < share,
        rng.normal(size=width).astype(np.float32) * scale,
    )


@jax.jit
def patch(student, teacher, masks, center, tau_s=0.1, tau_t=0.04):
    """Gradient and terms; temperatures are traced."""

    def loss(student):
        temperatures = dict(student_temperature=tau_s, teacher_temperature=tau_t)
        terms = ibot_patch(student, teacher, masks, center, **temperatures)
        return terms["loss"], terms

    return jax.grad(loss, has_aux=True)(student)


@pytest.mark.parametrize("share", [0.5, 0.0, 1.0])
def test_patch_loss_equals_the_reference(share):
    student, teacher, masks, center = inputs(share=share)
    masks[0, 1] = False  # an image without a masked patch counts as 0
    gradient, terms = patch(student, teacher, masks, center, 0.1, 0.07)
    loss, by_student, kl = patch_reference(student, teacher, masks, center, 0.1, 0.07)
    close(terms["loss"], loss)
    close(gradient, by_student)
    close(terms["kl"], kl if masks.any() else 0)
    close(terms["masked"], masks.mean())
    q = np.exp(reference.log_softmax((teacher.astype(np.float64) - center) / 0.07))
    close(terms["teacher_entropy"], reference.entropy(q).mean())
    close(terms["marginal_entropy"], reference.entropy(q.mean(axis=(0, 1, 2))))
    close(terms["usage"], reference.usage(q))


def test_both_losses_together_equal_the_references():
    student, teacher, masks, patch_center = inputs()
    rng = np.random.default_rng(1)
    student_cls, teacher_cls, center = (
        rng.normal(size=shape).astype(np.float32) for shape in ((4, 3, 6), (2, 3, 6), (6,))
    )

    @jax.jit
    def run(student_cls, student, tau_patch):
        def loss(student_cls, student):
            terms = ibot(
                student_cls,
                teacher_cls,
                student,
                teacher,
                masks,
                (center, patch_center),
                student_temperature=0.1,
                teacher_temperatures=(0.04, tau_patch),
                weights=(2.0, 0.5),
            )
            return terms["loss"], terms

        return jax.grad(loss, (0, 1), has_aux=True)(student_cls, student)

    (by_cls, by_patch), terms = run(student_cls, student, 0.07)
    cls_loss, cls_gradient, _ = reference.dino(student_cls, teacher_cls, center, 0.1, 0.04, 0.8)
    patch_loss, patch_gradient, _ = patch_reference(
        student, teacher, masks, patch_center, 0.1, 0.07
    )
    close(terms["loss"], 2 * cls_loss + 0.5 * patch_loss)
    close(terms["cls_loss"], cls_loss)
    close(terms["patch_loss"], patch_loss)
    close(by_cls, 2 * cls_gradient)
    close(by_patch, 0.5 * patch_gradient)


def test_without_patches_the_numbers_are_dinos():
    student, teacher, masks, patch_center = inputs()
    rng = np.random.default_rng(1)
    cls = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 3, 6), (2, 3, 6))]
    center = np.ones(6, np.float32)
    terms = ibot(
        *cls,
        student,
        teacher,
        masks,
        (center, patch_center),
        student_temperature=0.1,
        teacher_temperatures=(0.04, 0.04),
        weights=(1.0, 0.0),
    )
    dino = losses.dino(*cls, center, **TEMPERATURES)
    assert terms["loss"] == dino["loss"]
    assert {name: float(value) for name, value in dino.items()} == {
        name: float(terms[f"cls_{name}"]) for name in dino
    }


def test_only_masked_patches_matter_and_any_subset_that_holds_them_will_do():
    student, teacher, masks, center = inputs()
    gradient, terms = patch(student, teacher, masks, center)
    assert not np.any(np.asarray(gradient)[~masks]) and np.all(
        np.any(np.asarray(gradient)[masks], axis=-1)
    )
    broken = np.where(masks[..., None], student, np.nan)
    again, same = patch(broken, teacher, masks, center)
    assert same["loss"] == terms["loss"] and np.array_equal(
        np.where(masks[..., None], gradient, 0), again
    )
    count = masks.sum(axis=-1).max()
    first = np.argsort(~masks, axis=-1, kind="stable")[..., :count]

    def pick(x):
        return np.take_along_axis(x, first.reshape(*first.shape, *[1] * (x.ndim - 3)), axis=2)

    fewer = patch(pick(student), pick(teacher), pick(masks), center)[1]
    close(fewer["loss"], terms["loss"])


def test_views_and_images_are_averaged_not_pooled():
    """Each image weighs the same, however many of its patches are masked (eq. 2 in the published
    code).
    """
    student, teacher, masks, center = inputs(views=1, batch=2)
    masks[0] = [[True, False, False, False, False], [True, True, True, True, False]]
    one = [
        patch(student[:, b : b + 1], teacher[:, b : b + 1], masks[:, b : b + 1], center)[1]["loss"]
        for b in range(2)
    ]
    close(patch(student, teacher, masks, center)[1]["loss"], np.mean(one))


def test_only_the_student_has_a_gradient():
    def total(student, teacher, center):
        terms = ibot_patch(student, teacher, inputs()[2], center, **TEMPERATURES)
        return sum((value**2).sum() for value in terms.values())

    student, teacher, _, center = inputs()
    by_student, *others = jax.jit(jax.grad(total, (0, 1, 2)))(student, teacher, center)
    assert np.any(by_student) and not any(np.any(g) for g in others)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    share=st.sampled_from((0.0, 0.3, 1.0)),
    duplicates=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finite_and_right_for_every_input(dtype, scale, share, duplicates, seed):
    student, teacher, masks, center = inputs(seed, scale=scale, share=share)
    if duplicates:
        student[:], teacher[:] = student[:1, :1, :1], teacher[:1, :1, :1]
    low = jnp.asarray(student, dtype), jnp.asarray(teacher, dtype)
    gradient, terms = patch(*low, masks, center)
    assert terms["loss"].dtype == jnp.float32 and gradient.dtype == dtype
    assert_finite(gradient, terms)
    wide = [np.asarray(x, np.float32) for x in low]
    loss, by_student, _ = patch_reference(*wide, masks, center, 0.1, 0.04)
    close(terms["loss"], loss, absolute=1e-5)
    if scale <= 1:
        close(gradient, by_student, relative=max(1e-5, float(jnp.finfo(dtype).eps)))


def test_softmax_of_all_views_is_never_held():
    v, b, n, k = 12, 4, 8, 1024
    shapes = (
        ((v, b, n, k), jnp.float32),
        ((v, b, n, k), jnp.float32),
        ((v, b, n), jnp.bool_),
        ((k,), jnp.float32),
    )
    compiled = patch.lower(*(jax.ShapeDtypeStruct(*x) for x in shapes)).compile()
    # The gradient itself is an output of that size.
    assert compiled.memory_analysis().temp_size_in_bytes < 0.75 * v * b * n * k * 4


def test_sharded_batch_agrees_with_a_single_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def place(x, *axes):
        return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*axes)))

    student, teacher, masks, center = inputs(batch=16)
    gradient, terms = patch(
        *(place(x, None, "data") for x in (student, teacher, masks)), place(center)
    )
    want = patch(student, teacher, masks, center)
    np.testing.assert_allclose(terms["loss"], want[1]["loss"], rtol=1e-6)
    close(gradient, want[0])


def test_errors():
    student, teacher, masks, center = inputs()
    loss = functools.partial(ibot_patch, **TEMPERATURES)
    for wrong, message in (
        (
            (student[0], teacher, masks, center),
            r"shape of student_logits is \(3, 5, 7\); it must be \[V, B, n, K\]",
        ),
        ((student[:, :, :0], teacher, masks, center), "V, B, n, K >= 1"),
        ((student, teacher[..., :6], masks, center), r"shape of teacher_logits is \(2, 3, 5, 6\)"),
        ((student, teacher, masks[..., :4], center), r"shape of masks is \(2, 3, 4\)"),
        (
            (student, teacher, masks.astype(np.float32), center),
            "type of masks is float32; it must be bool",
        ),
        ((student, teacher, masks, center[:6]), r"shape of center is \(6,\); it must be \[7\]"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*wrong)
    for name, value in (("student_temperature", 0), ("teacher_temperature", float("nan"))):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
            loss(student, teacher, masks, center, **{name: value})
    with pytest.raises(ValueError, match="shape of student_patch is"):
        cls = np.zeros((2, 2, 4), np.float32)
        ibot(
            cls,
            cls,
            student,
            teacher,
            masks,
            (np.zeros(4), center),
            student_temperature=0.1,
            teacher_temperatures=(0.04, 0.04),
        )
