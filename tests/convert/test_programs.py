"""Networks as programs: the features of any batch, without this package; what cannot be one is
refused."""

import dataclasses
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from jax import export
from PIL import Image

import ssl_jax
from ssl_jax import cli
from ssl_jax.config import InputError
from ssl_jax.convert import card, programs
from ssl_jax.data import decode
from tests.convert import networks
from tests.models import test_swin

NAMES = ("image", "cls", "patches")
PLAIN = networks.PLAIN


def run(path, images):
    return programs.TARGETS[path.suffix[1:]].run(path.read_bytes(), images)


def assert_same(encoder, path, size):
    """For another number of images than `export` tries."""
    images = np.random.default_rng(1).random((3, size, size, 3), np.float32)
    ours, theirs = encoder(images), run(path, images)
    assert theirs.keys() == {name for name in NAMES if getattr(ours, name) is not None}
    for name, x in theirs.items():
        np.testing.assert_allclose(x, getattr(ours, name), atol=1e-5)


@pytest.mark.parametrize("to", [pytest.param("stablehlo", marks=pytest.mark.slow), "onnx"])
def test_the_printed_example_runs_without_this_package(tmp_path, capsys, monkeypatch, to):
    """From the command line to the features of a photograph, as `ssl_jax.embed` has them."""
    blocked = ["ssl_jax", "flax"]
    if to == "onnx":
        pytest.importorskip("onnx", reason="ONNX files need onnx")
        pytest.importorskip("onnxruntime", reason="ONNX files are checked with onnxruntime")
        blocked += ["jax"]
    monkeypatch.chdir(tmp_path)
    encoder = networks.network("registers")
    ssl_jax.save(encoder, "a.safetensors")
    words = ["export", "a.safetensors", f"--to={to}", f"--out=a.{to}", "--size=48"]
    assert cli.main(["ssl-jax", *words]) == 0
    _, _, example = capsys.readouterr().out.partition("\n\n")
    image = np.random.default_rng(0).integers(0, 256, (61, 80, 3), np.uint8)
    Image.fromarray(image).save("photo.png")
    code = example.replace("photo.jpg", "photo.png")  # JPEG would change the pixels
    code = f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n{code}"
    code += "\nnp.savez('features.npz', **features)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'size': 48" in done.stdout
    ours = encoder(decode.resize_square(image, 48)[None])
    with np.load("features.npz") as theirs:
        for name in NAMES:
            np.testing.assert_allclose(theirs[name], getattr(ours, name), atol=1e-5)


def test_one_file_for_all_platforms(tmp_path):
    encoder, path = networks.network("queries", "queries"), tmp_path / "a.stablehlo"
    inputs, closing = ssl_jax.export(encoder, path, to="stablehlo")
    assert programs._is_ours(path, programs.TARGETS["stablehlo"])  # may be written again
    assert "[B, 32, 32, 3]" in inputs and "differ" in closing
    assert_same(encoder, path, 32)
    with zipfile.ZipFile(path) as file:
        program = export.deserialize(bytearray(file.read("program")))
        metadata = json.loads(file.read("ssl_jax.json"))
    assert program.platforms == ("cpu", "cuda", "tpu")
    prepared = metadata["preparation"]
    assert metadata["network"]["method"] == "random" and prepared["range"] == [0, 1]
    assert (prepared["size"], tuple(prepared["mean"])) == (32, encoder.shape.mean)


SHAPES = {
    **{name: networks.config(name) for name in ("dino_rule", "rope", "rope_gated")},
    "conv": dataclasses.replace(PLAIN, stem="conv", gelu="tanh", position="sincos", scan=True),
    "swin": dataclasses.replace(test_swin.CONFIG, mask_token=False),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x in ("conv", "swin") else x for x in SHAPES],
)
def test_onnxruntime_computes_the_same(tmp_path, name):
    """At a size other than the native one; layer norms and GELUs are ONNX's own."""
    onnx = pytest.importorskip("onnx", reason="ONNX files need onnx")
    pytest.importorskip("onnxruntime", reason="ONNX files are checked with onnxruntime")
    encoder, path = networks.of(SHAPES[name]), tmp_path / "a.onnx"
    ssl_jax.export(encoder, path, to="onnx", size=48)
    assert_same(encoder, path, 48)
    model = onnx.load(path)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Gelu") == (encoder.shape.depth if encoder.shape.mlp == "gelu" else 0)
    assert kinds.count("LayerNormalization") > 2 * encoder.shape.depth
    (axis, *_) = model.graph.input[0].type.tensor_type.shape.dim
    assert axis.dim_param == "batch"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(path="a.bin"), "end in .onnx"),
        (dict(path="mine.onnx"), "mine.onnx"),
        (dict(size=20), "size is 20.*8"),
        (dict(size=-8), "size is -8"),
        (dict(image=""), "random"),
        (dict(large=True), "GB"),
    ],
)
def test_what_cannot_be_a_program_is_refused(tmp_path, options, named):
    (tmp_path / "mine.onnx").write_bytes(b"a file of somebody's")
    shape, params = PLAIN, networks.of(PLAIN).backbone
    if "large" in options:
        shape = dataclasses.replace(PLAIN, width=2**16, heads=8)
        params = networks.shapes_of(shape)
    given = dict(path="a.onnx", image="cls", size=None) | options
    path, image, size = given["path"], given["image"], given["size"]
    with pytest.raises(InputError, match=named):
        kinds = dict(to="onnx", size=size, about=card.About("random"))
        programs.write(tmp_path / path, shape, params, image, None, **kinds)
    assert {file.name for file in tmp_path.iterdir()} == {"mine.onnx"}


def test_other_features_and_numbers_that_are_not_finite_are_refused(tmp_path):
    plain, other = networks.network("plain"), networks.network("sincos")
    with pytest.raises(InputError, match="differ"):
        features = plain.shape, plain.backbone, "cls", other
        about = card.About("random")
        programs.write(tmp_path / "a.stablehlo", *features, to="stablehlo", size=None, about=about)
    encoder = networks.network("plain")
    encoder.backbone["cls"] = np.full_like(encoder.backbone["cls"], np.nan)
    with pytest.raises(InputError, match="finite"):
        ssl_jax.export(encoder, tmp_path / "a.stablehlo", to="stablehlo")
    with pytest.raises(InputError, match="size is 64"):
        ssl_jax.export(encoder, tmp_path / "a", to="timm", size=64)
    assert not list(tmp_path.iterdir())
