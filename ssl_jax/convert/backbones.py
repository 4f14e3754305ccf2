"""Only the vision transformer of anything that `init_from` accepts: published weights, a network
saved by `api.save`, a run directory."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.convert import own, places, vit_in
from ssl_jax.models import vit, zoo
from ssl_jax.ops import numerics


class Backbone(NamedTuple):
    """A network without drop-path and mask vector. shape: its config. params: of
    `models.vit.vit(shape)`, NumPy float32."""

    shape: vit.ViTConfig
    params: dict[str, Any]


_KEYS = zoo.defaults()
_run_readers: list[Callable[[Path], own.Saved]] = []


def register_runs(reader: Callable[[Path], own.Saved]) -> None:
    """Sets the reader of run directories: path -> the network that is evaluated there. The module
    that handles checkpoints calls this when it is imported."""
    _run_readers.append(reader)


def load(path: str | Path, family: str = "") -> Backbone:
    """Reads a backbone; the last one is cached, as a run reads it more than once.

    Args:
      path: a weight file, a folder of timm's or transformers', a saved network, a run directory or
        one step's folder.
      family: of published weights whose names several families share, see `load_vit`; "": by the
        names.

    Raises:
      InputError: nothing that can be read and computed. MissingFile: the path does not exist.
    """
    place = places.resolve(path)
    return _load(place, family, place.stat().st_mtime_ns if place.exists() else 0)


@functools.lru_cache(maxsize=1)
def _load(path: Path, family: str, changed: int) -> Backbone:
    del changed
    place = places.find(path)
    network = _run_readers[-1](path) if place.is_run and _run_readers else place.saved()
    if network is not None:
        return _ours(network, path)
    shape, params, _ = vit_in.load_vit(path, family=family or None)
    return _plain(shape, params)


def _ours(network: own.Saved, path: Path) -> Backbone:
    stored = config_lib.from_json(network.config)
    try:
        section = {name: stored.model.get(name, key.default) for name, key in _KEYS.items()}
        backbone = network.params.get("backbone", network.params)
        shape = zoo.vit_config(section | {"size": "custom"})
        loaded = _plain(shape, own.wide(backbone))
        expected = jax.eval_shape(vit.vit(loaded.shape).init, numerics.key(0))
        if jax.tree.map(np.shape, loaded.params) != jax.tree.map(lambda x: x.shape, expected):
            raise InputError("weights of another shape")
    except (AttributeError, TypeError, ValueError, InputError) as error:
        raise InputError(f"{path} holds no vision transformer of its config: {error}") from error
    return loaded


def _plain(shape, params) -> Backbone:
    shape = dataclasses.replace(shape, drop_path=0.0, mask_token=False)
    kept = {name: tree for name, tree in params.items() if name != "mask_token"}
    return Backbone(shape, jax.tree.map(lambda x: np.asarray(x, np.float32), kept))
