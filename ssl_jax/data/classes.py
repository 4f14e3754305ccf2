"""Maps the values of mask files to classes."""

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError, is_mapping
from ssl_jax.data import kinds, listing

IGNORE = 255  # in masks of records: this pixel has no class
_NONE = -1  # in tables: no mask may have this value


def table(
    class_map: Mapping[int, int] | Sequence[tuple[int, int]] | Sequence[int] = (),
    *,
    reduce_zero_label: bool = False,
    ignore: int = IGNORE,
    num_classes: int | None = None,
    before: np.ndarray | None = None,
) -> np.ndarray:
    """The class of each value that a mask can have.

    Args:
      class_map: {value: class}, its pairs, or the classes of the values 0, 1, 2, ...; empty:
        classes equal values. A value that it leaves out has no class.
      reduce_zero_label: afterwards, class 0 becomes "ignore" and all others move down by one.
      ignore: a value that means "ignore", as 255 does, unless `class_map` maps it.
      num_classes: of the result; larger numbers are no class. None: unknown.
      before: a table applied first, whose classes are the values here.
    Returns:
      int16 [256]: a class, 255 = ignore, or -1 for a value that no mask may have.
    Raises:
      InputError: a value or class outside of 0..255.
    """
    mapped = isinstance(class_map, Mapping) or is_mapping(class_map)
    entries: Any = class_map if mapped else enumerate(class_map)
    pairs = dict(entries)
    for number in (*pairs, *pairs.values(), ignore):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 255:
            raise InputError(
                "data.class_map and data.ignore: values and classes are integers from 0 to 255"
                f" (255 = ignore), not {number!r}"
            )
    result = np.full(256, _NONE, np.int16) if pairs else np.arange(256, dtype=np.int16)
    result[[ignore, IGNORE]] = IGNORE
    for value, label in pairs.items():
        result[value] = label
    if reduce_zero_label:
        fixed = (result == IGNORE) | (result == _NONE)
        result = np.where(fixed, result, np.where(result == 0, IGNORE, result - 1))
    if num_classes is not None:
        result = np.where((result >= num_classes) & (result != IGNORE), _NONE, result)
    if before is not None:
        result = np.where(before == _NONE, _NONE, result[before])
    return result.astype(np.int16)


def apply(table: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Classes of a mask: uint8 [H,W] -> uint8 [H,W], 255 = ignore.

    Raises ValueError for a value that the table has no class for.
    """
    classes = table[mask]
    wrong = classes == _NONE
    if wrong.any():
        numbers = np.flatnonzero((table != _NONE) & (table != IGNORE))
        span = f"{numbers[0]}..{numbers[-1]}" if len(numbers) else "none"
        raise ValueError(
            f"the mask has the value {mask[wrong][0]}, which is neither a class ({span})"
            " nor the value of ignored pixels; see data.class_names, data.class_map, data.ignore"
        )
    return classes.astype(np.uint8)


def summary(table: np.ndarray, *files: str) -> str:
    """A short text that is the same for the same table and the same mask files: what a source says
    of its masks in its `repr`, by which features and masks are kept and found again."""
    text = b"\n".join(map(os.fsencode, files)) + table.astype("<i2").tobytes()
    return f"masks={zlib.crc32(text):08x}"


def given(section: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of classes in the file `class_names` of a section `data`; () without one."""
    path = section.get("class_names")
    return tuple(listing.lines_of("class_names", path)) if path else ()


def chosen(section: Mapping[str, Any]) -> bool:
    """Whether a section `data` says anything of masks, so that these must be usable."""
    return any(section.get(key) for key in ("masks", *kinds.MASK_KEYS))


def of_masks(
    section: Mapping[str, Any], names: Sequence[str] | None = None, before: np.ndarray | None = None
) -> dict[str, Any]:
    """What a section `data` makes of the masks of a set: its `table`, and `mask_names`, the names
    of the classes that come out.

    Args:
      section: class_map, reduce_zero_label and ignore, see `table`; class_names, see `given`.
      names: of the set's own classes. before: see `table`.
    """
    rules = {
        name: section[name]
        for name in ("class_map", "reduce_zero_label", "ignore")
        if name in section
    }
    final = given(section)
    if not final and names and not rules.get("class_map"):
        final = tuple(names)[1:] if rules.get("reduce_zero_label") else tuple(names)
    values = table(**rules, num_classes=len(final) or None, before=before)
    return dict(table=values, mask_names=final or None)
