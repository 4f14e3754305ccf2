"""A data set as vectors: what the arrays are, and that a stop loses nothing."""

import json
import os
import resource
from unittest.mock import Mock

import chex
import jax
import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

import ssl_jax
from ssl_jax import cli
from ssl_jax.config import InputError
from ssl_jax.data import decode
from ssl_jax.features import embedding
from ssl_jax.methods import encoder
from ssl_jax.models import vit
from ssl_jax.runtime import lock
from tests.evals import fakes

SHAPE = vit.ViTConfig(width=16, depth=2, heads=2, patch=4, image_size=8)


@pytest.fixture(scope="module")
def network():
    return encoder.published(SHAPE, vit.vit(SHAPE).init(jax.random.key(0)), "a ViT")


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of two images."""
    monkeypatch.setattr(embedding, "_BYTES", 1)


def _picture(path, height=12, width=12, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    """Five images of two classes; b/2.png cannot be read."""
    for seed, name in enumerate(("a/0.png", "a/1.png", "b/2.png", "b/3.png", "b/4.png")):
        _picture(tmp_path / "images" / name, seed=seed)
    (tmp_path / "images/b/2.png").write_bytes(b"no image")
    return tmp_path / "images"


def some(folder):
    """The data of a folder of which a part cannot be read."""
    return dict(kind="folder", dir=str(folder), max_unreadable=0.5)


def test_a_folder_in_memory(network, folder):
    found = ssl_jax.embed(network, some(folder), tokens=("image", "mean", "patches"), batch_size=2)
    assert found["names"].tolist() == ["a/0.png", "a/1.png", "b/3.png", "b/4.png"]
    assert found["labels"].tolist() == [0, 0, 1, 1]
    assert found["class_names"].tolist() == ["a", "b"]
    assert found["index"].tolist() == [0, 1, 3, 4]
    assert found["sizes"].tolist() == [[12, 12]] * 4  # as stored, not as resized
    assert [name.rpartition("/")[2] for name in found["skipped"]] == ["2.png"]
    image = decode.resize_square(decode.decode_image(str(folder / "b/3.png")), 8)
    alone = network(image[None])
    np.testing.assert_allclose(found["image"][2], alone.image[0], atol=1e-5)
    np.testing.assert_allclose(found["patches"][2], alone.patches[0], atol=1e-5)
    np.testing.assert_allclose(found["mean"][2], alone.patches[0].mean(axis=(0, 1)), atol=1e-5)


def test_native_sizes(network, folder):
    _picture(folder / "a/1.png", height=9, width=17, seed=1)
    found = ssl_jax.embed(network, some(folder), tokens=("patches",), size=0, batch_size=2)
    assert found["patches_shapes"].tolist() == [[3, 3], [2, 4], [3, 3], [3, 3]]
    assert found["patches"].shape == (9 + 8 + 9 + 9, 16)
    assert found["sizes"][1].tolist() == [9, 17]
    image = decode.decode_image(str(folder / "a/1.png"))
    middle = network(image[None, :8, :16]).patches  # of 9 x 17 pixels, the central 8 x 16
    np.testing.assert_allclose(found["patches"][9:17], middle.reshape(8, 16), atol=1e-5)
    with pytest.raises(InputError, match="size is -3"):
        ssl_jax.embed(network, np.zeros((1, 8, 8, 3), np.uint8), size=-3)
    for size in (16, 0):  # 0 in a section says nothing
        mine = ssl_jax.embed(network, some(folder) | {"size": size}, batch_size=2)
        same = ssl_jax.embed(network, some(folder), size=size or 8, batch_size=2)
        np.testing.assert_array_equal(mine["image"], same["image"])


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_names_that_are_no_utf8_are_listed(network, folder, tmp_path, suffix):
    odd = os.fsdecode(b"caf\xe9")
    try:
        for name in (f"b/{odd}5.png", f"b/{odd}6.png"):
            _picture(folder / name)
    except OSError:
        pytest.skip("this file system knows only UTF-8")
    (folder / f"b/{odd}6.png").write_bytes(b"no image")
    out = ssl_jax.embed(network, some(folder), tokens=("image",), out=tmp_path / f"x.{suffix}")
    if suffix == "npz":
        with np.load(out) as found:
            names, skipped = found["names"].tolist(), found["skipped"].tolist()
    else:
        table = parquet.read_table(out)
        names, skipped = table["name"].to_pylist(), json.loads(table.schema.metadata[b"skipped"])
    assert names[-1] == "b/caf\\xe95.png" and len(names) == 5
    assert [name.rpartition("/")[2] for name in skipped] == ["2.png", "caf\\xe96.png"]


def test_arrays_in_half_precision_and_all_sparse_tokens(network):
    images = np.random.default_rng(0).random((3, 8, 8, 3)).astype(np.float32)
    found = ssl_jax.embed(network, images, layers=1, tokens=("cls",), dtype="float16")
    assert found["cls"].dtype == np.float16 and "labels" not in found
    np.testing.assert_allclose(found["cls"], network(images).cls, atol=2e-3)
    with pytest.raises(InputError, match="sparse"):
        ssl_jax.embed(network, images, tokens=("sparse",))

    def both(images):
        return np.stack([images.mean(axis=(1, 2)), images.max(axis=(1, 2))], axis=1)

    class Sparse(encoder.Encoder):
        def __call__(self, images, **options):
            return network(images)._replace(extras={"tokens": both(images)})

        def across(self, devices):
            return self

    other = Sparse(network.config, network.params, features=network._features)
    found = ssl_jax.embed(other, images, tokens=("sparse",))["sparse"]
    np.testing.assert_allclose(found, both(images), atol=1e-6)


@pytest.mark.parametrize("size", [8, 0])
def test_files_hold_what_memory_has(network, folder, tmp_path, small_parts, size):
    _picture(folder / "a/1.png", height=9, width=17, seed=1)
    dtype = "float16" if size else "float32"
    options = dict(tokens=("image", "patches"), batch_size=2, size=size, dtype=dtype)
    if size:  # a part without readable images
        (folder / "b/3.png").write_bytes(b"no image either")
    wanted = ssl_jax.embed(network, some(folder), **options)
    assert len(wanted["names"]) == (3 if size else 4)
    out = ssl_jax.embed(network, some(folder), tmp_path / "x.npz", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "x.npz"]
    with np.load(out, allow_pickle=False) as found:
        chex.assert_trees_all_equal({name: found[name] for name in wanted}, wanted)
        assert set(found.files) == set(wanted)
        assert json.loads(str(found["about"]))["digest"] == network.digest
    table = parquet.read_table(
        ssl_jax.embed(network, some(folder), tmp_path / "x.parquet", **options)
    )
    rows = table.to_pylist()
    assert [row["name"] for row in rows] == wanted["names"].tolist()
    assert [row["class"] for row in rows] == ["a", "a", "b", "b"][: len(rows)]
    assert [row["label"] for row in rows] == wanted["labels"].tolist()
    assert [(row["height"], row["width"]) for row in rows] == [*map(tuple, wanted["sizes"])]
    np.testing.assert_array_equal([row["image"] for row in rows], wanted["image"])
    patches = np.concatenate([np.asarray(row["patches"], np.float32) for row in rows])
    np.testing.assert_array_equal(patches, wanted["patches"].reshape(-1, 16))
    grids = [(row["patches_rows"], row["patches_columns"]) for row in rows]
    assert grids[1] == ((2, 4) if size == 0 else (2, 2))
    assert "2.png" in table.schema.metadata[b"skipped"].decode()


def test_goes_on_where_it_was_stopped(network, folder, tmp_path, small_parts, monkeypatch):
    out, options = tmp_path / "x.npz", dict(tokens=("image",), batch_size=2)
    wanted = ssl_jax.embed(network, some(folder), **options)
    plan = embedding.plan(network, embedding.opened(some(folder), None, network), **options)
    computed, compute = [], embedding.Plan.compute

    def counted(self, start, stop, folder=None):
        computed.append(start)
        if len(computed) == 2:
            raise KeyboardInterrupt
        return compute(self, start, stop, folder)

    monkeypatch.setattr(embedding.Plan, "compute", counted)
    with pytest.raises(KeyboardInterrupt):
        embedding.to_file(plan, out)
    assert not out.exists()
    other = embedding.plan(network, embedding.opened(some(folder), 4, network), **options)
    with pytest.raises(InputError, match=r"x\.npz\.parts"):
        embedding.to_file(other, out)  # the parts that are there are of other images
    (left,) = (tmp_path / "x.npz.parts").iterdir()
    assert isinstance(np.load(left / "image.npy", mmap_mode="r"), np.memmap)
    progress = []
    embedding.to_file(plan, out, progress=lambda *told: progress.append(told))
    assert computed == [0, 2, 2, 4]  # the first part was there
    assert progress == [(2, 5, 0), (4, 5, 1), (5, 5, 0)]
    with np.load(out) as found:
        np.testing.assert_array_equal(found["image"], wanted["image"])


class Minimal:
    """What the protocol asks for, and no more."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "label": i % 2}


