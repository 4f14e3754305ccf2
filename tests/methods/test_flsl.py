"""FLSL's wiring: nested views, queries, mean shift, pairing, schedules, rules, pictures."""

import functools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import api, ops
from ssl_jax.evals import pictures
from ssl_jax.methods import base, encoder
from ssl_jax.methods.flsl import crops
from ssl_jax.methods.pictures import similarity
from ssl_jax.models import heads
from ssl_jax.train import loop, optim, step
from ssl_jax.views import boxes, recipe
from tests import tiny
from tests.losses.reference import close

pytestmark = pytest.mark.slow

PAPER = {"views__global_count": 2, "views__local_count": 0, "flsl__photometric": "both"}
CODE = {"views__global_count": 1, "views__local_count": 2}
SYMMETRIC = {"views__global_count": 2, "views__local_count": 2}
FULL = {"model__drop_path": 0.0, "flsl__window": 1, "flsl__local_window": 1}  # no sampling


@functools.cache
def run_of(**changes):
    return api.prepare(tiny.config("flsl", **changes))


@functools.cache
def networks(**changes):
    """(params, teacher, views, step) -> Outputs; keys are always the same."""
    run = run_of(**changes)

    @jax.jit
    def encode(params, teacher, views, at):
        keys = jax.random.split(jax.random.key(3), len(views["index"]))
        progress = step.progress_at(at, run.config)
        return run.method.encode(params, teacher, None, views, keys, progress)

    return encode


@functools.cache
def start(**changes):
    """(state, views) of the first batch."""
    run = run_of(**changes)
    views = recipe.prepare(run.method.views, tiny.batches(run, 1)[0], 0)
    return loop.fresh_state(run), views


@functools.cache
def encoded(**changes):
    """A run, its state and views, and what student and teacher make of them; every patch a query,
    no drop-path, gains as at the start."""
    # Weights and views are those of the tiny config; only what is made of them differs.
    state, views = start(**{k: v for k, v in changes.items() if k.startswith("views")})
    out = networks(**FULL, **changes)(state.params, state.teacher, views, jnp.int32(0))
    return run_of(**FULL, **changes), state, views, out


@functools.cache
def objective(**changes):
    run = run_of(**FULL, **changes)

    @jax.jit
    def compute(outputs, carry, at):
        progress = step.progress_at(at, run.config)
        return run.method.objective(None, None, outputs, carry, None, progress)

    return lambda outputs, carry=None, at=0: compute(outputs, carry or {}, jnp.int32(at))


# Views.


@hypothesis.given(
    preset=st.sampled_from((PAPER, CODE)),
    flip=st.sampled_from((0.0, 0.5)),
    size=st.tuples(*2 * [st.integers(90, 120)]),  # of an aspect ratio that crops may have
    index=st.integers(0, 10_000),
)
def test_student_views_lie_inside_the_teachers(preset, flip, size, index):
    config = tiny.config(
        "flsl",
        views__flip=flip,
        views__global_scale=(0.8, 1.0),
        views__local_scale=(0.05, 0.4),
        **preset,
    )
    drawn = recipe.draw(crops.nested(config), seed=1, epoch=2, index=index, source_size=size)
    teacher = drawn["global"].boxes[0]
    assert 0.75 <= teacher[2] * teacher[3] / np.prod(size) <= 1
    if preset is PAPER:  # one place, two treatments; a student view for each
        np.testing.assert_array_equal(drawn["other"].boxes, drawn["global"].boxes)
        np.testing.assert_array_equal(drawn["other"].flips, drawn["global"].flips)
        assert len(drawn["student"].boxes) == 2 and "local" not in drawn
    else:
        assert (len(drawn["student"].boxes), len(drawn["local"].boxes)) == (1, 2)
        assert "other" not in drawn
    for name, low, high in (("student", 0.5, 1.0), ("local", 0.05, 0.4)):
        for box in drawn[name].boxes if name in drawn else ():
            assert boxes.overlap(box, teacher) == pytest.approx(1, abs=1e-5)
            # Boxes are whole pixels of the teacher's 16 px view, so areas are coarse.
            assert low - 0.1 <= box[2] * box[3] / (teacher[2] * teacher[3]) <= high + 0.1


