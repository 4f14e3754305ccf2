"""What is taken, what is refused and why, and what the report says."""

import re

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


def test_everything_fits():
    params = tree()
    new, report = fill.fill(params, found(params), model=MODEL)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a + 1, b), params, new)
    assert (
        set(report.matched) == set(trees.shapes(params))
        and not report.left
        and not report.missing
        and not report.notes
    )
    assert (
        str(report)
        == f"x.pth: Theirs; {len(report.matched)} of {len(report.matched)} parameters taken"
    )


def test_what_is_missing_stays_and_what_has_no_place_is_listed():
    params = tree(mask_token=True)
    weights = found(tree(queries=3), left=("optimizer.x",))
    new, report = fill.fill(params, weights)
    assert new["backbone"]["mask_token"] is params["backbone"]["mask_token"]
    assert report.missing == ("backbone/mask_token",) and report.left == (
        "their.backbone/queries",
        "optimizer.x",
    )
    text = str(report)
    assert "as initialised: backbone/mask_token" in text
    assert "in it, but not used: their.backbone/queries, optimizer.x" in text


def test_params_are_not_changed():
    params = tree()
    before = jax.tree.map(np.copy, params)
    fill.fill(params, found(params))
    jax.tree.map(np.testing.assert_array_equal, before, params)


def test_only():
    params = tree()
    new, report = fill.fill(
        params, found(params, **{"head/last/kernel": np.zeros((9, 9))}), only="backbone"
    )
    assert new["head"] == params["head"] and not report.missing
    assert report.left == ("their.head/last/kernel",)
    new, report = fill.fill(params, found(params), only="backbone/norm")
    assert set(report.matched) == {"backbone/norm/scale", "backbone/norm/bias"}
    with pytest.raises(
        InputError,
        match=(
            'init_only is "back", but no parameter lies there; the first levels are backbone, head'
        ),
    ):
        fill.fill(params, found(params), only="back")


def test_nothing_matches():
    weights = fill.Weights("x.pth", "Theirs", {"a/b": np.ones(2)}, {"a/b": "a.b"}, ("c",), {})
    with pytest.raises(
        InputError,
        match=(
            r"x\.pth holds nothing for this model: it has names such as a\.b, c; wanted are weights"
            r" for b"
        ),
    ):
        fill.fill(tree(), weights)
    head = {"head/last/kernel": np.ones((8, 5))}
    with pytest.raises(InputError, match="holds nothing for this model below backbone"):
        fill.fill(
            tree(), weights._replace(arrays=head, names=dict.fromkeys(head, "h")), only="backbone"
        )


SHAPES = {
    "backbone/patch/kernel": (
        (27, 8),
        "another patch side, number of channels or width (model.patch, model.size)",
    ),
    "backbone/position": ((17, 16), "another width"),
    "backbone/queries": ((4, 8), "another number of query tokens"),
    "backbone/blocks/1/mlp/fc1/kernel": ((8, 24), "model.mlp_ratio"),
    "backbone/blocks/0/attn/qkv/bias": ((48,), "another width (model.size)"),
    "head/last/kernel": (
        (8, 7),
        (
            'another number of prototypes or width of the embedding; init_only="backbone" takes the'
            " encoder alone"
        ),
    ),
}


@pytest.mark.parametrize(
    ("path", "shape", "cause"), [(path, *case) for path, case in SHAPES.items()]
)
def test_a_wrong_shape_names_the_tensor_both_shapes_and_the_likely_cause(path, shape, cause):
    params = tree(queries=3)
    with pytest.raises(InputError) as error:
        fill.fill(params, found(params, **{path: np.ones(shape)}))
    wanted = trees.shapes(params)[path].shape
    assert (
        f"x.pth: their.{path} would give {path} the shape {shape}, but this model has {wanted}: "
        in str(error.value)
    )
    assert cause in str(error.value)


def test_a_model_whose_position_codes_are_no_square_grid():
    params = tree()
    params["backbone"]["position"] = np.ones((7, 8), np.float32)
    theirs = np.ones((17, 8), np.float32)
    message = re.escape("the shape (17, 8), but this model has (7, 8)")
    with pytest.raises(InputError, match=message):
        fill.fill(params, found(params, **{"backbone/position": theirs}))


