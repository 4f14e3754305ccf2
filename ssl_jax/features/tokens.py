"""Which vectors of a network an evaluation uses."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ssl_jax.config import InputError, field
from ssl_jax.models import zoo

KINDS = ("image", "cls", "mean", "cls_mean", "sparse")
DENSE = "patches"
ALONE = (
    'but "image" exists only for the last block; choose tokens "cls", "mean", "cls_mean" or'
    ' "sparse"'
)
SPARSE_TOKENS = "sparse_tokens"  # each token, where "sparse" is their mean


def layers_field() -> Any:
    """Declares the key `layers` of an evaluation."""
    return field(
        1,
        "number of last blocks whose tokens are concatenated, each after the final norm",
        "blocks",
        above=0,
        most=1000,
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which vectors of an image an evaluation uses."""

    tokens: str = field(
        "image",
        'vector of an image: "image" (the method\'s choice), class token ("cls"), mean of the'
        ' patch tokens ("mean"), both concatenated ("cls_mean"), or mean of the sparse tokens'
        ' ("sparse")',
        choices=KINDS,
    )
    layers: int = layers_field()


def check(name: str, section: Mapping, model: Mapping) -> None:
    """Raises InputError for tokens or layers that the network of the config section `model` does
    not have. name: of the evaluation, section: its settings."""
    kind, layers = section.get("tokens", DENSE), section.get("layers", 1)
    if not isinstance(layers, int):  # numbers of blocks, see `segment`
        layers = max((i + 1 if i >= 0 else -i for i in layers), default=1)
    elif layers > 1 and kind == "image":
        raise InputError(f"{name}.layers is {layers}, {ALONE}")
    depth = model.get("depth") or zoo.model_shape(model)[1]
    if layers > depth:
        raise InputError(
            f"{name}.layers is {section['layers']}, but the network has {depth} blocks"
        )
    if kind in ("cls", "cls_mean") and not model.get("cls", True):
        raise InputError(f'{name}.tokens is "{kind}", but model.cls is False: use "mean"')