def test_symmetric_crops_are_independent():
    config = tiny.config("flsl", flsl__nested=False, **PAPER)
    drawn = [
        recipe.draw(crops.nested(config), seed=1, epoch=0, index=i, source_size=(64, 64))
        for i in range(50)
    ]
    inside = [boxes.overlap(d["student"].boxes, d["global"].boxes) for d in drawn]
    assert np.mean(np.array(inside) < 0.99) > 0.8
    assert not any(np.array_equal(d["other"].boxes, d["global"].boxes) for d in drawn)


def test_photometric_draws_of_paper_and_code_leave_geometry_alone():
    strengths = {"views__blur_prob": (0.5, 0.1, 0.4)}
    both, either = (
        crops.nested(tiny.config("flsl", flsl__photometric=kind, **strengths, **CODE))
        for kind in ("both", "either")
    )
    draws = [recipe.draw(r, seed=0, epoch=0, index=3, source_size=(50, 60)) for r in (both, either)]
    for name in ("global", "student", "local"):
        np.testing.assert_array_equal(draws[0][name].boxes, draws[1][name].boxes)
        blur = 0.4 if name == "local" else 0.5
        for view in both[name].photometric:
            assert (view.blur_prob, view.solarize_prob, view.alternative_prob) == (blur, 0.2, 0.0)
        for view in either[name].photometric:
            assert (view.blur_prob, view.solarize_prob) == (blur, 0.0)
            assert (view.alternative_prob, view.alternative) == (0.5, (0.1, 0.2))


# From views to scores.


@functools.cache
def tokens_of(**changes):
    method = run_of(**changes).method
    return jax.jit(
        lambda w, images: method.features(w, images).patches.reshape(len(images), -1, 16)
    )


@pytest.mark.parametrize("preset", [CODE, SYMMETRIC], ids=["one teacher view", "two teacher views"])
def test_outputs_are_the_equations(preset):
    """Tokens, modes and scores recomputed view by view: eq. 4 over the student's own tokens, eq. 12
    over the teacher's other view.
    """
    run, state, views, out = encoded(**preset)
    tokens, c = tokens_of(**CODE), run.config.flsl
    head = jax.jit(heads.dino_head(16, c.prototypes, hidden=32, bottleneck=16).apply)
    shift = jax.jit(
        lambda queries, keys, sharpness: ops.mean_shift(
            queries, keys, inverse_temperature=sharpness / 16
        )
    )
    teacher = [
        tokens(state.teacher, views[name].images[:, 0])
        for name in ("global", "other")
        if name in views
    ]
    rows = {name: [] for name in ("tokens", "modes", "student", "teacher")}
    for name in ("student", "local"):
        for i, images in enumerate(jnp.moveaxis(views[name].images, 1, 0)):
            seen, met = tokens(state.params, images), teacher[(i + 1) % len(teacher)]
            rows["tokens"].append(seen)
            rows["modes"].append(shift(seen, seen, c.sa_sharpness))
            rows["student"].append(head(state.params["head"], rows["modes"][-1]))
            rows["teacher"].append(head(state.teacher["head"], shift(seen, met, c.ca_sharpness)))
    assert [x.shape[1] for x in rows["tokens"]] == [16] * (1 + (preset is not CODE)) + [4, 4]
    for name, want in rows.items():
        close(getattr(out, name), np.concatenate(want, axis=1), relative=3e-5)
    steps = np.diff(np.concatenate(rows["teacher"], axis=1), axis=1)
    assert np.abs(steps).max() > 1e-4  # the queries do differ


