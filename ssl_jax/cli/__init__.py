"""`ssl-jax COMMAND`, with one module per command. argparse parses flags, config_flags the keys of
configs."""

import contextlib
import importlib
import importlib.metadata
import io
import os
import platform
import sys

import ssl_jax
from ssl_jax.cli import arguments, commands, completion, platforms
from ssl_jax.cli.commands import COMMANDS
from ssl_jax.config import InputError, refusal, unknown
from ssl_jax.runtime import stop

EXIT_INPUT = 2  # bad input: one line on stderr

# {command: what others call it}
_SYNONYMS = {
    "train": "resume pretrain finetune fit run",
    "eval": "test score validate probe",
    "embed": "features extract encode predict infer",
    "export": "convert save",
    "show": "list ls config configs methods",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code. argv: includes the program's name."""
    argv = list(sys.argv if argv is None else argv)[1:]
    completion.answer()
    for stream in (sys.stdout, sys.stderr):  # file names may not be valid text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signals = stop.listening() if argv[:1] == ["train"] else contextlib.nullcontext()
    try:
        with signals:
            code = _run(argv)
        sys.stdout.flush()
        return code
    except stop.Interrupted:
        return stop.EXIT_PREEMPTED
    except BrokenPipeError:
        if argv[0] == "train":
            raise
        # The reader, for example `head`, closed the pipe; Python must not flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
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
    changes, words = arguments.split(argv)
    if words == ["--version"]:
        print(_version())
        return 0
    program, parsers = commands.parsers()
    # A flag's value may be a word before the command: --platform cpu train.
    candidates = (word for word in words if word in (*COMMANDS, "help"))
    command = next(candidates, next((word for word in words if not word.startswith("-")), ""))
    if command == "help" or {"-h", "--help"} & set(words):
        print(parsers.get(command, program).format_help(), end="")
        return 0
    if not command:
        raise InputError(
            f"no command; choose one of {', '.join(COMMANDS)} (ssl-jax --help explains them)"
        )
    if command not in COMMANDS:
        ours = next((one for one, names in _SYNONYMS.items() if command in names.split()), "")
        hint = f"; here it is {ours}, see ssl-jax {ours} --help"
        raise InputError(
            f'unknown command "{command}"{hint}' if ours else unknown("command", command, COMMANDS)
        )
    words.remove(command)
    parsers[command].check_flags(words)
    options = parsers[command].parse_args(words)
    options.command, options.changes = command, changes
    if changes and not parsers[command].takes_keys:
        raise InputError(f"{command} does not accept --config.KEY=VALUE, but got {changes[0]}")
    platforms.use(options.platform)
    if getattr(options, "imports", ()):
        from ssl_jax import methods

        methods.import_modules(options.imports)
    return importlib.import_module(f"ssl_jax.cli.{command}").run(options)


def _version() -> str:
    """Versions of the packages that determine a run's results."""
    names = ("jax", "jaxlib", "flax", "optax")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return ", ".join(
        [f"ssl-jax {ssl_jax.__version__}", *versions, f"Python {platform.python_version()}"]
    )
