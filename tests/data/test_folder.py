"""folder.py: which files it finds, classes, splits, broken files."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.folder import EXTENSIONS, Folder
from ssl_jax.data.source import make_source
from ssl_jax.data.subset import sliced
from tests.data.records import IMAGES, MASKS, png, same_record, save


def test_folder_with_classes(tmp_path):
    for i, name in enumerate(["b/2.png", "a/x.PNG", "b/1.webp", "c/deep/er/y.Jpeg", "a/z.jpg"]):
        save(tmp_path / name, IMAGES[i])
    for name in ["a/notes.txt", "a/.hidden.png", ".cache/x.png", "README.png.md"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not an image")
    folder = Folder(tmp_path)
    names = [os.path.relpath(folder.name(i), tmp_path) for i in range(len(folder))]
    assert names == ["a/x.PNG", "a/z.jpg", "b/1.webp", "b/2.png", "c/deep/er/y.Jpeg"]
    assert folder.class_names == ("a", "b", "c") and folder.num_classes == 3
    assert [folder[i]["label"] for i in range(5)] == [0, 0, 1, 1, 2]
    np.testing.assert_array_equal(folder[0]["image"], IMAGES[1])
    assert not folder.has_masks and folder.size is None and "mask" not in folder[0]
    assert len(list(folder)) == 5  # iteration ends


@pytest.mark.parametrize(
    "names", [["1.png", "2.png"], ["1.png", "a/2.png", "b/3.png"], ["only/1.png", "only/2.png"]]
)
def test_folder_without_classes(names, tmp_path):
    for i, name in enumerate(names):
        save(tmp_path / name, IMAGES[i])
    folder = Folder(tmp_path)
    assert folder.num_classes is None and folder.class_names is None and len(folder) == len(names)
    assert folder[0].keys() == {"image"}


def test_folder_splits(tmp_path):
    for i, name in enumerate(["train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png"]):
        save(tmp_path / name, IMAGES[i])
    train, val = (
        make_source(dict(kind="folder", dir=tmp_path, split=split)) for split in ("train", "val")
    )
    np.testing.assert_array_equal(train[1]["image"], IMAGES[1])
    np.testing.assert_array_equal(val[1]["image"], IMAGES[3])
    assert [len(s) for s in (train, val)] == [2, 2] and val[1]["label"] == 1
    with pytest.raises(
        InputError, match="data.split: .* no subfolder 'test'; subfolders: train, val"
    ):
        make_source(dict(kind="folder", dir=tmp_path, split="train"), split="test")


def test_folder_follows_links_but_not_in_circles(tmp_path):
    save(tmp_path / "elsewhere" / "1.png", IMAGES[0])
    save(tmp_path / "root" / "a" / "2.png", IMAGES[1])
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "loop").symlink_to(tmp_path / "root")
    folder = Folder(tmp_path / "root")
    assert sorted(os.path.basename(folder.name(i)) for i in range(len(folder))) == [
        "1.png",
        "2.png",
    ]


@pytest.mark.parametrize("make", [lambda p: p / "gone", lambda p: p, lambda p: p / "file"])
def test_folder_that_cannot_be(make, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "sub").mkdir()
    with pytest.raises(InputError) as caught:
        make_source(dict(kind="folder", dir=str(make(tmp_path))))
    message = str(caught.value)
    assert (
        "data.dir" in message
        and str(make(tmp_path)) in message
        and ".webp" in message
        and "\n" not in message
    )


def test_folder_needs_a_dir():
    with pytest.raises(InputError, match="data.dir is empty"):
        make_source(dict(kind="folder", dir=""))


def test_folder_names_a_broken_file(tmp_path):
    save(tmp_path / "1.png", IMAGES[0])
    (tmp_path / "2.png").write_bytes(png(IMAGES[1])[:60])
    folder = Folder(tmp_path)
    with pytest.raises(Unreadable, match="2.png"):
        folder[1]
    same_record(folder[0], {"image": IMAGES[0]})


def test_accepted_extensions_are_lower_case():
    assert all(extension == extension.lower() for extension in EXTENSIONS)


def test_more_formats_and_what_is_left_out(tmp_path):
    for i, name in enumerate(("a.bmp", "b.TIF", "c.tiff", "d.png")):
        save(tmp_path / name, IMAGES[i])
    (tmp_path / "e.tif").write_bytes(_tiff16(np.full((4, 5), 257 * 7, np.uint16)))
    for name in ("x.heic", "y.HEIC", "z.heic", "notes.txt", "README", ".hidden", "f.gif"):
        (tmp_path / name).write_bytes(b"no image")
    folder = Folder(tmp_path)
    assert [os.path.basename(folder.name(i)) for i in range(len(folder))] == [
        "a.bmp",
        "b.TIF",
        "c.tiff",
        "d.png",
        "e.tif",
    ]
    for i in range(4):
        np.testing.assert_array_equal(folder[i]["image"], IMAGES[i])
        assert folder.shape(i) == (8, 8)
    np.testing.assert_array_equal(folder[4]["image"], np.full((4, 5, 3), 7))
    what, place = folder.left_out.split(" of ")
    others = ["1 .gif", "1 .txt", "1 hidden", "1 without extension"]
    assert place == str(tmp_path) and sorted(what.split(", ")) == [*others, "3 .heic"]
    assert folder.left_out.startswith("3 .heic, ")
    # Other sources of the same files know it too.
    assert make_source(dict(kind="folder", dir=tmp_path, size=4)).left_out == folder.left_out
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "1.heic").write_bytes(b"")
    with pytest.raises(InputError, match=r"no image in or below .*only \(there: 1 .heic\); acc"):
        Folder(tmp_path / "only")


def _tiff16(gray):
    stream = io.BytesIO()
    Image.fromarray(gray).save(stream, "TIFF")
    return stream.getvalue()


def test_names_that_are_no_utf8(tmp_path):
    """Linux allows any bytes; classes, prints and masks must not stumble over them."""
    odd = os.fsdecode(b"caf\xe9")
    for name, i in ((f"{odd}/1.png", 0), (f"{odd}/{odd}.png", 1), ("b/2.png", 2)):
        try:
            save(tmp_path / "images" / name, IMAGES[i])
        except OSError:
            pytest.skip("this file system knows only UTF-8")
        save(tmp_path / "masks" / name, MASKS[i])
    folder = Folder(tmp_path, masks="masks")
    assert folder.class_names == ("b", "caf\\xe9") and folder[2]["label"] == 1
    repr(folder).encode()
    np.testing.assert_array_equal(folder[2]["image"], IMAGES[1])
    assert len(sliced(folder, "train[:2]")) == 2
