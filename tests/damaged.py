"""Damaged images: mutated files are decoded in a process of their own, in bounded time and memory.

tests/data/test_damaged.py tries some, `python -m tests.fuzz` many.
"""

import collections
import functools
import io
import multiprocessing
import os
import pathlib
import re
import struct
import time
import warnings
import zlib
from collections.abc import Sequence
from unittest import mock

import hypothesis
import numpy as np
from hypothesis import strategies as st
from PIL import Image

from ssl_jax.data import decode

SECONDS = 2.0  # for one image
MAX_PIXELS = 1_000_000  # of an image: 1 MB for each channel
MEMORY = 64  # MiB above what the process has after reading good images
HEIGHT, WIDTH = 37, 53  # found again in the headers
_SIZES = (0, 1, 2, 255, 1000, 1001, 65535, 2**24 - 1, 2**31 - 1, 2**32 - 1)


@functools.cache
def files() -> dict[str, bytes]:
    """Good files, {what: content}."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([5 * y, 4 * x, 2 * (x + y)], axis=-1).astype(np.uint8)
    colour = Image.fromarray(smooth)
    gray, alpha = colour.convert("L"), colour.convert("RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6
    made = {
        "jpeg": (colour, {}),
        "jpeg progressive exif": (colour, dict(progressive=True, exif=exif)),
        "jpeg gray": (gray, {}),
        "jpeg cmyk": (colour.convert("CMYK"), {}),
        "png": (colour, {}),
        "png palette": (colour.convert("P"), {}),
        "png alpha exif": (alpha, dict(exif=exif)),
        "png 16": (Image.fromarray(smooth[..., 0] * np.uint16(257)), {}),
        "webp": (colour, {}),
        "webp lossless": (alpha, dict(lossless=True)),
        "webp exif": (colour, dict(exif=exif)),
        "tiff": (colour, {}),
        "tiff lzw": (colour, dict(compression="tiff_lzw")),
        "tiff deflate": (gray, dict(compression="tiff_adobe_deflate")),
        "tiff jpeg": (colour, dict(compression="jpeg")),
        "bmp": (colour, {}),
        "bmp palette": (colour.convert("P"), {}),
        "gif": (colour.convert("P"), {}),
    }
    result = {}
    for what, (image, options) in made.items():
        stream = io.BytesIO()
        image.save(stream, what.split()[0], **options)
        result[what] = stream.getvalue()
    return result


@functools.cache
def size_fields(data: bytes) -> tuple[tuple[int, str], ...]:
    """Where a file says its height and width: (offset, format of struct)."""
    return tuple(
        (i, kind)
        for kind in ("<H", ">H", "<I", ">I")
        for side in (HEIGHT, WIDTH, HEIGHT - 1, WIDTH - 1)
        for i in range(len(data))
        if data.startswith(struct.pack(kind, side), i)
    )


def with_checksums(png: bytes) -> bytes:
    """A PNG with right checksums again: else the first changed bit is all that a reader sees."""
    result, at = bytearray(png), 8
    while at + 12 <= len(png):
        end = at + 8 + int.from_bytes(png[at : at + 4], "big")
        if end + 4 > len(png):
            break
        result[end : end + 4] = zlib.crc32(png[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(result)


# Of two digits, since hypothesis likes large numbers less; in the header more often.
_DIGIT = st.integers(0, 255)
_OFFSETS = st.one_of(_DIGIT, *[st.builds(lambda a, b: 256 * a + b, _DIGIT, _DIGIT)] * 2)


@st.composite
def mutated(draw: st.DrawFn, formats: Sequence[str]) -> bytes:
    """A file of one of the formats with one to six changes."""
    what = draw(st.sampled_from([name for name in files() if name.split()[0] in formats]))
    data = bytearray(files()[what])
    if draw(st.booleans()) and (fields := size_fields(files()[what])):
        for offset, kind in draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2)):
            most = 2 ** (8 * struct.calcsize(kind)) - 1
            struct.pack_into(kind, data, offset, min(draw(st.sampled_from(_SIZES)), most))
    kinds = st.sampled_from(("bit", "byte", "cut", "end", "insert", "repeat"))
    count = draw(st.sampled_from((1, 1, 1, 2, 3, 6)))
    for kind in draw(st.lists(kinds, min_size=count, max_size=count)):
        at = draw(_OFFSETS) % max(len(data), 1)
        if not data:
            break
        if kind == "bit":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte":
            data[at] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFE, 0xFF)))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "end":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=32))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 300))]
    if what.startswith("png") and draw(st.booleans()):
        return with_checksums(bytes(data))
    return bytes(data)


class Reader:
    """Decodes in a process of its own, which is started again when it dies or hangs."""

    _pool = None

    def read(self, data: bytes) -> tuple[str, str]:
        """("decoded" or "unreadable" or "crashed", details)."""
        if self._pool is None:
            with mock.patch.dict(os.environ):
                for name in [n for n in os.environ if n.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
                    del os.environ[name]  # with those of launch/cpu.sh, glibc takes more
                self._pool = multiprocessing.get_context("spawn").Pool(1)
            for good in files().values():
                outcome, details, _, self._usual = self._pool.apply(_measured, (good,))
                assert outcome == "decoded", details
        try:
            # The machine may be busy.
            answer = self._pool.apply_async(_measured, (data,)).get(SECONDS + 3)
        except multiprocessing.TimeoutError:
            self.close()
            return "crashed", "died or hangs"
        outcome, details, seconds, peak = answer
        if seconds > SECONDS:
            return "crashed", f"took {seconds:.1f} s of computing"
        if peak > self._usual + MEMORY:
            self.close()
            return "crashed", f"took {peak - self._usual} MiB"
        return outcome, details

    def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
        self._pool = None


def _measured(data: bytes) -> tuple[str, str, float, int]:
    """In the process of its own: what became of it, seconds, the most memory ever taken, in MiB."""
    warnings.simplefilter("ignore")  # of Pillow, about EXIF data
    began = time.process_time()
    outcome, details = _outcome(data)
    took = time.process_time() - began
    # getrusage knows only the peak of the process that started it, where that had more.
    status = pathlib.Path("/proc/self/status").read_text()
    return outcome, details, took, int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def _outcome(data: bytes) -> tuple[str, str]:
    try:
        image = decode.decode_image(data, "an image", max_pixels=MAX_PIXELS)
        shape, _ = decode.image_header(data, "an image", max_pixels=MAX_PIXELS)
    except decode.Unreadable as error:
        one_line = error.name == "an image" and error.reason and "\n" not in str(error)
        return ("unreadable", error.reason) if one_line else ("crashed", f"badly said: {error!r}")
    except BaseException as error:
        return "crashed", repr(error)
    right = image.dtype == np.uint8 and image.shape == (*shape, 3) and image.size <= 3 * MAX_PIXELS
    return ("decoded", str(shape)) if right else ("crashed", f"{image.dtype} {image.shape} {shape}")


def many(reader: Reader, file_format: str, examples: int, seed: int) -> collections.Counter[str]:
    """How many mutated files were decoded or gave which reason. Fails at the first crash."""
    found: collections.Counter[str] = collections.Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(data=mutated((file_format,)))
    def case(data: bytes) -> None:
        outcome, details = reader.read(data)
        assert outcome != "crashed", details
        found["decoded" if outcome == "decoded" else re.sub(r"\d+", "N", details)] += 1

    case()
    return found
