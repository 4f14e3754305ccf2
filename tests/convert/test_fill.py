"""What is taken, what is left and what is refused."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.convert import fill
from ssl_jax.convert.weights import Weights
from ssl_jax.models import position, vit
from tests.convert import published
from tests.convert.published import Numbers

MODEL = {"stem": "linear", "gelu": "erf", "position_resize": "exact", "resize_kernel": "keys-0.75"}


def tree(**changes):
    """{"backbone": a tiny encoder, "head": one layer} of random numbers."""
    c = dict(width=8, depth=2, heads=2, patch=2, image_size=8, mlp_ratio=2.0) | changes
    shapes = jax.eval_shape(vit.vit(vit.ViTConfig(**c)).init, jax.random.key(0))
    numbers = Numbers(0)
    return {
        "backbone": jax.tree.map(lambda s: numbers(*s.shape), shapes),
        "head": {"last": {"kernel": numbers(8, 5)}},
    }


def found(params, left=(), model=None, **changes) -> Weights:
    """Weights that hold `params` + 1, under the names "their.PATH"; changes: other arrays by path
    (None: absent).
    """
    arrays = {path: array + 1 for path, array in trees.per_block(params).items()} | changes
    arrays = {path: array for path, array in arrays.items() if array is not None}
    names = {path: f"their.{path}" for path in arrays}
    return Weights("x.pth", "Theirs", arrays, names, tuple(left), MODEL if model is None else model)


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


def test_settings_that_a_file_leaves_open_are_noted():
    params = tree()
    weights = found(params)._replace(norm_eps=1e-5)
    open_settings = MODEL | {"heads": 2, "norm_eps": 1e-6}
    for model, known, count in (
        (open_settings, {}, 2),
        (open_settings | {"norm_eps": 1e-5}, {}, 1),
        (open_settings | {"norm_eps": 1e-5}, {"heads": 2}, 0),
    ):
        one = weights._replace(model=MODEL | known)
        assert len(fill.fill(params, one, model=model)[1].notes) == count


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


# --- position embeddings


@pytest.mark.parametrize("rule", [*position.RULES, "antialias-0.5"])
@pytest.mark.parametrize("image_size", [4, 12])
def test_position_codes_of_another_grid_are_resized_by_their_rule(rule, image_size):
    key = "position_resize" if rule in position.RULES else "resize_kernel"
    weights = found(tree(), model=MODEL | {key: rule})
    new, report = fill.fill(tree(image_size=image_size), weights)
    codes, side = weights.arrays["backbone/position"], image_size // 2
    np.testing.assert_array_equal(new["backbone"]["position"][:1], codes[:1])
    if rule in position.RULES:
        offset = 0.1 if rule == "dino_offset" else 0.0
        wanted = published.resized(codes[1:], side, side, offset=offset)
    else:
        matrix = position.resize_matrix(4, side, kernel=rule)
        wanted = np.einsum("hr,wc,rcd->hwd", matrix, matrix, codes[1:].reshape(4, 4, 8))
    wanted = wanted.reshape(-1, 8)
    np.testing.assert_allclose(new["backbone"]["position"][1:], wanted, atol=1e-5)
    (note,) = report.notes
    assert "model.image_size=8" in note  # views of another size would resize them once more


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
    with pytest.raises(InputError, match=f"their.{path}") as error:
        fill.fill(params, found(params, **{path: np.ones(shape)}))
    for text in (shape, trees.shapes(params)[path].shape, named):
        assert str(text) in str(error.value)


SINCOS, NORM = dict(position="sincos"), "backbone/norm/scale"
REFUSED = [  # ours, how theirs differs, arrays of theirs, what the message names
    ({}, {}, {"backbone/position": np.ones((18, 8))}, "backbone/position"),  # no square grid
    *(
        (SINCOS, {}, {"backbone/position": x}, "their.backbone/position.*model.position")
        for x in (FIXED + 0.01, FIXED[::-1], np.ones((18, 8)))
    ),
    *(({}, {}, {NORM: np.full(8, x, np.float32)}, f"their.{NORM}") for x in (np.nan, np.inf)),
    *(
        (dict(depth=ours), dict(depth=theirs), {}, f"{theirs} .*blocks.* {ours}")
        for theirs, ours in ((1, 2), (2, 1), (2, 3))
    ),
]


@pytest.mark.parametrize(("ours", "change", "arrays", "named"), REFUSED)
def test_weights_that_do_not_fit(ours, change, arrays, named):
    with pytest.raises(InputError, match=named):
        fill.fill(tree(**ours), found(tree(**ours | change), **arrays))


def test_a_gap_in_the_blocks_is_named():
    whole = found(tree(depth=4))
    arrays = {
        path: x for path, x in whole.arrays.items() if not re.match("backbone/blocks/[12]/", path)
    }
    with pytest.raises(InputError, match="x.pth .*block 3.* 1, 2"):
        fill.fill(tree(), whole._replace(arrays=arrays))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stem", "conv"),
        ("gelu", "tanh"),
        ("position_resize", "dino_offset"),
        ("resize_kernel", "antialias-0.5"),
    ],
)
def test_a_model_that_would_compute_something_else(key, value):
    params, other = tree(), MODEL | {key: value}
    with pytest.raises(InputError, match=rf"model\.{key}={MODEL[key]}"):
        fill.fill(params, found(params), model=other)
    fill.fill(params, found(params), model=other, only="head")  # no encoder is taken
    fill.fill(params, found(params, model={}), model=other)


def test_nothing_matches():
    strange = Weights("x.pth", "Theirs", {"a/b": np.ones(2)}, {"a/b": "a.b"}, ("c",), {})
    head = found({"head": tree()["head"]})
    for weights, only, named in (
        (strange, "", r"x\.pth.*a\.b"),
        (head, "backbone", "backbone"),
        (found(tree()), "back", "init_only.*backbone"),
    ):
        with pytest.raises(InputError, match=named):
            fill.fill(tree(), weights, only=only)