def test_an_object_of_the_users_resumes_as_another_one(network, tmp_path, monkeypatch):
    """Python's own repr has an address."""
    images = np.zeros((3, 8, 8, 3), np.uint8)
    with monkeypatch.context() as patch:
        patch.setattr(embedding.Plan, "whole", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ssl_jax.embed(network, Minimal(images), tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == [tmp_path / "x.npz.parts"]
    with pytest.raises(InputError, match="files differ"):  # of other images
        ssl_jax.embed(network, Minimal(images + np.uint8([[[[9]]]])), tmp_path / "x.npz")
    ssl_jax.embed(network, Minimal(images), tmp_path / "x.npz")


def test_objects_and_lists(network):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    expected = ssl_jax.embed(network, images)
    assert expected["names"].tolist() == ["array/0", "array/1", "array/2"]
    pictures = [Image.fromarray(image) for image in images]
    for data in (list(images), pictures, Minimal(images), Minimal(pictures)):
        found = ssl_jax.embed(network, data)
        np.testing.assert_array_equal(found["image"], expected["image"])
        if isinstance(data, Minimal):
            assert found["labels"].tolist() == [0, 1, 0]
            assert found["names"].tolist() == ["Minimal/0", "Minimal/1", "Minimal/2"]
    sizes = ssl_jax.embed(network, [images[0], np.tile(images[1], (2, 1, 1))])["sizes"]
    assert sizes.tolist() == [[8, 8], [16, 8]]
    for wrong in ([], ["a.png"], iter(images), images[0]):
        with pytest.raises(InputError):
            ssl_jax.embed(network, wrong)


def test_many_parts_need_few_open_files(network, tmp_path, small_parts):
    images = np.random.default_rng(0).random((40, 8, 8, 3)).astype(np.float32)
    wanted = ssl_jax.embed(network, images, batch_size=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 40, hard))
        out = ssl_jax.embed(network, images, tmp_path / "x.npz", batch_size=2)
        table = ssl_jax.embed(network, images, tmp_path / "x.parquet", batch_size=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_array_equal(np.load(out)["image"], wanted["image"])
    assert parquet.read_table(table)["image"].to_pylist() == wanted["image"].tolist()


@pytest.mark.parametrize("labelled", [range(2), range(2, 4), range(1, 3), range(0)])
def test_images_without_a_label_have_minus_one(network, tmp_path, small_parts, labelled):
    class Some(fakes.Source):
        class_names = ["a", "b", "c", "d"]

        def __getitem__(self, i):
            record = super().__getitem__(i)
            return record | ({"label": i} if i in labelled else {})

    source, wanted = Some(fakes.images(5)), [i if i in labelled else -1 for i in range(5)]
    found = ssl_jax.embed(network, source, batch_size=2)
    with np.load(ssl_jax.embed(network, source, tmp_path / "x.npz", batch_size=2)) as file:
        assert set(file.files) == set(found)
    table = parquet.read_table(ssl_jax.embed(network, source, tmp_path / "x.parquet", batch_size=2))
    assert ("labels" in found) == ("label" in table.column_names) == bool(labelled)
    if labelled:
        assert found["labels"].tolist() == table["label"].to_pylist() == wanted
        assert table["class"].to_pylist() == ["abcd"[i] if i >= 0 else "" for i in wanted]


def test_hidden_labels_are_labels(network, small_parts):
    """A set says -1 of all images, as that of a contest does."""
    hidden = [{"image": image, "label": -1} for image in fakes.images(3)]
    found = ssl_jax.embed(network, type("Hidden", (list,), {"classes": ("a", "b")})(hidden))
    assert found["labels"].tolist() == [-1] * 3 and found["class_names"].tolist() == ["a", "b"]


def test_a_label_that_is_no_class_is_named(network, small_parts):
    records = [(image, label) for image, label in zip(fakes.images(3), (0, 1, 2))]
    with pytest.raises(InputError, match="Two/2 .*label 2"):
        ssl_jax.embed(network, type("Two", (list,), {"classes": ("a", "b")})(records))


def test_a_file_is_written_by_one_process_and_one_program(network, tmp_path, monkeypatch):
    images, out = fakes.images(2), tmp_path / "x.npz"
    parts = tmp_path / "x.npz.parts"
    parts.mkdir()
    other = lock.Lock(parts).take()
    with pytest.raises(InputError, match=r"x\.npz\.parts"):
        ssl_jax.embed(network, images, out)
    other.release()
    with monkeypatch.context() as patch:
        patch.setattr(embedding.Plan, "whole", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ssl_jax.embed(network, images, out)
    with monkeypatch.context() as patch:
        patch.setattr(ssl_jax, "__version__", "0.0.0")
        with pytest.raises(InputError, match="program"):
            ssl_jax.embed(network, images, out)
    assert ssl_jax.embed(network, images, out) == out and not parts.exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(tokens=("patch",)), "tokens"),
        (dict(dtype="int8"), "dtype"),
        (dict(layers=0), "layers"),
        (dict(out="x.csv"), "x.csv"),
        (dict(out="nowhere/x.npz"), "nowhere"),
        (dict(out="mine.npz"), "mine.npz"),  # a file is never replaced
        (dict(out="x.npz"), r"0\.npz"),  # nor one in a folder that is called as that of parts
    ],
)
def test_bad_input(network, folder, tmp_path, changes, named):
    mine = [tmp_path / name for name in ("mine.npz", "x.npz.parts/0.npz")]
    mine[1].parent.mkdir()
    for path in mine:
        path.write_text("mine")
    if "out" in changes:
        changes = changes | {"out": tmp_path / changes["out"]}
    with pytest.raises(InputError, match=named):
        ssl_jax.embed(network, some(folder), **changes)
    assert [path.read_text() for path in mine] == ["mine"] * 2


