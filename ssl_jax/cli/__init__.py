"""`ssl-jax COMMAND`: one module per command, over absl flags and ml_collections config_flags."""

import errno
import importlib
import os
import sys

from absl import flags

from ssl_jax.config import InputError, unknown

EXIT_INPUT = 2  # bad input: one line on stderr
# Modules of this package, each with HELP and run(argv).
COMMANDS = ("train", "eval", "show", "plan", "report")

OVERVIEW = """ssl-jax: self-supervised vision in JAX

  ssl-jax train --config=sop:vits16 --workdir=runs/a   pretrains, or continues a run
  ssl-jax eval runs/a                                  scores a run beside its baselines
  ssl-jax show --config=sop:vits16                     a config, its origin and its cost
  ssl-jax show --paper=sop                             the rows of a paper's tables
  ssl-jax report runs/a runs/b                         one HTML page that compares runs
  ssl-jax plan --config=sop:vits16 --devices=8         what a step would take on 8 devices

ssl-jax COMMAND --help explains each.

Exit codes: 0 done; 2 bad input (one line says what and what would be right); 75 saved after
SIGTERM, SIGINT or SIGUSR1, start again to continue; 1 unexpected error.
"""

# A disk or a path that refuses: one line says enough, a traceback says no more.
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
    """Runs one command; returns its exit code. `argv` includes the program's name."""
    argv = list(sys.argv if argv is None else argv)[1:]
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if argv[0] == "train":
            raise
        # The reader, `head` for example, has enough. Python must not flush what is left at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InputError, flags.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _ERRNOS:
            raise
        print(f"ssl-jax: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_INPUT


def _run(argv: list[str]) -> int:
    help_wanted = bool({"-h", "--help"} & set(argv))
    if argv[:1] == ["help"] or (help_wanted and argv[0] not in COMMANDS):
        print(OVERVIEW, end="")
        return 0
    if not argv:
        raise InputError(
            f"no command; give one of {', '.join(COMMANDS)} (ssl-jax --help explains them)"
        )
    if argv[0] not in COMMANDS:
        raise InputError(unknown("command", argv[0], COMMANDS))
    command = importlib.import_module(f"ssl_jax.cli.{argv[0]}")
    if help_wanted:
        text = command.help_text() if hasattr(command, "help_text") else command.HELP
        print(text, end="")
        return 0
    return command.run(argv)
