"""CrIBo's wiring: objects from places and tokens, the paired memory, cycles, the gate, two
centers."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict
from PIL import Image

from ssl_jax import api, ops
from ssl_jax.config import InputError
from ssl_jax.evals import pictures
from ssl_jax.methods import base, cribo
from ssl_jax.methods.cribo import levels, objects, oracle
from ssl_jax.methods.cribo import pictures as drawing
from ssl_jax.methods.encoder import Encoder
from ssl_jax.train import optim
from ssl_jax.views import recipe
from tests import tiny
from tests.losses import reference
from tests.losses.reference import close
from tests.models.reference import float64, mlp
from tests.ops.test_cycle import by_loops

pytestmark = pytest.mark.slow

WIDTH, SIDE, BATCH, CLUSTERS, MEMORY = 16, 4, 6, 5, 8
TOKENS = 2 * SIDE**2
SETTINGS = tiny.values(f"""
    model.depth=1 optim.batch_size={BATCH} cribo.head_bottleneck=8 cribo.prototypes=12
    cribo.teacher_temperature_epochs=3.0 cribo.clusters={CLUSTERS} cribo.memory={MEMORY}
    cribo.group=0
""")


@functools.cache
def config(**changes):
    """One block of width 16 on views of 4 x 4 patches, 5 clusters, a memory of 8 images."""
    return tiny.resolved(tiny.config("cribo", **SETTINGS | changes), num_records=4 * BATCH)


@functools.cache
def method(**changes):
    return cribo.make(config(**changes))


def progress(step=9):
    """Four steps an epoch, three epochs."""
    step = jnp.int32(step)
    return base.Progress(step, step // 4, step / 4, 4, 12)


@functools.cache
def start(**changes):
    """Parameters, teacher (other ones, so that the two cannot be mixed up) and carry."""
    params, carry = method(**changes).init(jax.random.key(0))
    return params, method(**changes).init(jax.random.key(1))[0], carry


@functools.cache
def outputs(seed=0):
    """What `encode` returns, with tokens around a few directions, and views that overlap by a
    third, so that objects of one alone occur.
    """
    rng = np.random.default_rng(seed)
    directions = np.random.default_rng(99).normal(size=(8, WIDTH))  # the same for every batch

    def token():
        kinds = directions[rng.integers(0, 8, (BATCH, TOKENS))]
        return (2 * kinds + rng.normal(size=(BATCH, TOKENS, WIDTH))).astype(np.float32)

    images = rng.normal(size=(2, BATCH, 2, 8)).astype(np.float32)
    images /= np.linalg.norm(images, axis=-1, keepdims=True)
    places = rng.uniform(0, 64, (BATCH, TOKENS, 2)) + 44 * (np.arange(TOKENS) >= SIDE**2)[:, None]
    return cribo.Outputs(
        student=jnp.asarray(images[0]),
        teacher=jnp.asarray(images[1]),
        student_tokens=jnp.asarray(token()),
        teacher_tokens=jnp.asarray(token()),
        positions=jnp.asarray(places.astype(np.float32)),
        seeds=jax.random.split(jax.random.key(seed), BATCH),
    )


@functools.cache
def jitted(**changes):
    def run(params, teacher, outputs, carry, step):
        loss, out = method(**changes).objective(
            params, teacher, outputs, carry, jax.random.key(0), progress(step)
        )
        return loss, out._replace(carry=base.settle(out.carry, carry))

    return jax.jit(run)


def run(given=None, carry=None, epoch=2, **changes):
    """(loss, metrics, new carry) of one objective."""
    params, teacher, empty = start(**changes)
    loss, out = jitted(**changes)(
        params, teacher, given or outputs(), carry or empty, jnp.int32(4 * epoch)
    )
    return float(loss), {name: float(value) for name, value in out.metrics.items()}, out.carry


@functools.cache
def filled():
    """The carry after a step with other tokens: its memory has neighbours, of which some lead
    back."""
    return run(outputs(5))[2]


def found(given=None, **changes):
    """The teacher's assignments, objects [B, 2, K, d] and valid ones, as the objective must find
    them.
    """
    given, c = given or outputs(), config(**changes).cribo
    assign = objects.clustering(c, c.clusters)
    assigned = assign(given.teacher_tokens, given.positions, given.seeds, c.position_weight)
    return assigned, *ops.object_tokens(given.teacher_tokens, assigned)


def test_rows_of_encode_belong_to_their_image_and_the_teacher_has_no_drop_path():
    dropping = dict(model__drop_path=0.5, model__depth=2)  # a first block never drops
    rng = np.random.default_rng(3)
    corners = rng.integers(0, 30, (BATCH, 2, 2)), rng.integers(16, 33, (BATCH, 2, 2))
    batch = {
        "global": recipe.Group(
            images=rng.random((BATCH, 2, 16, 16, 3), np.float32),
            boxes=np.concatenate(corners, axis=-1).astype(np.float32),
            flips=rng.random((BATCH, 2)) < 0.5,
        )
    }
    params, teacher, _ = start(**dropping)

    @jax.jit
    def encode(batch, keys):
        return method(**dropping).encode(params, teacher, None, batch, keys, progress())

    keys = jax.random.split(jax.random.key(0), BATCH)
    out = encode(batch, keys)
    chex.assert_shape((out.student_tokens, out.teacher_tokens), (BATCH, TOKENS, WIDTH))
    chex.assert_shape((out.student, out.teacher), (BATCH, 2, 8))
    others = keys.at[1:].set(jax.random.split(jax.random.key(7), BATCH - 1))
    other = encode(batch, others)
    np.testing.assert_array_equal(other.student_tokens[0], out.student_tokens[0])
    assert np.any(other.student_tokens[1:] != out.student_tokens[1:])
    np.testing.assert_array_equal(other.teacher_tokens, out.teacher_tokens)
    seeds = np.concatenate([jax.random.key_data(x.seeds) for x in (out, other)])
    assert len(np.unique(seeds, axis=0)) == 2 * BATCH - 1
    # View 2 is the second half: the tokens of an image whose views are exchanged.
    swapped = {"global": jax.tree.map(lambda x: x[:, ::-1], batch["global"])}
    still = encode(swapped, keys)
    close(still.teacher_tokens, np.roll(out.teacher_tokens, SIDE**2, axis=1))
    close(still.positions, np.roll(out.positions, SIDE**2, axis=1))


# Objects


def test_a_whole_objective_equals_the_equations():
    """One objective with a filled memory against float64: eq. 1, 5 to 8, 10, 11, both centers."""
    carry = filled()
    loss, metrics, new = run(outputs(), carry)
    params, teacher, _ = start()
    c, given = config().cribo, outputs()._asdict()
    given = {name: np.asarray(x, np.float64) for name, x in given.items() if name != "seeds"}
    assigned = np.asarray(found()[0], np.float64).reshape(BATCH, 2, SIDE**2, CLUSTERS)
    size = assigned.sum(axis=2)
    valid = (size > 0).all(axis=1)

    def mean(name):
        return np.einsum(
            "bvnk,bvnd->vbkd",
            assigned / np.maximum(size, 1)[:, :, None],
            given[name].reshape(BATCH, 2, SIDE**2, WIDTH),
        )

    own, of_student = mean("teacher_tokens"), mean("student_tokens")
    assert 0 < valid.sum() < valid.size

    def trunk(weights, x):
        x = mlp(float64(weights["head"]["trunk"]["mlp"]), x)
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6)

    def last(weights, level, x):
        direction = np.asarray(weights["head"][level]["direction"], np.float64)
        return x @ (direction / np.linalg.norm(direction, axis=0))

    rows = {name: np.asarray(x, np.float64) for name, x in carry["memory"]["rows"].items()}
    written = np.asarray(carry["memory"]["valid"]) & (rows["valid"] > 0)
    flat, neighbours, closed = own.reshape(2, -1, WIDTH), [], []
    for view, names in enumerate((("first", "second"), ("second", "first"))):
        banks = [rows[name] for name in names]
        cycle, index = by_loops(flat[view], flat[1 - view], *banks, valid.ravel(), written)
        neighbours.append(banks[0][index].reshape(own[view].shape))
        closed.append(cycle.reshape(valid.shape))
    neighbours, closed = np.stack(neighbours), np.stack(closed)
    assert closed[0].any() and closed[1].any()

    taus = c.student_temperature, 0.07  # epoch 2 of a warm-up of three
    center = {level: np.asarray(x, np.float64) for level, x in carry["center"].items()}
    students, teachers = (np.moveaxis(given[name], 1, 0) for name in ("student", "teacher"))
    logits = {
        "images": last(teacher, "images", teachers),
        "objects": last(teacher, "objects", trunk(teacher, own)),
    }
    images, _ = reference.cribo_images(
        last(params, "images", students), logits["images"], center["images"], *taus
    )
    both, _ = reference.cribo_objects(
        last(params, "objects", trunk(params, of_student)),
        logits["objects"],
        valid,
        center["objects"],
        *taus,
        weights=(1, 1),
        neighbours=last(teacher, "objects", trunk(teacher, neighbours)),
        cycle=closed,
    )
    close(metrics["global_loss"], images["loss"], relative=3e-5)
    for name in ("cross_view_loss", "cross_image_loss"):
        close(metrics[name], both[name], relative=3e-5)
    for name in ("teacher_entropy", "marginal_entropy"):
        close(metrics[f"object_{name}"], both[name], relative=3e-5)
    close(loss, images["loss"] + both["loss"], relative=3e-5)
    logits["objects"] = logits["objects"][:, valid]
    for level, x in logits.items():
        mean_logits = x.reshape(-1, x.shape[-1]).mean(axis=0)
        close(new["center"][level], 0.9 * center[level] + 0.1 * mean_logits)
    z, total = closed.sum(axis=(1, 2)), valid.sum()
    assert (metrics["cycles_first"], metrics["cycles_second"]) == tuple(z)
    close(metrics["bootstrapping_ratio"], z.sum() / (2 * total))
    close(metrics["bootstrapping_share"], z.sum() / (2 * BATCH * CLUSTERS))
    close(metrics["objects_per_image"], total / BATCH)
    close(metrics["memory_fill"], BATCH / MEMORY)


def test_gradients_reach_the_student_alone_and_its_objects_follow_the_teachers_assignment():
    """With a memory in which cycles close; the gradient spreads evenly over an object's tokens."""
    carry = filled()
    params, teacher, _ = start()
    floats = outputs()._asdict()
    floats.pop("seeds")

    def loss(teacher, floats, rows, center):
        memory = carry["memory"] | {"rows": carry["memory"]["rows"] | rows}
        given = cribo.Outputs(**floats, seeds=outputs().seeds)
        state = {"center": center, "memory": memory}
        return method().objective(params, teacher, given, state, None, progress())[0]

    rows = {name: x for name, x in carry["memory"]["rows"].items() if x.dtype == jnp.float32}
    by_teacher, by_output, by_row, by_center = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(
        teacher, floats, rows, carry["center"]
    )
    assert not any(np.any(x) for x in jax.tree.leaves((by_teacher, by_row, by_center)))
    assert {name for name, x in by_output.items() if np.any(x)} == {"student", "student_tokens"}
    assigned, _, valid = found()
    gradient = np.asarray(by_output["student_tokens"]).reshape(BATCH, 2, SIDE**2, WIDTH)
    labels = np.asarray(assigned.argmax(-1)).reshape(BATCH, 2, SIDE**2)
    for i, view, k in np.ndindex(BATCH, 2, CLUSTERS):
        members = gradient[i, view][labels[i, view] == k]
        if len(members):
            close(members, np.broadcast_to(members[0], members.shape))
            assert np.any(members[0]) == bool(valid[i, k])


