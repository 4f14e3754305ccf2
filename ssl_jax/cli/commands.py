"""The commands as argparse objects, used for parsing, help and completion.

Arguments and texts are in commands.toml. The modules of the commands are not imported here, because
JAX takes seconds to load, and completion runs at every press of TAB.
"""

import textwrap
import tomllib
from pathlib import Path

from ssl_jax.cli.parser import TYPES, Parser

# Each is a module of this package with run(options) -> exit code.
COMMANDS = ("train", "eval", "embed", "export", "stats", "show", "plan", "report", "check")


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """(parser of the program, {command: its parser})."""
    described = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))
    tables = {"eval": _evaluations, "plan": _machines}
    program = Parser(prog="ssl-jax", text=described["program"]["text"])
    _add(program, described["program"]["arguments"] | described["every"]["arguments"])
    subparsers = program.add_subparsers()
    commands = {}
    for name in COMMANDS:
        command = described[name]
        commands[name] = subparsers.add_parser(name, text=command["text"], table=tables.get(name))
        for part in (described.get(command.get("uses")), command, described["every"]):
            _add(commands[name], part["arguments"] if part else {})
    return program, commands


def _add(parser: Parser, arguments: dict[str, dict]) -> None:
    """Adds arguments {NAME, --FLAG or --FLAG=VALUE: keywords of add_argument}."""
    for written, options in arguments.items():
        name, _, value = written.partition("=")
        if "type" in options:
            options = options | {"type": TYPES[options["type"]]}
        if value or not name.startswith("-"):
            parser.add_argument(name, metavar=value or name.upper(), **options)
        else:
            parser.add_argument(name, action="store_true", **options)


def _evaluations() -> str:
    from ssl_jax import evals

    protocols = {name: "|".join(type.protocols) for name, type in sorted(evals.TYPES.items())}
    types = [f"{name}:{protocol}" if protocol else name for name, protocol in protocols.items()]
    indent: dict = dict(initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    return textwrap.fill("  ".join(types), 78, **indent)


def _machines() -> str:
    from ssl_jax.train import estimate

    return ", ".join(estimate.MACHINES)
