"""The registry of methods, from which a config's `method` selects."""

import importlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax.methods import (
    adapters,
    cribo,
    dino,
    dinov2,
    distill,
    finetune,
    flsl,
    ibot,
    mae,
    massl,
    sop,
    sove,
    stellar,
)
from ssl_jax.methods.base import (
    Features,
    Method,
    Output,
    Progress,
    Rule,
    settle,
    shapes_of_constants,
)


class Definition(NamedTuple):
    """A registered method.

    make(config) -> Method: binds networks and settings of a resolved config.
    defaults() -> dict of `config.Key`: the section of the config under the method's name.
    check(config): refuses invalid settings (InputError) before the config is resolved.
    beside: further methods whose sections the config contains.
    """

    make: Callable
    defaults: Callable
    check: Callable
    beside: tuple[str, ...] = ()


METHODS: dict[str, Definition] = {}


def register(
    name: str, make: Callable, defaults: Callable, check: Callable, beside: tuple[str, ...] = ()
) -> None:
    """Adds a method under `name`; see `Definition`.

    A module outside the package calls this on import; `--import=my.module` imports it and is stored
    in the checkpoint. Registering a name again replaces it.
    """
    METHODS[name] = Definition(make, defaults, check, beside)


def get(name: str) -> Definition:
    """The definition of a method. Raises InputError, suggesting the nearest name."""
    if name not in METHODS:
        raise config_lib.InputError(config_lib.unknown("method", name, METHODS))
    return METHODS[name]


def import_modules(names: Iterable[str]) -> None:
    """Imports modules that register methods on import. Raises InputError for a name without a
    module; an error inside a module is raised as it is."""
    for name in map(str, names):
        try:
            if not all(map(str.isidentifier, name.split("."))):
                raise ModuleNotFoundError(name=name)
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # imported by a module
                raise
            raise config_lib.InputError(
                f'no module "{name}" to import; it must be installed, or its folder in PYTHONPATH'
            ) from error


def make(config: ConfigDict) -> Method:
    """The method of a resolved config, bound to it."""
    method = get(config.method).make(config)
    return adapters.adapted(method, config.model) if config.model.get("lora", 0) else method


for _module in (cribo, dino, dinov2, finetune, flsl, ibot, mae, massl, sop, sove, stellar):
    _name = _module.__name__.rpartition(".")[2]
    register(_name, _module.make, _module.defaults, _module.check)
register("distill", distill.make, distill.defaults, distill.check, beside=tuple(distill.OWN))

__all__ = [
    "METHODS",
    "Definition",
    "Features",
    "Method",
    "Output",
    "Progress",
    "Rule",
    "get",
    "import_modules",
    "make",
    "register",
    "settle",
    "shapes_of_constants",
]