# Memory and cycles


def test_the_memory_is_read_before_it_is_written():
    """A first batch finds nothing, not even itself, and learns from no neighbour."""
    loss, metrics, carry = run()
    for name in ("cycles_first", "cycles_second", "cross_image_loss", "memory_fill"):
        assert metrics[name] == 0, name
    close(loss, metrics["global_loss"] + metrics["cross_view_loss"])
    assert carry["memory"]["valid"].sum() == BATCH * CLUSTERS
    assert run(cribo__cycle=False)[1]["cross_image_loss"] == 0  # nothing to retrieve


def test_memory_is_first_in_first_out_by_images_and_keeps_views_paired():
    """Around the end of a memory of 8 images with 6 a step."""
    carry, images = start()[2], []
    for seed in range(3):
        carry = run(outputs(seed), carry)[2]
        images += zip(*(np.asarray(x) for x in found(outputs(seed))[1:]), strict=True)
        memory = carry["memory"]
        rows = {name: np.asarray(x) for name, x in memory["rows"].items()}
        last = range(max(0, len(images) - MEMORY), len(images))
        for number in last:
            (own, exists), at = images[number], number % MEMORY * CLUSTERS
            place = slice(at, at + CLUSTERS)
            np.testing.assert_array_equal(rows["valid"][place], exists)
            for view, name in enumerate(("first", "second")):
                close(rows[name][place], own[view])
                norms = rows[f"{name}_inverse_norm"][place] * np.linalg.norm(own[view], axis=-1)
                close(norms[exists], np.ones(exists.sum()))
        written = np.asarray(memory["valid"])
        assert written.sum() == CLUSTERS * len(last)
        assert (rows["valid"] & written).sum() == sum(images[n][1].sum() for n in last)
    assert int(carry["memory"]["cursor"]) == 18 % MEMORY * CLUSTERS


