"""DINOv2's objective: the balance of its targets."""

import numpy as np

from tests.losses import cases
from tests.losses.reference import close


def test_a_target_is_balanced_over_all_views_and_images():
    """What all class tokens, or all masked patches, share takes nothing away from any prototype."""
    arrays = cases.make("dinov2")
    terms, gradients = cases.run("dinov2", arrays)
    rng = np.random.default_rng(1)
    shift, patch_shift = (rng.normal(size=n).astype(np.float32) for n in (6, 7))
    teacher = arrays["teacher_cls"]
    moved = {"teacher_cls": teacher + shift, "teacher_patch": arrays["teacher_patch"] + patch_shift}
    same, slopes = cases.run("dinov2", arrays | moved)
    close(same["loss"], terms["loss"])
    for name, slope in gradients.items():
        close(slopes[name], slope, relative=1e-4)
    # What one view alone shares does: the views are balanced together.
    one = np.stack([teacher[0] + shift, teacher[1]])
    other, _ = cases.run("dinov2", arrays | {"teacher_cls": one})
    assert abs(other["cls_loss"] - terms["cls_loss"]) > 1e-3
    # A teacher that says the same of everything has uniform targets: no collapse to a prototype.
    equal = np.broadcast_to(10 * np.eye(6, dtype=np.float32)[2], teacher.shape)
    even, _ = cases.run("dinov2", arrays | {"teacher_cls": equal})
    close(even["cls_teacher_entropy"], np.log(6))
