"""Files and bytes to pixel arrays, with Pillow. Everything here is a pure function, safe in threads
and processes.

Less usual files:
- EXIF orientation is applied; with an unreadable EXIF block, the image counts as upright.
- Gray, palette, CMYK, YCbCr become RGB as Pillow converts them. Alpha is dropped, as torchvision's
  loader does: the colour stored under a transparent pixel shows.
- 12 and 16 bits of gray are scaled to 8 and rounded. 16-bit colours (PNG, TIFF) lose their low byte
  in Pillow itself. Signed, 32-bit and float pixels have no known range and are refused.
- An animation gives its first frame, a TIFF its first page.
- An image with more than `max_pixels` pixels is refused from its header, before it is decoded; a
  file with more bytes than such an image can need is refused before it is read.
"""

import functools
import io
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from ssl_jax.config import reading, reason
from ssl_jax.data import planes
from ssl_jax.data.orientation import SIDEWAYS, orientation, stored, turned, upright

Image.init()  # load the file format plugins once, here, not in the first threads that decode

# Pillow's own, where it warns; it refuses what has twice as many.
MAX_PIXELS = 89_478_485
warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `max_pixels` says more
warnings.filterwarnings("ignore", "Palette images with Transparency")  # which is dropped

# No other parser ever sees a file of a user's folder.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
# Pillow decodes a PNG to look for its orientation; without these bytes it has none.
_EXIF_OF_PNG = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
# Tags of TIFF.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_PLANAR, _SAMPLE_FORMAT = 284, 339
# Bytes that a file may have for each of `max_pixels` (four channels of 16 bits), and beside them.
_PER_PIXEL, _BESIDE = 8, 2**26
_STRIP = 2**20  # pixels that become RGB at once
_NO_RANGE = "signed, 32-bit and float pixels have no known range"


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
    data: bytes | str | os.PathLike, name: str | None = None, **limits: int
) -> np.ndarray:
    """The image alone that `decode_turned` gives: uint8 [H,W,3]."""
    return decode_turned(data, name, **limits)[0]


def decode_turned(
    data: bytes | str | os.PathLike,
    name: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    short_side: int = 0,
) -> tuple[np.ndarray, int]:
    """An encoded image as upright RGB, and the EXIF orientation (1..8) of the stored pixels, by
    which annotations of the stored pixels must be rotated.

    Args:
      data: the encoded bytes, or the path of a file.
      name: of the image in an error; the path by default.
      max_pixels: largest H * W of an image; 0 = no limit.
      short_side: a JPEG is decoded at the smallest of 1/2, 1/4 and 1/8 of its size at which the
        shorter side still has this many pixels; 0 = as stored.
    Returns:
      uint8 [H,W,3], int.
    Raises:
      Unreadable: missing, empty, truncated or broken file, a format that is none of BMP, GIF, JPEG,
      PNG, TIFF, WebP, or more than `max_pixels`.
    """
    return _decode(data, name, _rgb, max_pixels, short_side)


