"""The types of evaluation, the values of `type` in the config's section `evals`."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ssl_jax.config import InputError, Key, keys_of, settings_of, unknown

BASELINES = ("untrained network", "raw pixels")  # what a trained network is compared with
TRAINED = "trained"
ROWS = (*BASELINES, TRAINED)  # of a comparison, in this order


class Protocol(NamedTuple):
    """The settings of a type with which a paper's number was measured.

    source: paper and table, for example "CrIBo table 1". changes: {key: value or section} of the
    type's defaults, without those that depend on the user's disk (data.dir).
    """

    source: str
    changes: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """The settings of a type without keys of its own."""


@dataclasses.dataclass(frozen=True)
class Type:
    """A type of evaluation.

    score(case, settings) -> {score: number}: all scores of one network, see `Case`. The main score
      has the name of the type; the names of all others begin with it.
    settings: a frozen dataclass, its fields declared with `config.field`: the type's keys. All
      types also have data, examples and crop.
    heading: of the score that has the type's name, in tables and curves, with its unit after a
      comma unless that is percent ("PSNR, dB"); "" = not shown there.
    needs: "labels", "masks" or "boxes" of the images, or "sequences" of them with masks; "" =
      images alone.
    one_size: whether the images must have one size, all as they are read or all after the crop.
    rgb: whether images must be RGB, of three channels.
    whole: whether images are taken whole, so that `crop` must be 0.
    multiples: names of keys that must be multiples of the network's patch.
    draw(case, settings) -> {name: pictures.Picture or pictures.Animation}: the figures, drawn at
      the end of a run, of the trained network; None: there are none.
    share: the score that has the type's name is the share of the test images that are right.
    baselines: of BASELINES, those that the scores of a trained network are compared with.
    protocols: {name: Protocol} of the papers that use it.
    trains: whether the figures are of something that `score` trained: they are then of the images
      that are scored, and never of larger ones.
    check(name, settings, data): refuses settings that cannot work (a file is missing), before a
      run is started; `name` is that of the section, for the message, `data` its section of images.
      Raises InputError. None: every combination can work.
    """

    score: Callable
    settings: Any = NoSettings
    heading: str = ""
    needs: str = ""
    one_size: bool = False
    rgb: bool = False
    whole: bool = False
    multiples: tuple[str, ...] = ()
    share: bool = False
    draw: Callable | None = None
    baselines: tuple[str, ...] = BASELINES
    protocols: Mapping[str, Protocol] = dataclasses.field(default_factory=dict)
    trains: bool = False
    check: Callable | None = None

    def keys(self) -> dict[str, Key]:
        """The keys of the type's own."""
        return keys_of(self.settings)

    def run(self, case: Any) -> dict[str, float]:
        """All scores of a `Case`. Raises InputError where its settings cannot work, or its data
        lack what the type needs."""
        self.refuse(case.config.type, case.config)
        return self.score(case, settings_of(self.settings, case.config))

    def figures(self, case: Any) -> dict[str, Any]:
        """The figures of a `Case`; {} where the type has none."""
        if self.draw is None:
            return {}
        return self.draw(case, settings_of(self.settings, case.config))

    def refuse(self, name: str, section: Any) -> None:
        """Refuses a section of the type that cannot work, see `check`. Raises InputError."""
        if self.whole and section.crop:
            raise InputError(
                f'{name}.crop is {section.crop}, but the type "{section.type}" uses whole images;'
                " set it to 0"
            )
        if self.check is not None:
            self.check(name, settings_of(self.settings, section), section.data)


TYPES: dict[str, Type] = {}


def register(name: str, score: Callable, settings: Any = NoSettings, **others: Any) -> None:
    """Adds a type of evaluation under `name`; see `Type` for the arguments.

    A module outside the package calls this when it is imported; `--import=my.module` has it
    imported, and is kept in the checkpoint. Registering a name again replaces it.

    Raises InputError for settings that are no dataclass.
    """
    if not (isinstance(settings, type) and dataclasses.is_dataclass(settings)):
        raise InputError(
            f'the settings of the type of evaluation "{name}" are {settings!r}; declare them as a'
            " frozen dataclass whose fields are config.field(default, meaning, ...)"
        )
    TYPES[name] = Type(score, settings, **others)


def register_module(name: str, **others: Any) -> None:
    """`register` of the type that a module is, called as the last part of its name.

    The module has the function `score`, and as far as it needs them the dataclass `Settings`, the
    functions `figures` and `check`, and `PROTOCOLS`; `others` are of `Type`.
    """
    module = vars(sys.modules[name])
    parts = dict(settings="Settings", draw="figures", check="check", protocols="PROTOCOLS")
    fields = {field: module[there] for field, there in parts.items() if there in module}
    register(name.rpartition(".")[2], module["score"], **fields, **others)


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
