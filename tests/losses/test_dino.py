"""DINO's objective: what the paper says about views, centers and collapse."""

import numpy as np

from tests.losses import cases
from tests.losses.reference import close


def run(student, teacher, center, **settings):
    arrays = {"student_logits": student, "teacher_logits": teacher, "center": center}
    terms, gradients = cases.run("dino", arrays, **{"teacher_temperature": 0.04} | settings)
    return terms, np.asarray(gradients["student_logits"])


def inputs():
    return cases.make("dino").values()


def test_no_view_is_compared_with_itself():
    student, teacher, center = inputs()
    base = run(student, teacher, center)[1]
    changed = run(student, np.stack([teacher[0] + student[3], teacher[1]]), center)[1]
    np.testing.assert_array_equal(base[0], changed[0])
    assert np.all(np.any(base[1:] != changed[1:], axis=(1, 2)))
    gradient = run(student[:3], teacher[:1], center)[1]
    assert not np.any(gradient[0]) and np.any(gradient[1:])


def test_centering_takes_away_what_all_images_share():
    student, teacher, center = inputs()
    shared = run(student, teacher + center, center)[0]
    close(shared["loss"], run(student, teacher, 0 * center)[0]["loss"])


def test_meters_tell_both_kinds_of_collapse():
    student, teacher, center = inputs()
    uniform = run(student, 0 * teacher, 0 * center)[0]
    close(uniform["teacher_entropy"], np.log(7))
    close(uniform["marginal_entropy"], np.log(7))
    one = run(student, 0 * teacher + 10 * np.eye(7, dtype=np.float32)[2], 0 * center)[0]
    close(one["marginal_entropy"], 0)
    close(one["usage"], 1 / 7)
    each = run(*[10 * np.eye(7, dtype=np.float32)[None].repeat(2, 0)] * 2, 0 * center)[0]
    close(each["teacher_entropy"], 0)
    close(each["marginal_entropy"], np.log(7))
    close(each["usage"], 1)


def test_equal_predictions_cost_the_entropy_and_pull_nowhere():
    _, teacher, center = inputs()
    same = np.broadcast_to(teacher[:1] - center, (4, 3, 7))
    temperatures = {"student_temperature": 0.1, "teacher_temperature": 0.1}
    terms, gradient = run(same, np.stack([teacher[0]] * 2), center, **temperatures)
    close(terms["loss"], terms["teacher_entropy"])
    close(gradient, np.zeros_like(gradient))