def test_attention_meters_are_entropy_and_peak_of_the_rows():
    """Of the global student views."""
    run, state, views, out = encoded(**CODE)
    seen = np.asarray(tokens_of(**CODE)(state.params, views["student"].images[:, 0]), np.float64)
    scores = np.einsum("bqd,bnd->bqn", seen, seen) * run.config.flsl.sa_sharpness / 16
    rows = np.exp(scores - scores.max(-1, keepdims=True))
    rows /= rows.sum(-1, keepdims=True)
    close(out.attention["sa_entropy"], -(rows * np.log(rows)).sum(-1).mean(1))
    close(out.attention["sa_peak"], rows.max(-1).mean(1))
    assert (out.attention["ca_entropy"] <= math.log(16) + 1e-6).all()
    assert (out.attention["ca_peak"] >= 1 / 16).all()


def test_queries_are_sampled_and_keys_are_not():
    _, state, views, full = encoded(**CODE)
    windows = dict(model__drop_path=0.0, flsl__window=2, flsl__local_window=2, **CODE)
    out = networks(**windows)(state.params, state.teacher, views, jnp.int32(0))
    full, out = (jax.tree.map(np.asarray, x) for x in (full, out))
    assert out.tokens.shape == (8, 4 + 2 * 1, 16) and out.teacher.shape == (8, 6, 24)
    for b in range(8):
        for q, (query, mode) in enumerate(zip(out.tokens[b], out.modes[b], strict=True)):
            same = np.abs(full.tokens[b] - query).max(-1).argmin()
            close(full.tokens[b, same], query)
            close(full.modes[b, same], mode)  # the mode over ALL keys
            window = same % 4 // 2 + 2 * (same // 4 // 2) if same < 16 else 4 + (same - 16) // 4
            assert window == q


def test_normalized_tokens_have_the_width_as_square():
    """As the norm leaves them at the start; then cosines are the same at any gain."""
    _, state, views, out = encoded(**CODE)
    squares = np.square(out.tokens).sum(-1)
    close(squares, np.full_like(squares, 16.0), relative=1e-3)
    norm = jax.tree.map(lambda x: 3 * x, state.params["backbone"]["norm"])
    stretched = state.params | {"backbone": state.params["backbone"] | {"norm": norm}}
    cosine, plain = (networks(**FULL, **CODE, **x) for x in ({"flsl__normalize": True}, {}))
    one, other = (cosine(p, state.teacher, views, 0) for p in (state.params, stretched))
    close(np.square(other.tokens).sum(-1), np.full_like(squares, 16.0))
    close(one.modes, other.modes)
    changed = plain(stretched, state.teacher, views, jnp.int32(0))
    assert np.abs(changed.modes / 3 - out.modes).max() > 0.01  # else 3 is no test


def test_the_student_gets_all_of_the_gradient():
    run, state, views, _ = encoded(**CODE)
    encode, compute = networks(**FULL, **CODE), objective(**CODE)

    def loss(params, teacher):
        return compute(encode(params, teacher, views, jnp.int32(0)))[0]

    student, teacher = jax.jit(jax.grad(loss, (0, 1)))(state.params, state.teacher)
    assert not any(np.any(g) for g in jax.tree.leaves(teacher))
    assert all(np.any(g) for g in jax.tree.leaves(student["backbone"]))


# Schedules, alternatives, rules.


