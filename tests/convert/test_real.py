"""A network that others published, through every path. SSL_JAX_REAL_WEIGHTS names its Hugging Face
folder (a DINOv2); skipped without.

Beside the folder, ref.npz may hold `images` [B, H, W, 3] in [0, 1] and `tokens` [B, 1 + n, d], what
another library computed of them.
"""

import os
from pathlib import Path

import jax
import numpy as np
import pytest

import ssl_jax
from tests.convert import test_front_door

FOLDER = os.environ.get("SSL_JAX_REAL_WEIGHTS", "")
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="SSL_JAX_REAL_WEIGHTS names no folder"),
    pytest.mark.nightly,
]


@pytest.fixture(scope="module")
def encoder():
    return ssl_jax.load(FOLDER)


@pytest.fixture(scope="module")
def features(encoder):
    return encoder(images(encoder))


def images(encoder):
    side = 7 * encoder.shape.patch
    return np.random.default_rng(0).random((2, side, side, 3), np.float32)


def tokens(features):
    patches = np.asarray(features.patches)
    return np.concatenate(
        [np.asarray(features.cls)[:, None], patches.reshape(len(patches), -1, patches.shape[-1])], 1
    )


def test_features_are_those_of_another_library(encoder):
    if not (file := Path(FOLDER).parent / "ref.npz").is_file():
        pytest.skip(f"no {file}")
    wanted = np.load(file)
    np.testing.assert_allclose(tokens(encoder(wanted["images"])), wanted["tokens"], atol=1e-4)


def test_embed(encoder, features):
    found = ssl_jax.embed(encoder, images(encoder), tokens=("image", "patches"))
    np.testing.assert_allclose(found["image"], features.cls, atol=1e-4)
    rows = tokens(features)[:, 1:].reshape(-1, encoder.shape.width)
    np.testing.assert_allclose(found["patches"].reshape(rows.shape), rows, atol=1e-4)


@pytest.mark.parametrize("to", ["timm", "hf", "safetensors"])
def test_exports_come_back(encoder, features, tmp_path, to):
    out = tmp_path / ("x.safetensors" if to == "safetensors" else to)
    ssl_jax.export(encoder, out, to=to)
    np.testing.assert_array_equal(tokens(ssl_jax.load(out)(images(encoder))), tokens(features))


@pytest.mark.parametrize("method", ["finetune", "dinov2"])
def test_runs_start_from_it(encoder, method):
    patch = encoder.shape.patch
    sizes = dict(views__global_size=2 * patch, views__local_size=patch)
    _, state = test_front_door.started(FOLDER, encoder.shape, method, **sizes)
    weights = {name: x for name, x in encoder.backbone.items() if name in state.params["backbone"]}
    assert "blocks" in weights
    for name in weights:
        jax.tree.map(np.testing.assert_array_equal, state.params["backbone"][name], weights[name])
