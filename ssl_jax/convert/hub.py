"""Folders of weights in the form of timm and transformers, with their config.json."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from ssl_jax import trees
from ssl_jax.config import InputError, local, read_json, unknown
from ssl_jax.convert import card, hf_hub, read, timm_hub
from ssl_jax.convert.described import SECTION, Described, Network, section, with_own_entry
from ssl_jax.models import position, vit
from ssl_jax.runtime import writing

TARGETS = {"timm": timm_hub.write, "hf": hf_hub.write}
_CONFIG, _WEIGHTS, _PREPARATION = "config.json", "model.safetensors", "preprocessor_config.json"
_CARD = "README.md"
_FILES = {_CONFIG, _WEIGHTS, _PREPARATION, _CARD}
# What the files of authors say by their names alone: DINOv3's networks of satellite images
# (SAT-493M) are trained with that set's mean and deviation.
_BY_NAME = {"sat493m": Described(model=dict(mean=(0.43, 0.411, 0.296), std=(0.213, 0.156, 0.143)))}


def describe(path: str | Path) -> Described:
    """The description in the config.json of a weight folder, or in the name of a file that has
    none; `path`: the folder or the weight file.

    Raises:
      InputError: config.json is no JSON, describes a network that this package does not have, or
        was exported with other weights.
    """
    file = read.weight_file(path)
    if file is None or (file.name not in read.IN_FOLDER and file == local(path)):
        name = local(path).name
        return next((known for mark, known in _BY_NAME.items() if mark in name), Described())
    config, preparation = (_json(file.with_name(name)) for name in (_CONFIG, _PREPARATION))
    try:
        described = timm_hub.read(config) or hf_hub.read(config, preparation)
        described = with_own_entry(config, described or Described())
        written = config.get(SECTION, {}).get("weights")
        if written and read.stored_checksum(file) not in (None, written):
            raise InputError(f"{file.name} is of another export; export the network again")
        return described
    # Anybody may have written it: other types than the libraries' too.
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{file.with_name(_CONFIG)}: {error}") from error


def _json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def write(
    path: str | Path,
    shape: vit.ViTConfig,
    params: Mapping[str, Any],
    *,
    to: str,
    image: str,
    about: card.About,
) -> list[str]:
    """Writes a vision transformer as a folder of weights, config.json and README.md.

    Args:
      path: a folder that is new, empty, or holds an earlier export.
      shape, params: of `models.vit.vit`.
      to: key of TARGETS.
      image: the method's image vector, see `described.Network`.
      about: for the README.

    Returns:
      Remarks, one sentence each: where the library computes something else, what is left out.
      One of them tells that a README.md that somebody changed was left as it is.

    Raises:
      InputError: another key; a folder that holds something else or cannot be written to; a network
        that the library cannot compute.
    """
    if to not in TARGETS:
        raise InputError(unknown("library", to, TARGETS))
    path = local(path)
    if path.is_file():
        raise InputError(f"{path} is a file; --to {to} writes a folder")
    before, present = _entry(path), writing.present(path)
    if foreign := present - _FILES or (present if before is None else set()):
        raise InputError(
            f"{path} holds {min(foreign)}; export to a folder that is new, empty or an earlier"
            " export"
        )
    check_network(shape, to)
    writing.check(path / _CONFIG)
    network = Network(shape, _learned(shape, params), image, about.method)
    folder = TARGETS[to](network)
    tensors = {name: np.ascontiguousarray(array) for name, array in folder.tensors.items()}
    checksum, text = read.checksum(tensors), card.text(path.name, network, folder, about).encode()
    entry = section(network) | {"weights": checksum, "card": _digest(text)}
    contents = {_CONFIG: folder.config | {SECTION: entry}, **folder.files}
    files = {path / name: writing.as_json(content) for name, content in contents.items()}
    # Not save_file, whose files nobody else may read. transformers requires the format as metadata.
    metadata = {"format": "pt", read.CHECKSUM: checksum}
    files[path / _WEIGHTS] = safetensors.numpy.save(tensors, metadata=metadata)
    remarks, readme = list(folder.remarks), path / _CARD
    if not image:
        remarks.append(f"The image vector of {about.method} is no average of tokens: not exported.")
    if readme.exists() and _digest(readme.read_bytes()) != (before or {}).get("card"):
        remarks.append(f"{readme} is not (or not known to be) as exported, and is left as it is.")
    else:
        files[readme] = text
    writing.replace(files)
    return remarks


def check_network(shape: vit.ViTConfig, to: str) -> None:
    """Raises InputError for a network that no model of the library `to` has."""
    if shape.in_channels != 3:
        raise InputError(
            f"model.in_channels is {shape.in_channels}; only networks of 3 channels are exported"
        )
    if shape.stem != "linear":
        raise InputError(
            f'model.stem is "{shape.stem}", which {to} does not have; use "onnx", "stablehlo" or'
            ' "safetensors" in its place, or train with model.stem="linear"'
        )
    if shape.mlp == "swiglu" and shape.position != "rope":
        raise InputError(
            'model.mlp is "swiglu" and model.position is not "rope"; gated MLPs are exported only'
            " with rotary position embeddings; ssl_jax.save writes this network"
        )
    if shape.stages and to != "timm":
        raise InputError(f"a Swin transformer (model.stages) is exported --to timm, not {to}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _entry(path: Path) -> dict[str, Any] | None:
    """Our own entry in the config.json of a folder, the first of its files; None if it holds no
    export."""
    try:
        entry = read_json(path / _CONFIG).get(SECTION)
    except InputError:
        return None
    return entry if isinstance(entry, dict) else None


def _fill_biases(flat: dict[str, np.ndarray]) -> None:
    """Biases of 0 where query, key or value have none: of other networks libraries have all."""
    for path in [path for path in flat if path.endswith("attn/qkv/kernel")]:
        attention, width = path.removesuffix("qkv/kernel"), flat[path].shape[1] // 3
        if f"{attention}qkv/bias" not in flat:
            none = np.zeros(width, np.float32)
            parts = [flat.pop(f"{attention}{name}_bias", none) for name in "qkv"]
            flat[f"{attention}qkv/bias"] = np.concatenate(parts)


def _learned(shape: vit.ViTConfig, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """{path: float32 array} with computed position embeddings as learned ones and query tokens as
    registers: learned tokens without a position are the same thing wherever they stand. The mask
    vector is a student's, and left out.
    """
    flat = trees.per_block(jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params))
    flat.pop("mask_token", None)
    if shape.position == "sincos" and not shape.stages:
        codes = np.zeros((shape.cls + shape.grid**2, shape.width), np.float32)
        codes[int(shape.cls) :] = position.sincos_2d(shape.grid, shape.width)
        flat["position"] = codes
    if shape.position != "rope":
        _fill_biases(flat)
    tokens = [flat.pop(name) for name in ("registers", "queries") if name in flat]
    if tokens:
        flat["registers"] = np.concatenate(tokens)
    check_finite(flat)
    return {f"backbone/{path}": array for path, array in flat.items()}


def check_finite(flat: Mapping[str, np.ndarray]) -> None:
    """Raises InputError for {path: array} with a value that is no number."""
    if wrong := [path for path, array in flat.items() if not np.isfinite(array).all()]:
        raise InputError(f"{wrong[0]} has non-finite values; nothing was exported")
