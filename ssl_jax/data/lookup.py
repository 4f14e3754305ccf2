"""Checks of indices and names that may not exist, and their texts in errors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssl_jax.config import InputError, did_you_mean

_LONGEST = 200  # characters of a name in an error


def checked(i: int, length: int) -> int:
    """i as int; IndexError outside of [0, length), so that `for record in source` ends."""
    if not 0 <= i < length:
        raise IndexError(f"record {i} of {length}")
    return int(i)


def named(
    section: Mapping[str, Any],
    usual: Mapping[str, Iterable[str | None]],
    there: Sequence[str],
    where: object,
) -> dict[str, str | None]:
    """{KEY: name} of the columns or features that the keys `data.KEY` of a section name. If a key
    is "", the first of its usual names that exists, or None.

    Args:
      usual: {KEY: names}, those of "images" among them. there: all names in the file `where`.
    Raises:
      InputError: a name that is not there; no images.
    """
    result = {}
    for key, names in usual.items():
        name = section[key] or next((name for name in names if name in there), None)
        if name and name not in there:
            hint = did_you_mean(name, there)
            has = f"{where} has no {name!r}{hint}; it has {listed(there)}"
            raise InputError(f"data.{key}: {has}")
        result[key] = name
    if result["images"] is None:
        raise InputError(
            f"data.images: {where} has {listed(there)}; name the one that holds the images"
        )
    return result


def pixels(shape: Sequence[int]) -> str:
    """The size of an image of shape (height, width, ...) as text, width first."""
    return f"{shape[1]}x{shape[0]}"


def listed(names: Sequence[str], limit: int = 20) -> str:
    """At most `limit` names as text."""
    if not names:
        return "none"
    return ", ".join(name[:_LONGEST] for name in names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )
