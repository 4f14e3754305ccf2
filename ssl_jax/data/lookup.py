"""Indices and names that may not be there: the check of an index, and what errors say of names."""

import difflib
from collections.abc import Sequence


def checked(i: int, length: int) -> int:
    """i as int; IndexError outside of [0, length), so that `for record in source` ends."""
    if not 0 <= i < length:
        raise IndexError(f"record {i} of {length}")
    return int(i)


def nearest(word: object, words: Sequence[str]) -> str:
    """The text "; did you mean ...?" if one of the words is close, else none."""
    close = difflib.get_close_matches(str(word), words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(names: Sequence[str], limit: int = 20) -> str:
    """At most `limit` names as text."""
    if not names:
        return "none"
    return ", ".join(names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )
