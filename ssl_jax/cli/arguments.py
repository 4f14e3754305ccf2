"""What commands share: a config from --config=NAME or --row=ROW, and --config.KEY=VALUE on top."""

import ast
import contextlib
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags import tuple_parser

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

if TYPE_CHECKING:
    from ssl_jax import papers

_START = re.compile("--?(config|row)=(.*)", re.DOTALL)
_KEY = re.compile(r"--?(?:no)?config\.([^=]+)")
_IMPORT = re.compile("--?import=(.*)", re.DOTALL)

# What other codebases call keys that have another name here.
_SYNONYMS = {
    "optim.lr": "learning_rate base_lr blr",
    "optim.final_lr": "min_lr end_lr",
    "optim.batch_size": "bs batch global_batch_size batch_size_per_gpu per_device_batch_size",
    "optim.epochs": "max_epochs num_epochs total_epochs",
    "optim.steps": "max_steps num_steps total_steps iterations",
    "optim.weight_decay": "wd decay",
    "optim.clip": "clip_grad grad_clip max_grad_norm",
    "optim.chunks": "accum accum_iter grad_accum accumulate_grad_batches",
    "optim.name": "optimizer opt",
    "teacher.momentum": "momentum_teacher ema ema_decay tau",
    "data.dir": "data_path data_dir root train_dir path",
    "data.kind": "dataset dataset_name",
    "data.workers": "num_workers nworkers",
    "views.global_size": "img_size input_size crop_size resolution",
    "views.local_count": "local_crops_number n_local_crops",
    "views.local_scale": "local_crops_scale",
    "views.global_scale": "global_crops_scale",
    "model.size": "arch backbone model_name architecture",
    "model.patch": "patch_size",
    "model.dtype": "fp16 bf16 amp precision mixed_precision",
    "model.remat": "checkpointing gradient_checkpointing grad_ckpt",
    "model.drop_path": "drop_path_rate stochastic_depth",
    "init_from": "pretrained ckpt_path finetune_from",
    "log.every_steps": "log_every print_freq log_interval",
    "checkpoint.every_steps": "save_every saveckp_freq save_freq",
    "evals.every_steps": "eval_every eval_freq",
    "--workdir": "output_dir out_dir save_dir logdir",
}


def names_a_config(argument: str) -> bool:
    """Whether it is --config=NAME or --row=ROW."""
    return bool(_START.match(argument))


class _Tuples(tuple_parser.TupleParser):
    """Makes a dict pairs, which `Key.check` judges, and refuses a set. The plain parser takes the
    keys of a dict alone, and the elements of a set in any order."""

    def parse(self, argument):
        value = argument
        if isinstance(argument, str):
            with contextlib.suppress(ValueError, SyntaxError):  # the plain parser decides
                value = ast.literal_eval(argument)
        if isinstance(value, set):
            raise ValueError("a set has no order")
        return tuple(value.items()) if isinstance(value, dict) else super().parse(argument)


config_flags.register_flag_parser_for_type(tuple, _Tuples())


class Start(NamedTuple):
    """What a command starts from.

    layers: {origin: config}: "config file", and with a row also "paper's row", which is the same
    config with the changes of the row. row: of --row. rest: the other arguments.
    """

    layers: dict[str, ConfigDict]
    row: "papers.Row | None"
    rest: list[str]


def start(argv: list[str]) -> Start:
    """Reads --config=NAME or --row=ROW, after importing the modules of --import=MODULE.

    `argv` has the command first. Raises InputError if the config is missing, named twice or
    unknown, or a module cannot be imported.
    """
    from ssl_jax import papers

    imports, argv = imported(argv)
    matches = [match for match in map(_START.match, argv) if match]
    if len(matches) > 1:
        arguments = ", ".join(match[0] for match in matches)
        raise InputError(f"only one of --config=NAME and --row=ROW can be used, got {arguments}")
    if not matches or not matches[0][2]:
        raise InputError(
            f"{argv[0]} needs --config=NAME, for example --config=sop:vits16, or --row=ROW, for"
            " example --row=sop/table10/K1024"
        )
    kind, name = matches[0].groups()
    rest = [argument for argument in argv if not names_a_config(argument)]
    if kind == "config":
        row, layers = None, {"config file": config_lib.load(name)}
    else:
        row = papers.find(name)
        layers = {"config file": config_lib.load(row.config), "paper's row": row.load()}
    for config in layers.values() if imports else ():
        config.imports = imports
    return Start(layers, row, rest)


