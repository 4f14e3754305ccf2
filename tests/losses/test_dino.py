"""DINO's objective: what its meters say of both kinds of collapse."""

import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses, ops
from tests.losses import cases
from tests.losses.reference import close


def run(student, teacher, center):
    arrays = {"student_logits": student, "teacher_logits": teacher, "center": center}
    return cases.run("dino", arrays, teacher_temperature=0.04)[0]


def test_meters_tell_both_kinds_of_collapse():
    student, teacher, center = cases.make("dino").values()
    uniform = run(student, 0 * teacher, 0 * center)
    close(uniform["teacher_entropy"], np.log(7))
    close(uniform["marginal_entropy"], np.log(7))
    one = run(student, 0 * teacher + 10 * np.eye(7, dtype=np.float32)[2], 0 * center)
    close(one["marginal_entropy"], 0)
    close(one["usage"], 1 / 7)
    each = run(*[10 * np.eye(7, dtype=np.float32)[None].repeat(2, 0)] * 2, 0 * center)
    close(each["teacher_entropy"], 0)
    close(each["marginal_entropy"], np.log(7))
    close(each["usage"], 1)


@pytest.mark.parametrize("views, others", [(1, 2), (2, 3), (1, 1)])
def test_views_of_the_student_come_first_from_the_teacher(views, others):
    targets = jnp.full((others, 3, 4), 0.25)
    with pytest.raises(ValueError, match="student views"):
        losses.across_views(jnp.zeros((views, 3, 4)), targets, lambda x, p: ops.cross_entropy(p, x))
    with pytest.raises(ValueError, match="batch"):
        losses.across_views(jnp.zeros((4, 3, 4)), targets[:, :1], lambda x, p: p.sum(-1))
