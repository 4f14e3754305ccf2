"""What all sources share; `source` describes the protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.data import classes, decode
from ssl_jax.data.lookup import pixels

_NAMED = 5  # unreadable records in an error

# What a source knows of all its records; one that wraps another has the same.
FACTS = (
    "num_classes",
    "class_names",
    "unlabelled",
    "has_masks",
    "mask_names",
    "has_boxes",
    "num_box_classes",
    "box_names",
    "size",
    "sequences",
    "image_ids",
    "annotations",
    "left_out",
)


class Source:
    """A source that knows nothing yet: without labels, masks and boxes, its images of any size."""

    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    unlabelled: Sequence[int] = ()
    has_masks: bool = False
    mask_names: Sequence[str] | None = None
    has_boxes: bool = False
    num_box_classes: int | None = None
    box_names: Sequence[str] | None = None
    size: tuple[int, int] | None = None
    sequences: Mapping[str, range] | None = None
    image_ids: Sequence[int] | None = None
    annotations: str | None = None
    left_out: str = ""
    # How encoded images are read, see `decode.decode_image`.
    max_pixels: int = decode.MAX_PIXELS
    short_side: int = 0

    # Classes of the values of masks, see `classes.table`.
    _table: np.ndarray

    def _decoded(self, data: bytes | str, name: str | None = None) -> tuple[np.ndarray, int]:
        """An encoded image, uint8 [H,W,3], and its EXIF orientation. Raises decode.Unreadable."""
        return decode.decode_turned(
            data, name, max_pixels=self.max_pixels, short_side=self.short_side
        )

    def _header(self, data: bytes | str, name: str | None = None) -> tuple[tuple[int, int], int]:
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

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> dict[str, Any]:
        raise NotImplementedError

    def name(self, i: int) -> str:
        raise NotImplementedError

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i; decodes it where nothing is cheaper. Raises decode.Unreadable."""
        if self.size is not None:
            return self.size
        height, width = self[i]["image"].shape[:2]
        return height, width

    def _take_facts(self, source: Any) -> None:
        """The FACTS of another source, which may be no `Source` and lack some."""
        for name in FACTS:
            setattr(self, name, getattr(source, name, getattr(Source, name)))


def shape(source: Any, i: int) -> tuple[int, int]:
    """`source.shape(i)`, also of a source that has no such method."""
    own = getattr(source, "shape", None)
    return own(i) if own is not None else Source.shape(source, i)


def why_unreadable(source: Any, i: int) -> str:
    """The reason why record i cannot be read, in one line; reads it once more."""
    try:
        source[i]
    except decode.Unreadable as error:
        return error.reason
    return "readable now"


def named_unreadable(source: Any, bad: Mapping[int, str | None]) -> str:
    """Some unreadable records for a message: "a.png (truncated), ... and 3 more".

    bad: {index: reason, or None to ask again}.
    """
    named = [
        f"{source.name(i)} ({reason or why_unreadable(source, i)})"
        for i, reason in list(bad.items())[:_NAMED]
    ]
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return ", ".join(named) + more
