"""Encoded images that other files hold, with labels and masks: what tars and tables share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import classes
from ssl_jax.data.base import Source
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked


class Encoded(Source):
    """Records whose images and masks come as bytes from `_read`, which a subclass has."""

    def _take(
        self,
        labels: Sequence[Any] | None,
        *,
        masks: bool = False,
        class_names: Sequence[str] | None = None,
        mask_names: Sequence[str] = (),
        rules: Mapping[str, Any] | None = None,
        read_from: tuple[str, str] = ("", ""),
    ) -> None:
        """Keeps what is known of all records.

        Args:
          labels: of all records: integers from 0, or names, which are then numbered; None: none.
          masks: whether they have masks. class_names: of labels that are numbers.
          mask_names, rules: of masks, see `classes.final`.
          read_from: what labels and masks are called where they come from, for `repr`.

        Raises InputError for a first mask that cannot be one.
        """
        self._labels, self.class_names = numbered(labels, class_names)
        if self._labels is not None:
            named = len(self.class_names or ())
            self.num_classes = max(named, 1 + int(self._labels.max()))
        self.has_masks = masks
        self._table, self.mask_names = classes.final(rules or {}, given=mask_names)
        known = [f"classes={self.num_classes}", *[f"labels={read_from[0]!r}"] * bool(read_from[0])]
        known += [classes.told(self._table, read_from[1])] if masks else []
        self._known = ", ".join(known)  # kept features are found again by `repr`
        if masks:
            self._check_first_mask()

    def _check_first_mask(self):
        """Masks of the wrong kind are found here, not after a run that left them all out."""
        try:
            image = self._decoded(self._read(0, "image"), self.name(0))
        except Unreadable:
            return  # says nothing about masks
        try:
            self._mask(0, image.shape[:2])
        except Unreadable as error:
            raise InputError(f"data.masks: {error}") from error

    def _read(self, i: int, part: str) -> bytes:
        """The bytes of the "image" or "mask" of record i. Raises Unreadable."""
        raise NotImplementedError

    def __getitem__(self, i: int) -> dict[str, Any]:
        i = checked(i, len(self))
        image = self._decoded(self._read(i, "image"), self.name(i))
        record: dict[str, Any] = {"image": image}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        if self.has_masks:
            record["mask"] = self._mask(i, image.shape[:2])
        return record

    def _mask(self, i, shape):
        """Classes [H,W] of image i, which has this shape."""
        name = f"{self.name(i)}, mask"
        mask = self._decoded_mask(self._read(i, "mask"), name)
        if mask.shape != tuple(shape):
            sizes = ["x".join(map(str, size)) for size in (mask.shape, shape)]
            raise Unreadable(name, f"the mask has {sizes[0]} pixels, its image {sizes[1]}")
        try:
            return classes.apply(self._table, mask)
        except ValueError as error:
            raise Unreadable(name, str(error)) from error

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i from its header."""
        return self._shape_of(self._read(checked(i, len(self)), "image"), self.name(i))


def numbered(
    labels: Sequence[Any] | None, names: Sequence[str] | None = None
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """(int32 [N] from 0, names of the classes) of labels that are numbers or names.

    Integers from 0 stay as they are, with `names` if there are any. All others, texts above all,
    are numbered in sorted order and are the names of their classes; texts of whole numbers are
    sorted as numbers.
    """
    if labels is None:
        return None, None
    if all(isinstance(label, int | np.integer) and label >= 0 for label in labels):
        return np.array(labels, np.int32), tuple(names) if names else None
    texts = list(map(str, labels))
    whole = all(text.removeprefix("-").isdigit() for text in texts)
    found = sorted(set(texts), key=lambda text: (int(text) if whole else 0, text))
    number = {name: i for i, name in enumerate(found)}
    return np.array([number[text] for text in texts], np.int32), tuple(found)
