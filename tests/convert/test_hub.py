"""Exported folders without torch: the names are those of timm's and transformers' models, reading
them again is the identity, what a library cannot have is refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

import ssl_jax
from ssl_jax import convert, methods, trees
from ssl_jax.config import InputError
from ssl_jax.convert import card, described, hub, read
from ssl_jax.methods import encoder as encoder_lib
from ssl_jax.models import vit
from tests import tiny
from tests.convert import networks, published

CASES = [("timm", name) for name in networks.CHANGES] + [("hf", name) for name in networks.HF]
EVERY = pytest.mark.parametrize(("to", "name"), CASES)
# Fields of a ViTConfig that say how a network is computed or starts to learn.
FREE = described._FREE


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(encoder, folder, remarks) of a network in networks.CHANGES; made once."""
    made = {}

    def export(to, name, image=""):
        if (to, name, image) not in made:
            folder = tmp_path_factory.mktemp("exported") / f"{name}_{to}"
            encoder = networks.network(name, image)
            made[to, name, image] = encoder, folder, ssl_jax.export(encoder, folder, to=to)
        return made[to, name, image]

    return export


def edit(folder, change, file="config.json"):
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def same_shape(a: vit.ViTConfig, b: vit.ViTConfig) -> bool:
    def fixed(c):
        return {k: v for k, v in dataclasses.asdict(c).items() if k not in FREE}

    return fixed(a) == fixed(b)


@EVERY
def test_names_and_shapes_are_the_librarys(exported, to, name):
    _, folder, _ = exported(to, name)
    tensors = read.tensors(folder / "model.safetensors")
    assert networks.shapes(tensors) == networks.golden()[to][name]
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("name", ["plain", "patches_alone"])
def test_detectors_find_their_names(exported, name):
    """Those of ViTDet in detectron2, detectron2/modeling/backbone/vit.py: class ViT."""
    _, folder, _ = exported("timm", name)
    shapes = networks.shapes(read.tensors(folder / "model.safetensors"))
    cls = name == "plain"  # pretrain_use_cls_token
    wanted = {"pos_embed": [1, cls + 16, 32], "patch_embed.proj.weight": [32, 3, 8, 8]}
    for i in range(2):
        for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"):
            wanted[f"blocks.{i}.{part}.bias"] = shapes[f"blocks.{i}.{part}.weight"][:1]
    assert wanted.items() <= shapes.items()


@EVERY
def test_what_is_exported_is_read_as_it_was(exported, to, name):
    """Bit for bit, with the rule of its position codes: also at other sizes."""
    encoder, folder, _ = exported(to, name)
    for place in (folder, folder / "model.safetensors"):
        again = ssl_jax.load(place)
        assert same_shape(again.shape, encoder.shape)
        ours, theirs = trees.flatten(encoder.backbone), trees.flatten(again.backbone)
        assert ours.keys() == theirs.keys()
        for path, array in ours.items():
            assert array.tobytes() == np.asarray(theirs[path]).tobytes(), path
    assert again.image_token == encoder.image_token and "random as" in repr(again)


@pytest.mark.parametrize(
    ("to", "name"),
    [("timm", "registers"), ("timm", "patches_alone"), ("hf", "sincos"), ("hf", "patches_alone")],
)
def test_the_librarys_own_config_is_understood(exported, tmp_path, to, name):
    """Without the entry of ours: the library's rule, and the same features."""
    encoder, folder, _ = exported(to, name)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit(tmp_path, lambda config: config.pop("ssl_jax"))
    again, images = ssl_jax.load(tmp_path), networks.pictures((32, 32))
    np.testing.assert_allclose(
        networks.tokens(again, images), networks.tokens(encoder, images), atol=1e-5
    )
    wanted = {"timm": "antialias-0.5", "hf": "keys-0.75"}[to]
    assert again.shape.resize_kernel == wanted


@pytest.mark.parametrize("image", ["cls", "mean", "queries"])
def test_the_image_is_kept(exported, image):
    encoder, folder, _ = exported("timm", "queries", image)
    again, images = ssl_jax.load(folder), networks.pictures((32, 32))
    assert encoder.image_token == again.image_token == image
    np.testing.assert_allclose(again(images).image, encoder(images).image, atol=1e-6)
    pool = json.loads((folder / "config.json").read_text())["model_args"]["global_pool"]
    assert pool == ("avg" if image == "mean" else "token")


METHODS = {"stellar": "queries", "flsl": "mean", "dino": "cls"}


@pytest.mark.parametrize(("name", "image"), METHODS.items())
def test_the_image_is_what_the_method_says(name, image, tmp_path):
    config = FrozenConfigDict(tiny.resolved(tiny.config(name)))
    params, _ = methods.make(config).init(jax.random.key(0))
    encoder = encoder_lib.Encoder(config, params)
    assert encoder.image_token == image
    said = ssl_jax.export(encoder, tmp_path / "out", to="timm")
    assert any("Not in it, as no part of the encoder: " in remark for remark in said)
    again, images = ssl_jax.load(tmp_path / "out"), networks.pictures((16, 16))
    np.testing.assert_allclose(again(images).image, encoder(images).image, rtol=1e-5, atol=1e-6)
    assert repr(again) == f"{name} as timm ViT"


