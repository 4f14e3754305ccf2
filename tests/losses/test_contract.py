"""What every loss keeps: its float64 reference in value and gradient, finite numbers, constant
teachers, the same numbers on several devices, small arrays, and errors that name the argument.
"""

import importlib
import inspect
import math
import pkgutil

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses
from ssl_jax.ops import devices
from tests.losses import cases
from tests.losses.cases import CASES
from tests.losses.reference import close


@pytest.fixture(autouse=True)
def strict():
    """As in a program that lets JAX mix neither ranks nor types."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


# Public functions that are not objectives, or parts of those above -> where they are tested.
ELSEWHERE = {
    "Tokens": "stellar",
    "across_views": "dino, which recomputes, and sop, which keeps",
    "masked_patches": "ibot_patch, which recomputes, and sop_patch, which keeps",
    "assignment_meters": "dino",
    "balanced_targets": "stellar",
    "balanced_tokens": "stellar",
    "class_tokens": "stellar",
    "reconstruction": "stellar",
    "match_meters": "test_stellar.py",
    "softmax_cross_entropy": "dino",
    "usage": "dino",
    "wins": "dino",
    "counts": "dino",
    "corners": "test_detection.py",
    "centers": "test_detection.py",
    "iou": "test_detection.py",
    "generalized_iou": "test_detection.py",
}


def test_every_loss_has_a_case():
    modules = [info.name for info in pkgutil.iter_modules(losses.__path__, "ssl_jax.losses.")]
    public = set(losses.__all__)
    for module in map(importlib.import_module, modules):
        public |= {
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
            if not name.startswith("_")
        }
    assert public == CASES.keys() | ELSEWHERE.keys()


VARIANTS = [(name, variant) for name, case in CASES.items() for variant in case.variants]


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=map("-".join, VARIANTS))
def test_equals_the_reference(name, variant):
    equals_the_reference(name, *CASES[name].variants[variant])


@pytest.mark.parametrize(
    ("name", "sizes", "settings", "numbers"),
    [
        ("dino", {}, {}, 2**27),
        ("ibot_patch", {}, {}, 1),  # two views without a loop
        ("ibot_patch", {"views": 3}, {}, 1),  # a pair, and one more
        ("sop", {"slots": 4}, {}, 2**27),
        ("sop", {"slots": 4}, {}, 2 * 3 * 5),  # two views of four, and two slots
        ("cribo_objects", {"batch": 6}, {"chunk": 1}, 1),  # keeps sums
    ],
)
def test_equals_the_reference_as_a_gpu_computes_it(monkeypatch, name, sizes, settings, numbers):
    monkeypatch.setattr(devices, "platform", lambda: "gpu")
    monkeypatch.setattr(devices, "knows_bfloat16", lambda: False)  # else products are rounded
    monkeypatch.setattr(devices, "_AT_ONCE", numbers)
    monkeypatch.setattr(cases, "compiled", cases.compiled.__wrapped__)  # a program of its own
    equals_the_reference(name, sizes, settings)


def equals_the_reference(name, sizes, settings):
    arrays = cases.make(name, **sizes)
    terms, gradients = cases.run(name, arrays, **settings)
    want, slopes = cases.wanted(name, arrays, **settings)
    assert set(terms) == set(want)
    for term, value in want.items():
        close(terms[term], value)
    for key, slope in (slopes() if callable(slopes) else slopes).items():
        # KoLeo of few tokens bends much.
        close(gradients[key], slope, relative=2e-5 if key == "tokens" else 1e-5)
    assert {leaf.dtype for leaf in jax.tree.leaves((terms, gradients))} == {jnp.dtype("float32")}


SCALES = (0.0, 1e-4, 1.0, 1e4)
KINDS = ("random", "duplicates", "empty")


def corners(test):
    """The test with an example of every scale and kind, whatever else is drawn."""
    for scale in SCALES:
        for kind in KINDS:
            test = hypothesis.example(scale=scale, kind=kind, seed=0)(test)
    return test


def inputs():
    for name, case in CASES.items():
        yield name, "float32"
        low = {key for key, x in cases.make(name).items() if cases.is_float(x)} > {*case.wide}
        for dtype in ("bfloat16", "float16") if low else ():
            yield pytest.param(name, dtype, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "dtype"), list(inputs()))
@corners
@hypothesis.given(
    scale=st.sampled_from(SCALES), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000)
)
def test_finite_and_right_for_every_input(name, dtype, scale, kind, seed):
    case = CASES[name]
    sizes, settings = next(iter(case.variants.values()))
    arrays = cases.make(name, seed, scale, **sizes)
    floats = [key for key, x in arrays.items() if cases.is_float(x) and key not in case.wide]
    if kind == "duplicates":
        for key in floats:
            first = (slice(0, 1),) * (arrays[key].ndim - 1)
            arrays[key] = np.broadcast_to(arrays[key][first], arrays[key].shape).copy()
    if kind == "empty" and case.empty:
        arrays = case.empty(arrays)
    low = arrays | {key: jnp.asarray(arrays[key], dtype) for key in floats}
    if "teacher_temperature" in case.settings:
        settings = settings | {"teacher_temperature": (0.02, 0.07)[seed % 2]}
    terms, gradients = cases.run(name, low, **settings)
    chex.assert_tree_all_finite((terms, gradients))
    assert all(value.dtype == jnp.float32 for value in terms.values())
    assert all(gradients[key].dtype == low[key].dtype for key in gradients)
    absolute = case.values[scale > 1]
    if absolute is None or (
        name == "flsl" and not scale
    ):  # no direction: the reference divides by 0
        return
    want, slopes = cases.wanted(name, low, **settings)
    # Scores of 4e4 / 0.02 have steps of 0.125, which decide a target that is not clearly one-hot.
    entropies = [value for term, value in want.items() if term.endswith("teacher_entropy")]
    if scale > 1 and max(entropies, default=0) > 1e-6:
        return
    for term, value in want.items():
        if term.endswith("usage"):
            continue  # it counts winners: rounding decides between drawn values that nearly tie
        exact = term == "loss" and name in ("dino", "ibot")
        allowed = min(absolute, 1e-5) if exact else absolute
        close(terms[term], value, case.relative, allowed)
    if scale <= 1 and not callable(slopes):
        for key, slope in slopes.items():
            close(gradients[key], slope, max(case.relative, float(jnp.finfo(dtype).eps)))


@pytest.mark.parametrize("name", CASES)
def test_only_the_student_has_a_gradient(name):
    """Of all terms, not of the loss alone."""
    case = CASES[name]
    sizes, settings = next(iter(case.variants.values()))
    if "prototypes" in case.variants:
        sizes = sizes | case.variants["prototypes"][0]
    arrays = cases.make(name, **sizes)
    floats = {key: x for key, x in arrays.items() if cases.is_float(x)}

    def total(floats):
        terms = case.loss(**arrays | floats, **case.settings | settings)
        return sum((value**2).sum() for value in terms.values())

    for key, gradient in jax.jit(jax.grad(total))(floats).items():
        if key not in case.free:
            assert np.any(gradient) == (key in case.student), key


MASKED = {  # loss: what the student says of every patch, and the masks
    "ibot_patch": ("student_logits", "masks"),
    "ibot_patch_fused": ("student", "masks"),
    "mae": ("predicted", "mask"),
    "sop_patch": ("student_embeddings", "masks"),
}


@pytest.mark.parametrize("name", MASKED)
def test_only_masked_patches_matter(name):
    """Even where the student is NaN."""
    key, masks = MASKED[name]
    arrays = cases.make(name, 2)
    there = arrays[masks]
    hidden = np.where(there[..., None], arrays[key], np.float32(np.nan))
    (terms, gradients), (same, again) = (
        cases.run(name, x) for x in (arrays, arrays | {key: hidden})
    )
    assert all(same[term] == terms[term] for term in ("loss", "kl") if term in terms)
    np.testing.assert_array_equal(again[key], gradients[key])
    gradient = np.asarray(gradients[key])
    assert not np.any(gradient[~there]) and np.all(np.any(gradient[there], axis=-1))


TELLING = ("dino", "cribo_objects", "flsl", "stellar", "sop")  # the default run keeps these


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in TELLING)) for x in CASES]
)
def test_sharded_images_give_what_one_device_gives(name):
    case = CASES[name]
    sizes, settings = next(iter(case.variants.values()))
    size = {"lead": (16, 3)} if name == "flsl" else {"batch": 16}
    arrays = cases.make(name, 15, **sizes | size)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    traced, static = cases.split(case.settings | settings)
    placed = over(mesh, case, arrays)
    student = {key: x for key, x in placed.items() if key in case.student}
    program = cases.compiled(name, static).lower(student, placed, traced).compile()
    moves = ("all-gather", "all-to-all", "collective-permute")
    assert case.gathers or not any(move in program.as_text() for move in moves)
    got, want = program(student, placed, traced), cases.run(name, arrays, **settings)
    jax.tree.map(close, got, want)
    if "loss" in want[0]:
        np.testing.assert_allclose(got[0]["loss"], want[0]["loss"], rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_explicit_axes(name):
    """What JAX's default mesh asks for, in the gradient too."""
    case, explicit = CASES[name], jax.make_mesh((8,), ("data",))
    sizes, settings = next(iter(case.variants.values()))
    arrays = cases.make(name, **sizes | ({"lead": (8, 3)} if name == "flsl" else {"batch": 8}))

    traced, static = cases.split(case.settings | settings)
    placed = over(explicit, case, arrays)
    student = {key: x for key, x in placed.items() if key in case.student}
    with jax.set_mesh(explicit):
        terms, _ = cases.compiled(name, static).trace(student, placed, traced).out_info
    assert "loss" not in terms or terms["loss"].sharding.spec == jax.P()


