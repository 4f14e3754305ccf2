"""DINOv2's objective against float64: values, gradients, balance of the targets, and what masks may
and may not change.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses
from tests.finite import assert_finite
from tests.losses import reference
from tests.losses.reference import close

TAU_S, TAU_T, WEIGHTS = 0.1, 0.07, (1.5, 0.5, 0.2)


def sinkhorn(logits, temperature, iterations=3):
    """Balanced assignments of rows [n, K]: columns and rows scaled in turn."""
    q = np.exp(logits / temperature - (logits / temperature).max())
    for _ in range(iterations):
        q = q / q.sum(axis=0)
        q = q / q.sum(axis=1, keepdims=True)
    return q


def koleo(tokens):
    """Minus the mean log of half the distance to the nearest neighbour of tokens [B, d]."""
    u = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    near = np.where(np.eye(len(u), dtype=bool), -np.inf, u @ u.T).argmax(axis=-1)
    return -np.log(np.linalg.norm(u - u[near] + 1e-8, axis=-1) / 2 + 1e-8).mean()


def reference_terms(student_cls, teacher_cls, student_patch, teacher_patch, masks, tokens):
    """The three terms, in float64, one view and patch at a time."""
    views, batch, width = teacher_cls.shape
    q_cls = sinkhorn(teacher_cls.reshape(-1, width), TAU_T).reshape(teacher_cls.shape)
    pairs = [(s, t) for s in range(len(student_cls)) for t in range(views) if s != t]
    cls = -np.mean(
        [(q_cls[t] * reference.log_softmax(student_cls[s] / TAU_S)).sum(-1) for s, t in pairs]
    )
    q_patch = np.zeros(teacher_patch.shape)
    q_patch[masks] = sinkhorn(teacher_patch[masks], TAU_T)
    patch = 0.0
    for v, b in np.ndindex(views, batch):
        for i in np.flatnonzero(masks[v, b]):
            log_p = reference.log_softmax(student_patch[v, b, i] / TAU_S)
            patch -= (q_patch[v, b, i] * log_p).sum() / masks[v, b].sum() / (views * batch)
    return cls, patch, sum(koleo(view) for view in tokens)


def inputs(seed=0, batch=4, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = (4, batch, 6), (2, batch, 6), (2, batch, 5, 7), (2, batch, 5, 7)
    arrays = [rng.normal(size=shape).astype(np.float32) * scale for shape in shapes]
    masks = rng.random((2, batch, 5)) < 0.5
    masks[0, 1] = False  # an image without a masked patch counts as 0
    return *arrays, masks, rng.normal(size=(2, batch, 8)).astype(np.float32)


@jax.jit
def dinov2(student_cls, teacher_cls, student_patch, teacher_patch, masks, tokens, tau_t=TAU_T):
    """Gradients of class tokens' logits, patches' logits and tokens, and terms."""

    def loss(student_cls, student_patch, tokens):
        terms = losses.dinov2(
            student_cls,
            teacher_cls,
            student_patch,
            teacher_patch,
            masks,
            tokens,
            temperatures=(TAU_S, tau_t),
            weights=WEIGHTS,
        )
        return terms["loss"], terms

    return jax.grad(loss, (0, 1, 2), has_aux=True)(student_cls, student_patch, tokens)


def numeric_gradient(function, x, step=1e-5):
    """Central differences of a float64 function."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def test_values_and_gradients_equal_the_reference():
    arrays = inputs()
    gradients, terms = dinov2(*arrays)
    wide = [x if x.dtype == bool else x.astype(np.float64) for x in arrays]
    cls, patch, tokens = reference_terms(*wide)
    close(terms["cls_loss"], cls)
    close(terms["patch_loss"], patch)
    close(terms["koleo"], tokens)
    close(terms["loss"], np.dot(WEIGHTS, (cls, patch, tokens)))
    for place, gradient in zip((0, 2, 5), gradients, strict=True):

        def loss(x, place=place):
            return np.dot(WEIGHTS, reference_terms(*wide[:place], x, *wide[place + 1 :]))

        close(gradient, numeric_gradient(loss, wide[place]), relative=2e-5)


def test_a_target_is_balanced_over_all_views_and_images():
    """What all class tokens, or all masked patches, share takes nothing away from any prototype."""
    student_cls, teacher_cls, student_patch, teacher_patch, masks, tokens = arrays = inputs()
    rng = np.random.default_rng(1)
    shift, patch_shift = (rng.normal(size=n).astype(np.float32) for n in (6, 7))
    gradients, terms = dinov2(*arrays)
    moved = dinov2(
        student_cls, teacher_cls + shift, student_patch, teacher_patch + patch_shift, masks, tokens
    )
    close(moved[1]["loss"], terms["loss"])
    for a, b in zip(moved[0], gradients, strict=True):
        close(a, b, relative=1e-4)
    # What one view alone shares does: the views are balanced together.
    one = np.stack([teacher_cls[0] + shift, teacher_cls[1]])
    other = dinov2(student_cls, one, student_patch, teacher_patch, masks, tokens)
    assert abs(other[1]["cls_loss"] - terms["cls_loss"]) > 1e-3
    # A teacher that says the same of everything has uniform targets: no collapse to a prototype.
    same = np.broadcast_to(10 * np.eye(6, dtype=np.float32)[2], teacher_cls.shape)
    even = dinov2(student_cls, same, student_patch, teacher_patch, masks, tokens)[1]
    close(even["cls_teacher_entropy"], np.log(6))


