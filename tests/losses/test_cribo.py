"""CrIBo's losses against float64: values, gradients, and everything that must not matter."""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.losses.cribo import cribo_images, cribo_objects
from tests.finite import assert_finite
from tests.losses.reference import close, entropy, log_softmax

B, K, P = 4, 3, 6
STATIC = ("weights", "counts", "chunk")
CENTERS = ("image_center", "object_center")


def inputs(seed=0, batch=B, objects=K, width=P, scale=1.0, image_width=None):
    """Logits of two views, of their objects and of the retrieved ones; some objects do not exist,
    some cycles do not close.
    """
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    given = {
        name: normal(2, batch, image_width or width)
        for name in ("student_images", "teacher_images")
    }
    given |= {
        name: normal(2, batch, objects, width)
        for name in ("student_objects", "teacher_objects", "neighbours")
    }
    given |= {"image_center": normal(image_width or width), "object_center": normal(width)}
    return given | {
        "valid": rng.random((batch, objects)) < 0.7,
        "cycle": rng.random((2, batch, objects)) < 0.6,
    }


def reference(given, tau_s=0.1, tau_t=0.05, gate=1.0, weights=(1, 1, 1), counts="own"):
    """The equations for logits, one object at a time -> terms, and the gradients of the loss in the
    students' logits.
    """
    wide = {
        name: np.asarray(x, bool if name in ("valid", "cycle") else np.float64)
        for name, x in given.items()
    }

    def q(x, center):
        return np.exp(log_softmax((x - wide[center]) / tau_t))

    terms, gradients = (
        {},
        {name: np.zeros(wide[name].shape) for name in ("student_images", "student_objects")},
    )

    def cross(name, target, where, scale, weight):
        """scale * H(target, student at `where`); `weight` times its gradient goes into
        `gradients`.
        """
        log_p = log_softmax(wide[name][where] / tau_s)
        gradients[name][where] += weight * scale * (np.exp(log_p) - target) / tau_s
        return -scale * (target * log_p).sum()

    batch, objects = wide["valid"].shape
    everywhere = list(np.ndindex(batch, objects))
    found = [where for where in everywhere if wide["valid"][where]]
    closed = [[where for where in found if wide["cycle"][view][where]] for view in (0, 1)]
    terms["global_loss"] = terms["cross_view_loss"] = terms["cross_image_loss"] = 0.0
    for view in (0, 1):
        for i in range(batch):
            target = q(wide["teacher_images"][view, i], "image_center")
            terms["global_loss"] += cross(
                "student_images", target, (1 - view, i), 1 / (2 * batch), weights[0]
            )
        for where in found:
            target = q(wide["teacher_objects"][(view, *where)], "object_center")
            terms["cross_view_loss"] += cross(
                "student_objects", target, (1 - view, *where), 1 / (2 * len(found)), weights[1]
            )
        number = len(closed[view if counts == "own" else 0])
        for where in closed[view] if number else []:
            target = q(wide["neighbours"][(view, *where)], "object_center")
            terms["cross_image_loss"] += cross(
                "student_objects", target, (1 - view, *where), 1 / (2 * number), gate * weights[2]
            )
    terms["loss"] = np.dot(np.multiply(weights, (1, 1, gate)), list(terms.values()))

    for prefix, rows in (
        ("image", [x for view in wide["teacher_images"] for x in view]),
        ("object", [wide["teacher_objects"][(view, *where)] for view in (0, 1) for where in found]),
    ):
        center = f"{prefix}_center"
        targets = [q(x, center) for x in rows]
        terms[f"{prefix}_teacher_entropy"] = np.mean([entropy(p) for p in targets]) if rows else 0
        terms[f"{prefix}_marginal_entropy"] = entropy(np.mean(targets, axis=0)) if rows else 0
        terms[f"{prefix}_usage"] = len({np.argmax(p) for p in targets}) / len(wide[center])
    return terms, gradients


