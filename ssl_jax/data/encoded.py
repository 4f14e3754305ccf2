"""Encoded images that other files hold, with labels and masks: what tars and tables share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import classes
from ssl_jax.data.stored import Named, Stored

_CLASSES = 1000  # integers below may be numbers of classes even if only some of them occur


class Encoded(Stored):
    """Records whose images and masks come as bytes from `_read`, which a subclass has."""

    def _take(
        self,
        labels: Sequence[Any] | None,
        named: Named,
        *,
        masks: bool = False,
        class_names: Sequence[str] | None = None,
        read_from: tuple[str, str] = ("", ""),
    ) -> None:
        """Keeps what is known of all records.

        Args:
          labels: of all records: integers from 0, or names, which are then numbered; None: none,
            as where all are None or negative, like those of a hidden test set. named: as opened.
          masks: whether they have masks. class_names: of labels that are numbers.
          read_from: what labels and masks are called where they come from, for `repr`.

        Raises InputError for a label that is neither number nor text, or negative or None where
        others are not; for a first mask that cannot be one.
        """
        wrong = [i for i, label in enumerate(labels or ()) if not _is_label(label)]
        labels = None if labels is None or len(wrong) == len(labels) else labels
        if labels is not None and wrong:
            raise InputError(
                f"data.labels: {self.name(wrong[0])} has the label {labels[wrong[0]]!r};"
                f" {len(wrong)} of {len(labels)} are neither numbers from 0 nor strings"
            )
        self._labels, self.class_names = numbered(labels, class_names)
        if self._labels is not None:
            count, last = len(self.class_names or ()), int(self._labels.argmax())
            self.num_classes = count or 1 + int(self._labels[last])
            if self._labels[last] >= self.num_classes:
                raise InputError(
                    f"data.labels: {self.name(last)} has the label {self._labels[last]}, but only"
                    f" {count} classes have names"
                )
        self.has_masks = masks
        self._table, self.mask_names = classes.final(named.rules, given=named.class_names)
        known = [f"classes={self.num_classes}", *[f"labels={read_from[0]!r}"] * bool(read_from[0])]
        known += [classes.told(self._table, read_from[1])] if masks else []
        self._known = ", ".join(known)  # kept features are found again by `repr`
        self._check_first_mask()


def _is_label(label):
    """Whether this can be a label: a text, or a number from 0."""
    return isinstance(label, str) or (isinstance(label, int | float) and label >= 0)


def numbered(
    labels: Sequence[Any] | None, names: Sequence[str] | None = None
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """(int32 [N] from 0, names of the classes) of labels that are numbers or names.

    Integers from 0 stay as they are, with `names` if there are any. All others, texts above all,
    are numbered in sorted order and are the names of their classes; texts of whole numbers are
    sorted as numbers. So are integers that must be ids, as most of the numbers below do not occur.
    """
    if labels is None:
        return None, None
    if all(isinstance(label, int | np.integer) and label >= 0 for label in labels):
        if max(labels) < max(_CLASSES, 2 * len(set(labels)), len(names or ())):
            return np.array(labels, np.int32), tuple(names) if names else None
    texts = list(map(str, labels))
    whole = all(len(text) < 20 and text.removeprefix("-").isdecimal() for text in texts)
    found = sorted(set(texts), key=lambda text: (int(text) if whole else 0, text))
    number = {name: i for i, name in enumerate(found)}
    return np.array([number[text] for text in texts], np.int32), tuple(found)