def test_only_masked_patches_matter_and_any_subset_that_holds_them_will_do():
    student_cls, teacher_cls, student_patch, teacher_patch, masks, tokens = arrays = inputs()
    gradients, terms = dinov2(*arrays)
    assert not np.any(np.asarray(gradients[1])[~masks])
    elsewhere = np.where(masks[..., None], 0, 5).astype(np.float32)
    other = (student_patch - elsewhere, teacher_patch + elsewhere * student_patch)
    same = dinov2(student_cls, teacher_cls, *other, masks, tokens)[1]
    close(same["patch_loss"], terms["patch_loss"])
    first = np.argsort(~masks, axis=-1, kind="stable")[..., : masks.sum(axis=-1).max()]

    def pick(x):
        return np.take_along_axis(x, first.reshape(*first.shape, *[1] * (x.ndim - 3)), axis=2)

    fewer = dinov2(
        student_cls, teacher_cls, pick(student_patch), pick(teacher_patch), pick(masks), tokens
    )[1]
    close(fewer["loss"], terms["loss"])


def test_koleo_compares_images_of_a_view_and_not_the_views_of_an_image():
    student_cls, teacher_cls, student_patch, teacher_patch, masks, tokens = inputs()
    twins = np.stack([tokens[0], tokens[0]])  # both views of an image alike
    rest = student_cls, teacher_cls, student_patch, teacher_patch, masks
    close(dinov2(*rest, twins)[1]["koleo"], 2 * koleo(tokens[0].astype(np.float64)))
    close(dinov2(*rest, 3 * twins)[1]["koleo"], 2 * koleo(tokens[0].astype(np.float64)))
    alike = twins.copy()
    alike[:, 1] = alike[:, 0]  # two images alike
    assert dinov2(*rest, alike)[1]["koleo"] > dinov2(*rest, twins)[1]["koleo"] + 5


def test_no_gradient_reaches_the_teacher():
    student_cls, teacher_cls, student_patch, teacher_patch, masks, tokens = inputs()

    def total(teacher_cls, teacher_patch):
        terms = losses.dinov2(
            student_cls,
            teacher_cls,
            student_patch,
            teacher_patch,
            masks,
            tokens,
            temperatures=(TAU_S, TAU_T),
        )
        return sum((value**2).sum() for value in terms.values())

    gradients = jax.jit(jax.grad(total, (0, 1)))(teacher_cls, teacher_patch)
    assert not any(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_finite_for_every_input(dtype):
    for scale in (0.0, 1e-4, 1.0, 1e4):
        *arrays, masks, tokens = inputs(scale=scale)
        for picked in (masks, np.zeros_like(masks)):
            for given in (tokens * scale, np.ones_like(tokens)):
                low = [jnp.asarray(x, dtype) for x in (*arrays, given)]
                gradients, terms = dinov2(*low[:-1], picked, low[-1])
                assert terms["loss"].dtype == jnp.float32
                assert_finite(gradients, terms)


def test_sharded_batch_agrees_with_a_single_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = inputs(batch=16)
    placed = [jax.device_put(x, jax.NamedSharding(mesh, jax.P(None, "data"))) for x in arrays]
    (gradients, terms), (want, one) = dinov2(*placed), dinov2(*arrays)
    np.testing.assert_allclose(terms["loss"], one["loss"], rtol=1e-6)
    for a, b in zip(gradients, want, strict=True):
        close(a, b)


def test_errors():
    arrays = list(inputs())
    for place, wrong, message in (
        (1, arrays[1][..., :5], r"shape of teacher_cls is \(2, 4, 5\)"),
        (3, arrays[3][:, :, :4], r"shape of teacher_patch is \(2, 4, 4, 7\)"),
        (4, arrays[4].astype(np.float32), "type of masks is float32; it must be bool"),
        (5, arrays[5][:1], r"shape of tokens is \(1, 4, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            losses.dinov2(*arrays[:place], wrong, *arrays[place + 1 :], temperatures=(TAU_S, TAU_T))
    with pytest.raises(ValueError, match="tau_t of temperatures is 0; it must be"):
        losses.dinov2(*arrays, temperatures=(TAU_S, 0))
