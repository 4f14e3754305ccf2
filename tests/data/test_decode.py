"""decode.py against hand-made files and Pillow's own conversions."""

import concurrent.futures
import io
import pickle

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from ssl_jax.data import decode
from ssl_jax.data.decode import (
    Unreadable,
    decode_image,
    decode_mask,
    resize_square,
    resize_square_mask,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 18, 3), np.uint8)
SMOOTH = np.linspace(0, 255, 40 * 30 * 3).reshape(40, 30, 3).astype(np.uint8)


def encoded(image, file_format="PNG", **options):
    """Bytes of a Pillow image or an array."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def repeated(gray):
    return np.repeat(gray[..., None], 3, axis=2)


@pytest.mark.parametrize(
    "options", [dict(file_format="PNG"), dict(file_format="WEBP", lossless=True)]
)
def test_lossless_formats_give_the_pixels_back(options, tmp_path):
    data = encoded(PIXELS, **options)
    (tmp_path / "x").write_bytes(data)
    for image in (
        decode_image(data),
        decode_image(tmp_path / "x"),
        decode_image(str(tmp_path / "x")),
    ):
        assert image.dtype == np.uint8 and image.shape == (12, 18, 3)
        np.testing.assert_array_equal(image, PIXELS)


def test_jpeg_is_close():
    assert np.abs(decode_image(encoded(SMOOTH, "JPEG", quality=95)).astype(int) - SMOOTH).mean() < 8


def test_gray_becomes_rgb():
    gray = PIXELS[..., 0]
    np.testing.assert_array_equal(decode_image(encoded(gray)), repeated(gray))
    np.testing.assert_array_equal(
        decode_image(encoded(Image.fromarray(gray > 99))), repeated((gray > 99) * np.uint8(255))
    )


def test_16_bit_gray_is_scaled_not_clipped():
    values = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    expected = np.array([[0, 0, 1, 1, 128, 255]], np.uint8)
    np.testing.assert_array_equal(decode_image(encoded(values)), repeated(expected))


def test_palette_becomes_its_colours():
    image = Image.fromarray(np.array([[0, 1], [1, 2]], np.uint8))
    image.putpalette([9, 8, 7, 200, 100, 50, 1, 2, 3])
    expected = [[[9, 8, 7], [200, 100, 50]], [[200, 100, 50], [1, 2, 3]]]
    np.testing.assert_array_equal(decode_image(encoded(image)), expected)


def test_alpha_is_dropped():
    rgba = np.dstack([PIXELS, np.arange(12 * 18, dtype=np.uint8).reshape(12, 18)])
    np.testing.assert_array_equal(decode_image(encoded(rgba)), PIXELS)
    gray_alpha = Image.merge("LA", [Image.fromarray(PIXELS[..., 1])] * 2)
    np.testing.assert_array_equal(decode_image(encoded(gray_alpha)), repeated(PIXELS[..., 1]))


def test_cmyk_jpeg_keeps_its_colours():
    red = Image.new("RGB", (16, 16), (220, 30, 40))
    image = decode_image(encoded(red.convert("CMYK"), "JPEG", quality=95))
    assert image.shape == (16, 16, 3)
    assert np.abs(image.astype(int) - [220, 30, 40]).max() < 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PIXELS, "PNG", exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(decode_image(data), expected)
    assert decode_image(data).shape == ((18, 12, 3) if orientation > 4 else (12, 18, 3))


def test_broken_exif_does_not_cost_the_image():
    data = encoded(PIXELS, "PNG", exif=b"Exif\0\0garbage that is no TIFF header")
    np.testing.assert_array_equal(decode_image(data), PIXELS)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_file_is_named(file_format, share, tmp_path):
    data = encoded(np.tile(PIXELS, (8, 8, 1)), file_format)
    path = tmp_path / "half.img"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(Unreadable) as caught:
        decode_image(path)
    assert caught.value.name == str(path) and caught.value.reason
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "empty"),
        (b"no image at all", "not an image"),
        (encoded(PIXELS, "PPM"), "not an image"),
    ],
)
def test_what_is_no_image_is_named(data, reason):
    with pytest.raises(Unreadable, match=f"^record 7: .*{reason}"):
        decode_image(data, "record 7")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(Unreadable, match="gone.png: no such file"):
        decode_image(tmp_path / "gone.png")
    with pytest.raises(Unreadable, match="directory"):
        decode_image(tmp_path)


def test_any_damage_gives_an_image_or_unreadable():
    """Pillow answers random damage with many kinds of exception; only one comes out."""
    rng = np.random.default_rng(0)
    unreadable = 0
    for file_format in ("JPEG", "PNG", "WEBP"):
        good = np.frombuffer(encoded(SMOOTH, file_format), np.uint8)
        for _ in range(150):
            bad = good.copy()
            bad[rng.integers(0, len(bad), 8)] = rng.integers(0, 256, 8)
            try:
                assert decode_image(bad.tobytes()).ndim == 3
            except Unreadable:
                unreadable += 1
    assert unreadable > 100


def test_unreadable_survives_pickling():
    error = pickle.loads(pickle.dumps(Unreadable("a/b.jpg", "truncated")))
    assert (error.name, error.reason, str(error)) == ("a/b.jpg", "truncated", "a/b.jpg: truncated")


def test_threads_decode_the_same():
    files = [encoded(np.roll(SMOOTH, i, 0), "JPEG") for i in range(16)]
    alone = [decode_image(data) for data in files]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for together in (pool.map(decode_image, files) for _ in range(5)):
            for a, b in zip(alone, together, strict=True):
                np.testing.assert_array_equal(a, b)


def test_mask_keeps_class_numbers():
    classes = np.array([[0, 3, 255], [11, 1, 2]], np.uint8)
    np.testing.assert_array_equal(decode_mask(encoded(classes)), classes)
    palette = Image.fromarray(classes)
    palette.putpalette(list(range(255, -1, -1)) * 3)
    np.testing.assert_array_equal(decode_mask(encoded(palette)), classes)
    np.testing.assert_array_equal(decode_mask(encoded(classes.astype(np.uint16))), classes)


def test_mask_of_colours_or_large_numbers_is_refused():
    with pytest.raises(Unreadable, match="m: .*one channel.*RGB"):
        decode_mask(encoded(PIXELS), "m")
    with pytest.raises(Unreadable, match="0..255, found 0..300"):
        decode_mask(encoded(np.array([[0, 300]], np.uint16)))


def test_resize_square_takes_the_central_square_and_filters():
    image = np.zeros((32, 64, 3), np.uint8)
    image[:, 16:48] = 100  # exactly the central square
    image[::2, 16:48] += 50  # finer than the result can show: must average out
    resized = resize_square(image, 8)
    assert resized.shape == (8, 8, 3) and resized.dtype == np.uint8
    assert (
        np.abs(resized[:, 1:-1].astype(int) - 125).max() <= 3
    )  # the border columns see the dark outside
    portrait = resize_square(np.swapaxes(image, 0, 1), 8)
    np.testing.assert_allclose(portrait, np.swapaxes(resized, 0, 1), atol=1)


def test_resize_square_enlarges_and_leaves_a_fitting_image_alone():
    assert resize_square(PIXELS, 30).shape == (30, 30, 3)
    square = np.ascontiguousarray(PIXELS[:, :12])
    assert resize_square(square, 12) is square


def test_mask_moves_with_its_image():
    mask = np.zeros((40, 60), np.uint8)
    mask[10:25, 22:41] = 7
    small = resize_square_mask(mask, 20)
    assert small.shape == (20, 20) and set(np.unique(small)) == {0, 7}
    image = resize_square(np.repeat(mask[..., None] * np.uint8(30), 3, axis=2), 20)[..., 0]
    assert ((image > 105) == (small == 7)).mean() > 0.97


def test_central_square():
    assert decode.central_square(10, 13) == (0.0, 1.5, 10.0)
    assert decode.central_square(13, 10) == (1.5, 0.0, 10.0)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_shape_is_that_of_the_decoded_image(file_format):
    image = Image.fromarray(SMOOTH[:, :20])
    for orientation in range(10):
        stream = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(stream, file_format, **({"exif": exif} if orientation else {}))
        data = stream.getvalue()
        assert decode.image_shape(data) == decode_image(data).shape[:2], orientation


def test_shape_decodes_no_pixel(monkeypatch):
    files = [encoded(SMOOTH, file_format) for file_format in ("JPEG", "PNG")]
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: 1 / 0)
    assert all(decode.image_shape(data) == SMOOTH.shape[:2] for data in files)
    # Broken behind the header: only decoding finds that.
    assert decode.image_shape(files[0][:-20]) == SMOOTH.shape[:2]


def test_shape_of_no_image(tmp_path):
    with pytest.raises(Unreadable, match="not an image"):
        decode.image_shape(b"text")
    with pytest.raises(Unreadable, match="gone.png: no such file"):
        decode.image_shape(tmp_path / "gone.png")


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_more_pixels_than_allowed_are_named_before_they_are_decoded(file_format, monkeypatch):
    data, count = encoded(SMOOTH, file_format), 40 * 30
    assert decode_image(data, max_pixels=count).shape == (40, 30, 3)
    assert decode_image(data, max_pixels=0).shape == (40, 30, 3)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: 1 / 0)
    for read in (decode_image, decode_mask, decode.image_shape):
        with pytest.raises(Unreadable, match="a: 40x30 pixels, more than data.max_pixels=1199"):
            read(data, "a", max_pixels=count - 1)


def test_pillows_own_limit_goes_up_where_more_is_asked_for(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # 1000 are refused by Pillow itself
    data = encoded(SMOOTH)
    with pytest.raises(Unreadable, match="a: more pixels than data.max_pixels allows: .*1200 pix"):
        decode_image(data, "a", max_pixels=500)
    assert Image.MAX_IMAGE_PIXELS == 500
    assert decode_image(data, max_pixels=1200).shape == (40, 30, 3)
    assert Image.MAX_IMAGE_PIXELS == 1200
    assert decode_image(data, max_pixels=0).shape == (40, 30, 3)


@pytest.mark.parametrize(
    "side, shape", [(49, (128, 96)), (48, (64, 48)), (13, (32, 24)), (1, (16, 12))]
)
def test_jpegs_decode_scaled_down_to_a_shorter_side(side, shape):
    smooth = np.asarray(Image.fromarray(SMOOTH).resize((96, 128)))  # 128 high
    data = encoded(smooth, "JPEG", quality=95)
    whole = decode_image(data)
    image = decode_image(data, short_side=side)
    assert image.shape == (*shape, 3) and min(shape) >= side
    assert decode.image_shape(data, short_side=side) == shape
    averaged = np.asarray(Image.fromarray(whole).resize(shape[::-1], Image.Resampling.BOX))
    assert np.abs(image.astype(int) - averaged).mean() < 2
    np.testing.assert_array_equal(decode_image(encoded(smooth), short_side=side), smooth)  # a PNG


def test_a_scaled_jpeg_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(np.zeros((90, 130, 3), np.uint8), "JPEG", exif=exif)
    assert decode_image(data, short_side=45).shape == (65, 45, 3)
    assert decode.image_shape(data, short_side=45) == (65, 45)
    assert decode_image(data, short_side=46).shape == (130, 90, 3)


@pytest.mark.parametrize("options", [{}, dict(lossless=True), dict(exif=b"Exif\0\0more")])
def test_a_webp_is_measured_before_it_is_opened(options, monkeypatch):
    """Pillow's decoder would take eight bytes for each pixel of its header."""
    data = encoded(SMOOTH, "WEBP", **options)
    assert decode._webp_shape(data) == decode_image(data).shape[:2] == (40, 30)
    assert decode._webp_shape(encoded(SMOOTH)) == decode._webp_shape(b"") == (0, 0)
    monkeypatch.setattr(Image, "open", lambda *a, **k: 1 / 0)
    with pytest.raises(Unreadable, match="a: 40x30 pixels, more than data.max_pixels=1199"):
        decode_image(data, "a", max_pixels=1199)
