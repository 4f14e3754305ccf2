"""decode.py: file formats and pixel modes against the pixels that were written."""

import io
import os
import pickle
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageFile, ImageOps

from ssl_jax.data import decode
from ssl_jax.data.decode import Unreadable, decode_image, decode_mask, image_header, resize_square

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 18, 3), np.uint8)
GRAY = PIXELS[..., 0]
SMOOTH = np.linspace(0, 255, 40 * 30 * 3).reshape(40, 30, 3).astype(np.uint8)
RED = np.full((16, 24, 3), (220, 30, 40), np.uint8)
DEEP = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
INDICES = np.array([[0, 1], [1, 2]], np.uint8)
COLOURS = np.array([[9, 8, 7], [200, 100, 50], [1, 2, 3]], np.uint8)


def image_shape(data, *name, **limits):
    return image_header(data, *name, **limits)[0]


def encoded(image, file_format="PNG", **options):
    """Bytes of a Pillow image or an array."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def repeated(gray):
    return np.repeat(gray[..., None], 3, axis=2)


def palette(indices, colours=COLOURS):
    image = Image.fromarray(indices)
    image.putpalette(colours.ravel().tolist())
    return image


# Mode -> (image, the RGB pixels that it shows).
MODES = {
    "RGB": (PIXELS, PIXELS),
    "L": (GRAY, repeated(GRAY)),
    "1": (Image.fromarray(GRAY > 99), repeated((GRAY > 99) * np.uint8(255))),
    "P": (palette(INDICES), COLOURS[INDICES]),
    "RGBA": (np.dstack([PIXELS, GRAY]), PIXELS),  # alpha is dropped
    "LA": (Image.merge("LA", [Image.fromarray(GRAY)] * 2), repeated(GRAY)),
    "I;16": (DEEP, repeated(np.array([[0, 0, 1, 1, 128, 255]], np.uint8))),  # scaled, not clipped
    "smooth": (SMOOTH, SMOOTH),
    "CMYK": (Image.fromarray(RED).convert("CMYK"), RED),
}
# (format, modes, options, greatest difference); gentle: on average
TABLE = [
    ("PNG", ("RGB", "L", "1", "P", "RGBA", "LA", "I;16"), {}, 0),
    ("BMP", ("RGB", "L", "1", "P"), {}, 0),
    ("GIF", ("L", "1", "P"), {}, 0),
    ("TIFF", ("RGB", "L", "1", "P", "RGBA", "LA", "I;16"), {}, 0),
    ("TIFF", ("RGB", "L"), dict(compression="tiff_lzw"), 0),
    ("TIFF", ("RGB", "L"), dict(compression="tiff_adobe_deflate"), 0),
    ("WEBP", ("RGB", "L"), dict(lossless=True), 0),
    ("WEBP", ("RGBA",), dict(lossless=True, exact=True), 0),
    ("JPEG", ("CMYK",), dict(quality=95), 5),
    ("JPEG", ("smooth",), dict(quality=95), 20),
    ("WEBP", ("smooth",), dict(quality=95), 20),
]


@pytest.mark.parametrize(
    "file_format, mode, options, most", [(f, m, o, t) for f, modes, o, t in TABLE for m in modes]
)
def test_formats_and_modes_give_the_pixels_back(file_format, mode, options, most, tmp_path):
    image, expected = MODES[mode]
    data = encoded(image, file_format, **options)
    (tmp_path / "x").write_bytes(data)
    for source in (data, tmp_path / "x", str(tmp_path / "x")):
        found = decode_image(source)
        assert found.dtype == np.uint8 and found.shape == expected.shape
        error = np.abs(found.astype(int) - expected)
        assert error.max() <= most and error.mean() < 8
        assert image_shape(source) == expected.shape[:2]


def tiff(array, **options):
    stream = io.BytesIO()
    tifffile.imwrite(stream, array, **options)
    return stream.getvalue()


GRAYS = repeated(np.array([[0, 0, 1, 1, 128, 255]], np.uint8))  # of DEEP
PLANES = np.stack([DEEP, DEEP[:, ::-1], DEEP])
COLOUR = dict(photometric="rgb", planarconfig="separate")
GRAY = dict(photometric="minisblack")
# Two pixels of 12 bits in three bytes: no library here writes them.
TWELVE = bytearray(tiff(np.array([[0xFF, 0xF8, 0x08]], np.uint8), **GRAY))
for _tag, _value in ((256, 2), (258, 12)):  # width, bits
    TWELVE[TWELVE.index(_tag.to_bytes(2, "little"), 8) + 8] = _value


@pytest.mark.parametrize(
    "data, expected",
    [
        (tiff(65535 - DEEP, photometric="miniswhite"), GRAYS),
        (tiff(DEEP, byteorder=">", **GRAY), GRAYS),
        (bytes(TWELVE), repeated(np.array([[255, 128]], np.uint8))),
        (tiff(PLANES, compression="deflate", **COLOUR), np.moveaxis(PLANES >> 8, 0, -1)),
        (tiff(PLANES, **COLOUR), "planes"),
        *((tiff(DEEP.astype(kind), **GRAY), "range") for kind in ("i1", "i2", "i4", "u4", "f4")),
    ],
)
def test_samples_of_tiff_are_scaled_or_refused(data, expected):
    if isinstance(expected, str):
        with pytest.raises(Unreadable, match=expected):
            decode_image(data)
    else:
        np.testing.assert_array_equal(decode_image(data), expected)
        assert image_shape(data) == expected.shape[:2]


@pytest.mark.parametrize("file_format", FORMATS)
def test_exif_turns_the_image_and_its_shape(file_format):
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(PIXELS, file_format, **({"exif": exif} if orientation else {}))
        assert image_shape(data) == decode_image(data).shape[:2], orientation
        if file_format == "PNG":
            expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
            np.testing.assert_array_equal(decode_image(data), expected)
            turned = orientation in (5, 6, 7, 8)
            assert expected.shape == ((18, 12, 3) if turned else (12, 18, 3))
    # A broken block does not cost the image.
    data = encoded(PIXELS, exif=b"Exif\0\0garbage that is no TIFF header")
    np.testing.assert_array_equal(decode_image(data), PIXELS)


@pytest.mark.parametrize("read", [decode_image, decode_mask, image_shape])
def test_what_is_no_image_is_named(read, tmp_path):
    for data in (b"", b"no image at all", encoded(PIXELS, "PPM")):
        with pytest.raises(Unreadable) as caught:
            read(data, "record 7")
        assert caught.value.name == "record 7"
    for path in (tmp_path, tmp_path / "gone.png"):
        with pytest.raises(Unreadable) as caught:
            read(path)
        error = pickle.loads(pickle.dumps(caught.value))
        assert error.name == str(path) and str(error) == f"{path}: {error.reason}"


def test_a_mask_keeps_class_numbers():
    classes = np.array([[0, 3, 255], [11, 1, 2]], np.uint8)
    colours = np.arange(255, -1, -1, dtype=np.uint8).repeat(3)
    for stored in (classes, palette(classes, colours), classes.astype(np.uint16)):
        np.testing.assert_array_equal(decode_mask(encoded(stored)), classes)
    np.testing.assert_array_equal(decode_mask(tiff(classes.astype(np.float32), **GRAY)), classes)
    for wrong in ("JPEG", "GIF"):  # which numbers the colours that occur: 3 becomes 2
        with pytest.raises(Unreadable, match=f"{wrong}.*PNG"):
            decode_mask(encoded(classes, wrong))
    for wrong in (np.full((2, 3), 2.5, np.float32), np.full((2, 3), -2, np.int8)):
        with pytest.raises(Unreadable, match=str(wrong[0, 0])):
            decode_mask(tiff(wrong, **GRAY))


def few_bits_png(rows, samples, bits):
    """A gray PNG of so many bits, which no library here writes."""
    height, width = samples.shape
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )


def few_bits_tiff(rows, samples, bits, photometric):
    """The same as a TIFF."""
    raw = rows.tobytes()
    height, width = samples.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 122}
    tags |= {277: 1, 278: height, 279: len(raw)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + raw


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_mask_is_the_stored_samples(bits):
    """Pillow scales gray of 2 and 4 bits to 0..255, and inverts a TIFF in which 0 is white."""
    samples = (np.arange(64).reshape(4, 16) % 2**bits).astype(np.uint8)
    wide = np.unpackbits(samples[..., None], axis=-1)[..., 8 - bits :]
    rows = np.packbits(wide.reshape(len(samples), -1), axis=1)
    photometric = (0, 1) if bits > 1 else (1,)  # of 1 bit, white is 1
    tiffs = [few_bits_tiff(rows, samples, bits, which) for which in photometric]
    for data in (few_bits_png(rows, samples, bits), *tiffs):
        np.testing.assert_array_equal(decode_mask(data), samples)


def test_resize_square_takes_the_central_square_and_filters():
    image = np.zeros((32, 64, 3), np.uint8)
    image[:, 16:48] = 100  # exactly the central square
    image[::2, 16:48] += 50  # finer than the result can show: must average out
    resized = resize_square(image, 8)
    assert resized.shape == (8, 8, 3) and resized.dtype == np.uint8
    # The border columns see the dark outside.
    assert np.abs(resized[:, 1:-1].astype(int) - 125).max() <= 3
    portrait = resize_square(np.swapaxes(image, 0, 1), 8)
    np.testing.assert_allclose(portrait, np.swapaxes(resized, 0, 1), atol=1)
    assert resize_square(PIXELS, 30).shape == (30, 30, 3)
    assert decode.central_square(10, 13) == (0.0, 1.5, 10.0)
    assert decode.central_square(13, 10) == (1.5, 0.0, 10.0)


def test_the_shape_decodes_no_pixel(monkeypatch):
    files = [encoded(SMOOTH, file_format) for file_format in ("JPEG", "PNG")]
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: 1 / 0)
    # The last is broken behind the header: only decoding finds that.
    assert all(image_shape(data) == SMOOTH.shape[:2] for data in (*files, files[0][:-20]))


@pytest.mark.parametrize("file_format", FORMATS)
def test_more_pixels_than_allowed_are_not_decoded(file_format, monkeypatch, tmp_path):
    data, count = encoded(SMOOTH, file_format), 40 * 30
    (tmp_path / "a.png").write_bytes(data)
    os.truncate(tmp_path / "a.png", 2**26 + 24 * count)  # takes no place on the disk
    with pytest.raises(Unreadable, match="a.png: .*MiB"):  # more than its pixels can make it
        decode_image(tmp_path / "a.png", max_pixels=count)
    for limit in (count, 0):
        assert decode_image(data, max_pixels=limit).shape == (40, 30, 3)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: 1 / 0)
    for read in (decode_image, decode_mask, image_shape):
        with pytest.raises(Unreadable, match="^a: 30x40.*data.max_pixels=1199"):
            read(data, "a", max_pixels=count - 1)


def test_pillows_own_limit_goes_up_where_more_is_asked_for(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # 1000 are refused by Pillow itself
    data = encoded(SMOOTH)
    with pytest.raises(Unreadable, match="^a: .*data.max_pixels"):
        decode_image(data, "a", max_pixels=500)
    assert Image.MAX_IMAGE_PIXELS == 500
    assert decode_image(data, max_pixels=1200).shape == (40, 30, 3)
    assert Image.MAX_IMAGE_PIXELS == 1200


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_large_images_are_not_copied_on_the_way(mode, monkeypatch):
    monkeypatch.setattr(decode, "_STRIP", 20_000)
    image = Image.effect_noise((700, 900), 50).convert("RGB").convert(mode)
    data = encoded(image)
    tracemalloc.start()
    pixels = decode_image(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(pixels, image.convert("RGB"))
    assert peak < 1.5 * pixels.nbytes


@pytest.mark.parametrize(
    "side, shape", [(49, (128, 96)), (48, (64, 48)), (13, (32, 24)), (1, (16, 12))]
)
def test_jpegs_decode_scaled_down_to_a_shorter_side(side, shape):
    smooth = np.asarray(Image.fromarray(SMOOTH).resize((96, 128)))  # 128 high
    data = encoded(smooth, "JPEG", quality=95)
    image = decode_image(data, short_side=side)
    assert image.shape == (*shape, 3) and min(shape) >= side
    assert image_shape(data, short_side=side) == shape
    whole = Image.fromarray(decode_image(data))
    averaged = np.asarray(whole.resize(shape[::-1], Image.Resampling.BOX))
    assert np.abs(image.astype(int) - averaged).mean() < 2
    np.testing.assert_array_equal(decode_image(encoded(smooth), short_side=side), smooth)  # a PNG
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(smooth, "JPEG", exif=exif)  # turned upright
    assert decode_image(data, short_side=side).shape == (*shape[::-1], 3)
    assert image_shape(data, short_side=side) == shape[::-1]