def decode_mask(
    data: bytes | str | os.PathLike,
    name: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    turn: int | None = 1,
    shape: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """An encoded label mask as class numbers: the stored samples of a gray image (of fewer bits
    than 8 not scaled; of one bit, white is 1), the indices (not colours) of a palette image.

    A mask with its own EXIF orientation is rotated by that. All others refer to the stored pixels
    of their image and are rotated with it, unless their shape shows that they are already upright.

    Args:
      data, name, max_pixels: as `decode_turned`.
      turn: EXIF orientation of the mask's image; None: that is an array, which has none, and the
        mask stays as it is stored too. shape: (H, W) of that image, upright.
    Returns:
      uint8 [H,W].
    Raises:
      Unreadable: as `decode_turned`; also for a JPEG or GIF, a mask with more than one channel or
      with values that are no integers from 0 to 255.
    """
    return _decode(data, name, functools.partial(_indices, turn=turn, shape=shape), max_pixels)


def image_header(
    data: bytes | str | os.PathLike,
    name: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    short_side: int = 0,
) -> tuple[tuple[int, int], int]:
    """(H, W) and orientation of the result of `decode_turned`, from the header of the file. No
    pixel is decoded (except for a PNG with EXIF data, which may follow the pixels), and damage
    after the header is not noticed. Arguments and errors are those of `decode_turned`."""
    return _decode(data, name, _header, max_pixels, short_side)


def most_bytes(max_pixels: int) -> int | None:
    """Bytes that an encoded image may have; None: as many as fit into memory."""
    return _PER_PIXEL * max_pixels + _BESIDE if max_pixels else None


def resize_square(pixels: np.ndarray, size: int, bilinear: bool = False) -> np.ndarray:
    """Resizes the short side to `size` and takes the central square, in one resampling: antialiased
    bicubic (Keys, a = -0.5) or bilinear for an image, nearest neighbour for class numbers.

    Args:
      pixels: an image [H,W,C], uint8 or float32 in [0, 1], or class numbers uint8 [H,W].
      size: side of the result in pixels.
    Returns:
      [size,size,C] or [size,size], of the same type.
    """
    if pixels.shape[:2] == (size, size):
        return pixels
    y, x, side = central_square(*pixels.shape[:2])
    return resize(pixels, (size, size), (x, y, x + side, y + side), bilinear)


def resize(
    pixels: np.ndarray,
    size: tuple[int, int],
    box: tuple[float, float, float, float] | None = None,
    bilinear: bool = False,
) -> np.ndarray:
    """Resizes to (height, width), with the resampling of `resize_square`; box: (left, upper, right,
    lower) of the part to take, None = all."""
    if pixels.ndim == 3:
        return planes.resampled(planes.split(pixels), size, box, bilinear)
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.NEAREST, box=box))


def central_square(height: int, width: int) -> tuple[float, float, float]:
    """(y, x, side) of the largest centred square, in pixels."""
    side = min(height, width)
    return (height - side) / 2, (width - side) / 2, float(side)


def _decode(data, name, convert: Callable[[Any], Any], max_pixels: int, short_side: int = 0) -> Any:
    name = name or ("<bytes>" if isinstance(data, bytes) else os.fspath(data))
    try:
        if not isinstance(data, bytes):
            data = reading.read_bytes(data, most_bytes(max_pixels))
        if not data:
            raise OSError("the file is empty")
        check_pixels(_webp_shape(data), max_pixels)
        _raise_limit(max_pixels)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            check_pixels((image.height, image.width), max_pixels)
            if short_side:
                image.draft(None, (short_side, short_side))  # does nothing but for a JPEG
            return convert(image)
    # Broken files raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
    except Exception as error:
        raise Unreadable(name, _reason(error, data)) from error


def check_pixels(shape: tuple[int, int], max_pixels: int) -> None:
    """Refuses an image (H, W) of more pixels; 0 = no limit. Raises ValueError."""
    height, width = shape
    if max_pixels and height * width > max_pixels:
        raise ValueError(f"{width}x{height} pixels, more than data.max_pixels={max_pixels}")


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


def _reason(error, data):
    """One line without the memory address that Pillow prints."""
    if isinstance(error, Image.UnidentifiedImageError):
        if data[:4] in (b"II*\0", b"MM\0*"):
            return "not a TIFF that Pillow reads; if it has other channels, set data.channels"
        return "not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, Image.DecompressionBombError):
        return f"more pixels than data.max_pixels allows: {error}"
    return reason(error)


def _rgb(image):
    _check_samples(image)
    image, turn = upright(image)
    return rgb(image), turn


