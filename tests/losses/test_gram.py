"""Gram anchoring: hand-made cases, invariances, size; more in test_contract.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses

STUDENT = np.array([[[1, 0], [1, 1], [-1, 0]]], np.float32)
TEACHER = np.array([[[1, 0], [0, 1], [0, -2]]], np.float32)


@pytest.mark.parametrize("over", ["image", "batch"])
@pytest.mark.parametrize(
    ("negatives", "value"), [("keep", 0.352397), ("remove", 0.111111), ("remove_teacher", 0.444444)]
)
def test_one_crop_by_hand(over, negatives, value):
    loss = losses.gram(STUDENT, TEACHER, over=over, negatives=negatives)
    np.testing.assert_allclose(loss, value, atol=2e-6)


@pytest.mark.parametrize("patches", [4, 40])  # fewer and more than channels
def test_zero_for_a_rotated_or_rescaled_teacher_and_for_no_other(patches):
    rng = np.random.default_rng(0)
    student = rng.normal(size=(2, 2, patches, 8)).astype(np.float32)
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0].astype(np.float32)
    scale = rng.uniform(0.1, 10, (2, 2, patches, 1)).astype(np.float32)
    for over in ("image", "batch"):
        assert abs(losses.gram(student, scale * student @ rotation, over=over)) < 1e-6
        slope = jax.grad(lambda x, y, o=over: losses.gram(x, y, over=o))(student, student * scale)
        assert abs(slope).max() < 1e-6
        assert losses.gram(student, student[:, ::-1], over=over) > 0.05


def test_a_matrix_of_too_many_patches_is_refused_where_it_would_be_held():
    rows = jax.ShapeDtypeStruct((2, 2**13 + 1, 2), jnp.float32)
    kinds = {"over": "batch", "negatives": "remove"}
    with pytest.raises(ValueError, match="16384"):
        jax.eval_shape(lambda x: losses.gram(x, x, **kinds), rows)
    assert jax.eval_shape(lambda x: losses.gram(x, x, over="batch"), rows).shape == ()
