"""Published weights of every family through the front door: loaded, called, embedded, exported and
loaded again, started from, evaluated, trained further."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import ssl_jax
from ssl_jax import api, cli
from ssl_jax.config import InputError
from ssl_jax.models import vit
from ssl_jax.train import loop, start
from tests import tiny
from tests.convert import networks, published
from tests.convert.published import HEADS, D, Numbers

FAMILIES, MASK = published.families(), Numbers(7)(1, 1, D)
PLAIN, DINOV2, REGISTERS = published.encoder(), FAMILIES["dinov2"], FAMILIES["dinov2_registers"]
NO_CLASS = published.encoder(cls=False) | {"reg_token": Numbers(8)(1, 3, D)}
# Name: (the file, the family to give, the encoder under timm's names for `published.forward`).
NETWORKS = {
    "cribo": (FAMILIES["cribo"], None, PLAIN),
    "dino": (FAMILIES["dino"], None, PLAIN),
    "dino, mask token": (FAMILIES["dino"] | {"masked_embed": MASK[0]}, None, PLAIN),
    "dinov2": (DINOV2, None, DINOV2),
    "dinov2, bare": ({n: x for n, x in DINOV2.items() if n != "mask_token"}, "dinov2", DINOV2),
    "dinov2_registers": (REGISTERS, None, REGISTERS),
    "hf": (FAMILIES["hf"], None, PLAIN),
    "hf, mask token": (published.as_hf(PLAIN | {"mask_token": MASK}), None, PLAIN),
    "hf_dinov2": (FAMILIES["hf_dinov2"], None, DINOV2),
    "hf_dinov2_registers": (FAMILIES["hf_dinov2_registers"], None, REGISTERS),
    "mae": (FAMILIES["mae"], None, FAMILIES["mae"]),
    "stellar": (FAMILIES["stellar"], None, None),
    "timm": (FAMILIES["timm"], None, PLAIN),
    "timm, registers, no class token": (NO_CLASS, None, None),
    "vit": (PLAIN, "mae", PLAIN),
}
QUICK = ("dinov2", "hf, mask token", "hf_dinov2_registers", "timm, registers, no class token")
MODEL = [field.name for field in dataclasses.fields(vit.ViTConfig) if field.name != "mask_token"]


def started(path, shape, method="finetune", **changes):
    """A config that starts from the weights there, with a model of that shape, and its state before
    step 0."""
    changes |= {f"model__{name}": getattr(shape, name) for name in MODEL}
    if method == "finetune":
        changes |= dict(finetune__global_token="cls" if shape.cls else "mean")
    config = tiny.config(method, init_from=str(path), init_only="backbone", **changes)
    run = api.prepare(config)

    def zeros(tree):
        return jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), tree)

    fresh = run.abstract._replace(
        params=zeros(run.abstract.params), teacher=zeros(run.abstract.teacher)
    )
    return config, start.start_from(run.config, fresh, evaluated=run.method.starts_evaluated)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NETWORKS]
)
def test_every_path(tmp_path, name):
    file, family, timm = NETWORKS[name]
    np.savez(tmp_path / "weights.npz", **file)
    encoder = ssl_jax.load(tmp_path / "weights.npz", family=family, heads=HEADS)
    images = networks.pictures((16, 16))
    found = encoder(images)
    if timm:
        wanted = published.forward(timm, images, offset=0.0, eps=encoder.shape.norm_eps)
        np.testing.assert_allclose(found.cls, wanted[:, 0], atol=1e-4)
    vectors = ssl_jax.embed(encoder, images, tokens=("image", "mean"))
    np.testing.assert_allclose(vectors["image"], found.image, atol=1e-5)
    np.testing.assert_allclose(vectors["mean"], found.patches.mean((1, 2)), atol=1e-5)
    for place, to in (("out", "timm"), ("x.safetensors", "safetensors")):
        ssl_jax.export(encoder, tmp_path / place, to=to)
        again = ssl_jax.load(tmp_path / place)
        np.testing.assert_allclose(again(images).patches, found.patches, atol=1e-6)
        state = started(tmp_path / place, encoder.shape)[1]
        weights = {n: x for n, x in encoder.backbone.items() if n != "mask_token"}
        jax.tree.map(np.testing.assert_array_equal, state.params["backbone"], weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov2", "hf, mask token"])
def test_scored_and_trained_further(tmp_path, name, capsys):
    np.savez(tmp_path / "weights.npz", **NETWORKS[name][0])
    rank = dict(test_examples=6, data__size=16, data__length=8)
    given = [f"--config.evals.rank.{key.replace('__', '.')}={x}" for key, x in rank.items()]
    arguments = ["--add=rank", "--config.evals.baselines=False", *given]
    assert cli.main(["ssl-jax", "eval", str(tmp_path / "weights.npz"), *arguments]) == 0
    assert "rank" in capsys.readouterr().out
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
