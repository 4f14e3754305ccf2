"""What is taken, what is left, what is refused, and what the report tells of it."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.convert import fill
from ssl_jax.models import position, vit
from tests.convert import published
from tests.convert.published import Numbers

MODEL = {"gelu": "erf", "position_resize": "exact", "resize_kernel": "keys-0.75"}


def tree(**changes):
    """{"backbone": a tiny encoder, "head": one layer} of random numbers."""
    c = dict(width=8, depth=2, heads=2, patch=2, image_size=8, mlp_ratio=2.0) | changes
    shapes = jax.eval_shape(vit.vit(vit.ViTConfig(**c)).init, jax.random.key(0))
    numbers = Numbers(0)
    return {
        "backbone": jax.tree.map(lambda s: numbers(*s.shape), shapes),
        "head": {"last": {"kernel": numbers(8, 5)}},
    }


def found(params, left=(), model=None, **changes) -> fill.Weights:
    """Weights that hold `params` + 1, under the names "their.PATH"; changes: other arrays by path
    (None: absent).
    """
    arrays = {path: array + 1 for path, array in trees.per_block(params).items()} | changes
    arrays = {path: array for path, array in arrays.items() if array is not None}
    names = {path: f"their.{path}" for path in arrays}
    return fill.Weights(
        "x.pth", "Theirs", arrays, names, tuple(left), MODEL if model is None else model
    )


# --- taken


@pytest.mark.parametrize("numpy", [np, jnp])
def test_everything_fits(numpy):
    """Arrays on a device stay there; the parameters that were given are not changed."""
    params = tree()
    before = jax.tree.map(np.copy, params)
    weights = found(params)
    arrays = {path: numpy.asarray(array) for path, array in weights.arrays.items()}
    new, report = fill.fill(params, weights._replace(arrays=arrays), model=MODEL)
    chex.assert_trees_all_equal(new, jax.tree.map(lambda x: x + 1, before))
    chex.assert_trees_all_equal(params, before)
    kind = jax.Array if numpy is jnp else np.ndarray
    assert all(isinstance(leaf, kind) for leaf in jax.tree.leaves(new))
    assert set(report.matched) == set(trees.shapes(params))
    assert not report.left and not report.missing and not report.notes


def test_what_is_missing_stays_and_what_has_no_place_is_listed():
    params = tree(mask_token=True)
    new, report = fill.fill(params, found(tree(queries=3), left=("optimizer.x",)))
    assert new["backbone"]["mask_token"] is params["backbone"]["mask_token"]
    assert report.missing == ("backbone/mask_token",)
    assert report.left == ("their.backbone/queries", "optimizer.x")
    assert all(name in str(report) for name in (*report.missing, *report.left))


def test_only():
    params = tree()
    weights = found(params, **{"head/last/kernel": np.zeros((9, 9))})
    new, report = fill.fill(params, weights, only="backbone")
    assert new["head"] == params["head"] and not report.missing
    assert report.left == ("their.head/last/kernel",)
    new, report = fill.fill(params, found(params), only="backbone/norm")
    assert set(report.matched) == {"backbone/norm/scale", "backbone/norm/bias"}


# --- heads and decoders: whole or not at all


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"head/mask_token": np.ones((1, 8))}),
        ({}, {"head/last/bias": np.ones((1, 8))}),
        ({"bias": np.ones(5)}, {"head/last/bias": None}),
        ({}, {"head/last/kernel": None}),  # no head at all: no note
    ],
)
def test_a_head_with_other_layers_is_left(ours, theirs):
    params = tree()
    params["head"]["last"] |= ours
    new, report = fill.fill(params, found(params, **theirs))
    assert new["head"] == params["head"]
    assert set(report.missing) == {f"head/last/{name}" for name in ("kernel", *ours)}
    (path, array), *_ = theirs.items()
    assert len(report.notes) == (path != "head/last/kernel")
    there = {} if path == "head/last/kernel" else {"head/last/kernel"}
    assert set(report.left) == {f"their.{p}" for p in {*there, *([path] * (array is not None))}}


def test_constants_are_taken_one_by_one():
    params = tree() | {"constants": {"fourier": np.ones((2, 4)), "other": np.zeros(3)}}
    weights = found(params, **{"constants/other": None, "constants/mark": np.ones(())})
    new, report = fill.fill(params, weights)
    np.testing.assert_array_equal(new["constants"]["fourier"], 2)
    assert report.missing == ("constants/other",) and report.left == ("their.constants/mark",)


def test_one_bias_per_channel_serves_all_pixels():
    params = tree() | {"decoder": {"out": {"bias": np.zeros(12, np.float32)}}}
    bias = np.array([1.0, 2.0, 3.0], np.float32)
    new, _ = fill.fill(params, found(params, **{"decoder/out/bias": bias}))
    np.testing.assert_array_equal(new["decoder"]["out"]["bias"], [1, 2, 3] * 4)


# --- position codes


@pytest.mark.parametrize("rule", position.RULES)
@pytest.mark.parametrize("image_size", [4, 12])
def test_position_codes_of_another_grid_are_resized_by_their_rule(rule, image_size):
    weights = found(tree(), model=MODEL | {"position_resize": rule})
    new, report = fill.fill(tree(image_size=image_size), weights)
    codes, side = weights.arrays["backbone/position"], image_size // 2
    np.testing.assert_array_equal(new["backbone"]["position"][:1], codes[:1])
    wanted = published.resized(codes[1:], side, side, offset=0.1 if rule == "dino_offset" else 0.0)
    np.testing.assert_allclose(new["backbone"]["position"][1:], wanted, atol=1e-5)
    (note,) = report.notes
    assert rule in note and f"{side} x {side}" in note


def test_position_codes_of_timm_are_resized_with_its_kernel():
    weights = found(tree(), model=MODEL | {"resize_kernel": "antialias-0.5"})
    new, _ = fill.fill(tree(image_size=4), weights)
    matrix = position.resize_matrix(4, 2, kernel="antialias-0.5")
    codes = weights.arrays["backbone/position"][1:].reshape(4, 4, 8)
    wanted = np.einsum("hr,wc,rcd->hwd", matrix, matrix, codes).reshape(4, 8)
    np.testing.assert_allclose(new["backbone"]["position"][1:], wanted, atol=1e-5)


def test_a_class_token_on_one_side_only():
    with_cls, without = tree(), tree(cls=False)
    new, report = fill.fill(without, found(with_cls))
    codes = with_cls["backbone"]["position"][1:] + 1
    np.testing.assert_array_equal(new["backbone"]["position"], codes)
    assert report.left == ("their.backbone/cls",)
    new, report = fill.fill(with_cls, found(without))
    codes = np.pad(without["backbone"]["position"] + 1, ((1, 0), (0, 0)))  # zeros for the token
    np.testing.assert_array_equal(new["backbone"]["position"], codes)
    assert report.missing == ("backbone/cls",) and len(report.notes) == 1


GRIDS = {0: (0, None), 1: (0, 1), 2: (1, 1), 4: (0, 2), 5: (1, 2), 196: (0, 14), 197: (1, 14)}


@pytest.mark.parametrize(("count", "wanted"), [*GRIDS.items(), (198, (0, None))])
def test_grid_of(count, wanted):
    assert fill.grid_of(count) == wanted


FIXED = np.pad(position.sincos_2d(4, 8), ((1, 0), (0, 0))).astype(np.float32)


def test_fixed_codes_are_recognised():
    params = tree(position="sincos")
    assert not fill.fill(params, found(params, **{"backbone/position": FIXED}))[1].left
    other = found(params, **{"backbone/position": FIXED + 1})
    report = fill.fill(params, other, only="head")[1]
    assert "their.backbone/position" in report.left  # nobody asks for them


# --- refused

SHAPES = {  # path of the parameter, their shape, the key that the message names
    "backbone/patch/kernel": ((27, 8), "model.patch"),
    "backbone/position": ((17, 16), "model.size"),
    "backbone/queries": ((4, 8), "model.queries"),
    "backbone/blocks/1/mlp/fc1/kernel": ((8, 24), "model.mlp_ratio"),
    "backbone/blocks/0/attn/qkv/bias": ((48,), "model.size"),
    "head/last/kernel": ((8, 7), "init_only"),
}


@pytest.mark.parametrize(("path", "shape", "named"), [(p, *case) for p, case in SHAPES.items()])
def test_a_wrong_shape_names_the_tensor_both_shapes_and_the_likely_cause(path, shape, named):
    params = tree(queries=3)
    with pytest.raises(InputError, match=re.escape(f"their.{path} would give {path}")) as error:
        fill.fill(params, found(params, **{path: np.ones(shape)}))
    for text in (shape, trees.shapes(params)[path].shape, named):
        assert str(text) in str(error.value)


def test_codes_that_are_no_square_grid():
    params = tree()
    for ours, theirs in ((17, 18), (7, 17)):
        params["backbone"]["position"] = np.ones((ours, 8), np.float32)
        with pytest.raises(InputError, match="backbone/position") as error:
            fill.fill(params, found(params, **{"backbone/position": np.ones((theirs, 8))}))
        assert str((ours, 8)) in str(error.value) and str((theirs, 8)) in str(error.value)


@pytest.mark.parametrize("wrong", [FIXED + 0.01, FIXED[::-1], np.ones((18, 8))])
def test_other_codes_where_they_are_fixed(wrong):
    params = tree(position="sincos")
    with pytest.raises(InputError, match="their.backbone/position.*model.position"):
        fill.fill(params, found(params, **{"backbone/position": wrong}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite(value):
    params = tree()
    scale = np.full(8, value, np.float32)
    with pytest.raises(InputError, match="their.backbone/norm/scale"):
        fill.fill(params, found(params, **{"backbone/norm/scale": scale}))


@pytest.mark.parametrize(("theirs", "ours"), [(1, 2), (2, 1), (2, 3)])
def test_another_number_of_blocks(theirs, ours):
    with pytest.raises(InputError, match=f"{theirs} .*blocks.* {ours}"):
        fill.fill(tree(depth=ours), found(tree(depth=theirs)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("gelu", "tanh"), ("position_resize", "dino_offset"), ("resize_kernel", "antialias-0.5")],
)
def test_a_model_that_would_compute_something_else(key, value):
    params, other = tree(), MODEL | {key: value}
    with pytest.raises(InputError, match=rf"--config\.model\.{key}={MODEL[key]}"):
        fill.fill(params, found(params), model=other)
    fill.fill(params, found(params), model=other, only="head")  # no encoder is taken
    fill.fill(params, found(params, model={}), model=other)


def test_nothing_matches():
    strange = fill.Weights("x.pth", "Theirs", {"a/b": np.ones(2)}, {"a/b": "a.b"}, ("c",), {})
    head = found(tree())
    head = head._replace(
        arrays={"head/last/kernel": np.ones((8, 5))}, names={"head/last/kernel": "h"}
    )
    for weights, only, named in (
        (strange, "", r"x\.pth.*a\.b"),
        (head, "backbone", "backbone"),
        (found(tree()), "back", "init_only.*backbone"),
    ):
        with pytest.raises(InputError, match=named):
            fill.fill(tree(), weights, only=only)


# --- the report


def test_brief():
    assert fill.brief(["a/0/x", "a/1/x", "b"]) == "a/*/x x 2, b"
    assert fill.brief(["a.0.x", "a.10.x", "conv1.w"]) == "a.*.x x 2, conv1.w"
    assert fill.brief(list("abcde"), most=3) == "a, b, c and 2 more"
    assert fill.brief(list("abc"), most=3) == "a, b, c" and fill.brief([]) == ""


def test_the_report_is_short_for_a_large_network():
    params = tree(depth=24)
    biases = {path: None for path in trees.shapes(params) if path.endswith("/bias")}
    report = fill.fill(params, found(params, **biases))[1]
    assert len(str(report)) < 600 and "backbone/blocks/*/attn/qkv/bias x 24" in str(report)
