"""A data set as vectors: what the arrays are, and that a stop loses nothing."""

import json
import os

import jax
import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

import ssl_jax
from ssl_jax import cli, embedding
from ssl_jax.config import InputError
from ssl_jax.data import decode
from ssl_jax.embedding import parts
from ssl_jax.methods import encoder
from ssl_jax.models import vit

SHAPE = vit.ViTConfig(width=16, depth=2, heads=2, patch=4, image_size=8)


@pytest.fixture(scope="module")
def network():
    return encoder.published(SHAPE, vit.vit(SHAPE).init(jax.random.key(0)), "a ViT")


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of two images."""
    monkeypatch.setattr(parts, "_BYTES", 1)


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


def _of(network, folder, name, size=8):
    image = decode.resize_square(decode.decode_image(str(folder / name)), size)
    return network(image[None])


def test_a_folder_in_memory(network, folder):
    found = ssl_jax.embed(network, folder, tokens=("image", "mean", "patches"), batch_size=2)
    assert found["names"].tolist() == ["a/0.png", "a/1.png", "b/3.png", "b/4.png"]
    assert found["labels"].tolist() == [0, 0, 1, 1]
    assert found["class_names"].tolist() == ["a", "b"]
    assert found["index"].tolist() == [0, 1, 3, 4]
    assert found["sizes"].tolist() == [[12, 12]] * 4  # as stored, not as resized
    assert [name.rpartition("/")[2] for name in found["skipped"]] == ["2.png"]
    alone = _of(network, folder, "b/3.png")
    np.testing.assert_allclose(found["image"][2], alone.image[0], atol=1e-5)
    np.testing.assert_allclose(found["patches"][2], alone.patches[0], atol=1e-5)
    np.testing.assert_allclose(found["mean"][2], alone.patches[0].mean(axis=(0, 1)), atol=1e-5)


def test_native_sizes(network, folder):
    _picture(folder / "a/1.png", height=9, width=17, seed=1)
    found = ssl_jax.embed(network, folder, tokens=("patches",), size=0, batch_size=2)
    assert found["patches_shapes"].tolist() == [[3, 3], [2, 4], [3, 3], [3, 3]]
    assert found["patches"].shape == (9 + 8 + 9 + 9, 16)
    assert found["sizes"][1].tolist() == [9, 17]
    image = decode.decode_image(str(folder / "a/1.png"))
    middle = network(image[None, :8, :16]).patches  # of 9 x 17 pixels, the central 8 x 16
    np.testing.assert_allclose(found["patches"][9:17], middle.reshape(8, 16), atol=1e-5)


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_names_that_are_no_utf8_are_listed(network, folder, tmp_path, suffix, capsys):
    odd = os.fsdecode(b"caf\xe9")
    try:
        for name in (f"b/{odd}5.png", f"b/{odd}6.png"):
            _picture(folder / name)
    except OSError:
        pytest.skip("this file system knows only UTF-8")
    (folder / f"b/{odd}6.png").write_bytes(b"no image")
    out = ssl_jax.embed(network, folder, tokens=("image",), out=tmp_path / f"x.{suffix}")
    if suffix == "npz":
        with np.load(out) as found:
            names, skipped = found["names"].tolist(), found["skipped"].tolist()
    else:
        table = parquet.read_table(out)
        names = table["name"].to_pylist()
        skipped = json.loads(table.schema.metadata[b"skipped"])
    assert names[-1] == "b/caf\\xe95.png" and len(names) == 5
    assert [name.rpartition("/")[2] for name in skipped] == ["2.png", "caf\\xe96.png"]


def test_arrays_and_half_precision(network):
    images = np.random.default_rng(0).random((3, 8, 8, 3)).astype(np.float32)
    found = ssl_jax.embed(network, images, layers=1, tokens=("cls",), dtype="float16")
    assert found["cls"].dtype == np.float16 and "labels" not in found
    np.testing.assert_allclose(found["cls"], network(images).cls, atol=2e-3)


def test_sparse_tokens_are_all_of_them():
    def sparse(images):
        return np.stack([images.mean(axis=(1, 2)), images.max(axis=(1, 2))], axis=1)

    network = encoder.published(SHAPE, vit.vit(SHAPE).init(jax.random.key(0)), "a ViT")
    images = np.random.default_rng(0).random((3, 8, 8, 3)).astype(np.float32)
    work = embedding.plan(network, embedding.opened(images, 0, network), tokens=("sparse",))
    with pytest.raises(InputError, match="no sparse tokens"):
        embedding.in_memory(work)

    class Sparse(encoder.Encoder):
        def __call__(self, images, **options):
            found = network(images)
            return found._replace(extras={"tokens": np.asarray(sparse(np.asarray(images)))})

    other = Sparse(network.config, network.params, features=network._features)
    other.across = lambda devices: other
    found = ssl_jax.embed(other, images, tokens=("sparse",))
    assert found["sparse"].shape == (3, 2, 3)
    np.testing.assert_allclose(found["sparse"], sparse(images), atol=1e-6)


def test_records_without_file_names_have_those_of_messages(network, monkeypatch):
    def refused(self):
        raise InputError("no file name or id")

    images = np.random.default_rng(0).random((2, 8, 8, 3)).astype(np.float32)
    source = embedding.opened(images, 0, network)
    monkeypatch.setattr(type(source), "list_names", refused, raising=False)
    found = ssl_jax.embed(network, source)
    assert found["names"].tolist() == [source.name(0), source.name(1)]


@pytest.mark.parametrize("size", [8, 0])
def test_npz_is_what_memory_has(network, folder, tmp_path, small_parts, size):
    _picture(folder / "a/1.png", height=9, width=17, seed=1)
    options = dict(tokens=("image", "patches"), batch_size=2, size=size)
    wanted = ssl_jax.embed(network, folder, **options)
    out = ssl_jax.embed(network, folder, tmp_path / "x.npz", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "x.npz"]
    with np.load(out, allow_pickle=False) as found:
        assert set(found.files) == set(wanted)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
        assert json.loads(str(found["about"]))["digest"] == network.digest


@pytest.mark.parametrize("size", [8, 0])
def test_parquet_is_what_memory_has(network, folder, tmp_path, small_parts, size):
    _picture(folder / "a/1.png", height=9, width=17, seed=1)
    options = dict(tokens=("image", "patches"), batch_size=2, size=size)
    wanted = ssl_jax.embed(network, folder, **options)
    table = parquet.read_table(ssl_jax.embed(network, folder, tmp_path / "x.parquet", **options))
    rows = table.to_pylist()
    assert [row["name"] for row in rows] == wanted["names"].tolist()
    assert [row["class"] for row in rows] == ["a", "a", "b", "b"]
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
    wanted = ssl_jax.embed(network, folder, **options)
    plan = embedding.plan(network, embedding.opened(folder, None, network), **options)
    computed, compute = [], parts.Plan.compute

    def counted(self, start, stop):
        computed.append(start)
        if len(computed) == 2:
            raise KeyboardInterrupt
        return compute(self, start, stop)

    monkeypatch.setattr(parts.Plan, "compute", counted)
    with pytest.raises(KeyboardInterrupt):
        embedding.to_file(plan, out)
    assert not out.exists()
    told = []
    embedding.to_file(plan, out, progress=lambda done, count: told.append((done, count)))
    assert computed == [0, 2, 2, 4]  # the first part was there
    assert told == [(2, 5), (4, 5), (5, 5)]
    with np.load(out) as found:
        np.testing.assert_array_equal(found["image"], wanted["image"])


def test_parts_of_another_embedding_are_refused(network, folder, tmp_path, small_parts):
    out = tmp_path / "x.npz"
    plan = embedding.plan(network, embedding.opened(folder, None, network), batch_size=2)
    kept = parts.Kept(tmp_path / "x.npz.parts", plan.described())
    kept.write(0, plan.compute(0, 2))
    other = embedding.plan(network, embedding.opened(folder, 4, network), batch_size=2)
    with pytest.raises(InputError, match=r"x\.npz\.parts holds parts of another.*\(data differ\)"):
        embedding.to_file(other, out)


def test_a_part_without_readable_images(network, folder, tmp_path, small_parts):
    (folder / "b/3.png").write_bytes(b"no image either")
    found = ssl_jax.embed(network, folder, tokens=("image", "patches"), batch_size=2)
    assert found["names"].tolist() == ["a/0.png", "a/1.png", "b/4.png"]
    assert len(found["skipped"]) == 2 and found["patches"].shape == (3, 2, 2, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(tokens=("patch",)), 'tokens is "patch".*did you mean "patches"'),
        (dict(dtype="int8"), "dtype is"),
        (dict(layers=0), "layers is 0"),
        (dict(out="x.csv"), r"ends in \.npz or \.parquet"),
        (dict(out="nowhere/x.npz"), "no folder"),
    ],
)
def test_bad_input(network, folder, tmp_path, changes, message):
    if "out" in changes:
        changes = changes | {"out": tmp_path / changes["out"]}
    with pytest.raises(InputError, match=message):
        ssl_jax.embed(network, folder, **changes)


def test_a_file_is_never_replaced(network, folder, tmp_path):
    (tmp_path / "x.npz").write_text("mine")
    with pytest.raises(InputError, match=r"x\.npz is there already"):
        ssl_jax.embed(network, folder, tmp_path / "x.npz")
    assert (tmp_path / "x.npz").read_text() == "mine"


class TestCommand:
    """`ssl-jax embed`."""

    def run(self, *arguments):
        return cli.main(["ssl-jax", "embed", *map(str, arguments)])

    @pytest.fixture(autouse=True)
    def network_of_a_file(self, network, monkeypatch):
        """Reading weights is tested elsewhere."""
        monkeypatch.setattr("ssl_jax.api.load", lambda path, family: network)

    def test_folder(self, network, folder, tmp_path, capsys):
        assert self.run("x", folder, "--out", tmp_path / "x.npz", "--tokens=cls,mean") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("a ViT, Prepared(Folder(") and lines[0].endswith(": 5 images")
        assert lines[1] == "5 of 5 images" and lines[2].endswith(" MiB")
        with np.load(tmp_path / "x.npz") as found:
            assert found["cls"].shape == found["mean"].shape == (4, 16)

    def test_another_kind_of_data(self, tmp_path):
        out = f"--out={tmp_path / 'x.npz'}"
        data = ("--config.data.kind=photos", "--config.data.length=3")
        assert self.run("x", out, *data, "--size=16", "--dtype=float16") == 0
        with np.load(tmp_path / "x.npz") as found:
            assert found["image"].shape == (3, 16) and found["image"].dtype == np.float16
            assert len(found["labels"]) == 3

    def test_stopped(self, folder, tmp_path, capsys, monkeypatch):
        def stopped(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(embedding, "to_file", stopped)
        assert self.run("x", folder, f"--out={tmp_path / 'x.npz'}") == 75
        assert "the same command goes on" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "needs a NETWORK first"),
            (("x", "--out=x.npz"), "needs the folder that holds the images"),
            (("x", "here"), "--out=FILE is missing"),
            (("x", "here", "--out=x.npz", "--layers=two"), "--layers is 'two'"),
            (
                ("x", "here", "--out=x.npz", "--config.data.size=3"),
                'unknown config key "data.size"',
            ),
        ],
    )
    def test_bad_input(self, capsys, arguments, message):
        assert self.run(*arguments) == 2
        assert message in capsys.readouterr().err
