"""Swin transformers of their authors and of timm: read, computed, and exported to timm."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

import ssl_jax
from ssl_jax import convert
from ssl_jax.config import InputError
from tests.convert import published
from tests.models import test_swin

CONFIG = dataclasses.replace(
    test_swin.CONFIG,
    **dict(width=32, depth=8, heads=8, patch=16, image_size=32, stages=(2, 2, 2, 2), window=3),
)


def saved(folder, merged_in):
    (file := folder / "a.safetensors").write_bytes(
        safetensors.numpy.save(published.swin(merged_in))
    )
    return file


@pytest.mark.parametrize("merged_in, shift_first, eps", [(0, False, 1e-6), (1, True, 1e-5)])
def test_weights_of_others_compute(merged_in, shift_first, eps, tmp_path):
    shape, params, report = convert.load_vit(saved(tmp_path, merged_in))
    expected = dict(shift_first=shift_first, norm_eps=eps, mask_token=False, drop_path=0.0)
    assert shape == dataclasses.replace(CONFIG, **expected) and not report.left
    encoder = ssl_jax.load(tmp_path / "a.safetensors")
    images = test_swin.pictures(48, 64)
    features = encoder(images)
    for i in range(2):
        _, last = test_swin.forward(params, images[i], shape)
        np.testing.assert_allclose(features.patches[i], last, atol=2e-4)
        np.testing.assert_allclose(features.image[i], last.mean((0, 1)), atol=2e-4)


def test_timm_gets_its_own_names_and_arguments(tmp_path):
    encoder = ssl_jax.load(saved(tmp_path, 0))
    remarks = ssl_jax.export(encoder, tmp_path / "out", to="timm")
    assert len(remarks) == 2  # on shifts before padding, and on eps
    tensors = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert {name: x.shape for name, x in tensors.items()} == {
        name: x.shape for name, x in published.swin(1).items()
    }
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    arguments = content["model_args"]
    assert arguments["depths"] == [2] * 4 and arguments["num_heads"] == [1, 2, 4, 8]
    back = ssl_jax.load(tmp_path / "out")
    assert back.shape == encoder.shape
    images = test_swin.pictures(48, 64)
    np.testing.assert_array_equal(back(images).patches, encoder(images).patches)
    with pytest.raises(InputError, match="timm"):
        ssl_jax.export(encoder, tmp_path / "hf", to="hf")


@pytest.mark.parametrize("size", [(32, 32), (48, 64)])
def test_timm_computes_the_same(timm, size, tmp_path):
    import torch

    encoder = ssl_jax.load(saved(tmp_path, 1))
    ssl_jax.export(encoder, tmp_path / "out", to="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = test_swin.pictures(*size)
    given = ((images - np.array(CONFIG.mean)) / np.array(CONFIG.std)).astype(np.float32)
    with torch.no_grad():
        theirs = model.forward_features(torch.from_numpy(given).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(encoder(images).patches, theirs, atol=1e-4)