@pytest.fixture
def command(network, monkeypatch):
    """`ssl-jax embed`; reading weights is tested elsewhere."""
    monkeypatch.setattr("ssl_jax.api.load", lambda path, **_: network)
    return lambda *arguments: cli.main(["ssl-jax", "embed", *map(str, arguments)])


def test_command_with_any_kind_of_data(command, folder, tmp_path, monkeypatch, capsys):
    limit = "--config.data.max_unreadable=0.5"
    assert command("x", folder, "--out", tmp_path / "x.npz", "--tokens=cls,mean", limit) == 0
    assert "4 images, " in capsys.readouterr().out  # as many as are in the file
    with np.load(tmp_path / "x.npz") as found:
        assert found["cls"].shape == found["mean"].shape == (4, 16)
    data = ("--config.data.kind=photos", "--config.data.length=3", "--size=16")
    assert command("x", f"--out={tmp_path / 'y.npz'}", *data, "--dtype=float16") == 0
    with np.load(tmp_path / "y.npz") as found:
        assert found["image"].shape == (3, 16) and found["image"].dtype == np.float16
        assert len(found["labels"]) == 3
    monkeypatch.setattr(embedding, "to_file", Mock(side_effect=KeyboardInterrupt))
    assert command("x", folder, f"--out={tmp_path / 'z.npz'}", limit) == 75  # stopped
    assert command("x", f"--out={tmp_path / 'z.npz'}") == 2  # of which images


def test_parts_and_too_much_that_cannot_be_read(command, network, folder, capsys):
    with pytest.raises(InputError, match=r"data\.max_unreadable.*1 of 5.*2\.png"):
        ssl_jax.embed(network, folder)
    for part in ("train", "val"):
        _picture(folder.parent / "parts" / part / "0.png")
    with pytest.raises(InputError, match="train, val"):
        ssl_jax.embed(network, folder.parent / "parts")
    assert command("x", folder.parent / "parts", "--out=x.npz") == 2
    assert "data.split" in capsys.readouterr().err
    for data in (folder.parent / "parts/val", dict(some(folder.parent / "parts"), split="val")):
        assert len(ssl_jax.embed(network, data)["names"]) == 1
