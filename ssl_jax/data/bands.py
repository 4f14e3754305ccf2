"""Images of any number of channels, of 8 bits or of any other numbers with a declared range: TIFF
and .npy files, with tifffile and NumPy. Pure functions, safe in threads and processes."""

import functools
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError, Key, key, reading, reason
from ssl_jax.data.decode import MAX_PIXELS, Unreadable, check_pixels, most_bytes

EXTENSIONS = (".npy", ".tif", ".tiff")


class Bands(NamedTuple):
    """The declaration of the files in a section `data`.

    channels: of an image: the last axis of its array, or else the first; a file [H, W] has one.
    range: (low, high), the values that become 0 and 1; values outside are clipped. (): uint8.
    raw: values stay as stored.
    """

    channels: int
    range: tuple[float, ...] = ()
    raw: bool = False

    @property
    def floats(self) -> bool:
        """Whether images are float32, not uint8."""
        return bool(self.range)


class Content(NamedTuple):
    """A file before its numbers are decoded."""

    shape: tuple[int, ...]
    dtype: np.dtype
    array: Callable[[], np.ndarray]


def keys() -> dict[str, Key]:
    """The keys of a section `data` that declare it."""
    return dict(
        channels=key(
            0,
            "number of channels of TIFF and .npy files, read as arrays [H, W, C] or [C, H, W], or"
            " of the images that a python: function returns; 0 = RGB of 8 bits",
            "channels",
            least=0,
            most=1024,
        ),
        range=key(
            (),
            "(low, high), values of TIFF and .npy files that become 0 and 1; () = 8 bits",
            element=0.5,
        ),
    )


def of_section(section: Any) -> Bands | None:
    """What a section `data` declares; None: images are RGB, see `decode`. Raises InputError."""
    channels, given = section.get("channels", 0), tuple(section.get("range", ()))
    if not given:
        return Bands(channels, (), section.get("raw", False)) if channels else None
    if not channels:
        raise InputError(
            f"data.range is {given}, but data.channels is 0, RGB of 8 bits; set data.channels to"
            " the number of channels of the files"
        )
    if len(given) != 2 or given[0] >= given[1]:
        raise InputError(
            f"data.range is {given}; it must be (low, high), the numbers of the files that become"
            " 0 and 1, with low < high"
        )
    return Bands(channels, given)


def decode(path: str, bands: Bands, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image in a file, uint8 [H, W, C], or float32 [H, W, C] in [0, 1] where a range is
    declared.

    Raises Unreadable: a missing or broken file, another number of channels, numbers without a
    range, numbers that are not finite, more than `max_pixels` pixels.
    """
    return _opened(path, bands, max_pixels, functools.partial(_pixels, bands=bands))


def header(path: str, bands: Bands, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """(H, W) of what `decode` would give, without decoding it. Raises Unreadable."""
    return _opened(path, bands, max_pixels, lambda content: _size(content.shape, bands.channels))


def check(path: str, bands: Bands) -> None:
    """Refuses a first file whose channels or type of numbers are not as declared; one that is
    broken says nothing. Raises InputError."""
    try:
        shape, dtype = _opened(path, bands, 0, lambda content: (content.shape, content.dtype))
    except Unreadable:
        return
    try:
        _size(shape, bands.channels)
        _check_type(dtype, bands)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _opened(path, bands, max_pixels, use: Callable[[Content], Any]) -> Any:
    most = most_bytes(max_pixels * bands.channels)
    try:
        data = reading.read_bytes(path, most)
        content = (_npy if path.lower().endswith(".npy") else _tiff)(data)
        if max_pixels and len(content.shape) in (2, 3):  # all others are refused by `use`
            check_pixels(_size(content.shape, bands.channels), max_pixels)
        return use(content)
    except FileNotFoundError as error:
        raise Unreadable(path, "no such file") from error
    except Exception as error:  # each reader has its own for a broken file
        raise Unreadable(path, reason(error)) from error


def _npy(data: bytes) -> Content:
    """An array of NumPy's format, of the versions that it writes for numbers; never a pickle."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an .npy file of version {version}, which holds no plain numbers")
    shape, by_column, dtype = readers[version](file)

    def array():
        flat = np.frombuffer(data, dtype, int(np.prod(shape)), file.tell())
        return flat.reshape(shape, order="F" if by_column else "C")

    return Content(shape, dtype, array)


def _tiff(data: bytes) -> Content:
    """The first series of a TIFF: one page of all channels, or a page for each."""
    import tifffile

    # OME's description may name other files, which nobody asked to read.
    file = tifffile.TiffFile(io.BytesIO(data), is_ome=False)
    if not file.series:
        raise ValueError("the TIFF holds no image")
    series = file.series[0]
    return Content(series.shape, series.dtype, lambda: series.asarray(maxworkers=1))


def _axis(shape: tuple[int, ...], channels: int) -> int | None:
    """The axis of the channels; None: there is none, and one channel. Raises ValueError."""
    if len(shape) == 2 and channels == 1:
        return None
    for axis in (2, 0) if len(shape) == 3 else ():
        if shape[axis] == channels:
            return axis
    expected = f"[H, W, {channels}] or [{channels}, H, W]"
    raise ValueError(f"an array of {list(shape)}, but data.channels={channels} needs {expected}")


def _size(shape, channels) -> tuple[int, int]:
    axis = _axis(shape, channels)
    height, width = (side for i, side in enumerate(shape) if i != axis)
    if not height or not width:
        raise ValueError(f"an array of shape {list(shape)} has no pixels")
    return height, width


def _check_type(dtype: np.dtype, bands: Bands) -> None:
    if dtype.kind not in "uif":
        raise ValueError(f"{dtype} cannot be an image; use integers or floats")
    if dtype != np.uint8 and not (bands.range or bands.raw):
        raise ValueError(
            f"{dtype} has no known range; set data.range=(low, high), the numbers that become 0"
            " and 1 (ssl-jax stats prints the smallest and the largest)"
        )


def _pixels(content: Content, bands: Bands) -> np.ndarray:
    _check_type(content.dtype, bands)
    axis, pixels = _axis(content.shape, bands.channels), content.array()
    pixels = np.ascontiguousarray(
        pixels[..., None] if axis is None else np.moveaxis(pixels, axis, -1)
    )
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise ValueError("it holds numbers that are not finite")
    if bands.raw or not bands.range:
        return pixels
    low, high = bands.range
    # As precise as the numbers are: what is subtracted may be large.
    wide = pixels.astype(np.result_type(pixels.dtype, np.float32))
    return np.clip((wide - low) / (high - low), 0, 1).astype(np.float32)
