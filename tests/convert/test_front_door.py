"""Published weights of every family through the front door: loaded, called, embedded, exported and
loaded again, started from, evaluated, trained further."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import ssl_jax
from ssl_jax import api, convert
from ssl_jax.config import InputError
from ssl_jax.models import position, vit
from ssl_jax.train import loop, start
from tests import tiny
from tests.convert import networks, published
from tests.convert.published import GRID, HEADS, D, Numbers, prefixed

FOLDER = os.environ.get("SSL_JAX_REAL_WEIGHTS", "")
FAMILIES, MASK = published.families(), Numbers(7)(1, 1, D)
PLAIN, DINOV2, REGISTERS = published.encoder(), FAMILIES["dinov2"], FAMILIES["dinov2_registers"]
CHUNKED = prefixed("teacher.backbone.", published.dinov2(registers=4, block="blocks.0.{i}"))
BARE = {name: x for name, x in DINOV2.items() if name != "mask_token"}
NO_CLASS = published.encoder(cls=False) | {"reg_token": Numbers(8)(1, 3, D)}
FLSL = published.encoder(cls=False)
FLSL["pos_embed"] = position.sincos_2d(GRID, D)[None].astype(np.float32)
EXACT, OFFSET = ("exact", "keys-0.75"), ("dino_offset", "keys-0.75")
TIMMS = ("exact", "antialias-0.5")
# Name: (the file, its rule for position embeddings, the encoder under timm's names for
# `published.forward`, the family to give).
NETWORKS = {
    "cribo": (FAMILIES["cribo"], OFFSET, PLAIN),
    "dino": (FAMILIES["dino"], OFFSET, PLAIN),
    "dino, bare": (PLAIN, OFFSET, PLAIN, "dino"),
    "dino, mask token": (FAMILIES["dino"] | {"masked_embed": MASK[0]}, OFFSET, PLAIN),
    "dinov2": (DINOV2, OFFSET, DINOV2),
    "dinov2, bare": (BARE, OFFSET, DINOV2, "dinov2"),
    "dinov2_registers": (REGISTERS, TIMMS, REGISTERS),
    "dinov2_registers, chunked": (CHUNKED, TIMMS, REGISTERS),
    "flsl with a class token": (FLSL | {"cls_token": PLAIN["cls_token"]}, OFFSET, FLSL, "dino"),
    "hf": (published.as_hf(PLAIN), EXACT, PLAIN),
    "hf, mask token": (published.as_hf(PLAIN | {"mask_token": MASK}), EXACT, PLAIN),
    "hf_dinov2": (FAMILIES["hf_dinov2"], EXACT, DINOV2),
    "hf_dinov2_registers": (FAMILIES["hf_dinov2_registers"], TIMMS, REGISTERS),
    "mae": (FAMILIES["mae"], EXACT, FAMILIES["mae"]),
    "stellar": (FAMILIES["stellar"], EXACT, None),
    "timm": (FAMILIES["timm"], TIMMS, PLAIN),
    "timm, registers, no class token": (NO_CLASS, TIMMS, None),
    "vit": (PLAIN, EXACT, PLAIN, "mae"),
}
QUICK = ("dinov2", "hf, mask token", "hf_dinov2_registers", "timm, registers, no class token")
SIZES = ((16, 16), (24, 8), (8, 32))
SIZED = ("dino, bare", "hf", "vit")  # at all of them
MODEL = [field.name for field in dataclasses.fields(vit.ViTConfig) if field.name != "mask_token"]


def started(path, shape, method="finetune", **changes):
    """A config that starts from the weights there, with a model of that shape, and its state before
    step 0."""
    changes |= {f"model__{name}": getattr(shape, name) for name in MODEL}
    changes |= dict(views__global_size=4 * shape.patch, views__local_size=2 * shape.patch)
    if method == "finetune":
        changes |= dict(finetune__global_token="cls" if shape.cls else "mean")
    config = tiny.config(method, init_from=str(path), init_only="backbone", **changes)
    run = api.prepare(config)

    def zeros(tree):
        return jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), tree)

    fresh = {name: zeros(getattr(run.abstract, name)) for name in ("params", "teacher")}
    fresh, evaluated = run.abstract._replace(**fresh), run.method.starts_evaluated
    return config, start.start_from(run.config, fresh, evaluated=evaluated)


def tokens(features):
    """[B, class token + patches, d]."""
    b, *_, d = features.patches.shape
    parts = [x for x in (features.cls, features.patches) if x is not None]
    return np.concatenate([np.reshape(x, (b, -1, d)) for x in parts], axis=1)


def check_paths(encoder, images, folder, exports, methods=("finetune",)):
    """Embedded, exported and loaded again, started from."""
    found = encoder(images)
    vectors = ssl_jax.embed(encoder, images, tokens=("image", "mean"))
    np.testing.assert_allclose(vectors["image"], found.image, atol=1e-4)
    np.testing.assert_allclose(vectors["mean"], found.patches.mean((1, 2)), atol=1e-4)
    for to in exports:
        place = folder / (f"x.{to}" if to == "safetensors" else to)
        ssl_jax.export(encoder, place, to=to)
        again = ssl_jax.load(place)(images)
        np.testing.assert_allclose(again.patches, found.patches, atol=1e-6)
        for method in methods:
            params = started(place, encoder.shape, method)[1].params["backbone"]
            assert encoder.backbone.keys() - params.keys() <= {"mask_token"}
            weights = {name: x for name, x in encoder.backbone.items() if name in params}
            jax.tree.map(np.testing.assert_array_equal, params, params | weights)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NETWORKS]
)
def test_every_path(tmp_path, name):
    file, rule, timm, *family = NETWORKS[name]
    given = dict(family=family[0] if family else None, heads=HEADS)
    np.savez(tmp_path / "weights.npz", **file)
    encoder = ssl_jax.load(tmp_path / "weights.npz", **given)
    shape, kind = encoder.shape, name.partition(",")[0]
    assert (shape.position_resize, shape.resize_kernel) == rule
    assert shape.norm_eps == (1e-12 if kind in ("hf", "stellar") else 1e-6)
    assert kind != "dino" or "DINO" in repr(encoder)
    report = convert.load_vit(tmp_path / "weights.npz", **given)[2]
    assert not report.missing and ("cls_token" in report.left) == ("flsl" in name)
    assert bool(report.notes) == (kind in ("hf", "timm", "flsl with a class token"))
    for size in SIZES[: 3 if name in SIZED else 1] if timm else ():
        images = networks.pictures(size)
        eps, offset = shape.norm_eps, 0.1 * (rule is OFFSET)
        wanted = published.forward(timm, images, offset=offset, eps=eps)
        wanted = np.delete(wanted, slice(1, 1 + shape.registers), axis=1)
        np.testing.assert_allclose(tokens(encoder(images)), wanted, atol=1e-4)
    if shape.mask_token and "mask_token" in timm:
        np.testing.assert_array_equal(encoder.backbone["mask_token"], timm["mask_token"])
    check_paths(encoder, networks.pictures((16, 16)), tmp_path, ("timm", "safetensors"))


@pytest.mark.nightly
@pytest.mark.skipif(not FOLDER, reason="SSL_JAX_REAL_WEIGHTS names no folder")
def test_a_network_that_others_published(tmp_path):
    """A DINOv2, in Hugging Face's form. Beside the folder, ref.npz may hold `images` [B, H, W, 3]
    in [0, 1] and `tokens` [B, 1 + n, d], what another library computed of them."""
    encoder = ssl_jax.load(FOLDER)
    if (file := Path(FOLDER).parent / "ref.npz").is_file():
        wanted = np.load(file)
        np.testing.assert_allclose(tokens(encoder(wanted["images"])), wanted["tokens"], atol=1e-4)
    images = networks.pictures((7 * encoder.shape.patch,) * 2)
    check_paths(encoder, images, tmp_path, ("timm", "hf", "safetensors"), ("finetune", "dinov2"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov2", "hf, mask token"])
def test_trained_further(tmp_path, name):
    """tests/test_cli.py evaluates one."""
    np.savez(tmp_path / "weights.npz", **NETWORKS[name][0])
    shape = ssl_jax.load(tmp_path / "weights.npz", heads=HEADS).shape
    config, _ = started(tmp_path / "weights.npz", shape, optim__steps=2)
    assert api.train(config, tmp_path / "run") == loop.EXIT_DONE
    assert np.isfinite(ssl_jax.load(tmp_path / "run")(networks.pictures((16, 16))).image).all()


@pytest.mark.parametrize("method", ["flsl", "mae"])
def test_methods_with_fixed_codes_name_all_keys_for_learned_ones(tmp_path, method):
    np.savez(tmp_path / "weights.npz", **DINOV2)
    shape = ssl_jax.load(tmp_path / "weights.npz", heads=HEADS).shape
    shape = dataclasses.replace(shape, cls=method != "flsl")
    other = dict(position="sincos", layer_scale=0.0, position_resize="exact", heads=1)
    with pytest.raises(InputError, match="position=learned") as error:
        started(tmp_path / "weights.npz", dataclasses.replace(shape, **other), method)
    for flag in ("layer_scale=1", "position_resize=dino_offset"):
        assert f"--config.model.{flag}" in str(error.value)
    _, state = started(tmp_path / "weights.npz", shape, method)
    assert state.params["backbone"]["position"].shape == (16 + shape.cls, D)


def test_a_call_refuses_what_embed_refuses_and_takes_no_images():
    encoder = networks.network("plain")
    images = networks.pictures((16, 16))
    for wrong in (images * 255, (images - 0.45) / 0.25):
        for given in (wrong, jax.numpy.asarray(wrong)):
            with pytest.raises(InputError, match="0, 1"):
                encoder(given)
        with pytest.raises(InputError, match="0, 1"):
            ssl_jax.embed(encoder, wrong)
    jax.eval_shape(lambda x: encoder(x).image, images)  # traced: nobody sees the numbers
    for network in (encoder, encoder.across(jax.local_devices())):
        features = network(images[:0], layers=(0,))
        assert features.patches.shape == (0, 2, 2, 32) and features.layers[0].cls.shape == (0, 32)


# --- folders


def sharded(folder, **changes):
    """DINOv2 in two files and their index; changes: of the index."""
    tensors, files = FAMILIES["hf_dinov2"], ("a.safetensors", "b.safetensors")
    for i, file in enumerate(files):
        save_file(dict(list(tensors.items())[i::2]), folder / file)
    places = {name: files[i % 2] for i, name in enumerate(tensors)} | changes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_a_folder_of_shards_or_with_one_file(tmp_path):
    sharded(tmp_path)
    encoder = ssl_jax.load(tmp_path, heads=HEADS)
    np.testing.assert_array_equal(encoder.backbone["position"], DINOV2["pos_embed"][0])
    assert ssl_jax.load(tmp_path / "model.safetensors.index.json", heads=HEADS).shape.mask_token
    for wrong, named in (("c.safetensors", "c.safe"), ("../a.safetensors", "map"), (3, "map")):
        sharded(tmp_path, more=wrong)
        with pytest.raises(InputError, match=named):
            ssl_jax.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"a\.safetensors, b\.safetensors"):
        ssl_jax.load(tmp_path)
    (tmp_path / "lone").mkdir()
    np.savez(tmp_path / "lone" / "any.npz", **DINOV2)
    assert ssl_jax.load(tmp_path / "lone", heads=HEADS).shape.mask_token
    (tmp_path / "lone" / "checkpoints").mkdir()  # a run, with an export in its folder
    with pytest.raises(InputError, match="checkpoint"):
        ssl_jax.load(tmp_path / "lone")