def over(mesh, case, arrays):
    """The arrays of a loss, their images sharded over a mesh."""

    def place(key, x):
        spec = [None] * case.axes[key] + ["data"] if key in case.axes else []
        return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))

    return {key: place(key, x) for key, x in arrays.items()}


def shapes_of(jaxpr):
    """(shape, type) of every array that a program makes, those of its loops included."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.shape, variable.aval.dtype
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from shapes_of(inner)


# fmt: off
HELD = {  # loss: arrays, settings, the most numbers in an array beside those given and returned
    "dino": (
        dict(student_logits=(12, 16, 2048), teacher_logits=(2, 16, 2048), center=(2048,)),
        cases.TAUS, 2 * 16 * 2048),
    "ibot_patch": (
        dict(student_logits=(12, 4, 8, 1024), teacher_logits=(12, 4, 8, 1024), masks=(12, 4, 8),
             center=(1024,)),
        cases.TAUS, 4 * 8 * 1024),
    "ibot_patch_fused": (
        dict(student=(2, 4, 8, 16), teacher=(2, 4, 8, 16), masks=(2, 4, 8), center=(2048,),
             student_prototypes=(16, 2048), teacher_prototypes=(16, 2048)),
        cases.TAUS | {"chunk": 16}, 16 * 2048),
    "cribo_objects": (
        dict.fromkeys(("student", "teacher", "neighbours"), (2, 32, 8, 16))
        | dict.fromkeys(("student_prototypes", "teacher_prototypes"), (16, 2048))
        | dict(center=(2048,), valid=(32, 8), cycle=(2, 32, 8)),
        CASES["cribo_objects"].settings | {"chunk": 1}, 2 * 8 * 2048),
    "gram": (
        dict.fromkeys(("student", "teacher"), (8, 2, 64, 16)), {"over": "batch"}, 8 * 2 * 64 * 16),
    "sop": (
        dict(student_embeddings=(8, 64, 16), teacher_embeddings=(2, 64, 16),
             members=(4, 512, 2, 16), weights=(4, 512, 2)),
        cases.TAUS, 2 * 64 * 512),
    "stellar": (
        dict(token_logits=(4, 8, 16), masked_token_logits=(4, 12, 8, 16),
             token_prototypes=(2048, 16), matches=(4, 12, 8)),
        cases.HEAT | {"weights": None}, 2 * 4 * 8 * 2048),
}
# fmt: on
PUBLISHED_SOPS = dict(
    student_embeddings=(2, 64, 256),
    teacher_embeddings=(2, 64, 256),
    members=(1, 4096, 9, 256),
    weights=(1, 4096, 9),
)


@pytest.mark.parametrize(
    ("name", "shapes", "settings", "most"),
    [(name, *held) for name, held in HELD.items()]
    + [("sop", PUBLISHED_SOPS, cases.TAUS, 4096 * 9 * 256)],  # the members themselves
)
def test_what_is_never_held(name, shapes, settings, most):
    """The predictions of all views, images and tasks at once: in the gradient too. Inputs of
    bfloat16 tell what is computed, in float32, from what is given and returned.
    """
    types = dict.fromkeys(("masks", "valid", "cycle"), bool) | {"matches": jnp.int32}
    arrays = {
        key: jax.ShapeDtypeStruct(shape, types.get(key, jnp.bfloat16))
        for key, shape in shapes.items()
    }
    student = {key: x for key, x in arrays.items() if key in CASES[name].student}

    def total(student, arrays):
        return CASES[name].loss(**arrays | student, **settings)["loss"]

    program = jax.make_jaxpr(jax.grad(total))(student, arrays)
    held = {math.prod(shape) for shape, dtype in shapes_of(program.jaxpr) if dtype == jnp.float32}
    assert 0 < max(held) <= most


def cut(axis, size):
    return lambda x: x[(slice(None),) * axis + (slice(0, size),)]


def first(x):
    return x[0]


REAL = float  # an array of this type instead
WRONG = [  # loss, what is wrong, the argument that the error names
    ("dino", {"student_logits": first}, "student_logits"),
    ("dino", {"center": cut(0, 6)}, "center"),
    ("dino", {"student_logits": cut(0, 1), "teacher_logits": cut(0, 1)}, "views"),
    ("dino", {"student_logits": cut(0, 1)}, "views"),
    ("dino", {"student_temperature": 0}, "student_temperature"),
    ("dino", {"teacher_temperature": math.nan}, "teacher_temperature"),
    ("ibot_patch", {"teacher_logits": cut(3, 6)}, "teacher_logits"),
    ("ibot_patch", {"masks": cut(2, 4)}, "masks"),
    ("ibot_patch", {"masks": REAL}, "masks"),
    ("ibot_patch_fused", {"teacher": cut(2, 4)}, "teacher"),
    ("ibot_patch_fused", {"student_prototypes": cut(0, 5)}, "student_prototypes"),
    ("ibot_patch_fused", {"center": cut(0, 6)}, "center"),
    ("ibot_patch_fused", {"chunk": 0}, "chunk"),
    ("ibot", {"student_patch": cut(1, 2)}, "student_patch"),
    ("dinov2", {"teacher_patch": cut(2, 4)}, "teacher_patch"),
    ("dinov2", {"masks": REAL}, "masks"),
    ("dinov2", {"tokens": cut(0, 1)}, "tokens"),
    ("dinov2", {"teacher_temperature": 0}, "teacher_temperature"),
    ("cribo_images", {"student": lambda x: np.concatenate([x, x])}, "student"),
    ("cribo_images", {"teacher": cut(2, 5)}, "teacher"),
    ("cribo_objects", {"student": lambda x: np.concatenate([x, x])}, "student"),
    ("cribo_objects", {"teacher": cut(3, 5)}, "teacher"),
    ("cribo_objects", {"neighbours": cut(2, 2)}, "neighbours"),
    ("cribo_objects", {"neighbours": None}, "cycle"),
    ("cribo_objects", {"cycle": None}, "cycle"),
    ("cribo_objects", {"cycle": first}, "cycle"),
    ("cribo_objects", {"valid": REAL}, "valid"),
    ("cribo_objects", {"counts": "both"}, "counts"),
    ("cribo_objects", {"chunk": 0}, "chunk"),
    ("flsl", dict.fromkeys(("tokens", "modes", "student_logits", "log_targets"), cut(0, 0)),
     "tokens"),
    ("flsl", {"log_targets": cut(2, 4)}, "log_targets"),
    ("flsl", {"weights": (-1, 1.0, 5.0)}, "weights"),
    ("flsl", {"weights": (0.0, -0.1, 5.0)}, "weights"),
    ("flsl", {"weights": (0.0, 1.0, math.nan)}, "weights"),
    ("flsl", {"weights": (0.0, 1.0)}, "weights"),
    ("flsl", {"student_temperature": 0}, "student_temperature"),
    ("flsl", {"prior": np.array([0.5, 0.5, 0, 0, 0])}, "prior"),
    ("batch_softmax", {"temperature": 0}, "temperature"),
    ("gram", {"teacher": cut(2, 3)}, "teacher"),
    ("gram", {"over": "view"}, "over"),
    ("gram", {"negatives": "cut"}, "negatives"),
    ("mae", {"pixels": cut(2, 9)}, "pixels"),
    ("mae", {"mask": cut(1, 5)}, "mask"),
    ("mae", {"eps": 0}, "eps"),
    ("normalize_patches", {"pixels": cut(2, 1)}, "patch"),
    ("sop", {"student_embeddings": first}, "student_embeddings"),
    ("sop", {"student_embeddings": cut(0, 1)}, "views"),
    ("sop", {"teacher_embeddings": lambda x: np.concatenate([x, x])}, "views"),
    ("sop", {"members": cut(3, 4)}, "members"),
    ("sop", {"student_temperature": -1}, "student_temperature"),
    ("sop", {"teacher_temperature": -1}, "teacher_temperature"),
    ("sop_patch", {"masks": cut(2, 3)}, "masks"),
    ("sop_patch", {"masks": REAL}, "masks"),
    ("stellar", dict.fromkeys(cases.make("stellar", parts=("teacher", "embeddings"))), "input"),
    ("stellar", {"matches": None}, "matches"),
    ("stellar", {"token_matches": None}, "token_matches"),
    ("stellar", {"token_logits": None, "teacher_token_logits": None}, "token"),
    ("stellar", {"target": None}, "target"),
    ("stellar", {"token_prototypes": cut(0, 6)}, "token_logits"),
    ("stellar", {"token_prototypes": cut(1, 4)}, "token_logits"),
    ("stellar", {"masked_token_logits": cut(0, 1)}, "align token logits"),
    ("stellar", {"matches": cut(2, 1)}, "matches"),
    ("stellar", {"target": lambda x: x[:, :2, 0].astype(int)}, "target"),
    ("stellar", {"student_temperature": 0}, "student_temperature"),
    ("stellar", {"teacher_temperature": 0}, "teacher_temperature"),
    ("stellar", {"weights": {"kole": 1.0}}, "weights"),
    ("matching_costs", {"targets": cut(1, 2)}, "targets"),
    ("detr", {"matched": cut(1, 2)}, "matched"),
    ("pixel_cross_entropy", {"average": "some"}, "average"),
    ("pixel_cross_entropy", {"labels": cut(1, 2)}, "labels"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "argument"), WRONG)
def test_errors_name_the_argument(name, change, argument):
    case = CASES[name]
    sizes, settings = next(iter(case.variants.values()))
    arrays, settings = cases.make(name, **sizes), case.settings | settings
    for key, value in change.items():
        if key not in arrays:
            (arrays if isinstance(value, np.ndarray) else settings)[key] = value
        elif value in (int, float):
            arrays[key] = arrays[key].astype(value)
        elif value is None:
            del arrays[key]
        else:
            arrays[key] = value(arrays[key])
    with pytest.raises(ValueError, match=rf"\b{argument}\b"):
        case.loss(**arrays, **settings)
