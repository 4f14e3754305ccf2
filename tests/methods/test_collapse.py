"""The papers' failure modes fail here too, and the health meters say so."""

import math

import jax
import numpy as np
import pytest

from ssl_jax import log, loop, methods, sharding, step

STEPS = 150


def scenes_config(name, **changes):
    """A small network on 32 px views of scenes: large enough to show what happens, small enough for seconds."""
    c = methods.base_config(name)
    c.data.update(dict(kind="digit_scenes", length=2048, size=48, crop_on="device", cache=True))
    c.views.update(dict(global_size=32, local_count=0, global_scale=(0.4, 1.0), flip=0.0, blur_prob=(0.0, 0.0, 0.0), solarize_prob=0.0))
    c.model.update(dict(size="custom", width=64, depth=2, heads=2, patch=8, image_size=32, init_std=64**-0.5))
    c.optim.update(dict(batch_size=64, steps=STEPS, lr=4e-3, warmup_epochs=0.5, final_weight_decay=0.1))
    c.teacher.momentum = 0.98
    c.eval.tasks = ()
    for key, value in changes.items():
        c.update_from_flattened_dict({key.replace("__", "."): value})
    return c


def last_rows(config, count=20):
    """Metrics of the last `count` steps, averaged."""
    run = loop.prepare(config)
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, run.config), run.mesh, jax.tree.map(lambda x: x.sharding, run.abstract)
    )
    state, batches, rows = loop.fresh_state(run), loop._loader(run, 0), []
    for _ in range(STEPS):
        state, metrics = train_step(state, sharding.put_batch(next(batches), run.mesh))
        rows.append(metrics)
    batches.close()
    rows = [log.scalars(row) for row in rows[-count:]]
    return run, {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def sop(anchors):
    c = scenes_config("sop", views__mask="block")
    c.sop.update(dict(head_hidden=128, head_out=32, anchors=anchors, student_temperature=0.15))
    c.sop.update(dict(teacher_temperature=0.02, final_teacher_temperature=0.02))
    c.sop.cls.update(dict(anchors=128, members=5, tasks=1, memory=1024))
    c.sop.patch.update(dict(anchors=64, members=1, tasks=1, memory=1024))
    return c


@pytest.mark.slow
def test_sop_collapses_with_fixed_anchors_and_not_with_random_ones():
    """Table C.7 of the paper. Fixed anchors: the batch ends on a few of the K anchors. Random ones: all are used, and the
    target of an image is far sharper than the batch's mean, so it says something about the image.
    """
    top = math.log(128)
    run, fixed = last_rows(sop("fixed"))
    assert fixed["cls_marginal_entropy"] < 0.45 * top
    _, random = last_rows(sop("random"))
    assert random["cls_marginal_entropy"] > 0.65 * top
    assert random["cls_marginal_entropy"] - random["cls_teacher_entropy"] > 0.15 * top
    assert random["cls_marginal_entropy"] > fixed["cls_marginal_entropy"] + 0.25 * top


@pytest.mark.parametrize("name, prefix, classes", [("sop", "cls", 128), ("dino", "cls", 128)])
def test_health_names_collapse_and_uniform_targets(name, prefix, classes):
    config = sop("random") if name == "sop" else scenes_config("dino", dino__prototypes=128)
    top = math.log(classes)
    fine = {f"{prefix}_teacher_entropy": 0.5 * top, f"{prefix}_marginal_entropy": 0.9 * top}
    fine |= {"patch_teacher_entropy": 2.0, "patch_marginal_entropy": 3.0, "embedding_spread": 0.8}
    health = methods.get(name).health
    assert health(fine, config) == []
    assert any("collapse" in text for text in health(fine | {f"{prefix}_marginal_entropy": 0.02 * top}, config))
    assert any("uniform" in text for text in health(fine | {f"{prefix}_teacher_entropy": 0.999 * top}, config))
    if name == "sop":
        assert any("spread" in text for text in health(fine | {"embedding_spread": 0.01}, config))
