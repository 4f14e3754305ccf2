"""A user's mistakes: the errors, and lines that name what is meant."""

import difflib
import errno
from collections.abc import Collection


class InputError(ValueError):
    """A user's mistake: one line that names the key, file or shape and says what would be right."""


class MissingFile(InputError):
    """A file that the user must fetch is not there. The config may be right: it can be shown, but
    not trained.
    """


_LONGEST = 4000  # characters of a line about bad input, which may quote files of others
# What a disk, a name or rights may do to a program.
_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
)


def refusal(error: BaseException) -> str:
    """The line that says it all, of an error that is no fault of the program: bad input, or a disk
    or a name that does not do; "" of any other.
    """
    ours = isinstance(error, InputError) or (isinstance(error, OSError) and error.errno in _DISK)
    text = " ".join(str(error).split())[:_LONGEST]
    # Names in files of others may hold what a terminal obeys.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) if ours else ""


def reason(error: BaseException) -> str:
    """What an error says, in one line: the system's words ("No such file or directory"), its own,
    or its class."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()) or type(error).__name__


def unknown(kind: str, name: str, options: Collection[str]) -> str:
    """Message for a name that does not exist: the nearest one that does, and all of them if they
    are few.
    """
    listed = f" (known: {', '.join(sorted(options))})" if len(options) <= 16 else ""
    return f'unknown {kind} "{name}"{did_you_mean(name, options)}{listed}'


def did_you_mean(name: object, options: Collection[str]) -> str:
    """The text '; did you mean "..."?' if one of the options is similar, else ""."""
    close = nearest(str(name), options)
    return f'; did you mean "{close}"?' if close else ""


def nearest(name: str, options: Collection[str]) -> str | None:
    """The most similar option: by whole name, else by the last part of dotted names."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    if not close:
        last = {o.rsplit(".", 1)[-1]: o for o in options}
        close = [
            last[c]
            for c in difflib.get_close_matches(name.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.7)
        ]
    return close[0] if close else None
