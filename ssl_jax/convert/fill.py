"""Fills a parameter tree with weights by path, and reports which fit, which do not, and why."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ssl_jax import trees
from ssl_jax.config import InputError, keys_of
from ssl_jax.convert.weights import Report, Weights, brief
from ssl_jax.models import position, zoo
from ssl_jax.models.shape import ViTConfig


def fill(
    params: Mapping, weights: Weights, *, only: str = "", model: Mapping | None = None
) -> tuple[dict, Report]:
    """A copy of the tree `params` with every array that `weights` has for it.

    Args:
      params: nested dict of arrays or ShapeDtypeStructs; not changed.
      only: fill only arrays at or below this path ("backbone"); "" = all.
      model: the `model` section of these parameters, checked against `weights.model`; None: not
        checked.

    Returns:
      (tree, report). Filled arrays are as in `weights`, float32 after resizing of position
      embeddings; the others are the leaves of `params` themselves.

    Raises:
      InputError: nothing matches; a shape that does not fit (both shapes and the likely cause are
        named); another number of blocks; numbers that are not finite; a model that computes
        something else with these weights.
    """
    shapes = trees.shapes(params)
    notes: list[str] = []
    if only and not any(_inside(path, only) for path in shapes):
        raise InputError(
            f'init_only is "{only}", but the model has no parameters there; it has'
            f" {', '.join(sorted(params))}"
        )
    paths = _whole_parts([path for path in shapes if _inside(path, only)], weights, notes)
    taken = {path: _fit(path, weights, shapes[path].shape, notes) for path in paths}
    if not taken:
        raise InputError(
            f"{weights.source} holds no weights of this model{f' below {only}' if only else ''}: it"
            f" has {brief((*weights.names.values(), *weights.left), 3) or 'nothing'}, not"
            f" {brief(shapes, 3)}"
        )
    _check_blocks(shapes, weights, taken)
    computed = [
        path for path in weights.arrays if path.endswith("/position") and path not in shapes
    ]
    computed = [
        path for path in computed if any(_inside(other, path.split("/")[0]) for other in taken)
    ]
    _check_model(shapes, weights, taken, computed, model)
    placed = {weights.names[path] for path in (*taken, *computed)}
    left = (
        *sorted({name for path, name in weights.names.items() if path not in taken} - placed),
        *weights.left,
    )
    missing = tuple(path for path in shapes if path not in taken and _inside(path, only))
    matched = {path: weights.names[path] for path in taken}
    notes += [weights.note] if weights.note else []
    notes += _open_settings(weights, taken, model)
    report = Report(weights.source, weights.title, matched, left, missing, tuple(notes))
    return _filled(params, taken, weights.source), report


def _filled(params: Mapping, taken: Mapping[str, Any], source: str) -> dict:
    """`params` with the arrays that were taken."""
    try:
        whole = trees.stacked(taken)
    except ValueError as error:
        raise InputError(f"{source} is incomplete: {error}") from error

    def leaf_of(path, leaf):
        array = whole.get(path, leaf)
        if array.shape != leaf.shape:
            raise InputError(f"{source} is incomplete: it has {path} for only {len(array)} blocks")
        return array

    return trees.map_with_path(leaf_of, params)


def _whole_parts(paths: list[str], weights: Weights, notes: list[str]) -> list[str]:
    """The paths to take.

    A head or a decoder is taken whole or not at all: with other layers it was made for another
    objective, even where some of its shapes agree (MAE's decoder and STELLAR's); so it is with
    another kind of position embeddings. The encoder may have more or fewer tokens, and "constants"
    is a loose list.
    """
    taken = []
    for part in dict.fromkeys(path.split("/")[0] for path in paths):
        ours = [path for path in paths if _inside(path, part)]
        theirs = [path for path in weights.arrays if _inside(path, part)]
        odd = sorted(set(ours) ^ {path for path in theirs if not path.endswith("/position")})
        if part == "decoder" and theirs and _has_no_positions(part, ours, weights):
            notes.append(
                "decoder: these weights were trained with position embeddings of zero (as"
                " transformers initialises ViTMAE), this model has fixed ones; newly initialised"
            )
        elif part in ("backbone", "constants") or not odd:
            taken += [path for path in ours if path in weights.arrays]
        elif theirs:
            notes.append(f"{part} differs (not in both: {brief(odd, 3)}); newly initialised")
    return taken


def _has_no_positions(part: str, ours: list[str], weights: Weights) -> bool:
    """Whether position embeddings are zeros there, where this network computes fixed ones."""
    codes = weights.arrays.get(f"{part}/position")
    return codes is not None and f"{part}/position" not in ours and not np.any(np.asarray(codes))


def _inside(path: str, only: str) -> bool:
    return not only or path == only or path.startswith(only + "/")


def _fit(path: str, weights: Weights, shape: tuple[int, ...], notes: list[str]):
    """The array for a parameter of that shape."""
    array = weights.arrays[path]
    other = array.shape != shape
    if path == "backbone/position" and other and array.ndim == 2 and array.shape[1] == shape[1]:
        array = _fit_codes(array, weights, shape, notes)
    if path == "decoder/out/bias" and other and array.ndim == 1 and shape[0] % array.size == 0:
        # Of a transposed convolution: one number per channel, for all pixels.
        array = np.tile(array, shape[0] // array.size)
    if array.shape != shape:
        cause = next(
            (text for pattern, text in _CAUSES if re.match(pattern, path)), "made for another model"
        )
        raise InputError(
            f"{weights.source}: {weights.names[path]} would give {path} the shape"
            f" {tuple(array.shape)}, but this model has {shape}: {cause}"
        )
    if isinstance(array, np.ndarray) and not np.isfinite(array).all():
        raise InputError(f"{weights.source}: {weights.names[path]} has non-finite values")
    return array


_DEFAULTS = {name: declared.default for name, declared in keys_of(ViTConfig).items()}
_SAME_EPS = 1e-6  # below it, LayerNorms of trained weights agree but for the rounding of float32
_HEAD = '; init_only="backbone" loads only the encoder'
# The likely cause of a shape that does not fit; the first that matches counts.
_CAUSES = (
    (
        r"backbone/patch/kernel",
        "another patch side, number of channels or width (model.patch, model.size)",
    ),
    (
        r"backbone/position",
        (
            "no square grid of codes behind at most one for a class token, or another width"
            " (model.size)"
        ),
    ),
    (r"backbone/queries", "another number of query tokens or width (model.queries, model.size)"),
    (r"backbone/registers", "another number of registers or width (model.registers, model.size)"),
    (
        r"backbone/blocks/\d+/mlp/",
        "another width of the network or its MLP (model.size, model.mlp_ratio, model.mlp)",
    ),
    (r"backbone/", "another width (model.size)"),
    (r"decoder/out/", "another patch side or reconstruction target" + _HEAD),
    (r"decoder/", "another width of decoder or encoder" + _HEAD),
    (
        r".*head/(last|prototypes|images|objects)",
        "another number of prototypes or width of the embedding" + _HEAD,
    ),
    (r".*head/", "another width of head or encoder" + _HEAD),
    (r"hidden/", "another width (finetune.hidden, model.size)"),
    (r"classifier/", "another number of classes, or token" + _HEAD),
)


def _fit_codes(codes, weights: Weights, shape: tuple[int, ...], notes: list[str]):
    """Position embeddings [lead + n, d] for another grid, or with or without the row of the
    class token.
    """
    (lead, grid), (wanted_lead, wanted_grid) = grid_of(codes.shape[0]), grid_of(shape[0])
    if grid is None or wanted_grid is None:
        return codes
    first, rest = codes[:lead], codes[lead:]
    if grid != wanted_grid:
        rule = {
            "rule": weights.model.get("position_resize", "exact"),
            "kernel": weights.model.get("resize_kernel", "keys-0.75"),
        }
        rest = np.asarray(position.resize_codes(rest, grid, (wanted_grid, wanted_grid), **rule))
        kernel = weights.arrays.get("backbone/patch/kernel")
        channels = len(weights.model.get("mean", range(3)))
        side = 1 if kernel is None else math.isqrt(kernel.shape[0] // channels)
        notes.append(
            f"position embeddings resized from {grid} x {grid} to {wanted_grid} x {wanted_grid}"
            f" patches ({', '.join(rule.values())}), and again for views of another size,"
            f" which changes features slightly; --config.model.image_size={grid * side} keeps them"
            " unchanged"
        )
    if wanted_lead and not lead:
        first = np.zeros((1, shape[1]), np.float32)
        notes.append("no position embedding for the class token: using zeros")
    return np.concatenate([first[:wanted_lead], rest])


def grid_of(count: int) -> tuple[int, int | None]:
    """(codes in front, side of the square grid) of so many position embeddings; side None if they
    are no such thing.
    """
    for lead in (0, 1):
        if count > lead and math.isqrt(count - lead) ** 2 == count - lead:
            return lead, math.isqrt(count - lead)
    return 0, None


def _check_blocks(shapes, weights: Weights, taken) -> None:
    """A network with some of its blocks from elsewhere, or without some of theirs, is never
    meant.
    """
    if not _blocks(taken):
        return
    theirs, ours = _blocks(weights.arrays), _blocks(shapes)
    if gaps := sorted({*range(max(theirs))} - theirs):
        raise InputError(
            f"{weights.source} is incomplete: it has transformer block {max(theirs)}, but none of"
            f" the number{'s' * (len(gaps) > 1)} {', '.join(map(str, gaps))}"
        )
    if theirs != ours:
        raise InputError(
            f"{weights.source} has {len(theirs)} transformer blocks, this model {len(ours)}; "
            "choose the model.size (or custom depth) of the weights"
        )


def _blocks(paths: Iterable[str]) -> set[int]:
    """Numbers of the encoder's blocks among paths."""
    return {int(match[1]) for path in paths if (match := re.match(r"backbone/blocks/(\d+)/", path))}


