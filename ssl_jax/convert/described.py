"""The description of a network besides its weights, read from or written to a folder's
config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.models import vit

SECTION = "ssl_jax"  # our own entry of a config.json
# Fields of ViTConfig that change how a network is trained or computed, never what it computes.
FREE = {
    *("drop_path", "init_std", "position_std", "cls_std", "mask_token"),
    *("rope_shift", "rope_jitter", "rope_rescale"),
    *("scan", "attention", "remat"),
}
# Fields that determine what given weights compute.
FUNCTION = (
    *("heads", "stem", "gelu", "mlp", "qkv_bias", "position_resize", "resize_kernel"),
    *("mean", "std", "rope_base", "rope_rounded", "shift_first"),
)


class Described(NamedTuple):
    """The contents of a config.json beyond the shapes of the tensors; empty if there is none.

    family: key of tables.FAMILIES, or "" if it must be recognised by the names.
    model: fields of models.vit.ViTConfig.
    image: the image vector, see `methods.encoder.published`; "" = unknown.
    method: the training method, "" = unknown. note: for the report.
    """

    family: str = ""
    model: dict[str, Any] = {}
    image: str = ""
    method: str = ""
    note: str = ""


class Network(NamedTuple):
    """A vision transformer to be written.

    shape: of the network. params: {path: float32 array} of it. image: the method's image vector,
      "cls", "mean", "queries" or "concat" (see `multicrop.global_token`); "" = something else.
      method: its name.
    """

    shape: vit.ViTConfig
    params: dict[str, np.ndarray]
    image: str
    method: str


class Folder(NamedTuple):
    """A network in a library's form.

    tensors: by the library's names. config: of config.json. files: further files, {name: JSON}.
    library: its name. model: its class or architecture. remarks: differences in computation and
    requirements, one sentence each.
    """

    tensors: dict[str, np.ndarray]
    config: dict[str, Any]
    files: dict[str, Any]
    library: str
    model: str
    remarks: list[str]


def side_of(size: Any, key: str) -> dict[str, int]:
    """{"image_size": side} for the image size in a config.json, an int or [height, width]; {} for
    anything else. Raises InputError for images that are not square."""
    if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(x, int) for x in size):
        if size[0] != size[1]:
            raise InputError(
                f"{key} is {list(size)}; only networks with position embeddings of a square grid"
                " are read"
            )
        size = size[0]
    return {"image_size": size} if isinstance(size, int) else {}


def with_scales(arrays: Mapping[str, np.ndarray], shape: vit.ViTConfig) -> dict[str, np.ndarray]:
    """An encoder {path: array} with LayerScale in every block; a factor of 1 changes no bit."""
    blocks, ones = "backbone/blocks", np.ones(shape.width, np.float32)
    paths = [f"{blocks}/{i}/{ls}/gamma" for i in range(shape.depth) for ls in ("ls1", "ls2")]
    return dict.fromkeys(paths, ones) | dict(arrays)


def section(network: Network) -> dict[str, Any]:
    """Our own entry of config.json, from which `with_own_entry` restores the network."""
    model = {
        field.name: getattr(network.shape, field.name)
        for field in dataclasses.fields(vit.ViTConfig)
        if field.name not in FREE and getattr(network.shape, field.name) != field.default
    }
    return {"method": network.method, "image": network.image, "model": model}


def with_own_entry(config: dict[str, Any], described: Described) -> Described:
    """`described`, updated from our own entry of the same config.json. Raises InputError if it was
    not written by `section`."""
    entry = config.get(SECTION)
    if entry is None:
        return described
    names = {field.name for field in dataclasses.fields(vit.ViTConfig)}
    if not isinstance(entry, dict) or not isinstance(entry.get("model"), dict):
        raise InputError(f'its "{SECTION}" was not written by this package')
    image, method = (entry.get(name, "") for name in ("image", "method"))
    if not isinstance(image, str) or not isinstance(method, str):
        raise InputError(f'its "{SECTION}" has an image or a method that is no text')
    if strange := sorted(set(entry["model"]) - names):
        raise InputError(
            f'its "{SECTION}" has model.{strange[0]}, which this version does not know'
        )
    written = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in entry["model"].items()
    }
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(vit.ViTConfig)
        if field.name not in FREE and field.default is not dataclasses.MISSING
    }
    return described._replace(model=defaults | written, image=image, method=method)