def test_coefficients_start_where_they_are_told_and_end_at_their_values():
    starts = dict(flsl__v_start=0.0, flsl__sa_sharpness_start=20.0, flsl__ca_sharpness_start=0.0)
    run, state, views, out = encoded(**CODE, **starts)
    plain, total = encoded(**CODE), run.config.run.total_steps

    def v(at, **changes):
        return float(objective(**CODE, **changes)(out, at=at)[1].metrics["v"])

    assert [v(at, **starts) for at in (0, total // 2, total)] == pytest.approx([0.0, 0.015, 0.03])
    assert v(total // 2) == pytest.approx(0.03)
    # tau_sa falls from 20 / D, tau_ca rises from 0, where every row is uniform; both are constant
    # within an epoch.
    close(out.attention["ca_entropy"], np.full(8, math.log(16)))
    encode = functools.partial(networks(**FULL, **CODE, **starts), state.params, state.teacher)
    last = encode(views, jnp.int32(total))
    assert (last.attention["sa_entropy"] > out.attention["sa_entropy"]).all()
    ends = networks(**FULL, **CODE)(state.params, state.teacher, views, jnp.int32(0))
    for name in ("modes", "teacher"):
        close(getattr(last, name), getattr(ends, name))
    modes = [np.asarray(encode(views, jnp.int32(at)).modes) for at in (0, 3, 4)]  # 4 steps an epoch
    np.testing.assert_array_equal(modes[0], modes[1])
    assert np.any(modes[1] != modes[2])
    warm = objective(**CODE, flsl__teacher_temperature_epochs=3.0)
    at = [float(warm(plain[3], at=s)[1].metrics["teacher_temperature"]) for s in (0, 3, 4, 8)]
    assert at == pytest.approx([0.04, 0.04, 0.055, 0.07])


def test_terms_and_alternative_targets():
    run, _, _, out = encoded(**CODE)
    loss, (carry, m) = objective(**CODE)(out)
    close(loss, 0.03 * m["mode_intra_loss"] + m["mode_inter_loss"] + 5 * m["mode_volume_loss"])
    close(m["mode_volume_loss"], math.log(24) - m["mode_prediction_entropy"])
    # Tokens of one image are nearer than tokens of all.
    assert carry == {} and 0 <= m["token_spread"] <= m["embedding_spread"] <= 1
    centered, batch = (
        objective(**CODE, flsl__targets=kind) for kind in ("centered", "batch_softmax")
    )
    first, output = centered(out, {"center": jnp.zeros(24)})
    close(output.carry["center"], 0.1 * np.asarray(out.teacher).mean((0, 1)))
    close(first, loss)
    assert abs(float(centered(out, {"center": jnp.linspace(-1, 1, 24)})[0] - loss)) > 1e-3
    assert abs(float(batch(out)[0] - loss)) > 1e-4


def test_last_layer_waits_one_epoch_and_its_gain_forever():
    run = run_of()
    params = jax.eval_shape(run.method.init, jax.random.key(0))[0]
    rules = optim.assign_rules(run.method.rules, params)
    waits = {path: rule.freeze_epochs for path, rule in rules.items() if rule.freeze_epochs}
    assert waits == {"head/last/direction": 1, "head/last/gain": base.NEVER}
    assert not any("cls" in path or "position" in path for path in rules)


# What it says of images.


def test_the_image_is_the_mean_of_its_patches():
    weights, images = start(**CODE)[0].params, np.full((2, 16, 24, 3), 0.5, np.float32)
    out = jax.jit(lambda w: run_of(**CODE).method.features(w, images, layers=(0,)))(weights)
    assert out.cls is None and out.patches.shape == (2, 4, 6, 16) and set(out.layers) == {0}
    close(out.image, out.patches.mean((1, 2)))


def test_aggregated_similarity_by_hand():
    """Three patches along x, one along y: 3, 3, 3 and 1 of at most 3; a patch against all others
    falls to 0, not below.
    """
    x, y = np.eye(2, dtype=np.float32)
    for patches, last in (([x, 2 * x, 5 * x, y], 1 / 3), ([x, x, x, -x], 0)):
        found = similarity.aggregated_similarity(np.stack(patches).reshape(1, 2, 2, 2))
        close(found[0], [[1, 1], [1, last]])


def test_pictures_show_similarity_of_blocks_and_attention_of_patches():
    images = np.random.default_rng(0).random((2, 16, 16, 3), np.float32)
    network = encoder.Encoder(run_of(**CODE).config, start(**CODE)[0].teacher)
    drawn = pictures.draw(network, images)
    assert set(drawn) == {"similarity", "attention"}
    for picture in drawn.values():
        for image, row in zip(images, picture.rows, strict=True):
            for panel in row:
                np.testing.assert_array_equal(panel.image, image)
            for panel in row[1:]:
                assert panel.heat.shape == (4, 4) and (panel.heat >= 0).all()
    assert len(drawn["similarity"].rows[0]) == 1 + 3  # what enters the first block, then blocks
    middle = drawn["attention"].rows[1][3]
    attention = network(images, attention=True).attention
    close(middle.heat.ravel(), attention[1].mean(0)[2 * 4 + 2])
