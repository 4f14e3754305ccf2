"""Which way up an image is: the EXIF orientation of a file, with Pillow."""

from typing import Any

from PIL import Image

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width


def upright(image: Image.Image) -> tuple[Image.Image, int]:
    """(image with its pixels loaded and upright, EXIF orientation of the stored ones)."""
    if image.format == "TIFF":  # which Pillow turns itself, and then no longer says so
        turn = orientation(image)
        image.load()
        return image, turn
    image.load()
    turn = orientation(image)
    return turned(image, turn), turn


def turned(image: Image.Image, turn: int) -> Image.Image:
    """The upright image of stored pixels with that EXIF orientation."""
    return image.transpose(_UPRIGHT[turn]) if turn in _UPRIGHT else image


def stored(image: Image.Image, turn: int) -> Image.Image:
    """The stored pixels of an upright image with that EXIF orientation."""
    return turned(image, {6: 8, 8: 6}.get(turn, turn))


def orientation(image: Any) -> int:
    """1..8; with a broken EXIF block, the pixels count as upright."""
    try:
        tags = image.tag_v2 if image.format == "TIFF" else image.getexif()
        turn = tags.get(_EXIF_ORIENTATION, 1)
        return turn if turn in _UPRIGHT else 1
    except Exception:  # it raises nearly anything
        return 1