def objective(given, tau_s=0.1, tau_t=0.05, gate=1.0, weights=(1, 1, 1), counts="own", chunk=None):
    """All terms and their sum as the method makes it; from logits, or from embeddings where `given`
    has prototypes.
    """

    def level(i):
        def logits(rows, owner):
            return rows @ given[owner][i] if owner in given else rows

        def log_target(rows):
            center = given[CENTERS[i]]
            rows = logits(rows, "teacher_prototypes")
            return ops.centered_softmax(rows, center, temperature=tau_t, log=True)

        def log_prediction(rows):
            rows = logits(rows, "student_prototypes").astype(jnp.float32)
            return jax.nn.log_softmax(rows / tau_s)

        return dict(log_target=log_target, log_prediction=log_prediction, chunk=chunk)

    terms = cribo_images(given["student_images"], given["teacher_images"], **level(0))
    terms = {"image_" + name: x for name, x in terms.items()}
    terms["global_loss"] = terms.pop("image_loss")
    loss = weights[0] * terms["global_loss"]
    if "student_objects" in given:
        arrays = (given[name] for name in ("student_objects", "teacher_objects", "valid"))
        retrieved = {name: given[name] for name in ("neighbours", "cycle") if name in given}
        found = cribo_objects(*arrays, **retrieved, **level(1), counts=counts)
        for i, name in enumerate(("cross_view_loss", "cross_image_loss"), start=1):
            if name in found:
                terms[name] = found.pop(name)
                loss = loss + weights[i] * (gate if i == 2 else 1) * terms[name]
        terms |= {"object_" + name: x for name, x in found.items()}
    return terms | {"loss": loss}


@functools.partial(jax.jit, static_argnames=STATIC)
def run(given, tau_s=0.1, tau_t=0.05, gate=1.0, **options):
    """Terms, and the gradient of the loss in the student's arrays; temperatures and gate are
    traced.
    """

    def loss(students):
        terms = objective(given | students, tau_s, tau_t, gate, **options)
        return terms["loss"], terms

    gradients, terms = jax.grad(loss, has_aux=True)(
        {name: given[name] for name in given if name.startswith("student_")}
    )
    return terms, gradients


def agree(got, want):
    (terms, gradients), (wanted, slopes) = got, want
    assert set(terms) == set(wanted)
    for name in wanted:
        close(terms[name], wanted[name])
    for name, slope in gradients.items():
        close(slope, slopes[name])


@pytest.mark.parametrize(
    ("batch", "chunk"), [(6, None), (6, 1), (6, 3), (5, 2)]
)  # 2 does not divide 5: one image at a time
def test_equals_the_reference(batch, chunk):
    given = inputs(batch=batch)
    agree(run(given, 0.1, 0.07, chunk=chunk), reference(given, 0.1, 0.07))


def test_images_and_objects_may_have_different_numbers_of_prototypes():
    given = inputs(16, image_width=P + 3)
    agree(run(given), reference(given))


@pytest.mark.parametrize(
    "options",
    [
        dict(gate=0.0),
        dict(gate=0.25),
        dict(weights=(0.5, 2.0, 3.0)),
        dict(weights=(1.0, 0.0, 1.0)),
        dict(counts="first"),
    ],
    ids=str,
)
def test_options_equal_the_reference(options):
    given = inputs(1)
    agree(run(given, **options), reference(given, **options))


@pytest.mark.parametrize("counts", ["own", "first"])
@pytest.mark.parametrize("closed", [(0, 0), (1, 0), (0, 1)])
def test_a_view_without_cycles_adds_nothing(counts, closed):
    """Z_i = 0: its half is 0. The official code then drops view 2 as well if it is Z_1 that
    is 0.
    """
    given = inputs(2)
    given["cycle"] &= np.array(closed, bool)[:, None, None]
    terms, gradients = got = run(given, counts=counts)
    agree(got, reference(given, counts=counts))
    gone = closed == (0, 0) or (counts == "first" and closed == (0, 1))
    assert (terms["cross_image_loss"] == 0) == gone
    without = run({name: x for name, x in given.items() if name not in ("neighbours", "cycle")})
    assert np.array_equal(gradients["student_objects"], without[1]["student_objects"]) == gone


