"""The papers' failure modes fail here too, and the health meters say so."""

import math

import jax
import numpy as np
import pytest

from ssl_jax import api, settings
from ssl_jax.runtime import sharding
from ssl_jax.train import log, loop, step
from tests import tiny

STEPS = 160

pytestmark = pytest.mark.usefixtures("optimized")


def collages_config(name, **changes):
    """A small network on 32 px views of collages: large enough to show what happens, small enough
    for seconds.
    """
    c = settings.base_config(name)
    c.update_from_flattened_dict(
        tiny.values(f"""
        data.kind=photo_collages data.length=2048 data.size=48 data.crop_on=device data.cache=memory
        views.global_size=32 views.local_count=0 views.global_scale=(0.4,1.0) views.flip=0.0
        views.blur_prob=(0.0,0.0,0.0) views.solarize_prob=0.0 model.size=custom model.width=64
        model.depth=2 model.heads=2 model.patch=8 model.image_size=32 model.init_std={64**-0.5}
        optim.batch_size=64 optim.steps={STEPS} optim.lr=4e-3 optim.warmup_epochs=0.5
        optim.final_weight_decay=0.1 teacher.momentum=0.98
    """)
    )
    c.update_from_flattened_dict({key.replace("__", "."): x for key, x in changes.items()})
    return c


def prepared(config):
    """The run and its compiled step."""
    run = api.prepare(config)
    return run, step.compile_step(
        step.make_step(run.method, run.optimizer, run.config),
        run.mesh,
        jax.tree.map(lambda x: x.sharding, run.abstract),
    )


def train(run, train_step, state, steps):
    """The state after so many steps from the first batch on, and the metrics of every step."""
    batches, rows = loop.open_loader(run), []
    for _ in range(steps):
        state, metrics = train_step(state, sharding.put_batch(next(batches), run.mesh))
        rows.append(metrics)
    batches.close()
    return state, [log.scalars(row) for row in rows]


def mean(rows):
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def last_rows(config, count=20):
    """Metrics of the last `count` steps, averaged."""
    run, train_step = prepared(config)
    rows = train(run, train_step, loop.fresh_state(run), config.optim.steps)[1]
    return run, mean(rows[-count:])


def information(row):
    """How much a target says about its image, in nats: the entropy of the batch's mean target minus
    the mean entropy of a target."""
    return row["cls_marginal_entropy"] - row["cls_teacher_entropy"]


def sop(anchors, members=5):
    c = collages_config("sop", views__mask="block")
    c.sop.update(dict(head_hidden=128, head_out=32, anchors=anchors, student_temperature=0.15))
    c.sop.update(dict(teacher_temperature=0.02, final_teacher_temperature=0.02))
    c.sop.cls.update(dict(anchors=128, members=members, tasks=1, memory=1024))
    c.sop.patch.update(dict(anchors=64, members=1, tasks=1, memory=1024))
    return c


@pytest.mark.nightly
@pytest.mark.parametrize("members", [1, 5])
def test_sop_collapses_with_fixed_anchors_and_not_with_random_ones(members):
    """Table C.7 of the paper. With fixed anchors all images get the same target (information 0.11
    and 0.08 nats after 160 steps), with random ones they do not (1.6 and 1.9), and the health
    meters say so.
    """
    (run, fixed), (_, random) = (
        last_rows(sop(anchors, members)) for anchors in ("fixed", "random")
    )

    assert information(fixed) < 0.25
    assert information(random) > 1.0
    assert random["cls_marginal_entropy"] > 0.8 * math.log(128)
    assert any("cls" in text for text in run.method.health(fixed))
    assert not any("cls" in text for text in run.method.health(random))


def dino(**changes):
    c = collages_config("dino")
    c.dino.update(
        dict(head_hidden=128, head_bottleneck=32, prototypes=128, teacher_temperature_epochs=0.0)
    )
    c.dino.update(dict(teacher_temperature=0.04, final_teacher_temperature=0.04) | changes)
    return c


TOP = math.log(128)