# Oracles (table 11)

ORACLE = dict(cribo__clustering="masks", cribo__same_classes=True, cribo__cycle=False)


def with_classes(seed=0, classes=3):
    """Outputs with classes of patches, some of them without one."""
    labels = np.random.default_rng(seed).integers(0, classes, (BATCH, TOKENS))
    values = np.array([7, 64, 255, 30, 31, 254, 0])
    return outputs(seed)._replace(labels=jnp.asarray(values[labels], jnp.uint8))


def test_objects_of_masks_are_the_means_of_their_classes():
    given = with_classes(classes=7)._asdict()
    tokens, labels = np.asarray(given["teacher_tokens"]), np.asarray(given["labels"])
    assigned = oracle.clusters(given["labels"], CLUSTERS)
    own, valid = ops.object_tokens(given["teacher_tokens"], assigned)
    for i in range(BATCH):
        classes = sorted(set(labels[i].tolist()) - {255})
        for k, c in enumerate(classes[:CLUSTERS]):
            for view, half in enumerate((slice(SIDE**2), slice(SIDE**2, None))):
                members = tokens[i, half][labels[i, half] == c]
                close(own[i, view, k], members.sum(axis=0) / max(1, len(members)))
            both = (labels[i].reshape(2, -1) == c).any(axis=1).all()
            assert valid[i, k] == both
        left_out = np.isin(labels[i], [*classes[CLUSTERS:], 255])
        np.testing.assert_array_equal(np.asarray(assigned)[i].sum(axis=-1), ~left_out)
        assert left_out.any()


