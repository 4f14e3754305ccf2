"""TIFF and .npy files of any channels and numbers."""

import pickle

import numpy as np
import pytest
import tifffile
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data import bands, decode, source
from ssl_jax.data.bands import Bands
from ssl_jax.data.decode import Unreadable

DRAWN = np.random.default_rng(0).integers(0, 256, (12, 20, 5))


def write(path, pixels, layout):
    """Writes an image [H, W, C] in a layout."""
    pages = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    gray = dict(photometric="minisblack")
    if layout == "interleaved":
        tifffile.imwrite(path, pixels, planarconfig="contig", **gray)
    elif layout == "planes":
        tifffile.imwrite(path, pages, planarconfig="separate", **gray)
    elif layout == "pages":
        tifffile.imwrite(path, pages, compression="zlib", **gray)
    else:
        np.save(path, {"last": pixels, "first": pages, "column": np.asfortranarray(pixels)}[layout])
    return str(path)


LAYOUTS = [("a.tif", layout) for layout in ("interleaved", "planes", "pages")]
LAYOUTS += [("a.npy", layout) for layout in ("last", "first", "column")]


@pytest.mark.parametrize("name, layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "float32", "float64"])
def test_numbers_of_every_layout(tmp_path, name, layout, kind):
    low, high = (0, 255) if kind == "uint8" else (-50.0, 180.0)
    numbers = (DRAWN - (100 if kind[0] != "u" else 0)).astype(kind)
    path = write(tmp_path / name, numbers, layout)
    assert bands.header(path, Bands(5)) == (12, 20)
    if kind == "uint8":
        image = bands.decode(path, Bands(5))
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, DRAWN)
    image = bands.decode(path, Bands(5, (low, high)))
    assert image.dtype == np.float32
    expected = np.clip((numbers.astype(np.float64) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(image, expected, atol=1e-6)


def test_one_channel_and_large_offsets(tmp_path):
    numbers = 16_777_216 + np.arange(6, dtype=np.int32).reshape(2, 3)  # beyond float32's integers
    np.save(tmp_path / "a.npy", numbers)
    image = bands.decode(str(tmp_path / "a.npy"), Bands(1, (16_777_216, 16_777_221)))
    np.testing.assert_allclose(image[..., 0], np.arange(6).reshape(2, 3) / 5, atol=1e-6)


def claims(shape):
    """The first bytes of an .npy file that claims to be larger than it is."""
    return (
        b"\x93NUMPY\x01\x00\x76\x00"
        + str(dict(descr="|u1", fortran_order=False, shape=shape)).encode().ljust(117)
        + b"\n"
    )


@pytest.mark.parametrize(
    "content, says",
    [
        (pickle.dumps([1]), "magic"),
        (b"", "magic"),
        (claims((5, 2000, 2000)), "buffer"),
        (claims((10**5, 10**5, 5)), "max_pixels"),
        (np.zeros((4, 5, 6), np.uint8), "data.channels=5"),
        (np.zeros((0, 4, 5), np.uint8), "no pixels"),
        (np.zeros((4, 4, 5), np.complex64), "complex64"),
        (np.zeros((4, 4, 5), np.uint16), "data.range"),
        (np.full((4, 4, 5), np.nan, np.float32), "finite"),
        (np.full((4, 4, 5), None), "hasobject|pickle|object"),
    ],
)
def test_what_is_no_image(tmp_path, content, says):
    path = tmp_path / "a.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    declared = Bands(5, (0, 1) if "finite" in says else ())
    with pytest.raises(Unreadable, match=says):
        bands.decode(str(path), declared)
    with pytest.raises(Unreadable, match="no such file"):
        bands.decode(str(tmp_path / "b.npy"), declared)


def section(folder, kind="folder", **others):
    return dict(kind=kind, name="", dir=str(folder), split="train", **others)


@pytest.fixture
def folder(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(2):
            write(tmp_path / label / f"{i}.tif", DRAWN.astype(np.uint16) + i, "interleaved")
    (tmp_path / "a" / "photo.png").write_bytes(b"")
    rows = [f"{label}/{i}.tif,{label}" for label in "ab" for i in range(2)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    return tmp_path


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_a_set_of_files(folder, kind):
    place = folder if kind == "folder" else folder / "list.csv"
    records = source.make_source(section(place, kind, channels=5, range=(0, 300), size=8))
    assert (len(records), records.num_classes, records.channels, records.floats) == (4, 2, 5, True)
    assert records.image_bytes((8, 8)) == 4 * 5 * 64 and "channels=5" in repr(records)
    image = records[1]["image"]
    assert image.shape == (8, 8, 5) and image.dtype == np.float32
    each = ((DRAWN + 1) / 300).astype(np.float32)
    for channel in range(5):  # Pillow's floats, cut to [0, 1]
        plane = Image.fromarray(each[..., channel])
        plane = plane.resize((8, 8), Image.Resampling.BICUBIC, box=(4, 0, 16, 12))
        np.testing.assert_allclose(image[..., channel], np.clip(plane, 0, 1), atol=1e-6)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_masks_are_not_turned_as_the_arrays_are_not(tmp_path, orientation):
    mask = np.arange(16, dtype=np.uint8).reshape(4, 4)
    turn = dict(extratags=[(274, 3, 1, orientation, True)])
    for folder, pixels in {"images": np.dstack([mask] * 5), "masks": mask}.items():
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "a.tif"
        tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig="contig", **turn)
    record = source.make_source(section(tmp_path, channels=5))[0]
    np.testing.assert_array_equal(record["image"][..., 0], mask)
    np.testing.assert_array_equal(record["mask"], mask)


@pytest.mark.parametrize(
    "given, says",
    [
        (dict(channels=4), "data.channels=4"),
        (dict(channels=5), "data.range"),
        (dict(range=(0, 1)), "data.channels"),
        (dict(channels=5, range=(1, 1)), "low < high"),
    ],
)
def test_sets_that_are_not_as_declared(folder, given, says):
    with pytest.raises(InputError, match=says):
        source.make_source(section(folder, **given))


def test_channels_are_resized_as_colours_are():
    """Three channels of five are resized to the bits that they would have as RGB."""
    image = DRAWN.astype(np.uint8)
    rgb = decode.resize(np.ascontiguousarray(image[..., 1:4]), (7, 9))
    five = decode.resize(image, (7, 9))
    assert five.shape == (7, 9, 5)
    np.testing.assert_array_equal(five[..., 1:4], rgb)
    assert decode.resize(image[..., :1], (7, 9)).shape == (7, 9, 1)
    edges = decode.resize((image[..., :2] > 127).astype(np.float32), (48, 80))  # which overshoot
    assert (edges.min(), edges.max()) == (0, 1)