def test_counts_differ_only_in_what_divides_view_2():
    given = inputs(3)
    given["valid"][:] = True
    given["cycle"][0], given["cycle"][1] = (
        np.arange(B * K).reshape(B, K) < 2,
        np.arange(B * K).reshape(B, K) < 6,
    )
    own, first = (run(given, counts=counts)[0]["cross_image_loss"] for counts in ("own", "first"))
    only = given | {"cycle": given["cycle"] & np.array([True, False])[:, None, None]}
    half = run(only)[0]["cross_image_loss"]
    close(first - half, 3 * (own - half))


def test_objects_that_do_not_exist_do_not_matter():
    given = inputs(4)
    base = run(given)
    gone = ~given["valid"]
    for name in ("student_objects", "teacher_objects", "neighbours"):
        given[name][:, gone] = np.nan
    given["neighbours"][~given["cycle"]] = np.inf
    given["cycle"][:, gone] = True
    terms, gradients = got = run(given)
    jax.tree.map(np.testing.assert_array_equal, got, base)
    assert gone.any() and not np.any(gradients["student_objects"][:, gone])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))


def test_no_object_at_all():
    """The terms are 0 and the images still learn."""
    given = inputs(5)
    given["valid"][:] = False
    terms, gradients = got = run(given)
    agree(got, reference(given))
    assert terms["cross_view_loss"] == terms["cross_image_loss"] == 0
    assert not np.any(gradients["student_objects"]) and np.any(gradients["student_images"])


def test_terms_that_are_not_asked_for_are_absent():
    given = inputs(6)
    images = {name: given[name] for name in ("student_images", "teacher_images", "image_center")}
    objects = {name: x for name, x in given.items() if name not in ("neighbours", "cycle")}
    whole, view, alone = (run(x)[0] for x in (given, objects, images))
    meters = {"image_teacher_entropy", "image_marginal_entropy", "image_usage"}
    assert set(alone) == {"loss", "global_loss", *meters}
    assert set(whole) - set(view) == {"cross_image_loss"}
    close(alone["loss"], whole["global_loss"])
    close(view["loss"], whole["global_loss"] + whole["cross_view_loss"])
    close(whole["loss"], view["loss"] + whole["cross_image_loss"])


def test_exchanging_the_views_changes_nothing():
    given = inputs(8)
    swapped = {name: x[::-1] if name not in (*CENTERS, "valid") else x for name, x in given.items()}
    (terms, gradients), (other, slopes) = run(given), run(swapped)
    for name in terms:
        close(other[name], terms[name])
    for name in gradients:
        close(slopes[name][::-1], gradients[name])


def test_neighbours_teach_the_other_view_only():
    """The object retrieved for view 1 supervises view 2 of the student, never its own view."""
    given = inputs(9)
    given["valid"][:], given["cycle"][0], given["cycle"][1] = True, True, False
    _, gradients = run(given, weights=(0.0, 0.0, 1.0))
    assert not np.any(gradients["student_objects"][0])
    assert np.all(np.any(gradients["student_objects"][1] != 0, axis=-1))


@pytest.mark.parametrize("chunk", [None, 1])
def test_embeddings_and_prototypes_give_what_logits_give(chunk):
    rng = np.random.default_rng(10)
    width = 5
    given = inputs(10, width=width) | {
        name: rng.normal(size=P).astype(np.float32) for name in CENTERS
    }
    student, teacher = (
        tuple(rng.normal(size=(width, P)).astype(np.float32) for _ in range(2)) for _ in range(2)
    )

    def level(name):
        return 0 if name.endswith("images") else 1

    logits = {
        name: (
            np.float64(x)
            @ np.float64((student if name.startswith("student") else teacher)[level(name)])
        )
        for name, x in given.items()
        if name.endswith(("images", "objects", "neighbours"))
    }
    want, slopes = reference(given | logits)
    terms, gradients = run(
        given | {"student_prototypes": student, "teacher_prototypes": teacher}, chunk=chunk
    )
    for name in want:
        close(terms[name], want[name])
    for name, i in (("student_images", 0), ("student_objects", 1)):
        close(gradients[name], slopes[name] @ student[i].T)
        by_prototype = np.einsum(
            "nd,np->dp", np.float64(given[name]).reshape(-1, width), slopes[name].reshape(-1, P)
        )
        if name == "student_objects":  # rows that do not exist have no slope
            assert not np.any(slopes[name][:, ~given["valid"]])
        close(gradients["student_prototypes"][i], by_prototype)