def test_neighbours_count_where_both_objects_have_the_same_classes():
    """Clusters by tokens, so that objects have several classes: sets against loops."""
    given, other = with_classes(), with_classes(5)
    memory = run(other, cribo__same_classes=True)[2]["memory"]

    def sets(given):
        labels = np.asarray(given.labels).reshape(BATCH, 2, -1)
        where = np.asarray(found(given)[0].argmax(-1)).reshape(labels.shape)
        each = np.ndindex(2, BATCH, CLUSTERS)
        return {(v, b, k): set(labels[b, v][where[b, v] == k].tolist()) - {255} for v, b, k in each}

    _, own, valid = found(given)
    nearest = objects.retrieve(own, valid, memory, group=0)
    _, index, cycle, _ = map(np.asarray, nearest)
    mine, theirs, expected = sets(given), sets(other), np.zeros_like(cycle)
    for v, b, k in np.ndindex(expected.shape):
        near = theirs[v, *divmod(int(index[v, b, k]), CLUSTERS)]
        expected[v, b, k] = valid[b, k] and len(near) > 0 and mine[v, b, k] == near
    assert 0 < expected.sum() < 2 * valid.sum()
    carry = start(cribo__same_classes=True)[2] | {"memory": memory}
    _, metrics, new = run(given, carry, cribo__same_classes=True, cribo__cycle=False)
    close(metrics["same_classes_ratio"], expected.sum() / (2 * valid.sum()))
    both = run(given, carry, cribo__same_classes=True)[1]  # with cycles
    assert metrics["same_classes_ratio"] == both["same_classes_ratio"]
    assert metrics["cross_image_loss"] != both["cross_image_loss"] > 0 < (expected & cycle).sum()
    rows = np.asarray(new["memory"]["rows"]["first_classes"])
    assert rows.dtype == np.uint32 and rows.shape == (MEMORY * CLUSTERS, objects.WORDS)


