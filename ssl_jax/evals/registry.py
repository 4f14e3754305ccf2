"""The types of evaluation: what `type` in the config's section `evals` names."""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ssl_jax.config import InputError, unknown

BASELINES = ("untrained network", "raw pixels")  # what a trained network is compared with
TRAINED = "trained"
ROWS = (*BASELINES, TRAINED)  # of a comparison, in this order


def no_figures(case: object) -> dict:
    """Default `figures`: nothing to show."""
    del case
    return {}


def nothing_to_check(name: str, section: object) -> None:
    """Default `check`: every combination of the keys can work."""
    del name, section


class Protocol(NamedTuple):
    """The settings of a type with which a paper's number was measured.

    source: paper and table, for example "CrIBo table 1". changes: {key: value or section} of the
    type's defaults; what depends on the user's disk (data.dir) is left out.
    """

    source: str
    changes: Mapping[str, Any]


class Type(NamedTuple):
    """A type of evaluation.

    run(case) -> {score: number}: all scores of one network, see `Case`. The score that stands for
      the evaluation has the name of the type; the names of all others begin with it.
    defaults() -> dict of `config.Key`: the keys of its own; data, examples and crop all types have.
    heading: of the score that has the type's name, in tables and curves, with its unit after a
      comma unless that is percent ("PSNR, dB"); "" = not shown there.
    needs: "labels", "masks" or "boxes" of the images, or "sequences" of them with masks; "" =
      images alone.
    one_size: whether the images must have one size, all as they are read or all after the crop.
    multiples: names of keys that must be multiples of the network's patch.
    figures(case) -> {name: pictures.Picture or pictures.Animation}: drawn at the end of a run, of
      the trained network.
    share: the score that has the type's name is the share of the test images that are right.
    baselines: of BASELINES, those that the scores of a trained network are compared with.
    protocols: {name: Protocol} of the papers that use it.
    trains: whether the pictures are of something that `run` trained: they are then of the images
      that are scored, and never of larger ones.
    check(name, section): refuses settings that cannot work (a file is missing), before a run is
      started; `name` is that of the section, for the message. Raises InputError.
    """

    run: Callable
    defaults: Callable
    heading: str = ""
    needs: str = ""
    one_size: bool = False
    multiples: tuple[str, ...] = ()
    share: bool = False
    figures: Callable = no_figures
    baselines: tuple[str, ...] = BASELINES
    protocols: Mapping[str, Protocol] = MappingProxyType({})
    trains: bool = False
    check: Callable = nothing_to_check


TYPES: dict[str, Type] = {}


def register(name: str, run: Callable, defaults: Callable, **others: Any) -> None:
    """Adds a type of evaluation under `name`; see `Type` for the arguments.

    A module outside the package calls this when it is imported; `--import=my.module` has it
    imported, and is kept in the checkpoint. Registering a name again replaces it.
    """
    TYPES[name] = Type(run, defaults, **others)


def register_module(name: str, **others: Any) -> None:
    """`register` of the type that a module is, called as the last part of its name.

    Its functions and protocols are `run`, `defaults`, `figures`, `check` and `PROTOCOLS` of the
    module, as far as it has them; `others` are of `Type`, and come first.
    """
    own = vars(sys.modules[name])
    fields = {field: own.get(field) for field in ("run", "defaults", "figures", "check")}
    fields |= {"protocols": own.get("PROTOCOLS")}
    found = {field: value for field, value in fields.items() if value is not None}
    register(name.rpartition(".")[2], **(found | others))


def get(name: str) -> Type:
    """The type of that name. Raises InputError naming the nearest one."""
    if name not in TYPES:
        raise InputError(unknown("type of evaluation", name, TYPES))
    return TYPES[name]


def protocol(type: str, name: str) -> Protocol:
    """The protocol of that name of a type. Raises InputError naming the nearest one."""
    protocols = get(type).protocols
    if name not in protocols:
        raise InputError(unknown(f'protocol of the type "{type}"', name, protocols))
    return protocols[name]


def score_name(name: str, type: str, score: str) -> str:
    """What a score of the evaluation `name` is called: as by its type ("knn_k10"), after the
    evaluation's name where that is another ("birds_knn_k10")."""
    return score if name == type else f"{name}_{score}"
