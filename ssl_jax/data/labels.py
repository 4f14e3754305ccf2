"""Labels of a whole set, which may be numbers of classes, ids or names."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError

_CLASSES = 1000  # integers below may be numbers of classes even if only some of them occur


def checked(
    labels: Sequence[Any] | None, name: Callable[[int], str], names: Sequence[str] | None = None
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """What `numbered` makes of labels from a file; (None, None) where all are None or negative,
    like those of a hidden test set.

    Args:
      labels: of all records: integers from 0, or texts. name(i): of record i. names: of the classes
        of labels that are numbers.
    Raises:
      InputError: a label that is neither number nor text, or negative or None where others are not;
        one without a name where others have one.
    """
    wrong = [i for i, label in enumerate(labels or ()) if not _is_label(label)]
    if labels is None or len(wrong) == len(labels):
        return None, None
    if wrong:
        raise InputError(
            f"data.labels: {name(wrong[0])} has the label {labels[wrong[0]]!r};"
            f" {len(wrong)} of {len(labels)} are neither numbers from 0 nor strings"
        )
    numbers, names = numbered(labels, names)
    last = int(numbers.argmax())
    if names and numbers[last] >= len(names):
        raise InputError(
            f"data.labels: {name(last)} has the label {numbers[last]}, but only {len(names)}"
            " classes have names"
        )
    return numbers, names


def _is_label(label):
    """Whether this can be a label: a text, or a number from 0."""
    return isinstance(label, str) or (isinstance(label, int | float) and label >= 0)


def numbered(
    labels: Sequence[Any], names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """(int32 [N] from 0, names of the classes) of labels that are numbers or names.

    Integers from 0 stay as they are, with `names` if there are any. All other labels, mostly
    strings, are numbered in sorted order and become the class names; strings of integers are sorted
    as numbers. Integers are treated the same way if most numbers below the largest do not occur, as
    they must then be ids.
    """
    if all(isinstance(label, int | np.integer) and label >= 0 for label in labels):
        if max(labels) < max(_CLASSES, 2 * len(set(labels)), len(names or ())):
            return np.array(labels, np.int32), tuple(names) if names else None
    texts = list(map(str, labels))
    whole = all(len(text) < 20 and text.removeprefix("-").isdecimal() for text in texts)
    classes = sorted(set(texts), key=lambda text: (int(text) if whole else 0, text))
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[text] for text in texts], np.int32), tuple(classes)
