"""Errors for a user's mistakes, and their one-line messages."""

import difflib
import errno
from collections.abc import Collection


class InputError(ValueError):
    """A user's mistake. The message is one line that names the key, file or shape and the
    remedy."""


class Unavailable(InputError):
    """A service or a computer does not answer. The same command may succeed later."""


class MissingFile(InputError):
    """A file that the user must download is missing. The config may be correct, so it can be shown
    but not trained.
    """


_LONGEST = 4000  # characters of a message, which may quote files of others
_PASSING = (errno.EIO, errno.ESTALE)  # a shared disk may answer again
# Errors of a disk, which name no file if they come from a write to an open one.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, *_PASSING)


def refusal(error: BaseException) -> str:
    """The one-line message of an error that is not a fault of the program, but of input, a disk, or
    the file that an OSError names (its path, permissions or state); "" for other errors.
    """
    of_file = isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK)
    fault = of_file or isinstance(error, InputError)
    text = " ".join(str(error).split())[:_LONGEST]
    # Quoted names may contain control sequences of a terminal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) if fault else ""


def exit_code(error: BaseException) -> int:
    """The exit code of a process that an error of `refusal` ends: 1 if the same command may succeed
    later, so that a scheduler should start it again, otherwise 2."""
    passing = isinstance(error, OSError) and error.errno in _PASSING
    return 1 if passing or isinstance(error, Unavailable) else 2


def reason(error: BaseException) -> str:
    """The cause of an error in one line: the system's message ("No such file or directory"), the
    error's own, or its class."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()) or type(error).__name__


def full_reason(error: BaseException) -> str:
    """The class and the message of an error of somebody else's code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def unknown(kind: str, name: str, options: Collection[str]) -> str:
    """Message for a name that does not exist, with the nearest existing one, and all of them if
    there are few.
    """
    listed = f" (known: {', '.join(sorted(options))})" if len(options) <= 16 else ""
    return f'unknown {kind} "{name}"{did_you_mean(name, options)}{listed}'


def did_you_mean(name: object, options: Collection[str]) -> str:
    """The text '; did you mean "..."?' if an option is similar, else ""."""
    close = nearest(str(name), options)
    return f'; did you mean "{close}"?' if close else ""


def nearest(name: str, options: Collection[str]) -> str | None:
    """The most similar option by full name, else by the last part of dotted names. Case and the
    dashes of flags do not count."""
    for dots, cutoff in ((0, 0.6), (1, 0.7)):
        known = {_plain(option, dots): option for option in options}
        if close := difflib.get_close_matches(_plain(name, dots), known, n=1, cutoff=cutoff):
            return known[close[0]]
    return None


def _plain(name: str, dots: int) -> str:
    """A name without dashes in front, in lower case, and if dots = 1 only behind its last dot."""
    return name.lstrip("-").lower().rsplit(".", dots)[-1]
