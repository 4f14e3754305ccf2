"""The registry of evaluation types, the values of `type` in the config's section `evals`."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ssl_jax.config import InputError, settings_of, unknown

BASELINES = ("untrained network", "raw pixels")
TRAINED = "trained"
ROWS = (*BASELINES, TRAINED)  # of a comparison, in this order


class Protocol(NamedTuple):
    """The settings of a type with which a paper measured its scores.

    source: paper and table, for example "CrIBo table 1". changes: {key: value or section} relative
    to the type's defaults, without keys that depend on the user's disk (data.dir).
    """

    source: str
    changes: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """Settings of types without keys of their own."""


@dataclasses.dataclass(frozen=True)
class Type:
    """A type of evaluation.

    score(case, settings) -> {name: number}: all scores of one network, see `Case`. The main score
      has the name of the type; the names of the others begin with it. Raises InputError for a
      network, data or files that do not fit the type.
    settings: a frozen dataclass with the type's keys as fields, declared by `config.field`. The
      keys data, train_examples, test_examples and crop belong to all types.
    heading: of the main score in tables and curves, with its unit after a comma unless that is
      percent ("PSNR, dB"); "" = not shown.
    draw(case, settings) -> {name: pictures.Picture or pictures.Animation}: figures of the trained
      network, drawn at the end of a run; None = no figures.
    share: whether the main score is the share of test images that are classified correctly.
    scored(case, settings): number of these images; None = all that can be read.
    trains: whether the figures show a head that `score` trained; they then use images of the scored
      size, never larger ones.
    lower: endings of the scores of which a lower one is better, after the type's name.
    check(name, settings, data): raises InputError, before a run is started, for settings that
      cannot work (a file is missing); `name` is the section's name, `data` its data section.
      None = no check.
    """

    score: Callable
    settings: Any = NoSettings
    heading: str = ""
    needs: str = ""  # "labels", "masks" or "boxes", or "sequences" with masks; "" = only images
    learns: bool = True  # from the training images, and does not score test images alone
    one_size: bool = False  # all images must have one size, as read or after the crop
    rgb: bool = False  # images must be RGB
    whole: bool = False  # images are used whole, so that `crop` must be 0
    multiples: tuple[str, ...] = ()  # keys whose values are multiples of the network's patch
    share: bool = False
    scored: Callable | None = None
    draw: Callable | None = None
    baselines: tuple[str, ...] = BASELINES  # with which a trained network is compared
    protocols: Mapping[str, Protocol] = dataclasses.field(default_factory=dict)
    trains: bool = False
    lower: tuple[str, ...] = ()
    check: Callable | None = None

    def run(self, case: Any) -> dict[str, float]:
        """Computes all scores of a `Case`. Raises InputError for settings that cannot work, or data
        without what the type needs."""
        self.refuse(case.config.type, case.config)
        return self.score(case, settings_of(self.settings, case.config))

    def figures(self, case: Any) -> dict[str, Any]:
        """Makes the figures of a `Case`; {} if the type has none."""
        if self.draw is None:
            return {}
        return self.draw(case, settings_of(self.settings, case.config))

    def images(self, case: Any) -> int:
        """Number of test images of which the main score of a `Case` is the share; 0 = it is no
        share."""
        if self.share and self.scored is not None:
            return self.scored(case, settings_of(self.settings, case.config))
        return case.test.readable() if self.share else 0

    def refuse(self, name: str, section: Any) -> None:
        """Raises InputError for a section of this type that cannot work, see `check`."""
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

    A module outside the package calls this when it is imported. `--import=my.module` imports it,
    and is stored in the checkpoint. Registering a name again replaces it.

    Raises InputError for settings that are not a dataclass.
    """
    if not (isinstance(settings, type) and dataclasses.is_dataclass(settings)):
        raise InputError(
            f'the settings of the type of evaluation "{name}" are {settings!r}; declare them as a'
            " frozen dataclass whose fields are config.field(default, meaning, ...)"
        )
    TYPES[name] = Type(score, settings, **others)


def register_module(name: str, **others: Any) -> None:
    """Registers the module `name` as a type, named after the last part of the module's name.

    The module has the function `score` and, optionally, the dataclass `Settings`, the functions
    `figures`, `scored` and `check`, and `PROTOCOLS`. others: further fields of `Type`.
    """
    module = vars(sys.modules[name])
    parts = {
        **dict(settings="Settings", draw="figures", protocols="PROTOCOLS"),
        **dict(scored="scored", check="check"),
    }
    fields = {field: module[attribute] for field, attribute in parts.items() if attribute in module}
    register(name.rpartition(".")[2], module["score"], **fields, **others)


def get(name: str) -> Type:
    """The type with this name. Raises InputError, naming the nearest one, if there is none."""
    if name not in TYPES:
        raise InputError(unknown("type of evaluation", name, TYPES))
    return TYPES[name]


def protocol(type: str, name: str) -> Protocol:
    """The type's protocol with this name. Raises InputError, naming the nearest one, if there is
    none."""
    protocols = get(type).protocols
    if name not in protocols:
        raise InputError(unknown(f'protocol of the type "{type}"', name, protocols))
    return protocols[name]


def score_name(name: str, type: str, score: str) -> str:
    """The full name of a score of the evaluation `name`: that of its type ("knn_k10"), prefixed by
    the evaluation's name if it is not the type's ("birds_knn_k10")."""
    return score if name == type else f"{name}_{score}"