def test_the_image_of_a_method_that_calls_something_else_the_image():
    encoder = networks.network("plain")
    features = encoder._features
    odd = encoder_lib.Encoder(
        encoder.config,
        encoder.params,
        features=lambda *a, **k: features(*a, **k)._replace(image=features(*a, **k).image[:, ::-1]),
    )
    assert odd.image_token == ""


def test_a_network_that_was_trained_further_elsewhere(exported, tmp_path):
    """Its position codes are no sine-cosines any more, its factors no ones."""
    encoder, folder, _ = exported("hf", "queries")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = dict(read.tensors(tmp_path / "model.safetensors"))
    tensors["encoder.layer.0.layer_scale1.lambda1"] = np.full(32, 2, np.float32)
    from safetensors.numpy import save_file

    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert ssl_jax.load(tmp_path).shape.layer_scale > 0
    encoder, folder, _ = exported("timm", "patches_alone")
    tensors = dict(read.tensors(folder / "model.safetensors"))
    tensors["pos_embed"] = tensors["pos_embed"] + 1
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    again = ssl_jax.load(tmp_path)
    assert again.shape.position == "learned"
    np.testing.assert_array_equal(again.backbone["position"], tensors["pos_embed"][0])


@pytest.mark.parametrize(
    ("to", "changes", "wanted"),
    [
        ("timm", {"norm_eps": 1e-5}, r"norm_eps is 1e-05, but timm.*--to hf"),
        ("hf", {"cls": False, "layer_scale": 0.1}, r"LayerScale.*without a class token.*--to timm"),
        ("hf", {"cls": False, "queries": 2}, r"query tokens without a class token"),
        ("hf", {"registers": 2, "mlp_ratio": 2.5}, r"mlp_ratio is 2\.5.*whole numbers"),
        ("timm", {"in_channels": 1, "mean": (0.5,), "std": (0.5,)}, r"in_channels is 1"),
    ],
)
def test_what_the_library_cannot_compute_is_refused(tmp_path, to, changes, wanted):
    shape = dataclasses.replace(networks.PLAIN, **changes)
    params = jax.eval_shape(vit.vit(shape).init, jax.random.key(0))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
    with pytest.raises(InputError, match=wanted):
        hub.write(tmp_path / "x", shape, params, to=to, image="cls", about=card.About("random"))
    assert not (tmp_path / "x").exists()


def test_other_folders_are_left_alone(exported, tmp_path):
    encoder, folder, _ = exported("timm", "plain")
    ssl_jax.export(encoder, folder, to="timm")  # its own again
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        ssl_jax.export(encoder, tmp_path, to="timm")
    with pytest.raises(InputError, match="is a file"):
        ssl_jax.export(encoder, tmp_path / "thesis.tex", to="hf")
    with pytest.raises(InputError, match="unknown kind of export"):
        ssl_jax.export(encoder, tmp_path / "x", to="onnx")


def test_numbers_that_are_not_finite_are_not_exported(tmp_path):
    encoder = networks.network("plain")
    params = {**encoder.params, "cls": encoder.params["cls"] * np.nan}
    about = card.About("random")
    with pytest.raises(InputError, match="cls holds numbers that are not finite"):
        hub.write(tmp_path / "x", encoder.shape, params, to="hf", image="cls", about=about)


def test_remarks_say_where_features_differ(exported):
    assert exported("timm", "timm_rule")[2] == []
    (said,) = exported("timm", "dino_rule")[2]
    assert 'position_resize="dino_offset"' in said and "other than 32 x 32" in said
    said = exported("timm", "sincos")[2]
    assert any("1e-08" in remark for remark in said)
    (said,) = exported("hf", "plain")[2]
    assert "interpolate_pos_encoding=True" in said
    assert exported("hf", "registers")[2] == exported("hf", "layer_scale")[2] == []


def test_the_card_tells_where_it_comes_from(tmp_path):
    about = card.About(
        "sop",
        data="photos, crops of 32 px",
        step=7,
        results={"untrained network": {"knn": 50.0}, "trained": {"knn": 71.25, "linear": 3.0}},
        command="ssl-jax train --config=sop:photos",
    )
    ssl_jax.export(networks.network("queries", "queries"), tmp_path / "x", to="timm", about=about)
    text = (tmp_path / "x" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: timm\n")
    assert "| knn | 50 | 71.25 |\n| linear | - | 3 |" in text
    assert "```bash\nssl-jax train --config=sop:photos\n```" in text
    assert "| trained on | photos, crops of 32 px |" in text and "| step | 7 |" in text
    assert "image = tokens[:, 1:4].mean(1)" in text and "tokens[:, 4:]" in text


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_a_file_of_ours(tmp_path, suffix):
    encoder, images = networks.network("queries", "queries"), networks.pictures((32, 32))
    ssl_jax.export(encoder, tmp_path / f"a.{suffix}", to=suffix)
    again = ssl_jax.load(tmp_path / f"a.{suffix}")
    np.testing.assert_array_equal(again(images).image, encoder(images).image)
    assert again.shape == encoder.shape
    with pytest.raises(InputError, match=rf"ends in \.{suffix}"):
        ssl_jax.export(encoder, tmp_path / "a.bin", to=suffix)


@pytest.mark.parametrize("text", ["{", '{"ssl_jax": 1}', '{"ssl_jax": {"model": {"wings": 2}}}'])
def test_a_damaged_config_is_named(exported, tmp_path, text):
    _, folder, _ = exported("timm", "plain")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        ssl_jax.load(tmp_path)


# --- folders that others wrote


def published_folder(folder, tensors, **files):
    folder.mkdir(exist_ok=True)
    from safetensors.numpy import save_file

    save_file(tensors, folder / "model.safetensors")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_folder_of_timm_needs_no_key(tmp_path):
    """As on the hub: the names alone could be DINO's or MAE's."""
    tensors = published.encoder(d=64)
    prepared = dict(mean=[0.5, 0.4, 0.3], std=[0.3, 0.2, 0.1], input_size=[3, 16, 16])
    new = dict(architecture="vit_tiny_patch16_224", global_pool="avg", pretrained_cfg=prepared)
    old = dict(architecture="vit_tiny_patch16_224", global_pool="avg", **prepared)
    for config in (new, old):
        encoder = ssl_jax.load(published_folder(tmp_path, tensors, config=config))
        c = encoder.shape
        assert (c.mean, c.std) == ((0.5, 0.4, 0.3), (0.3, 0.2, 0.1))
        assert (c.resize_kernel, c.norm_eps, c.gelu, c.heads) == ("antialias-0.5", 1e-6, "erf", 1)
        assert encoder.image_token == "mean"
    said = {"model_args": {"num_heads": 4, "act_layer": "gelu_tanh"}}
    c = ssl_jax.load(published_folder(tmp_path, tensors, config=new | said)).shape
    assert (c.gelu, c.heads) == ("tanh", 4)
    for other, wanted in (
        ({"architecture": "vit_base_patch16_clip_quickgelu_224"}, "quickgelu_224 is another"),
        ({"model_args": {"act_layer": "silu"}}, 'act_layer is "silu"'),
    ):
        with pytest.raises(InputError, match=wanted):
            ssl_jax.load(published_folder(tmp_path, tensors, config=new | other))


def test_a_folder_of_transformers_needs_no_key(tmp_path):
    config = dict(model_type="vit", num_attention_heads=4, layer_norm_eps=1e-9, hidden_act="gelu")
    preparation = dict(image_mean=[0.5] * 3, image_std=[0.25] * 3, do_normalize=True)
    files = dict(config=config, preprocessor_config=preparation)
    tensors = published.hf_encoder()
    c = ssl_jax.load(published_folder(tmp_path, tensors, **files)).shape
    assert (c.mean, c.std) == ((0.5,) * 3, (0.25,) * 3)
    assert (c.heads, c.norm_eps, c.resize_kernel) == (4, 1e-9, "keys-0.75")
    # A run that starts from it must read its weights in the same way.
    shapes = {"backbone": jax.eval_shape(vit.vit(c).init, jax.random.key(0))}
    model = dataclasses.asdict(c)
    convert.load_torch(tmp_path, shapes, model=model)
    with pytest.raises(InputError, match=r"add --config\.model\.mean=\(0\.5,0\.5,0\.5\)$"):
        convert.load_torch(tmp_path, shapes, model=model | {"mean": (0.485, 0.456, 0.406)})
    for change, wanted in (
        (dict(config=config | {"hidden_act": "quick_gelu"}), 'hidden_act is "quick_gelu"'),
        (dict(config={"model_type": "dinov3_vit"}), "RoPE instead of position codes"),
        (dict(preprocessor_config=preparation | {"do_rescale": False}), "pixels of 0 to 255"),
    ):
        with pytest.raises(InputError, match=wanted):
            ssl_jax.load(published_folder(tmp_path, tensors, **files | change))


def test_codes_of_registers_are_taken_into_them(tmp_path):
    """timm's default: a position code for every token in front."""
    tensors, rng = published.encoder(d=64), np.random.default_rng(0)
    codes, tokens = (rng.standard_normal((1, n, 64)).astype(np.float32) for n in (3, 3))
    plain = {**tensors, "reg_token": tokens + codes}
    own = {**tensors, "reg_token": tokens}
    own["pos_embed"] = np.concatenate(
        [tensors["pos_embed"][:, :1], codes, tensors["pos_embed"][:, 1:]], axis=1
    )
    config, images = dict(architecture="vit_tiny_patch16_224"), networks.pictures((16, 16))
    a, b = (ssl_jax.load(published_folder(tmp_path, each, config=config)) for each in (plain, own))
    assert a.shape == b.shape and a.shape.registers == 3
    np.testing.assert_allclose(a(images).patches, b(images).patches, atol=1e-5)
