"""`ssl-jax COMMAND`: one module per command, over absl flags and ml_collections config_flags."""

import contextlib
import importlib
import importlib.metadata
import io
import os
import platform
import sys

from absl import flags

from ssl_jax.cli import completion, platforms
from ssl_jax.config import InputError, refusal, unknown
from ssl_jax.runtime import stop

EXIT_INPUT = 2  # bad input: one line on stderr
# Modules of this package, each with HELP and run(argv).
COMMANDS = ("train", "eval", "embed", "export", "show", "plan", "report", "check")

OVERVIEW = """ssl-jax: self-supervised vision in JAX

  ssl-jax train --config=sop:vits16 --workdir=runs/a   train, or resume a run
  ssl-jax eval runs/a                                  evaluate a network
  ssl-jax embed runs/a /my/images --out=vectors.npz    compute the features of images
  ssl-jax export runs/a --to=timm --out=exported/a     export a network to timm or transformers
  ssl-jax report runs/a runs/b                         compare runs on one HTML page
  ssl-jax check runs/a                                 verify the checkpoints of a run
  ssl-jax show --config=sop:vits16                     print a config and what a step costs
  ssl-jax show --paper=sop                             list the rows of a paper's tables
  ssl-jax plan --config=sop:vits16 --devices=8         estimate memory and time on 8 devices

  ssl-jax show                                         list the configs and papers

ssl-jax COMMAND --help describes a command; ssl-jax --version prints the versions in use.
With --platform=gpu (or tpu, cpu), any command fails where there is no such device.
To complete commands, configs and keys in a shell: eval "$(register-python-argcomplete ssl-jax)"

Exit codes: 0 done; 2 bad input (one line says what is wrong and how to fix it); 75 stopped by
SIGTERM, SIGINT or SIGUSR1, nothing is lost, start again to resume; 130 stopped at once by a second
SIGINT; 1 unexpected error.
"""

# Flags that are read before absl sees the others; "--config x" is "--config=x" for them too.
_EARLY = ("--config", "--row", "--paper", "--import", "--platform", "--add", "--out", "--family")


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code. `argv` includes the program's name."""
    argv = list(sys.argv if argv is None else argv)[1:]
    completion.answer(COMMANDS)
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    told = stop.listening() if argv[:1] == ["train"] else contextlib.nullcontext()
    try:
        with told:
            code = _run(argv)
        sys.stdout.flush()
        return code
    except stop.Interrupted:
        return stop.EXIT_PREEMPTED
    except BrokenPipeError:
        if argv[0] == "train":
            raise
        # The reader, `head` for example, has enough. Python must not flush what is left at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except flags.Error as error:
        return _refused(str(error))
    except (InputError, OSError) as error:
        if not (line := refusal(error)):
            raise
        return _refused(line)
    except RuntimeError as error:
        if not (why := platforms.refusal(error)):
            raise
        return _refused(why)


def _refused(text: str) -> int:
    print(f"ssl-jax: {' '.join(text.split())}", file=sys.stderr)
    return EXIT_INPUT


def _run(argv: list[str]) -> int:
    if argv == ["--version"]:
        print(_version())
        return 0
    argv = platforms.choose(_joined(argv))
    help_wanted = bool({"-h", "--help"} & set(argv))
    if argv[:1] == ["help"] or (help_wanted and argv[0] not in COMMANDS):
        print(OVERVIEW, end="")
        return 0
    if not argv:
        raise InputError(
            f"no command; choose one of {', '.join(COMMANDS)} (ssl-jax --help explains them)"
        )
    if argv[0] not in COMMANDS:
        raise InputError(unknown("command", argv[0], COMMANDS))
    command = importlib.import_module(f"ssl_jax.cli.{argv[0]}")
    if help_wanted:
        text = command.help_text() if hasattr(command, "help_text") else command.HELP
        print(text, end="")
        return 0
    return command.run(argv)


def _version() -> str:
    """Of what decides how a run goes."""
    names = ("ssl-jax", "jax", "jaxlib", "flax", "optax")
    found = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _joined(argv: list[str]) -> list[str]:
    """The arguments, a value after one of _EARLY put to its name."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] in _EARLY and not argument.startswith("-"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
