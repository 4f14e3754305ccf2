"""Arguments shared by commands: --config=NAME or --row=ROW, and changes --config.KEY=VALUE."""

import argparse
import ast
import contextlib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags import tuple_parser

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

if TYPE_CHECKING:
    from ssl_jax import papers

_KEY = re.compile(r"--?(?:no)?config\.([^=]+)")

# {our key: its names in other codebases}
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


class _Tuples(tuple_parser.TupleParser):
    """Converts a dict to pairs, which `Key.check` checks, and refuses a set. The base parser would
    drop a dict's values, and read a set in any order."""

    def parse(self, argument):
        value = argument
        if isinstance(argument, str):
            with contextlib.suppress(ValueError, SyntaxError):  # left to the base parser
                value = ast.literal_eval(argument)
        if isinstance(value, set):
            raise ValueError("a set has no order")
        return tuple(value.items()) if isinstance(value, dict) else super().parse(argument)


config_flags.register_flag_parser_for_type(tuple, _Tuples())


class Start(NamedTuple):
    """The config of a command, and its origins.

    layers: {origin: config}: "config file" and, with a row, "paper's row", which adds the changes
    of the row. row: that of --row. config: the last layer with the changes of the command line.
    given: the keys set by these changes.
    """

    layers: dict[str, ConfigDict]
    row: "papers.Row | None"
    config: ConfigDict
    given: set[str]


def start(options: argparse.Namespace) -> Start:
    """Loads the config of --config=NAME or --row=ROW, applies the changes of the command line and
    imports the modules that it names.

    Raises InputError if the config is missing, named twice or unknown, or for a wrong change.
    """
    from ssl_jax import methods, papers

    sources = [f"--config={name}" for name in options.config]
    sources += [f"--row={name}" for name in options.row]
    if len(sources) > 1:
        raise InputError(
            f"only one of --config=NAME and --row=ROW can be used, got {', '.join(sources)}"
        )
    if not sources:
        raise InputError(
            f"{options.command} needs --config=NAME, for example --config=sop:vits16, or --row=ROW,"
            " for example --row=sop/table10/K1024"
        )
    if options.config:
        row, layers = None, {"config file": config_lib.load(options.config[0])}
    else:
        row = papers.find(options.row[0])
        layers = {"config file": config_lib.load(row.config), "paper's row": row.load()}
    *_, config = layers.values()
    config = changed(config, options.changes)
    names = tuple(dict.fromkeys((*config.get("imports", ()), *options.imports)))
    if "imports" in config:
        config.imports = names
    methods.import_modules(names)
    return Start(layers, row, config, given(options.changes, config))


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(arguments --config.KEY=VALUE, other arguments). A value may be a separate word after its
    key."""
    changes: list[str] = []
    others: list[str] = []
    before = ""
    for word in argv:
        if _KEY.match(word):
            changes.append(word)
        elif _KEY.fullmatch(before) and not word.startswith("-"):
            changes[-1] += f"={word}"
        else:
            others.append(word)
        before = word
    return changes, others


def changed(config: ConfigDict, changes: Sequence[str]) -> ConfigDict:
    """A copy of the config with changes --config.KEY=VALUE, parsed by config_flags.

    --config.evals.all.KEY=VALUE changes all evaluations that have KEY. If only `dir` or `name` of a
    set is given, its kind is derived from them. Raises InputError for a wrong change.
    """
    keys = config_lib.flatten(config)
    changes = _for_all(changes, keys)
    for key in (match[1] for match in map(_KEY.match, changes) if match):
        if key not in keys:
            raise InputError(_no_key(key, keys))
    values, argv = flags.FlagValues(), ["", *changes]
    copy = ConfigDict(config.to_dict())
    config_flags.DEFINE_config_dict("config", copy, "", flag_values=values, sys_argv=argv)
    try:
        values(argv)
    except flags.Error as error:
        match = re.match(r"flag --config\.([^=]+)=(.*?): ", str(error))
        if not match or match[1] not in keys:
            raise InputError(" ".join(str(error).split())) from error
        raise InputError(config_lib.wrong_type(match[1], match[2], keys[match[1]])) from error
    result = values["config"].value
    _set_kinds(result, given(changes, result))
    return result


def _for_all(changes: Sequence[str], keys: Collection[str]) -> list[str]:
    """Replaces --config.evals.all.KEY=VALUE by one change for each evaluation that has KEY. These
    come first, so that a change of a single evaluation takes precedence.

    keys: all keys of the config.
    """
    expanded, others = [], []
    for change in changes:
        match = re.match(r"(--?config\.evals\.)all(\.[^=]+)(=.*)", change, re.DOTALL)
        pattern = rf"evals\.(\w+){re.escape(match[2])}" if match else "$."
        names = [hit[1] for hit in (re.fullmatch(pattern, key) for key in keys) if hit]
        expanded += [f"{match[1]}{name}{match[2]}{match[3]}" for name in names if match]
        others += [] if names else [change]
    return [*expanded, *others]


def _set_kinds(config, given):
    """Sets the kind of each set whose folder or name is given, if its kind would ignore them."""
    from ssl_jax.data import source
    from ssl_jax.evals import section

    sets = {"data": config.data}
    sets |= {f"evals.{name}.data": entry.data for name, entry in section.named(config).items()}
    for name, data in sets.items():
        kind = config.data.kind if data.kind == section.TRAINING else data.kind
        if f"{name}.kind" in given or kind not in source.EMBEDDED:
            continue
        if f"{name}.name" in given and data.name:
            data.kind = "tfds"
        elif f"{name}.dir" in given and data.dir:
            data.kind = source.kind_at(data.dir)


def given(changes: Sequence[str], config: ConfigDict) -> set[str]:
    """The dotted keys of a config that the changes --config.KEY=VALUE set."""
    matches = map(_KEY.match, _for_all(changes, config_lib.flatten(config)))
    return {match[1] for match in matches if match}


def _no_key(key: str, keys) -> str:
    """Message for a dotted key that is not in `keys`."""
    inside = [k for k in keys if k.startswith(key + ".")]
    if inside:
        return f'"{key}" is a section; set one of its keys: {", ".join(inside)}'
    last = key.rpartition(".")[2].lower().replace("-", "_")
    ours = next((ours for ours, names in _SYNONYMS.items() if last in names.split()), None)
    if ours:
        return f'unknown config key "{key}"; here it is {ours}'
    return config_lib.unknown("config key", key, keys)
