"""Files and bytes to pixel arrays, with Pillow. Everything here is a pure function, safe in threads
and processes.

What becomes of the less usual files:
- EXIF orientation is applied (an unreadable EXIF block counts as "upright": the pixels are still
  good).
- Gray, palette, CMYK, YCbCr become RGB as Pillow converts them. Alpha is dropped, as torchvision's
  loader does: the colour stored under a transparent pixel shows.
- 16-bit gray (0..65535) is divided by 257 and rounded. 16-bit colours (PNG, TIFF) lose their low
  byte in Pillow itself. Float pixels are refused.
- Of an animation or a TIFF of several pages the first one counts.
- One with more pixels than `max_pixels` is refused from its header, before a pixel is decoded.
"""

import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

Image.init()  # load the file format plugins once, here, not in the first threads that decode

# Pillow's own, where it warns; it refuses what has twice as many.
MAX_PIXELS = 89_478_485
warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `max_pixels` says more

# No other parser ever sees a file of a user's folder.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
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
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width
# Pillow decodes a PNG to look for its orientation; without these bytes it has none.
_EXIF_OF_PNG = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")


class Unreadable(Exception):
    """A record that cannot be decoded. `name`: its path or id. `reason`: why, in one line."""

    def __init__(self, name: str, reason: str):
        # Both in args, so that the exception survives pickling between processes.
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def decode_image(
    data: bytes | str | os.PathLike,
    name: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    short_side: int = 0,
) -> np.ndarray:
    """An encoded image as RGB.

    Args:
      data: the encoded bytes, or the path of a file.
      name: how to call the image in an error; the path by default.
      max_pixels: H * W that an image may have; 0 = no limit.
      short_side: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, the smallest at which its
        shorter side still has so many pixels; 0 = as stored.
    Returns:
      uint8 [H,W,3].
    Raises:
      Unreadable: missing, empty, truncated or broken file, a format that is none of BMP, GIF, JPEG,
      PNG, TIFF, WebP, or more than `max_pixels`.
    """
    return _decode(data, name, _rgb, max_pixels, short_side)


def decode_mask(
    data: bytes | str | os.PathLike, name: str | None = None, *, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """An encoded label mask as class numbers: the values of a gray image, the indices (not colours)
    of a palette image.

    Args: as `decode_image`.
    Returns:
      uint8 [H,W].
    Raises:
      Unreadable: as `decode_image`; also for a mask with more than one channel or with values above
      255.
    """
    return _decode(data, name, _indices, max_pixels)


def image_shape(
    data: bytes | str | os.PathLike,
    name: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    short_side: int = 0,
) -> tuple[int, int]:
    """(H, W) of what `decode_image` would give, from the header of the file: no pixel is decoded
    (but of a TIFF, and of a PNG with EXIF data, which may come after the pixels).

    Args: as `decode_image`.
    Raises:
      Unreadable: no image file, or more than `max_pixels`; what is broken behind the header is not
      seen.
    """
    return _decode(data, name, _shape, max_pixels, short_side)


def resize_square(image: np.ndarray, size: int) -> np.ndarray:
    """Short side to `size`, then the central square, in one antialiased bicubic resampling (Keys, a
    = -0.5).

    Args:
      image: uint8 [H,W,3]. size: side of the result in pixels.
    Returns:
      uint8 [size,size,3].
    """
    if image.shape[:2] == (size, size):
        return image
    box = _corners(central_square(*image.shape[:2]))
    return np.asarray(
        Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC, box=box)
    )


def resize_square_mask(mask: np.ndarray, size: int) -> np.ndarray:
    """The geometry of `resize_square` for class numbers: nearest label. uint8 [H,W] -> uint8
    [size,size].
    """
    if mask.shape == (size, size):
        return mask
    box = _corners(central_square(*mask.shape))
    return np.asarray(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST, box=box))


def central_square(height: int, width: int) -> tuple[float, float, float]:
    """(y, x, side) of the largest centred square, in pixels."""
    side = min(height, width)
    return (height - side) / 2, (width - side) / 2, float(side)


def _corners(square):
    """Pillow's (left, upper, right, lower) of a (y, x, side)."""
    y, x, side = square
    return x, y, x + side, y + side


def _decode(data, name, convert: Callable[[Any], Any], max_pixels: int, short_side: int = 0) -> Any:
    name = name or ("<bytes>" if isinstance(data, bytes) else os.fspath(data))
    try:
        if not isinstance(data, bytes):
            with open(data, "rb") as file:
                data = file.read()
        if not data:
            raise OSError("the file is empty")
        _check_pixels(_webp_shape(data), max_pixels)
        _raise_limit(max_pixels)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels((image.height, image.width), max_pixels)
            if short_side:
                image.draft(None, (short_side, short_side))  # does nothing but for a JPEG
            return convert(image)
    # Broken files raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
    except Exception as error:
        raise Unreadable(name, _reason(error)) from error


def _check_pixels(shape, max_pixels):
    height, width = shape
    if max_pixels and height * width > max_pixels:
        raise ValueError(f"{height}x{width} pixels, more than data.max_pixels={max_pixels}")


def _webp_shape(data):
    """(H, W) that a WebP's header names, (0, 0) for all else: to open one, Pillow takes eight bytes
    for each of its pixels already. The layouts are those of RFC 9649 and RFC 6386."""
    kind = data[12:16] if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else b""
    if kind == b"VP8X":
        sides = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (27, 24))
    elif kind == b"VP8 ":
        sides = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (28, 26))
    elif kind == b"VP8L":
        both = int.from_bytes(data[21:25], "little")
        sides = ((both >> shift & 0x3FFF) + 1 for shift in (14, 0))
    else:
        return 0, 0
    return tuple(sides)


def _raise_limit(max_pixels):
    """Pillow has one limit for the whole process: it goes up where more is asked for."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and not 0 < max_pixels <= limit:
        Image.MAX_IMAGE_PIXELS = max_pixels or None


def _reason(error):
    """One line without the memory address that Pillow prints."""
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, Image.DecompressionBombError):
        return f"more pixels than data.max_pixels allows: {error}"
    return " ".join(str(error).split()) or type(error).__name__


def _rgb(image):
    image.load()
    turn = _UPRIGHT.get(_orientation(image))
    image = image if turn is None else image.transpose(turn)
    if image.mode.startswith("I"):  # 16-bit gray, which convert() would clip at 255
        gray = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        return np.repeat(((gray + 128) // 257).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("float pixels have no known range")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _orientation(image):
    try:
        return image.getexif().get(_EXIF_ORIENTATION, 1)
    # A broken EXIF block raises nearly anything, and says nothing about the pixels.
    except Exception:
        return 1


def _shape(image):
    if image.format == "TIFF":
        image.load()  # Pillow turns these itself, some versions only then
    upright = image.format == "PNG" and not any(
        mark in image.fp.getvalue() for mark in _EXIF_OF_PNG
    )
    turned = not upright and _orientation(image) in _SIDEWAYS
    return (image.width, image.height) if turned else (image.height, image.width)


def _indices(image):
    image.load()
    values = np.asarray(image)
    if values.ndim != 2:
        raise ValueError(
            f"a mask needs one channel, this image has colours (mode {image.mode}); save the"
            " number of the class in each pixel"
        )
    if values.max() > 255 or values.min() < 0:
        raise ValueError(f"mask values must be in 0..255, found {values.min()}..{values.max()}")
    return values.astype(np.uint8)