def test_masks_are_read_only_where_the_method_asks_for_them(tmp_path):
    for i in range(8):
        for kind in ("images", "masks"):
            (tmp_path / kind).mkdir(exist_ok=True)
            image = np.full((24, 24), i, np.uint8)
            Image.fromarray(image).save(tmp_path / kind / f"{i}.png")
    data = dict(data__kind="folder", data__dir=str(tmp_path), data__length=10000)
    for changes in ({}, ORACLE):
        run = api.prepare(tiny.config("cribo", **data, **changes))
        assert ("mask" in run.source[0]) == run.method.views.patch_labels == bool(changes)
        assert run.keys["data.class_map"].free != bool(changes)  # may differ on resume
    (tmp_path / "masks").rename(tmp_path / "others")
    with pytest.raises(InputError, match="no masks"):
        api.prepare(tiny.config("cribo", **data, **ORACLE))


# Schedules, special cases, rules


def test_options_change_what_they_name():
    """Each against the standard objective with a filled memory."""
    carry = filled()
    loss, metrics, new = run(carry=carry)
    pieces, same, after = run(carry=carry, cribo__chunk=2)
    close(pieces, loss)
    jax.tree.map(close, (same, after), (metrics, new))
    free = run(carry=carry, cribo__cycle=False)[1]  # every neighbour counts, cycles are measured
    assert metrics["bootstrapping_ratio"] == free["bootstrapping_ratio"] < 1
    assert metrics["cross_image_loss"] != free["cross_image_loss"] > 0
    first = run(carry=carry, cribo__counts="first")[1]  # the losses have its numbers
    assert metrics["cycles_first"] == first["cycles_first"] != first["cycles_second"]
    assert metrics["cross_image_loss"] != first["cross_image_loss"]


def test_neighbours_teach_from_the_start_epoch_on_and_terms_are_weighted():
    carry = filled()
    early, *later = (run(carry=carry, epoch=epoch)[1] for epoch in (0, 1, 2))
    assert early["cross_image_loss"] == 0 < min(row["cross_image_loss"] for row in later)
    assert early["cycles_first"] > 0  # measured before
    weights = dict(global_weight=0.5, cross_view_weight=2.0, cross_image_weight=3.0, start_epoch=2)
    changes = {f"cribo__{name}": value for name, value in weights.items()}
    assert run(carry=carry, epoch=1, **changes)[1]["cross_image_loss"] == 0
    loss, metrics, _ = run(carry=carry, epoch=2, **changes)
    names = ("global", "cross_view", "cross_image")
    close(loss, sum(weights[f"{x}_weight"] * metrics[f"{x}_loss"] for x in names))


def test_temperature_and_weight_of_places_step_with_the_epoch():
    params, teacher, carry = start()
    step = jitted(cribo__final_position_weight=51.0)
    rows = [
        step(params, teacher, outputs(), carry, jnp.int32(at))[1].metrics
        for at in (0, 3, 4, 7, 8, 11)
    ]
    np.testing.assert_allclose([m["position_weight"] for m in rows], [1, 1, 26, 26, 51, 51])
    temperatures = [m["teacher_temperature"] for m in rows]
    np.testing.assert_allclose(temperatures, [0.04, 0.04, 0.055, 0.055, 0.07, 0.07], rtol=1e-6)
    assert rows[0]["objects_per_image"] != rows[-1]["objects_per_image"]  # it reaches the clusters
    assert {float(cribo.position_weight(config().cribo, progress(at))) for at in (0, 11)} == {1.0}


def test_special_cases_leave_out_what_they_do_not_need():
    alone = dict(cribo__cross_view_weight=0.0, cribo__cross_image_weight=0.0)
    params, _, carry = start(**alone)
    assert set(params["head"]) == {"trunk", "images"}
    assert set(carry) == {"center"} and set(carry["center"]) == {"images"}
    loss, metrics, _ = run(cribo.Outputs(outputs().student, outputs().teacher), **alone)
    close(loss, metrics["global_loss"])
    assert not any(name.startswith(("cross", "object", "cycles", "memory")) for name in metrics)
    view = dict(cribo__cross_image_weight=0.0)
    assert set(start(**view)[0]["head"]) == {"trunk", "images", "objects"}
    loss, metrics, carry = run(**view)
    close(loss, metrics["global_loss"] + metrics["cross_view_loss"])
    assert set(carry) == {"center"} and not {"cross_image_loss", "memory_fill"} & set(metrics)