@pytest.mark.nightly
@pytest.mark.parametrize("centering", [True, False])
def test_dino_collapses_without_centering(centering):
    """With a teacher that follows fast, within 30 steps. Measured in steps 40 to 60: information
    0.65 and 0.00 nats, entropy of the mean target 0.4 and 0.00 of log 128."""
    config = dino(centering=centering)
    config.teacher.momentum = 0.9
    run, train_step = prepared(config)
    row = mean(train(run, train_step, loop.fresh_state(run), 60)[1][-20:])
    values = information(row), row["cls_marginal_entropy"] / TOP
    assert min(values) > 0.2 if centering else max(values) < 0.05, values
    kinds = [text.split(":")[0] for text in run.method.health(row)]
    assert kinds == [] if centering else kinds == ["collapse of cls targets"]


@pytest.mark.nightly
def test_dino_is_uniform_without_sharpening():
    """DINO's paper, section 5.3: with a teacher blunter than the student, targets have (measured
    after 160 steps) 4.82 of log 128 = 4.85 nats and tell 0.1 or less about their image."""
    run, row = last_rows(dino(teacher_temperature=0.15, final_teacher_temperature=0.15))
    assert information(row) < 0.25 and row["cls_teacher_entropy"] > 0.97 * TOP
    assert any("uniform" in text for text in run.method.health(row))


def stellar(**weights):
    c = collages_config("stellar", optim__steps=100, model__queries=4, views__global_count=2)
    c.update_from_flattened_dict(
        tiny.values(
            """
        .head_hidden=128 .head_out=32 .prototypes=64 .decoder_width=64 .decoder_depth=1
        .decoder_heads=4 .mask_ratio=0.25
    """,
            "stellar",
        )
    )
    c.stellar.weights.update(weights)
    return c


@pytest.mark.nightly
def test_stellar_needs_alignment_and_clustering():
    """Rows C and D of the paper's table 5, judged by the full objective at the start of 4 more
    steps.

    Row C (no alignment; here with its masked views, so that they can be asked): the views of an
    image contradict each other. The tokens of a masked view predict the matched targets worse than
    a uniform guess, log 64 = 4.16 nats. Row D (no clustering): the paper's collapse to a linear
    score of 42 is a drop here too, not yet a constant: embeddings are spread less and targets tell
    less. Measured after 100 steps (full, C, D): alignment 2.34, 5.99, 2.43 nats; spread .25, .66,
    .16; information 2.8, 3.5, 2.0 nats."""
    full, judge = prepared(stellar())
    found = {}
    for row, weights in (("full", {}), ("C", dict(align=0.0)), ("D", dict(cluster=0.0))):
        run, train_step = (full, judge) if row == "full" else prepared(stellar(**weights))
        state, _ = train(run, train_step, loop.fresh_state(run), run.config.optim.steps)
        found[row] = mean(train(full, judge, state, 4)[1])
    information = {
        row: m["token_marginal_entropy"] - m["token_teacher_entropy"] for row, m in found.items()
    }
    assert found["full"]["align_loss"] < 0.8 * math.log(64)
    assert found["C"]["align_loss"] > math.log(64)
    assert found["D"]["embedding_spread"] < 0.8 * found["full"]["embedding_spread"]
    assert information["D"] < information["full"] - 0.3


@pytest.mark.nightly
def test_flsl_without_the_volume_term_gives_everything_one_centroid():
    """What keeps the centroids in use is gamma. Information of a target about its token, marginal
    minus mean entropy, after 160 steps: measured 1.40 nats with all terms, 0.16 without the volume
    term, and health says so. The two settings that collapse in the paper, v = 0 and symmetric
    crops, do not within so few steps: 1.40 and 1.39 nats."""
    changes = tiny.values(
        """
        model.cls=False model.position=sincos views.global_scale=(0.8,1.0) .head_hidden=128
        .head_bottleneck=32 .prototypes=128 .window=1 .photometric=both
        .final_teacher_temperature=0.04
    """,
        "flsl",
    )
    for gamma, low, high in ((5.0, 0.8, math.inf), (0.0, 0.0, 0.4)):
        run, row = last_rows(collages_config("flsl", **changes, flsl__gamma=gamma))
        assert low <= row["mode_marginal_entropy"] - row["mode_teacher_entropy"] < high
        assert any("collapse" in text for text in run.method.health(row)) == (gamma == 0)