def test_only_the_student_has_a_gradient():
    """Of all terms, not of the loss alone; with prototypes, so that the teacher's are covered."""
    given = inputs(11, width=5) | {name: np.ones(P, np.float32) for name in CENTERS}
    prototypes = np.random.default_rng(11).normal(size=(4, 5, P)).astype(np.float32)
    arrays = {name: given.pop(name) for name in list(given) if given[name].dtype == np.float32}
    arrays |= {
        "student_prototypes": tuple(prototypes[:2]),
        "teacher_prototypes": tuple(prototypes[2:]),
    }

    def total(arrays):
        terms = objective(arrays | given)
        return sum((value**2).sum() for value in terms.values())

    for name, gradient in jax.jit(jax.grad(total))(arrays).items():
        assert all(np.any(x) for x in jax.tree.leaves(gradient)) == name.startswith("student"), name


def test_retrieved_objects_do_not_move_the_meters():
    given = inputs(13)
    base, _ = run(given)
    other, _ = run(given | {"neighbours": given["neighbours"] + 3 * given["teacher_objects"]})
    assert base["loss"] != other["loss"]
    for name in ("object_teacher_entropy", "object_marginal_entropy", "object_usage"):
        np.testing.assert_array_equal(other[name], base[name])


def test_meters_tell_both_kinds_of_collapse():
    given = {
        name: np.zeros_like(x) if x.dtype == np.float32 else np.ones_like(x)
        for name, x in inputs().items()
    }
    uniform, _ = run(given)
    one, _ = run(
        given
        | {
            name: given[name] + 10 * np.eye(P, dtype=np.float32)[2]
            for name in ("teacher_images", "teacher_objects")
        }
    )
    for level in ("image", "object"):
        close(uniform[f"{level}_teacher_entropy"], np.log(P))
        close(uniform[f"{level}_marginal_entropy"], np.log(P))
        close(one[f"{level}_marginal_entropy"], 0)
    each = np.broadcast_to(10 * np.eye(P, dtype=np.float32)[:4, None], (2, B, K, P))
    spread, _ = run(given | {"teacher_objects": each})
    close(spread["object_teacher_entropy"], 0)
    close(spread["object_marginal_entropy"], np.log(4))


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    chunk=st.sampled_from((None, 2)),
    kind=st.sampled_from(("random", "duplicates", "none valid", "no cycle")),
    seed=st.integers(0, 1000),
)
def test_finite_and_right_for_every_input(dtype, scale, chunk, kind, seed):
    given = inputs(seed, scale=scale)
    floats = [name for name in given if given[name].dtype == np.float32 and name not in CENTERS]
    if kind == "duplicates":
        for name in floats:
            given[name][:] = given[name][:1, :1]
    if kind in ("none valid", "no cycle"):
        given["valid" if kind == "none valid" else "cycle"][:] = False
    low = {name: jnp.asarray(given[name], dtype) for name in floats}
    terms, gradients = run(given | low, chunk=chunk)
    assert_finite(terms, gradients)
    assert all(x.dtype == jnp.float32 for x in terms.values()) and all(
        x.dtype == dtype for x in gradients.values()
    )
    want, slopes = reference(given | {name: np.asarray(x, np.float32) for name, x in low.items()})
    for name in want:  # logits of 1e5 have steps of 0.008
        close(terms[name], want[name], absolute=2e-5 if scale <= 1 else 8e-3)
    if scale <= 1:
        for name, slope in gradients.items():
            close(slope, slopes[name], relative=max(1e-5, float(jnp.finfo(dtype).eps)))


def test_smallest_batch():
    given = inputs(14, batch=1, objects=1)
    agree(run(given), reference(given))


