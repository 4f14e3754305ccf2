"""`ssl-jax train|eval|show`: absl flags and ml_collections config_flags over the functions of the
package, nothing else.
"""

import errno
import re
import sys
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict, config_flags

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

EXIT_INPUT = 2  # bad input: one line on stderr
_FILE = re.compile("--?config=")

_USAGE = """ssl-jax: self-supervised vision in JAX

  ssl-jax train --config=configs/sop.py:vits16 [--config.optim.lr=1e-3 ...] --workdir=runs/a
      Pretrains. The same command continues a run that was stopped or killed.
      --config.init_from=PATH starts a new run from published weights or from another run's.
  ssl-jax eval CHECKPOINT [--task=knn,linear,dense] [--config.eval.KEY=VALUE ...]
      Scores a run folder, or one checkpoint of it, beside the untrained network and raw pixels.
  ssl-jax show --config=configs/sop.py:vits16 [--config.KEY=VALUE ...]
      The resolved config with the origin of each value, parameter count and FLOPs per image.
  ssl-jax show --table sop [--config=FOLDER]
      Every row of the papers' tables as a config, with the paper's numbers and ours. FOLDER holds
      the config files (or --config names one of them); without it configs/ of the current
      directory.

Exit codes: 0 done; 2 bad input (one line says what and what would be right); 75 saved after
SIGTERM, SIGINT or SIGUSR1, start again to continue; 1 unexpected error.
"""


# A disk or a path that refuses, wherever it shows: the user's to mend, so one line rather than a
# traceback.
_ERRNOS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
)


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code (see the usage text). `argv` includes the program's
    name.
    """
    argv = list(sys.argv if argv is None else argv)[1:]
    if argv[:1] == ["help"] or {"-h", "--help"} & set(argv):
        print(_USAGE, end="")
        return 0
    try:
        if not argv:
            raise InputError(
                f"no command; give one of {', '.join(_COMMANDS)} (ssl-jax --help explains them)"
            )
        if argv[0] not in _COMMANDS:
            raise InputError(config_lib.unknown("command", argv[0], _COMMANDS))
        return _COMMANDS[argv[0]](argv)
    except (InputError, flags.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _ERRNOS:
            raise
        print(f"ssl-jax: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_INPUT


def _train(argv) -> int:
    values, config, _ = _parse(argv, workdir=None, distributed=False)
    if not values.workdir:
        raise InputError("--workdir=FOLDER is missing: where checkpoints, metrics and pictures go")
    if values.distributed:
        import jax

        jax.distributed.initialize()  # finds its peers under SLURM, on TPU pods and GKE
    from ssl_jax import api

    return api.train(config, values.workdir)


def _eval(argv) -> int:
    from ssl_jax import api, evals, settings
    from ssl_jax.evals import report

    if len(argv) < 2 or argv[1].startswith("-"):
        raise InputError(
            "eval needs a CHECKPOINT first: a run folder or one step of it, for example runs/a or"
            " runs/a/checkpoints/1000"
        )
    if any(_FILE.match(a) for a in argv):
        raise InputError(
            "--config=FILE is for train and show; eval takes the config that the checkpoint holds"
        )
    saved = api.saved_config(argv[1])
    values, config, _ = _parse(argv[:1] + argv[2:], saved=saved, task=[])
    for key in config_lib.changed(saved, config):
        if not key.startswith("eval."):
            raise InputError(
                f"{key} belongs to the checkpoint and cannot be changed; only keys of the section"
                " eval can"
            )
    tasks = evals.check_tasks(values.task or config.eval.tasks)
    if not tasks:
        raise InputError(
            f"the run's config names no evaluations; give --task=NAME ({', '.join(evals.TASKS)})"
        )
    config.eval.tasks = tasks
    settings.validate(config, num_devices=None)
    encoder = api.load(argv[1])
    results = report.Evaluation(FrozenConfigDict(config)).compare(encoder.params, encoder.constants)
    print(encoder)
    print(evals.comparison_table(results))
    for name, scores in results.items():
        print(f"{name}: " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    return 0


def _show(argv) -> int:
    from ssl_jax import show

    if any(re.match("--?table(=|$)", a) for a in argv):
        print(show.table(*_table(argv)))
        return 0
    _, config, file = _parse(argv)
    print(show.text(file, config))
    return 0


def _table(argv):
    """(name, folder of the config files) of `show --table NAME [--config=PATH]`."""
    values = flags.FlagValues()
    flags.DEFINE_string("table", "", "", flag_values=values)
    flags.DEFINE_string("config", "configs", "", flag_values=values)
    extra = values(argv)[1:]
    if extra:
        raise InputError(
            f'unexpected argument "{extra[0]}"; --table takes one name, and no other setting than'
            " --config=FOLDER"
        )
    if not values.table:
        raise InputError(
            "--table needs the name of a config file, as a rule a method: ssl-jax show --table sop"
        )
    path = Path(values.config.partition(":")[0])
    return values.table, path.parent if path.suffix == ".py" else path


_COMMANDS = {"train": _train, "eval": _eval, "show": _show}


def _parse(argv, *, saved=None, **others):
    """Parses one command's arguments with absl and config_flags.

    Args:
      argv: command first. saved: a config to start from instead of --config=FILE. others: further
        flags by name and default.

    Returns:
      (absl flag values, config with the overrides of the command line, config without them)
    """
    start, argv = _start(argv) if saved is None else (saved, argv)
    known = config_lib.flatten(start)
    for argument in argv[1:]:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match and match[1] not in known:
            raise InputError(_no_key(match[1], known))
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", ConfigDict(start.to_dict()), "", flag_values=values, sys_argv=argv
    )
    for name, default in others.items():
        define = {bool: flags.DEFINE_bool, list: flags.DEFINE_list}.get(
            type(default), flags.DEFINE_string
        )
        define(name, default, "", flag_values=values)
    try:
        extra = values(argv)[1:]
    except flags.IllegalFlagValueError as error:
        match = re.match(r"flag --config\.([^=]+)=(.*?): ", str(error))
        if not match or match[1] not in known:
            raise
        raise InputError(config_lib.wrong_type(match[1], match[2], known[match[1]])) from error
    if extra:
        raise InputError(f'unexpected argument "{extra[0]}"; see ssl-jax --help')
    return values, values["config"].value, start


def _start(argv):
    """(config of the file that --config=FILE names, the other arguments)."""
    from ssl_jax import settings

    paths = [a.partition("=")[2] for a in argv if _FILE.match(a)]
    if len(paths) > 1:
        raise InputError(f"--config=FILE is given {len(paths)} times: {', '.join(paths)}; keep one")
    if not paths or not paths[0]:
        raise InputError(
            f"{argv[0]} needs --config=FILE, for example --config=configs/sop.py:vits16"
        )
    return config_lib.load(paths[0], settings.keys()), [a for a in argv if not _FILE.match(a)]


def _no_key(key: str, known) -> str:
    """Message for a dotted key that is not in `known`."""
    inside = [k for k in known if k.startswith(key + ".")]
    if inside:
        return f'"{key}" is a section; set one of its keys: {", ".join(inside)}'
    return config_lib.unknown("config key", key, known)