def imported(argv: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """(modules of --import=MODULE, the other arguments), after importing them. Raises InputError
    for one that cannot be imported."""
    from ssl_jax import methods

    modules = tuple(match[1] for match in map(_IMPORT.match, argv) if match)
    methods.import_modules(modules)
    return modules, [argument for argument in argv if not _IMPORT.match(argument)]


def trusted(argv: list[str]) -> tuple[bool, list[str]]:
    """(whether --trust is given, the other arguments) of a command that reads somebody's network;
    modules of --import=MODULE are imported."""
    _, rest = imported(argv)
    others = [argument for argument in rest if argument not in ("--trust", "-trust")]
    return others != rest, others


def check_network(argv: list[str], *more: str) -> None:
    """Raises InputError where a command that reads a network has none as its first argument.

    more: the rest of an example.
    """
    if len(argv) < 2 or argv[1].startswith("-"):
        raise InputError(
            f"{argv[0]} needs a network first: a run directory, one of its checkpoints, zoo/NAME or"
            f" a file of weights; for example {' '.join(('ssl-jax', argv[0], 'runs/a', *more))}"
        )


def parse(
    argv: list[str], config: ConfigDict, **others: bool | str | list[str] | None
) -> tuple[flags.FlagValues, ConfigDict]:
    """Parses --config.KEY=VALUE and further flags with absl and config_flags.

    --config.evals.all.KEY=VALUE stands for each evaluation that has KEY. The kind of a set follows
    from its `dir` or `name` where they alone are given.

    Args:
      argv: command first. config: what the keys change; left as it is. others: further flags by
        name and default.

    Returns:
      (absl flag values, config with the changes)
    """
    known = config_lib.flatten(config)
    argv = _for_all(argv, known)
    for argument in argv[1:]:
        match = re.match(_KEY, argument)
        if match and match[1] not in known:
            raise InputError(_no_key(match[1], known))
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", ConfigDict(config.to_dict()), "", flag_values=values, sys_argv=argv
    )
    for name, default in others.items():
        kinds: dict[type, Callable[..., Any]] = {bool: flags.DEFINE_bool, list: flags.DEFINE_list}
        define = kinds.get(type(default), flags.DEFINE_string)
        define(name, default, "", flag_values=values)
    try:
        extra = values(argv)[1:]
    except flags.IllegalFlagValueError as error:
        match = re.match(r"flag --config\.([^=]+)=(.*?): ", str(error))
        if not match or match[1] not in known:
            raise
        raise InputError(config_lib.wrong_type(match[1], match[2], known[match[1]])) from error
    if extra:
        raise InputError(f'unexpected argument "{extra[0]}"; see ssl-jax {argv[0]} --help')
    config = values["config"].value
    _set_kinds(config, given(argv, config))
    return values, config


def _for_all(argv: list[str], known: Collection[str]) -> list[str]:
    """The arguments, with one for each evaluation that has the key in place of
    --config.evals.all.KEY=VALUE. They come first: what is given for one evaluation counts.

    known: all keys there are.
    """
    all_of, others = [], []
    for argument in argv[1:]:
        match = re.match(r"(--?config\.evals\.)all(\.[^=]+)(=.*)", argument, re.DOTALL)
        same = rf"evals\.(\w+){re.escape(match[2])}" if match else "$."
        found = [one[1] for one in (re.fullmatch(same, key) for key in known) if one]
        all_of += [f"{match[1]}{name}{match[2]}{match[3]}" for name in found if match]
        others += [] if found else [argument]
    return [*argv[:1], *all_of, *others]


def _set_kinds(config, given):
    """The kind of each set of which a folder or a name is given that its kind would ignore."""
    from ssl_jax.data import source
    from ssl_jax.evals import section

    sets = {"data": config.data}
    sets |= {f"evals.{name}.data": one.data for name, one in section.named(config).items()}
    for name, data in sets.items():
        kind = config.data.kind if data.kind == section.TRAINING else data.kind
        if f"{name}.kind" in given or kind not in source.EMBEDDED:
            continue
        if f"{name}.name" in given and data.name:
            data.kind = "tfds"
        elif f"{name}.dir" in given and data.dir:
            data.kind = source.kind_at(data.dir)


def given(argv: list[str], config: ConfigDict) -> set[str]:
    """The dotted keys of a config that arguments --config.KEY=VALUE set; `argv` has the command
    first."""
    matches = (re.match(_KEY, argument) for argument in _for_all(argv, config_lib.flatten(config)))
    return {match[1] for match in matches if match}


def early(argv: list[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """({name: value} of flags --name=value that are read before the config is known, the other
    arguments)."""
    found, rest = {}, []
    for argument in argv:
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and equals and name in names:
            found[name] = value
        else:
            rest.append(argument)
    return found, rest


@overload
def number(value: str, flag: str) -> int: ...


@overload
def number(value: str | None, flag: str) -> int | None: ...


def number(value: str | None, flag: str) -> int | None:
    """The whole number that a flag was given; None stays None. Raises InputError."""
    if value is None:
        return None
    if not value.isdecimal():
        raise InputError(f"--{flag} is {value!r}; it must be a whole number")
    return int(value)


def _no_key(key: str, known) -> str:
    """Message for a dotted key that is not in `known`."""
    inside = [k for k in known if k.startswith(key + ".")]
    if inside:
        return f'"{key}" is a section; set one of its keys: {", ".join(inside)}'
    last = key.rpartition(".")[2].lower().replace("-", "_")
    own = next((own for own, names in _SYNONYMS.items() if last in names.split()), None)
    if own:
        return f'unknown config key "{key}"; here it is {own}'
    return config_lib.unknown("config key", key, known)
