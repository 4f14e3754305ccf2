"""FID's Inception: its shapes, its resizing, and its features beside those of jax-fid."""

import functools
import pickle

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from ssl_jax.config import InputError, MissingFile
from ssl_jax.models import inception

_PARTS = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}


@pytest.fixture(scope="module")
def weights():
    """Random ones that keep activations near 1."""
    rng, params = np.random.default_rng(0), {}
    for name, shape in inception.shapes().items():
        if name.endswith("conv.weight"):
            value = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        elif name.endswith(("bn.weight", "running_var")):
            value = rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.normal(0, 0.2, shape)
        params[name] = value.astype(np.float32)
    return params


def test_it_has_the_published_number_of_weights():
    """Keras counts 21 768 352 without the scales of its norms and without the classifier."""
    sizes = {name: int(np.prod(shape)) for name, shape in inception.shapes().items()}
    trained = sum(n for name, n in sizes.items() if name.endswith(("conv.weight", "bn.bias")))
    assert trained == 21_768_352
    assert sum(name.endswith("conv.weight") for name in sizes) == 94
    assert inception.shapes()["Mixed_7c.branch3x3dbl_3b.conv.weight"] == (384, 384, 3, 1)


def test_images_are_resized_as_tensorflow_1_did():
    np.testing.assert_allclose(
        inception.resize_matrix(2, 4), [[1, 0], [0.5, 0.5], [0, 1], [0, 1]], atol=1e-7
    )
    image = np.random.default_rng(0).random((1, 299, 299, 3), np.float32)
    exact = (np.round(255 * image) - 128) / 128
    np.testing.assert_allclose(inception.preprocess(image), exact, atol=1e-6)
    flat = inception.preprocess(np.full((1, 32, 48, 3), 2.0))  # clipped at 1
    assert flat.shape == (1, 299, 299, 3)
    np.testing.assert_allclose(flat, 127 / 128, rtol=1e-6)


@pytest.mark.slow
def test_features_are_those_of_jax_fid(weights, tmp_path, monkeypatch):
    utils = pytest.importorskip("jax_fid.utils", reason="the oracle is not installed: jax-fid")
    from jax_fid.inception import InceptionV3

    tree: dict = {}
    for name in inception.shapes():
        *path, part, leaf = name.split(".")
        node = tree
        for step in (*path, part):
            node = node.setdefault(step, {})
        value = weights[name]
        node["kernel" if part == "conv" else _PARTS[leaf]] = (
            value.transpose(2, 3, 1, 0) if part == "conv" else value
        )
    file = tmp_path / "weights.pickle"
    file.write_bytes(pickle.dumps(tree))
    monkeypatch.setattr(utils, "download", lambda *_: str(file))
    x = np.random.default_rng(1).uniform(-1, 1, (2, 80, 96, 3)).astype(np.float32)
    oracle = InceptionV3(pretrained=True)
    state = oracle.init(jax.random.key(0), x[:1], train=False)
    expected = np.asarray(jax.jit(functools.partial(oracle.apply, train=False))(state, x))
    expected = expected.reshape(2, 2048)
    assert expected.std() > 0.01
    np.testing.assert_allclose(
        jax.jit(inception.features)(weights, x), expected, rtol=2e-3, atol=2e-4 * expected.max()
    )


def test_files_are_read_and_refused(weights, tmp_path):
    file = tmp_path / "inception.safetensors"
    save_file(weights | {"fc.weight": np.zeros((1008, 2048), np.float32)}, file)
    found = inception.load(str(file))
    assert found.keys() == weights.keys()
    np.testing.assert_array_equal(
        found["Mixed_5b.branch1x1.bn.bias"], weights["Mixed_5b.branch1x1.bn.bias"]
    )
    with pytest.raises(MissingFile):
        inception.load("")
    save_file({"Conv2d_1a_3x3.conv.weight": np.zeros((32, 3, 3, 3), np.float32)}, file)
    with pytest.raises(InputError, match=r"Conv2d_1a_3x3.bn.weight"):
        inception.load(str(file))
    for name in ("nonsense.safetensors", "weights.pth"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(InputError, match=name):
            inception.load(str(tmp_path / name))