def test_last_layers_wait_and_their_gain_learns_or_not():
    params = jax.eval_shape(method().init, jax.random.key(0))[0]
    for fixed in (False, True):
        changes = dict(cribo__norm_last_layer=fixed, cribo__freeze_last_layer_epochs=2)
        rules = optim.assign_rules(method(**changes).rules, params)
        waits = {path: rule.freeze_epochs for path, rule in rules.items() if rule.freeze_epochs}
        levels = [f"head/{level}" for level in ("images", "objects")]
        gain = base.NEVER if fixed else 2
        wanted = {"direction": 2, "gain": gain}
        assert waits == {f"{x}/{leaf}": n for x in levels for leaf, n in wanted.items()}


def test_center_stays_without_a_valid_object():
    center, prototypes = np.arange(12, dtype=np.float32), np.ones((8, 12), np.float32)
    level = levels.Level(prototypes, prototypes, center, 0.1, 0.05)
    rows, none = np.full((2, BATCH, CLUSTERS, 8), np.nan), np.zeros((BATCH, CLUSTERS), bool)
    np.testing.assert_array_equal(level.moved_center(rows, none, 0.8), center)


# Pictures


def test_pictures_show_objects_beside_their_nearest_in_other_images():
    rng = np.random.default_rng(1)
    images = rng.random((3, 16, 16, 3), np.float32)
    patches = rng.normal(size=(3, SIDE, SIDE, WIDTH)).astype(np.float32)
    patches[2] = patches[0]  # so that every object of image 0 lies in image 2 as well
    found = objects.find((16, 16), jnp.asarray(patches), config().cribo, seed=0)
    assert np.asarray(found["clusters"]).shape == (3, SIDE, SIDE)
    shown = drawing.Objects(np.asarray(found["clusters"]), found["objects"], found["exist"])
    rows = drawing.matches(images, shown)["matches"].rows
    assert len(rows) == 3
    for i, (whole, *pairs) in enumerate(rows):
        sizes = [int((panel.labels >= 0).sum()) for panel in pairs[::2]]
        assert sizes == sorted(sizes, reverse=True) and min(sizes) > 0
        for query, match in zip(pairs[::2], pairs[1::2], strict=True):
            np.testing.assert_array_equal(query.image, images[i])
            assert not np.array_equal(match.image, images[i]), "an object of the image itself"
            k = query.labels.max()
            np.testing.assert_array_equal(query.labels >= 0, whole.labels == k)
            assert set(np.unique(match.labels)) <= {-1, k} and (match.labels == k).any()
    # The nearest to an object of image 0: its mean against all others in float64.
    labels = [row[0].labels for row in rows]
    mean = patches[0][rows[0][1].labels >= 0].mean(axis=0)
    others = [(j, k) for j in (1, 2) for k in np.unique(labels[j])]
    means = [patches[j][labels[j] == k].mean(axis=0) for j, k in others]
    j, k = others[np.argmax([mean @ x / np.linalg.norm(x) for x in means])]
    np.testing.assert_array_equal(rows[0][2].image, images[j])
    np.testing.assert_array_equal(rows[0][2].labels >= 0, labels[j] == k)
    # From a memory: image 0 finds itself there, which was among the shown images left out.
    bank = drawing.Objects(*(x[::-1] for x in shown))
    rows = drawing.matches(images, shown, bank, lambda j: 1 - images[j])["matches"].rows
    for query, match in zip(rows[1][1::2], rows[1][2::2], strict=True):
        np.testing.assert_array_equal(match.image, 1 - images[1])
        np.testing.assert_array_equal(match.labels, query.labels)
        assert "1.00" in match.title


def test_the_memory_of_the_picture_holds_training_images():
    c = config()
    encoder = Encoder(FrozenConfigDict(c), method().init(jax.random.key(0))[0])
    images = np.random.default_rng(0).random((20, 16, 16, 3), np.float32)
    read = []

    def recall(indices):
        read.extend(indices)
        return images[np.asarray(indices)]

    rows = pictures.draw(encoder, images[17:19], pictures.Memory(20, recall))["matches"].rows
    assert read[:20] == [*range(20)] and len(rows) == 2
    shown = [panel for row in rows for panel in row[2::2]]
    for index, panel in zip(read[20:], shown, strict=True):
        np.testing.assert_array_equal(panel.image, images[index])
        assert (panel.labels >= 0).any()
    assert pictures.draw(encoder, images[:1]) == {}
