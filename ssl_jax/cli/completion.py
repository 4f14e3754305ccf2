"""Completion in a shell, through argcomplete: commands, flags, configs, keys and folders.

eval "$(register-python-argcomplete ssl-jax)"   # in ~/.bashrc or ~/.zshrc
"""

import os
import re
from collections.abc import Iterable

from ssl_jax import config as config_lib
from ssl_jax.cli import commands


def answer() -> None:
    """Prints completions and exits if the shell requests them."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    program, parsers = commands.parsers()
    keys = _keys(os.environ.get("COMP_LINE", ""))
    for parser in parsers.values():
        for action in parser._actions:
            if action.dest == "config":
                # argcomplete reads this attribute.
                action.completer = _configs  # type: ignore[attr-defined]
        for key in keys if parser.takes_keys else ():
            parser.add_argument(f"--config.{key}")
    argcomplete.autocomplete(program)


def _configs(prefix: str, **_) -> Iterable[str]:
    """Names of configs, or the variants of a config whose name is complete."""
    shipped = config_lib.shipped()
    name, *variant = prefix.split(":")
    if not variant or name not in shipped:
        return shipped
    variants = getattr(config_lib.read_module(shipped[name]), "VARIANTS", ())
    return [f"{name}:{variant}" for variant in variants]


def _keys(line: str) -> Iterable[str]:
    """Keys of the config named in the line, if the line ends in the beginning of a key."""
    if not re.search(r"\s--config\.\S*$", line):
        return ()
    from ssl_jax import settings

    if match := re.search(r"--config[= ]([^.\s]\S*)", line):
        return config_lib.flatten(config_lib.load(match[1]))
    return settings.keys()
