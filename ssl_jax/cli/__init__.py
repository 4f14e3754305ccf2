"""`ssl-jax COMMAND`, with one module per command. argparse parses flags, config_flags the keys of
configs."""

import contextlib
import importlib
import importlib.metadata
import io
import platform
import sys

import ssl_jax
from ssl_jax.cli import arguments, commands, completion, platforms
from ssl_jax.cli.commands import COMMANDS
from ssl_jax.config import InputError, exit_code, refusal, unknown
from ssl_jax.runtime import output, stop

EXIT_INPUT = 2  # bad input: one line on stderr
# Commands with another result than their text, which they complete if nobody reads the text.
_LASTING = ("train", "eval", "embed", "export", "report", "check")

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
    signals: contextlib.AbstractContextManager = contextlib.nullcontext()
    try:
        changes, words = arguments.split(argv)
        if (command := _command(words)) in _LASTING:
            output.outlive_reader(disk=command == "train")
        if command == "train":
            signals = stop.listening()
        with signals:
            code = _run(command, changes, words)
        sys.stdout.flush()
        return code
    except stop.Interrupted:
        return stop.EXIT_PREEMPTED
    except BrokenPipeError:
        if not output.reader_left():
            raise
        return 0
    except (InputError, OSError) as error:
        if not (line := refusal(error)):
            raise
        return _refused(line, exit_code(error))
    except RuntimeError as error:
        if not (why := platforms.refusal(error)):
            raise
        return _refused(why)


def _refused(text: str, code: int = EXIT_INPUT) -> int:
    print(f"ssl-jax: {' '.join(text.split())}", file=sys.stderr)
    return code


def _command(words: list[str]) -> str:
    """The command among the words of a command line; "" without one."""
    # A flag's value may be a word before the command: --platform cpu train.
    candidates = (word for word in words if word in (*COMMANDS, "help"))
    return next(candidates, next((word for word in words if not word.startswith("-")), ""))


def _run(command: str, changes: list[str], words: list[str]) -> int:
    if words == ["--version"]:
        print(_version())
        return 0
    program, parsers = commands.parsers()
    if command == "help" or {"-h", "--help"} & set(words):
        topic = next((word for word in words if word in parsers), "")  # of: help train
        print(parsers.get(topic, program).format_help(), end="")
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
