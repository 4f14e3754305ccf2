"""`ssl-jax train|eval|show`: absl flags and ml_collections config_flags over the functions of the package, nothing else."""

import re
import sys

from absl import flags
from ml_collections import ConfigDict, config_flags

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

EXIT_INPUT = 2  # bad input: one line on stderr

_USAGE = """ssl-jax: self-supervised vision in JAX

  ssl-jax train --config=configs/sop.py:vits16 [--config.optim.lr=1e-3 ...] --workdir=runs/a
      Pretrains. The same command continues a run that was stopped or killed.
  ssl-jax eval CHECKPOINT [--task=knn,linear,dense] [--config.eval.KEY=VALUE ...]
      Scores a run folder, or one checkpoint of it, with the untrained network and raw pixels beside it.
  ssl-jax show --config=configs/sop.py:vits16 [--config.KEY=VALUE ...]
      The resolved config with the origin of each value, parameter count and FLOPs per image.

Exit codes: 0 done; 2 bad input (one line says what and what would be right); 75 saved after SIGTERM, SIGINT or SIGUSR1,
start again to continue; 1 unexpected error.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code (see the usage text). `argv` includes the program's name."""
    argv = list(sys.argv if argv is None else argv)
    if len(argv) < 2 or argv[1] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0 if len(argv) > 1 else EXIT_INPUT
    try:
        if argv[1] not in _COMMANDS:
            raise InputError(config_lib.unknown("command", argv[1], _COMMANDS))
        return _COMMANDS[argv[1]](argv[1:])
    except (InputError, flags.Error) as error:
        print(f"ssl-jax: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_INPUT


def _train(argv) -> int:
    values, config, _ = _parse(argv, workdir=None, distributed=False)
    if not values.workdir:
        raise InputError("--workdir=FOLDER is missing: where checkpoints, metrics and pictures go")
    if values.distributed:
        import jax

        jax.distributed.initialize()  # finds its peers under SLURM, on TPU pods and GKE
    from ssl_jax import loop

    return loop.train(config, values.workdir)


def _eval(argv) -> int:
    from ssl_jax import evals, loop
    from ssl_jax.evals import report

    path = argv[1] if len(argv) > 1 and not argv[1].startswith("-") else None
    if path is None:
        raise InputError("eval needs a CHECKPOINT: a run folder or one step of it, for example runs/a or runs/a/checkpoints/1000")
    saved = loop.saved_config(path)
    values, config, _ = _parse(argv, saved=saved, task=[])
    changed = [key for key in config_lib.changed(saved, config) if not key.startswith("eval.")]
    if changed:
        raise InputError(f"{changed[0]} belongs to the checkpoint and cannot be changed; only keys of the section eval can")
    tasks = evals.check_tasks(values.task or config.eval.tasks)
    if not tasks:
        raise InputError(f"the run's config names no evaluations; give --task=NAME ({', '.join(evals.TASKS)})")
    method, config, weights, step = loop.load(path, config)
    results = report.Evaluation(method, config, tasks).compare(weights)
    print(f"{config.method}, step {step}")
    print(evals.comparison_table(results))
    for name, scores in results.items():
        print(f"{name}: " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    return 0


def _show(argv) -> int:
    from ssl_jax import show

    _, config, file = _parse(argv)
    print(show.text(file, config))
    return 0


_COMMANDS = {"train": _train, "eval": _eval, "show": _show}


def _parse(argv, *, saved=None, **others):
    """Parses one command's arguments with absl and config_flags.

    Args:
      argv: command first. saved: a config to start from instead of --config=FILE. others: further flags by name and default.

    Returns:
      (absl flag values, config with the overrides of the command line, config without them)
    """
    path = next((a.partition("=")[2] for a in argv if re.match(r"--?config=", a)), None)
    if saved is None and path is None:
        raise InputError(f"{argv[0]} needs --config=FILE, for example --config=configs/sop.py:vits16")
    # Loading here first names a wrong file, variant or key in one line; config_flags then parses and type-checks the overrides.
    start = config_lib.load(path) if saved is None else saved
    known = config_lib.flatten(start)
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match and match[1] not in known:
            raise InputError(config_lib.unknown("config key", match[1], known))
    values = flags.FlagValues()
    if saved is None:
        config_flags.DEFINE_config_file("config", None, "", flag_values=values, sys_argv=list(argv))
    else:
        config_flags.DEFINE_config_dict("config", ConfigDict(saved.to_dict()), "", flag_values=values, sys_argv=list(argv))
    for name, default in others.items():
        define = {bool: flags.DEFINE_bool, list: flags.DEFINE_list}.get(type(default), flags.DEFINE_string)
        define(name, default, "", flag_values=values)
    extra = values(list(argv))[1 if saved is None else 2 :]
    if extra:
        raise InputError(f"unexpected argument {extra[0]!r}; see ssl-jax --help")
    return values, values["config"].value, start