def test_logits_of_all_objects_are_never_held():
    batch, objects, width, prototypes = 32, 8, 16, 2048
    shapes = dict(
        student_images=(2, batch, width),
        student_objects=(2, batch, objects, width),
        image_center=(prototypes,),
    )
    shapes |= dict(teacher_images=shapes["student_images"], object_center=shapes["image_center"])
    shapes |= dict.fromkeys(("teacher_objects", "neighbours"), shapes["student_objects"])
    given = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    given |= {
        "valid": jax.ShapeDtypeStruct((batch, objects), bool),
        "cycle": jax.ShapeDtypeStruct((2, batch, objects), bool),
    }
    pair = (jax.ShapeDtypeStruct((width, prototypes), jnp.float32),) * 2
    given |= {"student_prototypes": pair, "teacher_prototypes": pair}
    logits = 4 * batch * objects * prototypes  # bytes, of one view
    held = {
        chunk: run.lower(given, chunk=chunk).compile().memory_analysis().temp_size_in_bytes
        for chunk in (1, batch)
    }
    assert held[1] < 0.6 * logits < 2 * logits < held[batch], (held, logits)


def test_sharded_batch_agrees_with_a_single_device():
    """In chunks too, which are cut so that no image leaves its device."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    given = inputs(15, batch=16)
    axes = {
        name: () if name in CENTERS else ("data",) if name == "valid" else (None, "data")
        for name in given
    }
    placed = {
        name: jax.device_put(x, jax.NamedSharding(mesh, jax.P(*axes[name])))
        for name, x in given.items()
    }
    compiled = run.lower(placed, chunk=8).compile()
    assert not re.search("all-gather|all-to-all|collective-permute", compiled.as_text())
    got, want = compiled(placed), run(given)
    np.testing.assert_allclose(got[0]["loss"], want[0]["loss"], rtol=1e-6)
    jax.tree.map(close, got, want)


def unused(*arrays):
    raise AssertionError("arguments are checked first")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(student=jnp.ones((3, B, K, P))),
            r"shape of student is \(3, 4, 3, 6\); it must be \[2, B, K, e\]",
        ),
        (
            dict(teacher=jnp.ones((2, B, K, 5))),
            r"shape of teacher is \(2, 4, 3, 5\); it must be \(2, 4, 3, 6\) as student",
        ),
        (dict(neighbours=jnp.ones((2, B, 2, P))), "shape of neighbours"),
        (dict(cycle=None), r"shape of cycle is \(\)"),
        (dict(neighbours=None), "cycle is an array; it must be None without neighbours"),
        (dict(valid=jnp.ones((B, K))), "type of valid is float32; it must be bool"),
        (dict(valid=jnp.ones((B, 2), bool)), r"shape of valid is \(4, 2\); it must be \(4, 3\)"),
        (dict(cycle=jnp.ones((B, K), bool)), r"shape of cycle is \(4, 3\); it must be \(2, 4, 3\)"),
        (dict(counts="both"), "counts is 'both'"),
        (dict(chunk=0), "chunk is 0"),
    ],
)
def test_errors_of_objects(change, message):
    given = inputs()
    arrays = {name: given[f"{name}_objects"] for name in ("student", "teacher")}
    arrays |= {name: given[name] for name in ("valid", "neighbours", "cycle")}
    with pytest.raises(ValueError, match=message):
        cribo_objects(**arrays | change, log_target=unused, log_prediction=unused)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(student=jnp.ones((3, B, P))),
            r"shape of student is \(3, 4, 6\); it must be \[2, B, e\]",
        ),
        (
            dict(teacher=jnp.ones((2, B, 5))),
            r"shape of teacher is \(2, 4, 5\); it must be \(2, 4, 6\) as student",
        ),
        (dict(student=jnp.ones((2, 0, P)), teacher=jnp.ones((2, 0, P))), "without an empty axis"),
        (dict(chunk=0), "chunk is 0"),
    ],
)
def test_errors_of_images(change, message):
    given = inputs()
    arrays = {name: given[f"{name}_images"] for name in ("student", "teacher")}
    with pytest.raises(ValueError, match=message):
        cribo_images(**arrays | change, log_target=unused, log_prediction=unused)
