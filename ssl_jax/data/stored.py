"""Records whose images and masks are encoded: in files, or as bytes in files of others."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import classes, decode
from ssl_jax.data.base import Source
from ssl_jax.data.boxes import Boxes
from ssl_jax.data.lookup import checked, pixels


class ReadsBoxes(Protocol):
    """`boxes.XmlBoxes`, `boxes.TableBoxes`."""

    def read(self, i: int, shape: tuple[int, int], turn: int) -> Boxes:
        """Boxes of image i, which has this shape (H, W) and EXIF orientation."""


class Named(NamedTuple):
    """What holds what, as the user names it; "" = as it is usually called.

    images, labels, masks: columns of a table, extensions of members of a tar. class_names: of
    masks. rules: class_map, reduce_zero_label, ignore of `classes.table`.
    """

    images: str = ""
    labels: str = ""
    masks: str = ""
    class_names: Sequence[str] = ()
    rules: Mapping[str, Any] = MappingProxyType({})


class Stored(Source):
    """Records that `_read` gives encoded; a subclass has it."""

    # How encoded images are read, see `decode.decode_turned`.
    max_pixels: int = decode.MAX_PIXELS
    short_side: int = 0
    _labels: np.ndarray | None = None  # int [N], -1 for an image without one
    _boxes: ReadsBoxes | None = None
    _table: np.ndarray  # classes of the values of masks, see `classes.table`

    def _read(self, i: int, part: str) -> bytes | str | None:
        """The "image" or "mask" of record i: encoded, or the path of its file; None for a record
        without a mask. Raises Unreadable."""
        raise NotImplementedError

    def __getitem__(self, i: int) -> dict[str, Any]:
        i = checked(i, len(self))
        image, turn = self._decoded(self._read(i, "image"), self.name(i))
        shape = image.shape[:2]
        record: dict[str, Any] = {"image": image}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        if self.has_masks and (mask := self._mask(i, shape, turn)) is not None:
            record["mask"] = mask
        if self._boxes is not None:
            boxes, labels = self._boxes.read(i, shape, turn)
            record |= {"boxes": boxes} | ({} if labels is None else {"box_labels": labels})
        return record

    def _mask(self, i: int, shape: tuple[int, int], turn: int) -> np.ndarray | None:
        """Classes [H,W] of image i, which has this shape and EXIF orientation."""
        mask = self._read(i, "mask")
        if mask is None:
            return None
        name = mask if isinstance(mask, str) else f"{self.name(i)}, mask"
        return self._classes(mask, name, shape, turn, f"its image {self.name(i)}")

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i from its header."""
        return self._header_of(checked(i, len(self)))[0]

    def _header_of(self, i: int) -> tuple[tuple[int, int], int]:
        """(H, W) of image i and its EXIF orientation. Raises Unreadable."""
        return self._header(self._read(i, "image"), self.name(i))

    def _check_first_mask(self) -> None:
        """Masks of the wrong kind are found here, not after a run that left them all out. Raises
        InputError."""
        if not (self.has_masks and len(self)):
            return
        try:
            header = self._header_of(0)
        except decode.Unreadable:
            return  # says nothing about masks
        try:
            self._mask(0, *header)
        except decode.Unreadable as error:
            raise InputError(f"data.masks: {error}") from error

    def _decoded(self, data: Any, name: str | None = None) -> tuple[np.ndarray, int]:
        """An encoded image, uint8 [H,W,3], and its EXIF orientation. Raises decode.Unreadable."""
        return decode.decode_turned(
            data, name, max_pixels=self.max_pixels, short_side=self.short_side
        )

    def _header(self, data: Any, name: str | None = None) -> tuple[tuple[int, int], int]:
        """(H, W) of an encoded image, and its EXIF orientation. Raises decode.Unreadable."""
        return decode.image_header(
            data, name, max_pixels=self.max_pixels, short_side=self.short_side
        )

    def _classes(
        self,
        mask: bytes | str | np.ndarray,
        name: str,
        shape: tuple[int, int],
        turn: int,
        image: str = "its image",
    ) -> np.ndarray:
        """Classes uint8 [H,W] of a mask, encoded or uint8 [H,W], of an image with this shape and
        EXIF orientation. Raises decode.Unreadable."""
        if not isinstance(mask, np.ndarray):
            mask = decode.decode_mask(
                mask, name, max_pixels=self.max_pixels, turn=turn, shape=shape
            )
        if mask.shape != tuple(shape):
            raise decode.Unreadable(
                name, f"the mask has {pixels(mask.shape)} pixels, {image} {pixels(shape)}"
            )
        try:
            return classes.apply(self._table, mask)
        except ValueError as error:
            raise decode.Unreadable(name, str(error)) from error
