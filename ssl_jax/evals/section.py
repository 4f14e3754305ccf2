"""The section `evals` of a config: any number of evaluations, each a section with a name.

    config.evals.every_steps = 1000                              # plain keys apply to all
    evals.add(config, "knn", "linear", data=dict(kind="photos", size=32))
    config.evals.birds = evals.new("knn", k=(20,), data=dict(kind="folder", dir="/data/birds"))

`new` makes the complete, locked section of a type; `add` adds one to the config for each type,
named after the type. Names are free, so config files can add sections here, unlike elsewhere.
Validation refuses anything that is neither a plain key (`defaults`) nor a complete evaluation. Once
a config is loaded, its names are fixed and its keys are set like all others:
`--config.evals.knn.k="(20,)"`, `--config.evals.birds.data.size=64`.

`evals.tasks`, or `ssl-jax eval RUN --task=knn,birds`, selects the evaluations to run; only their
data are checked and opened. `data.kind="training"` is the set of the section `data` (see `follow`).
An empty `data.dir` is the training set's, if the kind of data is the same.

All of this may change when a run is resumed. The keys of evaluations belong to a config, not to a
method: `settings.keys` lists the plain ones, `keys(config)` those of a config's evaluations.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax.config import InputError, Key, check_multiple, free_on_resume, key, keys_of, unknown
from ssl_jax.data import source
from ssl_jax.evals import registry
from ssl_jax.features import tokens

ALL = "all"
TRAINING = "training"  # kind of data: the set on which the run is trained
# {`Type.needs`: an embedded kind of data that has it}
DEFAULT_KIND = {
    "labels": "photos",
    "masks": "photo_collages",
    "boxes": "photo_collages",
    "sequences": "moving_shapes",
    "": "photos",
}


def defaults() -> dict:
    """The keys that apply to all evaluations."""
    return free_on_resume(
        dict(
            tasks=key(
                (ALL,), 'names of the evaluations to run; "all" = every one, () = none', acts=""
            ),
            every_steps=key(0, "steps between two evaluations; 0 = only at the end", least=0),
            best=key(
                "",
                "score (as knn) that selects the best network, kept in the run directory as"
                ' best.safetensors and compared with the network at step 0; "" = none',
                acts="",
            ),
            batch_size=key(64, "images per forward pass", "images", above=0, most=2**20),
            cache=key(
                "",
                "folder that caches features for later evaluations of the same weights and images;"
                ' "" = none',
                path=True,
                acts="is a folder to write into",
            ),
            baselines=key(
                True, "compare the final scores with an untrained network and with raw pixels"
            ),
            picture_size=key(
                0,
                "side of the square images in pictures; larger ones show more patches; 0 = as"
                " evaluated",
                "pixels",
                least=0,
                most=16384,
            ),
        )
    )


def _keys_of(type: str) -> dict:
    """The keys of an evaluation of this type."""
    definition = registry.get(type)
    data = source.defaults()
    data["kind"] = dataclasses.replace(
        data["kind"],
        default=DEFAULT_KIND[definition.needs],
        meaning=f'{data["kind"].meaning}; "{TRAINING}" = the data set of the section data',
        choices=(TRAINING, *data["kind"].choices),
    )
    data |= dict(
        test_split=key("test", "part of the data set that is scored", acts=""),
        test_list=key(
            "",
            "text file with one image name or relative path per line, which restricts the scored"
            ' part to these images; "" = all images',
            path=True,
            acts="",
        ),
    )
    return free_on_resume(
        dict(
            type=key(type, "type of the evaluation", choices=tuple(sorted(registry.TYPES))),
            # `split` trains a classifier, or is the bank in which neighbours are searched.
            data=data,
            train_examples=key(0, "number of training images; 0 = all", "images", least=0),
            test_examples=key(0, "number of scored images; 0 = all", "images", least=0),
            crop=key(
                0,
                "side of a square centre crop; 0 = no crop. Images are always cropped to whole"
                " patches",
                "pixels",
                least=0,
                most=16384,
            ),
            **keys_of(definition.settings),
        )
    )


def new(type: str, *, protocol: str = "", **changes: Any) -> ConfigDict:
    """A complete evaluation of this type: its defaults, updated by `changes`, {key: value or
    section}.

    protocol: name of one of the type's protocols, applied before `changes`.

    Raises InputError for an unknown type or protocol, and KeyError or TypeError (reported in one
    line when a config file is loaded) for an unknown key or a value of another type.
    """
    section = config_lib.build(_keys_of(type))
    if protocol:
        section.update(registry.protocol(type, protocol).changes)
    section.update(changes)
    return section


def add(config: ConfigDict, *types: str, **changes: Any) -> None:
    """Adds an evaluation of each type to the config, named after the type; see `new`."""
    for type in types:
        config.evals[type] = new(type, **changes)


def named(config: ConfigDict) -> dict[str, ConfigDict]:
    """{name: section} of all evaluations of a config, in alphabetical order."""
    sections = config.get("evals")
    sections = sections.items() if isinstance(sections, ConfigDict) else ()
    return {n: entry for n, entry in sections if isinstance(entry, ConfigDict | FrozenConfigDict)}


def selected(config: ConfigDict, tasks: Sequence[str] | None = None) -> dict[str, ConfigDict]:
    """{name: section} of the evaluations to run.

    tasks: their names, in order; None = those of `evals.tasks`. Raises InputError, naming the
    nearest one, for an unknown name.
    """
    sections = named(config)
    tasks = config.evals.tasks if tasks is None else tasks
    for name in tasks:
        if name not in (ALL, *sections):
            raise InputError(unknown("evaluation", name, sections))
    return sections if ALL in tasks else {name: sections[name] for name in tasks}


def keys(config: ConfigDict) -> dict[str, Key]:
    """{dotted key: Key} of all evaluations of a config. Raises InputError for an incomplete one."""
    declared: dict[str, Key] = {}
    for name, section in named(config).items():
        path = f"evals.{name}"
        if not name.isidentifier():
            raise InputError(
                f'an evaluation is named "{name}"; use letters, digits and "_", because scores and'
                " pictures are named after it"
            )
        type = section.get("type", next(iter(registry.TYPES)))
        config_lib.check_choice(f"{path}.type", type, registry.TYPES)
        keys_of_type = config_lib.flatten(_keys_of(type))
        missing = [entry for entry in keys_of_type if entry not in config_lib.flatten(section)]
        if missing:
            raise InputError(
                f'{path} lacks {", ".join(missing)}; make it with ssl_jax.evals.new("{type}", ...)'
            )
        declared |= {f"{path}.{entry}": value for entry, value in keys_of_type.items()}
    return declared


def of_score(config: ConfigDict, score: str) -> tuple[str, ConfigDict] | None:
    """(name, section) of the selected evaluation that a score belongs to; None if there is none."""
    fitting = [
        (name, section)
        for name, section in selected(config).items()
        if f"{score}_".startswith(f"{name}_")
    ]
    return max(fitting, key=lambda pair: len(pair[0]), default=None)


def is_lower_better(config: ConfigDict, score: str) -> bool:
    """Whether a lower value of a score is better."""
    name, section = of_score(config, score) or ("", None)
    ending = score.removeprefix(name)
    ending = ending.removeprefix(f"_{section.type}") if section and section.type != name else ending
    return section is not None and ending in registry.get(section.type).lower


def check(config: ConfigDict) -> None:
    """Raises InputError for unknown names in `evals.tasks`, empty lists of values, and data without
    what an evaluation needs (`follow.fit_to_data` checks the training set and `evals.best`)."""
    tasks = dataclasses.replace(defaults()["tasks"], choices=(*named(config), ALL))
    tasks.check("evals.tasks", config.evals.tasks)
    for name, section in selected(config).items():
        path, type = f"evals.{name}", registry.get(section.type)
        needs = type.needs
        if type.rgb and config.model.in_channels != 3:
            raise InputError(
                f'{path}: the type "{section.type}" is for RGB images, but model.in_channels is'
                f" {config.model.in_channels}; leave {name} out of evals.tasks"
            )
        declared = _keys_of(section.type)
        for entry, value in section.items():
            # An empty list is allowed if it is the default.
            if isinstance(value, tuple) and not value and declared[entry].default:
                raise InputError(f"{path}.{entry} is empty; give at least one number")
        if section.data.kind == TRAINING:
            continue
        if needs and not source.may_have(section.data, needs):
            hint = "a folder of classes" if needs == "labels" else f"a folder with data.{needs}"
            raise InputError(
                f'{path}.data.kind is "{section.data.kind}", which has no {needs}, and the'
                f' type "{section.type}" needs them; use "{DEFAULT_KIND[needs]}", {hint}, a TFDS'
                f" set with {needs}, or leave {name} out of evals.tasks"
            )
        source.check(f"{path}.data", section.data, folder(config, section))
        for entry in type.multiples:
            value, patch = section[entry], config.model.patch
            for side in value if isinstance(value, tuple) else (value,):
                check_multiple(f"{path}.{entry}", side, patch, "patch of the network")
        tokens.check(path, section, config.model)
        type.refuse(path, section)


def lacking(name: str, section: ConfigDict, opened: Any) -> InputError:
    """The error that a source lacks what the evaluation `name` needs."""
    needs = registry.get(section.type).needs
    where = "" if needs == "labels" else f" (see evals.{name}.data.{needs})"
    out = f" (left out: {opened.left_out})" if opened.left_out else ""
    return InputError(
        f'evals.{name}: the type "{section.type}" needs {needs}, which {opened} does not'
        f" have{where}{out}; use a set with {needs}, or leave {name} out of evals.tasks"
    )


def folder(config: ConfigDict, section: ConfigDict) -> str:
    """The `data.dir` of an evaluation or, if that is empty and the kind of data is the same, of
    training."""
    same_kind = section.data.kind == config.data.kind
    return section.data.dir or (config.data.dir if same_kind else "")


def headings(config: ConfigDict, tasks: Sequence[str] | None = None) -> dict[str, str]:
    """{score: heading} of the evaluations' main scores, in order. A heading is prefixed by the
    evaluation's name if that is not the type's."""
    result = {}
    for name, section in selected(config, tasks).items():
        heading = registry.get(section.type).heading
        if heading:
            score = registry.score_name(name, section.type, section.type)
            result[score] = heading if name == section.type else f"{name} {heading}"
    return result
