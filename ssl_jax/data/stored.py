"""Records of which a kind has an index of encoded bytes, of paths of files, or of arrays: what is
the same for all of them, as decoding, the classes of masks, and the check of these."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import bands as bands_lib
from ssl_jax.data import classes, decode
from ssl_jax.data.base import Source
from ssl_jax.data.boxes import Boxes
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked, pixels


def digest_of_names(names: Iterable[str]) -> str:
    """What `Source.names_digest` returns for these names."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()[:20]


def date(path: str) -> str:
    """Size and date of a file as text."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


Part = bytes | str | np.ndarray  # encoded, the path of its file, or decoded


class ReadsBoxes(Protocol):
    """`boxes.XmlBoxes`, `boxes.TableBoxes`."""

    def read(self, i: int, shape: tuple[int, int], turn: int) -> Boxes:
        """Boxes of image i, which has this shape (H, W) and EXIF orientation."""


class Stored(Source):
    """Records of which `_read` gives image and mask.

    A subclass has `_read`, `__len__` and `name`, calls `_describe`, and sets `_about`.
    """

    # How encoded images are read, see `decode.decode_turned`.
    max_pixels: int = decode.MAX_PIXELS
    short_side: int = 0
    bands: bands_lib.Bands | None = None  # how files of other channels or numbers are; None = RGB
    # What `repr` prints, by which kept features are found again: "TITLE(ABOUT, ABOUT, ...)".
    _title: str = ""  # that of the class
    _about: Sequence[str]

    def _read(self, i: int, part: str) -> Part | None:
        """The "image" or "mask" of record i; None for a record without a mask. Raises
        Unreadable."""
        raise NotImplementedError

    def _reader(self, i: int) -> Callable[[str], Any]:
        """`_read` of record i; a subclass that has all parts at once reads them once."""
        return functools.partial(self._read, i)

    def _files_of(self, i: int) -> Sequence[str]:
        """Paths of the files that hold record i; () if the source does not know them."""
        return ()

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """See `Source.fingerprint`."""
        digest, of = hashlib.sha256(), functools.lru_cache(maxsize=8)(date)
        if not len(indices) or not self._files_of(int(indices[0])):
            return ""
        for i in map(int, indices):
            for path in self._files_of(i):
                digest.update(f"{path}\0{of(path)}\0".encode("utf-8", "surrogateescape"))
            if self._labels is not None:
                digest.update(f"{self._labels[i]}\0".encode())
        return digest.hexdigest()[:20]

    def _describe(
        self,
        *,
        labels: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        masks: bool = False,
        unmasked: Sequence[int] = (),
        chosen: bool = True,
        table: np.ndarray | None = None,
        mask_names: Sequence[str] | None = None,
        boxes: ReadsBoxes | None = None,
        box_names: Sequence[str] | None = None,
    ) -> None:
        """Keeps what is known of all records.

        Args:
          labels: int [N], -1 for an image without one. class_names: of the labels.
          masks: whether there are some. unmasked: records without one. chosen: see
            `classes.chosen`; if not, and the first mask cannot be used, all are left out. table:
            the classes of their values, see `classes.table`; None: values are classes. mask_names,
            box_names: of the classes.
          boxes: reads the boxes of an image.

        Raises:
          InputError: the first mask is none, has another size than its image, or values that are no
            class: found here, not after a run that left them all out.
        """
        self._labels, self.class_names = labels, class_names
        if labels is not None:
            self.num_classes = len(class_names or ()) or 1 + int(labels.max())
            self.unlabelled = np.flatnonzero(labels < 0).tolist()
        self._table = classes.table() if table is None else table
        masks = masks and len(unmasked) < len(self)
        self.has_masks, self.mask_names = masks, mask_names if masks else None
        self.unmasked = unmasked if masks else ()
        self._boxes, self.has_boxes, self.box_names = boxes, boxes is not None, box_names
        self.num_box_classes = len(box_names) if box_names else None
        try:
            self._check_first_mask()
        except Unreadable as error:
            if chosen:
                raise InputError(f"data.masks: {error}") from error
            self.has_masks, self.mask_names, self.unmasked = False, None, ()
            masks_left_out = f"masks, of which the first cannot be used ({error})"
            self.left_out = "; ".join(filter(None, [self.left_out, masks_left_out]))

    def _check_first_mask(self):
        """Reads the first mask. Raises Unreadable."""
        if not (self.has_masks and len(self)):
            return
        unmasked = set(self.unmasked)
        i = next(i for i in range(len(self)) if i not in unmasked)
        try:
            shape, turn = self._header(i)
        except Unreadable:
            return  # says nothing about masks
        self._mask(i, self._reader(i), shape, turn)

    def __getitem__(self, i: int) -> dict[str, Any]:
        i = checked(i, len(self))
        read = self._reader(i)
        image, turn = self._image(i, read("image"))
        shape = image.shape[:2]
        record: dict[str, Any] = {"image": image}
        if (label := self._label(i, read)) is not None:
            record["label"] = int(label)
        if (mask := self._mask(i, read, shape, turn)) is not None:
            record["mask"] = mask
        if (objects := self._objects(i, read, shape, turn)) is not None:
            record |= objects.record()
        return record

    def _label(self, i, read):
        """The label of record i; None without labels."""
        del read
        return None if self._labels is None else self._labels[i]

    def _objects(self, i: int, read: Callable, shape: tuple[int, int], turn: int) -> Boxes | None:
        """The boxes of image i, which has this shape and EXIF orientation; None without boxes."""
        del read
        return None if self._boxes is None else self._boxes.read(i, shape, turn)

    def _image(self, i: int, image: Part) -> tuple[np.ndarray, int]:
        """The image of record i, uint8 [H,W,3] or as `bands` says, and its EXIF orientation. Raises
        Unreadable."""
        if self.bands is not None:
            assert isinstance(image, str)
            return bands_lib.decode(image, self.bands, self.max_pixels), 1
        if isinstance(image, np.ndarray):
            return np.broadcast_to(image, (*image.shape[:2], 3)), 1
        return decode.decode_turned(image, self.name(i), **self._limits())

    def _header(self, i: int) -> tuple[tuple[int, int], int]:
        """(H, W) of image i and its EXIF orientation, from its header. Raises Unreadable."""
        image = self._reader(i)("image")
        if self.bands is not None:
            return bands_lib.header(image, self.bands, self.max_pixels), 1
        if isinstance(image, np.ndarray):
            return image.shape[:2], 1
        return decode.image_header(image, self.name(i), **self._limits())

    def _limits(self):
        return dict(max_pixels=self.max_pixels, short_side=self.short_side)

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i from its header."""
        return self._header(checked(i, len(self)))[0]

    def _mask(self, i: int, read: Callable, shape: tuple[int, int], turn: int) -> np.ndarray | None:
        """Classes uint8 [H,W] of image i, which has this shape and EXIF orientation; None where it
        has no mask. Raises Unreadable."""
        mask = read("mask") if self.has_masks else None
        if mask is None:
            return None
        name = mask if isinstance(mask, str) else f"{self.name(i)}, mask"
        if isinstance(mask, np.ndarray):
            values = mask.reshape(mask.shape[:2])
        else:
            own = None if self.bands else turn
            limit = self.max_pixels
            values = decode.decode_mask(mask, name, max_pixels=limit, turn=own, shape=shape)
        if values.shape != tuple(shape):
            reason = f"the mask has {pixels(values.shape)} pixels"
            raise Unreadable(name, f"{reason}, its image {self.name(i)} {pixels(shape)}")
        try:
            return classes.apply(self._table, values)
        except ValueError as error:
            raise Unreadable(name, str(error)) from error

    def _encoded(self, labels: str, masks: str) -> list[str]:
        """Of `_about`, for a set whose labels and masks have these names."""
        about = [f"images={len(self)}", f"classes={self.num_classes}"]
        about += [f"labels={labels!r}"] if labels else []
        return about + ([classes.summary(self._table, masks)] if self.has_masks else [])

    def leave_out_annotations(self) -> None:
        """Leaves masks and boxes unread."""
        self.has_masks, self.mask_names, self.unmasked = False, None, ()
        self._boxes, self.has_boxes = None, False
        self.box_names = self.num_box_classes = None
        self._about = [text for text in self._about if not text.startswith(("masks", "boxes"))]

    def __repr__(self):
        return f"{self._title or type(self).__name__}({', '.join(self._about)})"