@pytest.mark.parametrize(("theirs", "ours"), [(1, 2), (2, 1), (2, 3)])
def test_another_number_of_blocks(theirs, ours):
    with pytest.raises(
        InputError, match=f"x.pth has {theirs} transformer blocks, this model {ours}"
    ):
        fill.fill(tree(depth=ours), found(tree(depth=theirs)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite(value):
    params = tree()
    with pytest.raises(
        InputError, match="their.backbone/norm/scale holds numbers that are not finite"
    ):
        fill.fill(params, found(params, **{"backbone/norm/scale": np.full(8, value, np.float32)}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("gelu", "tanh"), ("position_resize", "dino_offset"), ("resize_kernel", "antialias-0.5")],
)
def test_a_model_that_would_compute_something_else(key, value):
    params = tree()
    with pytest.raises(
        InputError,
        match=(
            rf'model\.{key}="{value}" would misread its weights; add'
            rf" --config\.model\.{key}={MODEL[key]}$"
        ),
    ):
        fill.fill(params, found(params), model=MODEL | {key: value})
    fill.fill(
        params, found(params), model=MODEL | {key: value}, only="head"
    )  # no encoder is taken, so nothing is misread
    fill.fill(params, found(params, model={}), model=MODEL | {key: value})


# --- heads and decoders: whole or not at all


@pytest.mark.parametrize("odd", ["head/mask_token", "head/last/bias"])
def test_a_head_with_other_layers_is_left(odd):
    params = tree()
    new, report = fill.fill(params, found(params, **{odd: np.ones((1, 8), np.float32)}))
    assert new["head"] == params["head"] and report.missing == ("head/last/kernel",)
    assert report.notes == (f"head is another one there (not in both: {odd}): left as initialised",)
    assert set(report.left) == {"their.head/last/kernel", f"their.{odd}"}


def test_a_head_that_lacks_a_layer_is_left():
    params = tree()
    params["head"]["last"]["bias"] = np.ones(5, np.float32)
    new, report = fill.fill(params, found(params, **{"head/last/bias": None}))
    assert new["head"]["last"]["kernel"] is params["head"]["last"]["kernel"]
    assert report.missing == ("head/last/bias", "head/last/kernel")


def test_no_head_is_no_note():
    params = tree()
    report = fill.fill(params, found(params, **{"head/last/kernel": None}))[1]
    assert report.missing == ("head/last/kernel",) and not report.notes


def test_constants_arrays_are_taken_one_by_one():
    params = tree() | {"constants": {"fourier": np.ones((2, 4)), "other": np.zeros(3)}}
    weights = found(params, **{"constants/other": None, "constants/mark": np.ones(())})
    new, report = fill.fill(params, weights)
    np.testing.assert_array_equal(new["constants"]["fourier"], 2)
    assert report.missing == ("constants/other",) and report.left == ("their.constants/mark",)


def test_one_bias_per_channel_serves_all_pixels():
    params = tree() | {"decoder": {"out": {"bias": np.zeros(12, np.float32)}}}
    new, _ = fill.fill(
        params, found(params, **{"decoder/out/bias": np.array([1.0, 2.0, 3.0], np.float32)})
    )
    np.testing.assert_array_equal(new["decoder"]["out"]["bias"], [1, 2, 3] * 4)


# --- position codes


@pytest.mark.parametrize("rule", position.RULES)
@pytest.mark.parametrize("image_size", [4, 12])
def test_position_codes_of_another_grid_are_resized_by_their_rule(rule, image_size):
    theirs, ours = tree(), tree(image_size=image_size)
    weights = found(theirs, model=MODEL | {"position_resize": rule})
    new, report = fill.fill(ours, weights)
    codes, side = weights.arrays["backbone/position"], image_size // 2
    np.testing.assert_array_equal(new["backbone"]["position"][:1], codes[:1])
    wanted = published.resized(codes[1:], side, side, offset=0.1 if rule == "dino_offset" else 0.0)
    np.testing.assert_allclose(new["backbone"]["position"][1:], wanted, atol=1e-5)
    assert report.notes == (
        f"position codes resized from 4 x 4 to {side} x {side} patches ({rule}, keys-0.75)",
    )


def test_position_codes_of_timm_are_resized_with_its_kernel():
    weights = found(tree(), model=MODEL | {"resize_kernel": "antialias-0.5"})
    new, _ = fill.fill(tree(image_size=4), weights)
    matrix = position.resize_matrix(4, 2, kernel="antialias-0.5")
    wanted = np.einsum(
        "hr,wc,rcd->hwd", matrix, matrix, weights.arrays["backbone/position"][1:].reshape(4, 4, 8)
    ).reshape(4, 8)
    np.testing.assert_allclose(new["backbone"]["position"][1:], wanted, atol=1e-5)


def test_a_class_token_on_one_side_only():
    with_cls, without = tree(), tree(cls=False)
    new, report = fill.fill(without, found(with_cls))
    np.testing.assert_array_equal(
        new["backbone"]["position"], with_cls["backbone"]["position"][1:] + 1
    )
    assert report.left == ("their.backbone/cls",)
    new, report = fill.fill(with_cls, found(without))
    np.testing.assert_array_equal(
        new["backbone"]["position"], np.pad(without["backbone"]["position"] + 1, ((1, 0), (0, 0)))
    )
    assert report.missing == ("backbone/cls",) and report.notes == (
        "no position code for the class token there: zeros",
    )


def test_codes_that_are_no_grid():
    params = tree()
    with pytest.raises(
        InputError,
        match=r"the shape \(18, 8\), but this model has \(17, 8\): no square grid of codes",
    ):
        fill.fill(params, found(params, **{"backbone/position": np.ones((18, 8))}))


GRIDS = [
    (0, (0, None)),
    (1, (0, 1)),
    (2, (1, 1)),
    (4, (0, 2)),
    (5, (1, 2)),
    (196, (0, 14)),
    (197, (1, 14)),
    (198, (0, None)),
]


@pytest.mark.parametrize(("count", "wanted"), GRIDS)
def test_grid_of(count, wanted):
    assert fill.grid_of(count) == wanted


def test_fixed_codes_are_recognised_and_others_refused():
    params = tree(position="sincos")
    fixed = np.pad(position.sincos_2d(4, 8), ((1, 0), (0, 0))).astype(np.float32)
    report = fill.fill(params, found(params, **{"backbone/position": fixed}))[1]
    assert not report.left
    for wrong in (fixed + 0.01, fixed[::-1], np.ones((18, 8))):
        with pytest.raises(
            InputError,
            match=(
                "their.backbone/position are not the fixed sine-cosine"
                ' codes.*model.position="learned"'
            ),
        ):
            fill.fill(params, found(params, **{"backbone/position": wrong}))
    report = fill.fill(params, found(params, **{"backbone/position": fixed + 1}), only="head")[1]
    assert "their.backbone/position" in report.left  # nobody asks for them


# --- arrays of JAX, as from our own checkpoints


def test_arrays_on_a_device_stay_there():
    params = tree()
    weights = found(params)
    weights = weights._replace(
        arrays={path: jnp.asarray(array) for path, array in weights.arrays.items()}
    )
    new, _ = fill.fill(params, weights)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(new))


# --- text


def test_brief():
    assert fill.brief(["a/0/x", "a/1/x", "b"]) == "a/*/x x 2, b"
    assert fill.brief(["a.0.x", "a.10.x", "conv1.w"]) == "a.*.x x 2, conv1.w"
    assert (
        fill.brief(list("abcde"), most=3) == "a, b, c and 2 more"
        and fill.brief(list("abc"), most=3) == "a, b, c"
    )
    assert fill.brief([]) == ""


def test_the_report_is_short_for_a_large_network():
    params = tree(depth=24)
    report = fill.fill(
        params,
        found(params, **{path: None for path in trees.shapes(params) if re.search("/bias$", path)}),
    )[1]
    assert len(str(report)) < 600 and "backbone/blocks/*/attn/qkv/bias x 24" in str(report)
