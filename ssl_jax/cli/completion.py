"""Completion in a shell, through argcomplete: commands, their flags, configs, keys and folders.

eval "$(register-python-argcomplete ssl-jax)"   # in ~/.bashrc or ~/.zshrc
"""

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssl_jax import config as config_lib


def answer(commands: Sequence[str]) -> None:
    """Tells the shell what fits, and ends the process, where it is the shell that asks."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser(commands, os.environ.get("COMP_LINE", "")))


def parser(commands: Sequence[str], line: str) -> argparse.ArgumentParser:
    """All commands as argparse describes them; of their keys those that the line begins to name."""
    whole = argparse.ArgumentParser(prog="ssl-jax")
    subparsers = whole.add_subparsers()
    for command in commands:
        one = subparsers.add_parser(command, allow_abbrev=False)
        one.add_argument("places", nargs="*")  # files and folders, the shell's default
        for flag in flags(command):
            # argcomplete looks for the attribute.
            argument = one.add_argument(flag)
            if flag == "--config":
                argument.completer = _configs  # type: ignore[attr-defined]
        for key in _keys(line):
            one.add_argument(f"--config.{key}")
    return whole


def flags(command: str) -> list[str]:
    """Those that the help of a command explains; its module is not imported, which takes long."""
    text = Path(__file__).with_name(f"{command}.py").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"^  (--[a-z-]+)(?=[=\[ \n])", text, re.MULTILINE)))


def _configs(prefix: str, **_) -> Iterable[str]:
    """Names of configs; of one that is written out, its variants."""
    shipped = config_lib.shipped()
    name, *variant = prefix.split(":")
    if not variant or name not in shipped:
        return shipped
    variants = getattr(config_lib.read_module(shipped[name]), "VARIANTS", ())
    return [f"{name}:{variant}" for variant in variants]


def _keys(line: str) -> Iterable[str]:
    """The keys of the config that a line names, if it begins to name one."""
    if not re.search(r"\s--config\.\S*$", line):
        return ()
    from ssl_jax import settings

    if named := re.search(r"--config[= ]([^.\s]\S*)", line):
        return config_lib.flatten(config_lib.load(named[1]))
    return settings.keys()