def _check_model(shapes, weights: Weights, taken, computed, model: Mapping | None) -> None:
    """Refuses a model in which the weights would compute something else, naming all keys that would
    have to change: LayerScale or registers in one of the two networks alone, position embeddings
    that are not the fixed ones which it computes, values of its `model` section.
    """
    reasons: list[str] = []
    keys: dict[str, Any] = {}

    def scaled(paths):
        return any(re.fullmatch(r"backbone/blocks/\d+/ls[12]/gamma", path) for path in paths)

    if any(_inside(path, "backbone/blocks") for path in taken):
        if scaled(weights.arrays) != scaled(shapes):
            has, contrast = ("has", "not") if scaled(weights.arrays) else ("has no", "but")
            reasons.append(f"it {has} LayerScale (blocks/*/ls1/gamma), {contrast} this model")
            # How factors start that are all taken; any number above 0 makes room for them.
            keys["layer_scale"] = 1 if scaled(weights.arrays) else 0
        registers = weights.arrays.get("backbone/registers")
        if registers is not None and "backbone/registers" not in shapes:
            reasons.append(f"it has {len(registers)} registers, this model none")
            keys["registers"] = len(registers)
    for path in computed:
        if not is_sincos(np.asarray(weights.arrays[path])):
            name = weights.names[path]
            reasons.append(f"{name} are not the fixed sine-cosine codes that this model computes")
            keys |= {"position": "learned"} if path == "backbone/position" else {}
    if model is not None and any(_inside(path, "backbone") for path in taken):
        values = _DEFAULTS | dict(model)
        wrong = {key: value for key, value in weights.model.items() if values[key] != value}
        reasons += [f'model.{key} is "{values[key]}"' for key in wrong]
        if "heads" in wrong:  # of a named size they are fixed
            width = weights.arrays["backbone/norm/scale"].shape[-1]
            keys |= dict(size="custom", width=width, depth=len(_blocks(weights.arrays)))
        keys |= wrong
    if reasons:
        flags = [f"--config.model.{key}={value}".replace(" ", "") for key, value in keys.items()]
        raise InputError(
            f"{weights.source} ({weights.title}) does not fit this model:"
            f" {'; '.join(reasons)}" + (f"; add {' '.join(flags)}" if flags else "")
        )


def _open_settings(weights: Weights, taken, model: Mapping | None) -> list[str]:
    """Notes on settings of the encoder that weights do not show, or that may differ from theirs."""
    values, notes = dict(model or {}), []
    heads = values.get("heads") or getattr(zoo.SIZES.get(values.get("size", "")), "heads", 0)
    blocks = any(_inside(path, "backbone/blocks") for path in taken)
    if heads and blocks and "heads" not in weights.model:
        notes.append(f"model.heads is {heads}: the file does not say how many its network has")
    theirs, ours = weights.norm_eps, values.get("norm_eps")
    if theirs and ours and abs(ours - theirs) > _SAME_EPS:
        notes.append(f"model.norm_eps is {ours:g}: the weights were trained with {theirs:g}")
    return notes


def is_sincos(codes: np.ndarray) -> bool:
    """Whether position embeddings [(1 +) n, d] are the fixed ones, with zeros for a class token."""
    lead, grid = grid_of(codes.shape[0])
    if grid is None or codes.shape[1] % 4:
        return False
    fixed = position.sincos_2d(grid, codes.shape[1])
    return np.allclose(codes[lead:], fixed, atol=1e-4) and np.allclose(codes[:lead], 0)
