"""timm and transformers load what we export, strictly, and compute our features, at the native size
and at others. Skipped where they are not installed.

The names and shapes they ask for are kept in library_names.json (see write_names.py), so that tests
without them notice a wrong one.
"""

import dataclasses
import json

import numpy as np
import pytest
import skimage.data
from PIL import Image

import ssl_jax
from ssl_jax.convert import card, tables
from ssl_jax.data import decode
from tests.convert import networks, write_names

torch = pytest.importorskip("torch", reason="the oracles of export need torch")

NATIVE, OTHERS = (32, 32), ((16, 16), (48, 24))
ANTIALIASED = dict(position_resize="exact", resize_kernel="antialias-0.5")


def normalised(encoder, images):
    c = encoder.shape
    values = ((images - np.array(c.mean)) / np.array(c.std)).astype(np.float32)
    return torch.from_numpy(values).permute(0, 3, 1, 2)


def assert_same(encoder, size, forward, rule):
    """Their tokens are ours, at other sizes those under their rule."""
    images = networks.pictures(size)
    c = encoder.shape
    with torch.no_grad():
        theirs = forward(normalised(encoder, images)).numpy()
    theirs = np.delete(theirs, slice(int(c.cls), c.cls + c.registers + c.queries), axis=1)
    ours = encoder if size == NATIVE else networks.with_rule(encoder, **rule)
    np.testing.assert_allclose(networks.tokens(ours, images), theirs, atol=1e-4)


@pytest.fixture
def exported(tmp_path):
    def export(name, to, image=""):
        encoder = networks.network(name, image)
        return encoder, tmp_path / "out", ssl_jax.export(encoder, tmp_path / "out", to=to)

    return export


@pytest.mark.parametrize("name", networks.CHANGES)
def test_timm(timm, exported, name):
    encoder, folder, remarks = exported(name, "timm")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    for size in (NATIVE, *OTHERS):
        assert_same(encoder, size, model.forward_features, ANTIALIASED)
    same = encoder.shape.position == "rope"
    same |= all(getattr(encoder.shape, key) == value for key, value in ANTIALIASED.items())
    assert same != any("At sizes other than 32 x 32" in remark for remark in remarks)
    wanted = timm.data.resolve_model_data_config(model)
    assert tuple(wanted["mean"]) == encoder.shape.mean
    assert tuple(wanted["std"]) == encoder.shape.std
    assert tuple(wanted["input_size"]) == (3, 32, 32)


def test_another_rule_for_other_sizes_changes_features_little(timm, tmp_path):
    """What docs/export.md says of a trained network, at twice its size."""
    encoder, photo = ssl_jax.load("zoo/sop_imagenette"), np.asarray(skimage.data.astronaut())
    image = np.float32(photo[::4, ::4][None, 16:112, 16:112]) / 255  # 96 x 96
    ssl_jax.export(encoder, tmp_path / "out", to="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.no_grad():
        theirs = model.forward_features(normalised(encoder, image))[0, 1:].numpy()
    ours = np.asarray(encoder(image).patches).reshape(theirs.shape)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    assert ((ours * theirs).sum(axis=1) / lengths).min() > 0.999
    assert np.abs(ours - theirs).max() > 1e-3  # so the remark is needed


@pytest.mark.parametrize("height, width", [(282, 271), (217, 404)])
def test_timm_prepares_photos_nearly_as_we_do_and_squares_alike(timm, tmp_path, height, width):
    """What docs/export.md says."""
    encoder, photo = ssl_jax.load("zoo/sop_imagenette"), skimage.data.astronaut()[:height, :width]
    ssl_jax.export(encoder, tmp_path / "out", to="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    photos = [{"photo": Image.fromarray(photo)} for _ in range(2)]
    exec(card.square(48), photos[1])
    with torch.no_grad():
        near, same = (model(prepare(each["photo"])[None])[0].numpy() for each in photos)
    ours = encoder(decode.resize_square(photo, 48)[None] / np.float32(255)).image[0]
    np.testing.assert_allclose(same, ours, atol=1e-4)
    assert ours @ near > 0.99 * np.linalg.norm(ours) * np.linalg.norm(near)


@pytest.mark.parametrize("image", ["cls", "mean"])
def test_timm_pools_what_the_method_calls_the_image(timm, exported, image):
    encoder, folder, _ = exported("plain", "timm", image)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = networks.pictures(NATIVE)
    with torch.no_grad():
        pooled = model(normalised(encoder, images)).numpy()
    np.testing.assert_allclose(pooled, encoder(images).image, atol=1e-4)


def test_timm_takes_the_file_alone(timm, exported):
    """As older versions do, without "local-dir:"."""
    encoder, folder, _ = exported("timm_rule", "timm")
    config = json.loads((folder / "config.json").read_text())
    model = timm.create_model(
        config["architecture"],
        checkpoint_path=str(folder / "model.safetensors"),
        num_classes=0,
        **config["model_args"],
    ).eval()
    assert_same(encoder, OTHERS[0], model.forward_features, ANTIALIASED)


@pytest.mark.parametrize("name", networks.HF)
def test_transformers(transformers, exported, name):
    encoder, folder, remarks = exported(name, "hf")
    model, found = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    model.eval()
    kind = model.config.model_type
    options = {"interpolate_pos_encoding": True} if kind in ("vit", "ijepa") else {}
    family = {"dinov2": "hf_dinov2", "dinov2_with_registers": "hf_dinov2_registers"}
    rule = tables.FAMILIES[family.get(kind, "hf")].model
    rule = {key: rule[key] for key in ANTIALIASED}
    for size in (NATIVE, *OTHERS):
        assert_same(encoder, size, lambda x: model(x, **options).last_hidden_state, rule)
    same = all(getattr(encoder.shape, key) == value for key, value in rule.items())
    assert same != any("At sizes other than 32 x 32" in remark for remark in remarks)
    if kind != "ijepa":  # it has no class token
        images = networks.pictures(NATIVE)
        with torch.no_grad():
            pooled = model(normalised(encoder, images)).pooler_output.numpy()
        np.testing.assert_allclose(pooled, encoder(images).cls, atol=1e-4)


def test_transformers_prepares_images_as_we_do(transformers, exported):
    encoder, folder, _ = exported("timm_rule", "hf")
    prepare = transformers.AutoImageProcessor.from_pretrained(folder)
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    theirs = prepare(image, return_tensors="np").pixel_values[0].transpose(1, 2, 0)
    c = encoder.shape
    np.testing.assert_allclose(theirs, (image / 255 - c.mean) / np.array(c.std), atol=1e-5)


def test_a_folder_that_the_libraries_saved_again_is_read(timm, transformers, exported, tmp_path):
    """Their own config.json instead of ours."""
    encoder, folder, _ = exported("timm_rule", "timm")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    timm.models.save_for_hf(model, tmp_path / "again", safe_serialization=True)
    shape = ssl_jax.load(tmp_path / "again").shape
    assert shape == dataclasses.replace(encoder.shape, layer_scale=shape.layer_scale)
    encoder = networks.network("sincos")
    ssl_jax.export(encoder, tmp_path / "hf", to="hf")
    transformers.AutoModel.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "hf2")
    shape = ssl_jax.load(tmp_path / "hf2").shape
    assert (shape.gelu, shape.norm_eps, shape.heads) == ("tanh", 1e-8, 4)


def test_the_kept_names_are_theirs(timm, transformers, tmp_path):
    assert write_names.names(tmp_path) == networks.golden()
