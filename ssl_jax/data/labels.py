"""Labels of a whole set, which may be numbers of classes, ids or names."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError

_CLASSES = 1000  # integers below may be numbers of classes even if only some of them occur


def checked(
    labels: Sequence[Any] | None, name: Callable[[int], str], names: Sequence[str] | None = None
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """What `numbered` makes of labels from a file, where None, "" and negative numbers mean that a
    record has none; (None, None) if no record has one, as in a hidden test set.

    Args:
      labels: of all records: integers from 0, or texts. name(i): of record i. names: of the classes
        of labels that are numbers.
    Raises:
      InputError: a label that is neither number nor text; one without a name where others have one.
    """
    values = [None if _is_none(label) else label for label in labels or ()]
    if all(label is None for label in values):
        return None, None
    wrong = [i for i, x in enumerate(values) if not isinstance(x, str | int | float | None)]
    if wrong:
        raise InputError(
            f"data.labels: {name(wrong[0])} has the label {values[wrong[0]]!r};"
            f" {len(wrong)} of {len(values)} are neither numbers nor strings"
        )
    if None in values and len({*values} - {None}) == 1 and any(map(_is_negative, labels or ())):
        raise InputError(
            "data.labels: negative labels mean that an image has none, and only one class is left;"
            " number the classes from 0"
        )
    numbers, names = numbered(values, names)
    last = int(numbers.argmax())
    if names and numbers[last] >= len(names):
        raise InputError(
            f"data.labels: {name(last)} has the label {numbers[last]}, but only {len(names)}"
            " classes have names"
        )
    return numbers, names


def _is_none(label):
    """Whether this says that a record has no label."""
    return label is None or label == "" or label != label or _is_negative(label)


def _is_negative(label):
    return isinstance(label, int | float) and label < 0


def numbered(
    labels: Sequence[Any], names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """(int32 [N] from 0, names of the classes) of labels that are numbers or names; -1 for None.

    Integers from 0 stay as they are, with `names` if there are any. All other labels, mostly
    strings, are numbered in sorted order and become the class names; strings of integers are sorted
    as numbers. Integers are treated the same way if most numbers below the largest do not occur, as
    they must then be ids.
    """
    there = {label for label in labels if label is not None}
    if all(isinstance(label, int | np.integer) and label >= 0 for label in there):
        if max(there) < max(_CLASSES, 2 * len(there), len(names or ())):
            numbers = [-1 if label is None else label for label in labels]
            return np.array(numbers, np.int32), tuple(names) if names else None
    texts = {str(label) for label in labels if label is not None}
    whole = all(len(text) < 20 and text.removeprefix("-").isdecimal() for text in texts)
    classes = sorted(texts, key=lambda text: (int(text) if whole else 0, text))
    number = {name: i for i, name in enumerate(classes)}
    numbers = [-1 if label is None else number[str(label)] for label in labels]
    return np.array(numbers, np.int32), tuple(classes)
