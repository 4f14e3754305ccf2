"""Indices and names that may not be there: the check of an index, and what errors say of names."""

import difflib
from collections.abc import Iterable, Sequence

from ssl_jax.config import InputError

_LONGEST = 200  # characters of a name in an error


def checked(i: int, length: int) -> int:
    """i as int; IndexError outside of [0, length), so that `for record in source` ends."""
    if not 0 <= i < length:
        raise IndexError(f"record {i} of {length}")
    return int(i)


def nearest(word: object, words: Sequence[str]) -> str:
    """The text "; did you mean ...?" if one of the words is close, else none."""
    close = difflib.get_close_matches(str(word), words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def chosen(
    key: str, wanted: str, usual: Iterable[str], there: Sequence[str], where: object
) -> str | None:
    """The name that the key `data.KEY` gives, or the first usual one; None if there is none. Raises
    InputError for one that is not there."""
    if wanted and wanted not in there:
        raise InputError(
            f"data.{key}: {where} has no {wanted!r}{nearest(wanted, there)}; it has {listed(there)}"
        )
    return wanted or next((name for name in usual if name in there), None)


def pixels(shape: Sequence[int]) -> str:
    """The size of an image of shape (height, width, ...) as people say it, width first."""
    return f"{shape[1]}x{shape[0]}"


def listed(names: Sequence[str], limit: int = 20) -> str:
    """At most `limit` names as text."""
    if not names:
        return "none"
    return ", ".join(name[:_LONGEST] for name in names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )
