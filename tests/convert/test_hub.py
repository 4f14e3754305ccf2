"""Exported folders without torch: the names are those of timm's and transformers' models, reading
them again is the identity, what a library cannot have is refused."""

import dataclasses
import json
import os
import shutil

import chex
import jax
import numpy as np
import pytest
from ml_collections import FrozenConfigDict
from PIL import Image
from safetensors.numpy import save_file

import ssl_jax
from ssl_jax import config as config_lib
from ssl_jax import convert, methods
from ssl_jax.config import InputError
from ssl_jax.convert import card, described, hub, own, programs, read, torch_in
from ssl_jax.data import decode
from ssl_jax.methods import encoder as encoder_lib
from ssl_jax.models import vit
from ssl_jax.runtime import writing
from tests import tiny
from tests.convert import networks, published
from tests.convert.test_swin import CONFIG as SWIN

CASES = [("timm", name) for name in networks.CHANGES] + [("hf", name) for name in networks.HF]
QUICK = ("plain", "registers", "patches_alone", "all")


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


def fixed(c: vit.ViTConfig) -> dict:
    """The fields that do not say how a network is computed or starts to learn."""
    return {k: v for k, v in dataclasses.asdict(c).items() if k not in described.FREE}


@pytest.mark.parametrize(
    ("to", "name"),
    [pytest.param(*case, marks=() if case[1] in QUICK else pytest.mark.slow) for case in CASES],
)
def test_names_and_shapes_are_the_librarys_and_reading_gives_the_same_bits(exported, to, name):
    """With the rule of its position embeddings: also at other sizes."""
    encoder, folder, _ = exported(to, name)
    tensors = read.tensors(folder / "model.safetensors")
    assert networks.shapes(tensors) == networks.golden()[to][name]
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype("float32")}
    for place in (folder, folder / "model.safetensors"):
        again = ssl_jax.load(place)
        assert fixed(again.shape) == fixed(encoder.shape)
        chex.assert_trees_all_equal(encoder.backbone, again.backbone, strict=True)
    assert again.image_token == encoder.image_token


@pytest.mark.parametrize(
    "case", ["timm registers", "timm patches_alone", "hf sincos", "hf patches_alone"]
)
def test_the_librarys_own_config_is_understood(exported, tmp_path, case):
    """Without the entry of ours: the library's rule, and the same features."""
    encoder, folder, _ = exported(*case.split())
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    del config["ssl_jax"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    again, images = ssl_jax.load(tmp_path), networks.pictures((32, 32))
    theirs, ours = networks.tokens(again, images), networks.tokens(encoder, images)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    assert again.shape.resize_kernel == ("antialias-0.5" if "timm" in case else "keys-0.75")


def test_images_are_prepared_as_embed_does(exported):
    """The whole of the shorter side, then the central square; by the card's code to the bit."""
    prepared = json.loads((exported("timm", "plain")[1] / "config.json").read_text())
    assert prepared["pretrained_cfg"]["crop_pct"] == 1.0
    prepared = json.loads((exported("hf", "plain")[1] / "preprocessor_config.json").read_text())
    assert prepared["size"]["shortest_edge"] == prepared["crop_size"]["height"] == 32
    image = np.random.default_rng(0).integers(0, 256, (41, 70, 3), np.uint8)
    photo = {"photo": Image.fromarray(image)}
    exec(card.square(32), photo)
    np.testing.assert_array_equal(photo["photo"], decode.resize_square(image, 32))


@pytest.mark.parametrize("image", ["cls", "mean", "queries", "concat"])
def test_the_image_is_kept(exported, image):
    encoder, folder, _ = exported("timm", "queries", image)
    again, images = ssl_jax.load(folder), networks.pictures((32, 32))
    assert encoder.image_token == again.image_token == image
    program = programs._network(encoder.shape, encoder.backbone, image)
    np.testing.assert_allclose(program(images)["image"], encoder(images).image, atol=1e-5)
    np.testing.assert_allclose(again(images).image, encoder(images).image, atol=1e-6)
    pool = json.loads((folder / "config.json").read_text())["model_args"]["global_pool"]
    assert pool == ("avg" if image == "mean" else "token")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image"), [("stellar", "queries"), ("flsl", "mean"), ("dino", "cls")]
)
def test_the_image_is_what_the_method_says(name, image, tmp_path):
    config = FrozenConfigDict(tiny.resolved(tiny.config(name)))
    params, _ = methods.make(config).init(jax.random.key(0))
    encoder = encoder_lib.Encoder(config, params)
    assert encoder.image_token == image
    assert ssl_jax.export(encoder, tmp_path / "out", to="timm")  # names what is not in it
    again, images = ssl_jax.load(tmp_path / "out"), networks.pictures((16, 16))
    np.testing.assert_allclose(again(images).image, encoder(images).image, rtol=1e-5, atol=1e-6)


def test_a_network_that_was_trained_further_elsewhere(exported, tmp_path):
    """Its position embeddings are no sine-cosines any more, its factors no ones."""
    scale = "encoder.layer.0.layer_scale1.lambda1"
    for to, name, tensor in (("hf", "queries", scale), ("timm", "patches_alone", "pos_embed")):
        folder = shutil.copytree(exported(to, name)[1], tmp_path / to)
        tensors = dict(read.tensors(folder / "model.safetensors"))
        tensors[tensor] = tensors[tensor] + 1
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        again = ssl_jax.load(folder)
        assert again.shape.layer_scale > 0 or to == "timm"
    assert again.shape.position == "learned"
    np.testing.assert_array_equal(again.backbone["position"], tensors["pos_embed"][0])


def test_biases_that_were_trained_elsewhere_stay(tmp_path):
    """A network without them is exported with zeros."""
    without = dataclasses.replace(networks.PLAIN, qkv_bias="none")
    ssl_jax.export(networks.of(without), tmp_path / "a", to="timm")
    assert ssl_jax.load(tmp_path / "a").shape.qkv_bias == "none"
    assert torch_in.load(tmp_path / "a").tree("").model["qkv_bias"] == "none"
    tensors = dict(read.tensors(tmp_path / "a/model.safetensors"))
    tensors["blocks.1.attn.qkv.bias"] += 1
    save_file(tensors, tmp_path / "a/model.safetensors", metadata={"format": "pt"})
    again = ssl_jax.load(tmp_path / "a")
    assert again.shape.qkv_bias == "all"
    assert again.backbone["blocks"]["attn"]["qkv"]["bias"][1].tolist() == [1] * 96


def test_remarks_say_where_features_differ(exported):
    for to, name, keys in (
        ("timm", "timm_rule", ()),
        ("timm", "dino_rule", ("dino_offset",)),
        ("timm", "sincos", ("1e-08", "")),
        ("hf", "plain", ("interpolate_pos_encoding",)),
        ("hf", "registers", ()),
        ("hf", "layer_scale", ()),
    ):
        remarks = exported(to, name)[2]
        assert len(remarks) == len(keys) and all(key in " ".join(remarks) for key in keys), name


def test_an_image_vector_that_no_tokens_give_is_remarked(tmp_path):
    network = networks.network("timm_rule")
    given = dict(to="timm", image="", about=card.About("random"))
    (remark,) = hub.write(tmp_path / "a", network.shape, network.backbone, **given)
    assert "random" in remark


OTHERS = dict(
    **dict(heads=2, stem="conv", gelu="tanh", mlp="swiglu", position_resize="dino_offset"),
    **dict(resize_kernel="antialias-0.5", mean=(0.1,) * 3, std=(0.9,) * 3, norm_eps=1e-9),
    **dict(rope_base=50.0, rope_rounded=True, qkv_bias="none", shift_first=True),
)
# What a kind of network does not have, or its arrays show.
WITHOUT = {
    "plain": {"rope_base", "rope_rounded", "shift_first", "qkv_bias"},
    "rope": {"position_resize", "resize_kernel", "shift_first"},
    "swin": {"position_resize", "resize_kernel", "rope_base", "rope_rounded"}
    | {"stem", "mlp", "qkv_bias"},  # which it has as they are
}
KINDS = {
    "plain": networks.config("plain"),
    "rope": networks.config("rope"),
    "swin": dataclasses.replace(SWIN, mask_token=False),
}


WRITTEN = [("timm", *KINDS), ("hf", "plain", "rope")]


@pytest.mark.parametrize(
    "to, name, field",
    [
        (to, name, field)
        for to, *names in WRITTEN
        for name in names
        for field in sorted({*described.FUNCTION, "norm_eps"} - WITHOUT[name])
    ],
)
def test_no_setting_is_forgotten(to, name, field):
    """It is in the library's files, or a remark names it, or it is refused."""
    network = networks.of(KINDS[name])
    heads = {"heads": 16} if name == "swin" else {}
    other = dataclasses.replace(KINDS[name], **{field: (OTHERS | heads)[field]})
    params = hub._learned(KINDS[name], network.backbone)

    def written(shape):
        hub.check_network(shape, to)
        found = hub.TARGETS[to](described.Network(shape, params, "mean", ""))
        return json.dumps([found.config, found.files, found.remarks])

    before = written(KINDS[name])
    try:
        assert written(other) != before
    except InputError as error:
        assert field in str(error)


def test_the_card_tells_which_tokens_are_what(exported):
    text = (exported("timm", "queries", "queries")[1] / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: timm\n")
    assert "tokens[:, 1:4].mean(1)" in text and "tokens[:, 4:]" in text


# --- refused


@pytest.mark.parametrize(
    ("to", "changes", "named"),
    [
        ("timm", {"norm_eps": 1e-5}, "norm_eps.*--to hf"),
        ("timm", dataclasses.asdict(SWIN) | {"norm_eps": 1e-4}, "norm_eps.*onnx"),
        ("hf", {"cls": False, "layer_scale": 0.1}, "LayerScale.*--to timm"),
        ("hf", {"cls": False, "queries": 2}, "query tokens"),
        ("hf", {"registers": 2, "mlp_ratio": 2.5}, "mlp_ratio"),
        ("timm", {"in_channels": 1, "mean": (0.5,), "std": (0.5,)}, "in_channels"),
        ("hf", {"stem": "conv"}, "stem"),
        ("hf", {"value": np.nan}, "cls"),
    ],
)
def test_what_the_library_cannot_compute_is_refused(tmp_path, to, changes, named):
    fields = {name: value for name, value in changes.items() if name != "value"}
    shape = dataclasses.replace(networks.PLAIN, **fields)
    params = jax.eval_shape(vit.vit(shape).init, jax.random.key(0))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
    if shape.cls:
        params["cls"] += changes.get("value", 0.0)
    with pytest.raises(InputError, match=named):
        hub.write(tmp_path / "x", shape, params, to=to, image="cls", about=card.About("random"))
    assert not (tmp_path / "x").exists()


def test_other_folders_are_left_alone(exported, tmp_path):
    encoder, folder, _ = exported("timm", "plain")
    ssl_jax.export(encoder, folder, to="timm")  # its own again
    (tmp_path / "thesis.tex").touch()
    for place, to, named in (
        (tmp_path, "timm", "thesis.tex"),
        (tmp_path / "thesis.tex", "hf", "thesis.tex"),
        (tmp_path / "x", "onnx", "onnx"),
        (tmp_path / "a.bin", "npz", "npz"),
    ):
        with pytest.raises(InputError, match=named):
            ssl_jax.export(encoder, place, to=to)


def test_a_card_that_somebody_changed_stays(tmp_path):
    """With licence and intended use; one that nobody changed follows the network."""
    first, second = networks.network("plain"), networks.network("timm_rule")
    ssl_jax.export(first, tmp_path / "a", to="timm")
    card_file, count = (
        tmp_path / "a/README.md",
        len(ssl_jax.export(second, tmp_path / "a", to="timm")),
    )
    text = card_file.read_text()
    assert "0.5 0.4 0.3" in text
    card_file.write_text(f"{text}\nLicence: MIT")
    for _ in range(2):
        remarks = ssl_jax.export(first, tmp_path / "a", to="timm")
        assert card_file.read_text() == f"{text}\nLicence: MIT"
        assert "README.md" in remarks[-1]
    assert count == 0 and ssl_jax.load(tmp_path / "a").shape.mean == first.shape.mean


def test_a_killed_export_leaves_no_mixture(tmp_path, monkeypatch):
    first, second = networks.network("plain"), networks.of(networks.PLAIN)
    second.backbone["cls"] = second.backbone["cls"] + 1
    ssl_jax.export(first, tmp_path / "a", to="timm")
    before, done = (tmp_path / "a/model.safetensors").read_bytes(), []

    def killed(source, target, replace=os.replace):
        done.append(target)
        if len(done) > 1:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            ssl_jax.export(second, tmp_path / "a", to="timm")
    assert (tmp_path / "a/model.safetensors").read_bytes() == before
    with pytest.raises(InputError, match="another export"):
        ssl_jax.load(tmp_path / "a")
    (tmp_path / f"a/config.json{writing.UNFINISHED}").touch()  # of a process that was killed
    ssl_jax.export(second, tmp_path / "a", to="timm")
    np.testing.assert_array_equal(
        ssl_jax.load(tmp_path / "a").backbone["cls"], second.backbone["cls"]
    )


@pytest.mark.parametrize("image", ["foo", "queries", ["cls"]])
def test_an_image_vector_that_the_network_lacks_is_refused(exported, tmp_path, image):
    encoder, folder, _ = exported("timm", "plain")
    shutil.copytree(folder, tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    config["ssl_jax"]["image"] = image
    (tmp_path / "a/config.json").write_text(json.dumps(config))
    saved = own.Saved(config_lib.to_json(encoder.config), {"backbone": encoder.backbone}, None, {})
    own.write(tmp_path / "b.npz", saved._replace(notes={"image": image}))
    for name in ("a", "b.npz"):
        with pytest.raises(InputError, match=f"{name}.*image"):
            ssl_jax.load(tmp_path / name)


@pytest.mark.parametrize("text", ["{", '{"ssl_jax": 1}', '{"ssl_jax": {"model": {"wings": 2}}}'])
def test_a_damaged_config_is_named(exported, tmp_path, text):
    shutil.copy(exported("timm", "plain")[1] / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        ssl_jax.load(tmp_path)


# --- folders that others wrote


def load(folder, tensors, **files) -> encoder_lib.Encoder:
    save_file(tensors, folder / "model.safetensors")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return ssl_jax.load(folder)


def test_a_folder_of_timm_needs_no_key(tmp_path):
    """As on the hub: the names alone could be DINO's or MAE's."""
    tensors = published.encoder(d=192)
    prepared = dict(mean=[0.5, 0.4, 0.3], std=[0.3, 0.2, 0.1], input_size=[3, 16, 16])
    new = dict(architecture="vit_tiny_patch16_224", global_pool="avg", pretrained_cfg=prepared)
    for config in (new, dict(architecture=new["architecture"], global_pool="avg", **prepared)):
        encoder = load(tmp_path, tensors, config=config)
        c = encoder.shape
        assert (c.mean, c.std) == ((0.5, 0.4, 0.3), (0.3, 0.2, 0.1))
        assert (c.resize_kernel, c.norm_eps, c.gelu, c.heads) == ("antialias-0.5", 1e-6, "erf", 3)
        assert encoder.image_token == "mean"
    more = {"model_args": {"num_heads": 4, "act_layer": "gelu_tanh"}}
    c = load(tmp_path, tensors, config=new | more).shape
    assert (c.gelu, c.heads) == ("tanh", 4)
    pooled = load(tmp_path, tensors, config=new | {"global_pool": "map"})
    assert any('"map"' in note for note in pooled.notes) and pooled.image_token == "cls"
    siglip = dict(architecture="vit_giantopt_patch16_siglip_256")
    c = load(tmp_path, tensors, config=new | siglip).shape
    assert (c.heads, c.gelu) == (16, "tanh")
    for other, named in (
        ({"architecture": "vit_base_patch16_clip_quickgelu_224"}, "quickgelu"),
        ({"model_args": {"act_layer": "silu"}}, "silu"),
        ({"model_args": {"img_size": [8, 32]}}, "img_size"),
        ({"model_args": {"img_size": 24}}, "24"),
    ):
        with pytest.raises(InputError, match=named):
            load(tmp_path, tensors, config=new | other)
    with pytest.raises(InputError, match="heads=N"):  # timm's test_vit, with two
        load(tmp_path, published.encoder(d=64), config=dict(architecture="vit_test"))


def test_a_folder_of_transformers_needs_no_key(tmp_path):
    config = dict(model_type="vit", num_attention_heads=4, layer_norm_eps=1e-9, hidden_act="gelu")
    preparation = dict(image_mean=[0.5] * 3, image_std=[0.25] * 3, do_normalize=True)
    files = dict(config=config, preprocessor_config=preparation)
    tensors = published.as_hf(published.encoder())
    c = load(tmp_path, tensors, **files).shape
    assert (c.mean, c.std) == ((0.5,) * 3, (0.25,) * 3)
    assert (c.heads, c.norm_eps, c.resize_kernel) == (4, 1e-9, "keys-0.75")
    # A run that starts from it must read its weights in the same way.
    shapes = {"backbone": jax.eval_shape(vit.vit(c).init, jax.random.key(0))}
    model = dataclasses.asdict(c)
    convert.load_torch(tmp_path, shapes, model=model)
    with pytest.raises(InputError, match=r"--config\.model\.mean=\(0\.5,0\.5,0\.5\)$"):
        convert.load_torch(tmp_path, shapes, model=model | {"mean": (0.485, 0.456, 0.406)})
    with pytest.raises(InputError, match=r"size=custom.*width=16.*depth=2.*heads=4"):
        convert.load_torch(tmp_path, shapes, model=model | {"heads": 2})
    plain = files | dict(preprocessor_config={"do_normalize": False})
    assert load(tmp_path, tensors, **plain).shape.std == (1.0,) * 3
    for change, named in (
        (dict(config=config | {"hidden_act": "quick_gelu"}), "quick_gelu"),
        (dict(config=config | {"num_attention_heads": [4]}), "heads"),
        (dict(config=config | {"use_gated_mlp": True}), "hidden_act"),
        (dict(config=config | {"image_size": [8, 32]}), "image_size"),
        (dict(preprocessor_config={"image_mean": 5}), "config.json"),
        (dict(config={"model_type": "eva02"}), "RoPE"),
        (dict(preprocessor_config=preparation | {"do_rescale": False}), "255"),
    ):
        with pytest.raises(InputError, match=named):
            load(tmp_path, tensors, **files | change)


def test_codes_of_registers_are_taken_into_them(tmp_path):
    """timm's default: a position embedding for every token in front."""
    tensors, rng = published.encoder(d=192), np.random.default_rng(0)
    codes, tokens = (rng.standard_normal((1, 3, 192)).astype(np.float32) for _ in range(2))
    first, rest = np.split(tensors["pos_embed"], [1], axis=1)
    own = np.concatenate([first, codes, rest], axis=1)
    config, images = dict(architecture="vit_tiny_patch16_224"), networks.pictures((16, 16))
    a = load(tmp_path, {**tensors, "reg_token": tokens + codes}, config=config)
    b = load(tmp_path, {**tensors, "reg_token": tokens, "pos_embed": own}, config=config)
    assert a.shape == b.shape and a.shape.registers == 3
    np.testing.assert_allclose(a(images).patches, b(images).patches, atol=1e-5)
