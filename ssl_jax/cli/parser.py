"""An argparse parser with one-line errors that name the remedy, and with examples in --help."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ssl_jax.config import InputError, unknown


class Parser(argparse.ArgumentParser):
    """A parser that raises InputError for arguments that it cannot parse.

    text: of --help, with "Examples:" and the placeholder {arguments} for the list of arguments.
    table: returns the text for {table}; called only for --help, because it imports JAX.
    """

    def __init__(
        self, *, text: str, table: Callable[[], str] | None = None, **options: Any
    ) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)
        self._text, self._table = text, table or str
        self.takes_keys = "\n  --config." in text  # whether it reads --config.KEY=VALUE

    def error(self, message: str) -> NoReturn:
        """Raises InputError, which explains a missing argument."""
        if names := message.partition("required: ")[2]:
            name = names.split(", ")[0]
            (meaning,) = (a.help for a in self._actions if name in (a.metavar, *a.option_strings))
            message = f"{self.prog.split()[-1]} needs {name}: {str(meaning).strip()}"
        example = self._text.partition("Examples:\n")[2].splitlines()[0].strip()
        raise InputError(f"{message}; for example {example}")

    def check_flags(self, arguments: Sequence[str]) -> None:
        """Raises InputError, naming the nearest flag, for a flag that does not exist, and for a
        config without --config=."""
        flags = self._option_string_actions
        if "--config" in flags and arguments and not arguments[0].startswith("-"):
            name = arguments[0]
            raise InputError(f"unexpected argument {name}; did you mean --config={name}?")
        for name in (argument.partition("=")[0] for argument in arguments):
            if name in {"--config", "--row"} - flags.keys():
                raise InputError(
                    f"{name} is for train, show and plan; {self.prog} reads the config in the"
                    " checkpoint"
                )
            if name.startswith("-") and name not in flags:
                hint = "; settings are written --config.KEY=VALUE" if self.takes_keys else ""
                raise InputError(unknown("flag", name, flags) + hint)

    def format_help(self) -> str:
        """The text of --help."""
        formatter = self._get_formatter()
        formatter.start_section(None)
        formatter.add_arguments(sorted(self._actions, key=lambda one: bool(one.option_strings)))
        formatter.end_section()
        arguments = formatter.format_help().rstrip()
        return self._text.replace("{arguments}", arguments).replace("{table}", self._table())


class _Formatter(argparse.HelpFormatter):
    """Formats flags with values as --flag=VALUE."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=100)
        self._action_max_length = 26  # aligns the texts of all commands

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = f"[={action.metavar}]" if action.nargs == "?" else f"={action.metavar}"
        return action.option_strings[0] + value


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number")
    return int(text)


def _positive(text: str) -> int:
    if not _whole(text):
        raise argparse.ArgumentTypeError(f"{text!r} must be 1 or more")
    return int(text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


# Integers of at least 0, of at least 1, and comma-separated names.
TYPES = {"whole": _whole, "positive": _positive, "names": _names}