def rgb(image: Any) -> np.ndarray:
    """A Pillow image as uint8 [H,W,3], as it is stored. Raises ValueError for pixels without a
    known range."""
    if image.mode.startswith("I"):  # gray of 12 or 16 bits, which convert() would clip at 255
        tags, values = getattr(image, "tag_v2", {}), np.asarray(image)
        levels = _levels(12 if tags.get(_BITS) == (12,) else 16, tags.get(_PHOTOMETRIC) == 0)
        if values.min() < 0 or values.max() >= len(levels):
            raise ValueError(_NO_RANGE)
        return np.repeat(levels[values][..., None], 3, axis=2)
    if image.mode == "F":
        raise ValueError(_NO_RANGE)
    pixels, rows = np.empty((image.height, image.width, 3), np.uint8), _STRIP // image.width + 1
    for top in range(0, image.height, rows):  # all at once Pillow would copy them twice
        bottom = min(top + rows, image.height)
        strip = image.crop((0, top, image.width, bottom)) if rows < image.height else image
        pixels[top:bottom] = strip if strip.mode == "RGB" else strip.convert("RGB")
    return pixels


def _check_samples(image):
    """Refuses a TIFF whose samples have no known range, and one that Pillow reads wrongly."""
    tags = getattr(image, "tag_v2", {})
    bits = max(tags.get(_BITS, (1,)))
    if bits > 16 or max(tags.get(_SAMPLE_FORMAT, (1,))) > 1:
        raise ValueError(_NO_RANGE)
    planes = bits > 8 and tags.get(_PLANAR) == 2
    if planes and tags.get(_COMPRESSION, 1) == 1 and image.mode[0] != "I":
        raise ValueError("colours of 16 bits in separate planes are only read if compressed")


@functools.cache
def _levels(bits, inverted):
    """uint8 [2^bits]: what becomes of each level of gray."""
    most = 2**bits - 1
    levels = ((np.arange(most + 1) * 255 + most // 2) // most).astype(np.uint8)
    return levels[::-1] if inverted else levels


def _header(image):
    shape = image.height, image.width
    if image.format == "TIFF":  # the size may be that of the turned image already
        shape = image.tag_v2[_HEIGHT], image.tag_v2[_WIDTH]
    elif image.format == "PNG" and not any(m in image.fp.getvalue() for m in _EXIF_OF_PNG):
        return shape, 1
    turn = orientation(image)
    return (shape[::-1] if turn in SIDEWAYS else shape), turn


def _indices(image, turn, shape):
    # Those who write a GIF number the colours that occur, so a class differs from mask to mask.
    if image.format in ("JPEG", "MPO", "GIF"):
        kind = "GIF" if image.format == "GIF" else "JPEG"
        raise ValueError(f"{kind} changes the numbers of a mask; save it as PNG")
    signed_bytes = getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT) == (2,) and image.mode == "L"
    scale, inverted = _gray_rule(image)
    image, stated = upright(image)
    size = image.height, image.width
    if turn is None:
        image = stored(image, stated)
    elif stated == 1 and not (turn in SIDEWAYS and size == tuple(shape) != size[::-1]):
        image = turned(image, turn)
    values = np.asarray(image)
    if values.ndim != 2:
        raise ValueError(
            f"a mask needs one channel, this image has colours (mode {image.mode}); save the"
            " number of the class in each pixel"
        )
    values = values.view(np.int8) if signed_bytes else values
    values = 255 - values if inverted else values
    values = values // scale if scale > 1 else values
    whole = values.dtype.kind != "f" or (values == np.rint(values)).all()
    if not whole or values.max() > 255 or values.min() < 0:
        raise ValueError(
            f"mask values must be integers in 0..255, found {values.min()}..{values.max()}"
        )
    return values.astype(np.uint8)


def _gray_rule(image):
    """(factor, inverted): what Pillow does to the gray samples of an image when it loads them:
    those of 2 and 4 bits are scaled to 0..255, and inverted where 0 is white."""
    tile = image.tile[0][3] if image.tile else ""
    raw = tile if isinstance(tile, str) else tile[0]  # such as "L;4I", Pillow's name of the layout
    match = re.fullmatch(r"L;([24]?)(I?)R?", raw) if image.mode == "L" else None
    return ({"2": 85, "4": 17}.get(match[1], 1), bool(match[2])) if match else (1, False)
