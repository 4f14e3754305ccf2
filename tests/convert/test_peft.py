"""Adapters as PEFT has them: what a run exports, and that PEFT computes our features with it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

import ssl_jax
from ssl_jax import cli, trees
from ssl_jax.config import InputError
from ssl_jax.convert import peft as ours
from ssl_jax.methods import encoder as encoder_lib
from ssl_jax.models import lora, vit
from tests.convert import networks
from tests.convert.test_swin import CONFIG as SWIN
from tests.models.test_lora import MODEL

ALL = MODEL.copy_and_resolve_references()
ALL.lora_on = ("qkv", "proj", "fc1", "fc2")


def adapted(name):
    """A network without adapters, its adapters, and the network with them; none has queries."""
    plain = networks.of(dataclasses.replace(networks.config(name), queries=0))
    rng = np.random.default_rng(2)
    params = lora.init(plain.backbone, ALL, jax.random.key(0))

    def moved(path, x):
        drawn = 0.1 * rng.standard_normal(x.shape).astype(np.float32)
        return drawn if path.endswith(lora.B) else x

    params = trees.map_with_path(moved, params)
    merged = lora.network({"backbone": params}, None, ALL)["backbone"]
    return plain, lora.adapters(params), encoder_lib.published(plain.shape, merged, name)


def test_one_kernel_of_ours_is_three_of_theirs(tmp_path):
    plain, adapters, merged = adapted("layer_scale")
    ours.write(tmp_path / "out", plain.shape, adapters, alpha=6.0, base="b")
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    tensors = safetensors.numpy.load_file(tmp_path / "out/adapter_model.safetensors")
    assert len(config["target_modules"]) == 2 * 6 and len(tensors) == 2 * 2 * 6
    assert (config["r"], config["lora_alpha"]) == (3, 6.0)
    change = [
        x.backbone["blocks"]["attn"]["qkv"]["kernel"][1].astype(np.float64) for x in (merged, plain)
    ]
    parts = []
    for name in ("q_proj", "k_proj", "v_proj"):
        module = f"base_model.model.encoder.layer.1.attention.{name}"
        a, b = (tensors[f"{module}.lora_{x}.weight"].astype(np.float64) for x in "AB")
        parts.append(2 * (b @ a).T)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), change[0] - change[1], atol=1e-6)
    (tmp_path / "out/mine.txt").write_text("x")
    with pytest.raises(InputError, match="folder of adapters"):
        ours.write(tmp_path / "out", plain.shape, adapters, alpha=6.0, base="b")


@pytest.mark.parametrize(
    "changes, named",
    [
        (dataclasses.asdict(SWIN), "model.stages"),
        (dict(mlp="swiglu"), "model.mlp"),
        (dict(stem="conv"), "model.stem"),
        (dict(in_channels=1, mean=(0.5,), std=(0.5,)), "model.in_channels"),
        (dict(queries=2), "model.queries"),
    ],
)
def test_what_transformers_cannot_have_is_refused(tmp_path, changes, named):
    shape = dataclasses.replace(networks.PLAIN, **changes)
    adapters = lora.adapters(
        lora.init(vit.vit(shape).init(jax.random.key(0)), ALL, jax.random.key(1))
    )
    with pytest.raises(InputError, match=named):
        ours.write(tmp_path / "out", shape, adapters, alpha=1.0, base="b")
    assert not (tmp_path / "out").exists()


def test_adapters_of_others_stay(tmp_path):
    plain, adapters, _ = adapted("plain")
    ours.write(tmp_path, plain.shape, adapters, alpha=6.0, base="b")
    ours.write(tmp_path, plain.shape, adapters, alpha=6.0, base="b")  # its own again
    file = tmp_path / "adapter_model.safetensors"
    safetensors.numpy.save_file({"a": np.ones(1)}, file)
    with pytest.raises(InputError, match="folder of adapters"):
        ours.write(tmp_path, plain.shape, adapters, alpha=6.0, base="b")
    assert safetensors.numpy.load_file(file).keys() == {"a"}


def test_a_network_without_adapters_exports_none(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["ssl-jax", "export", "zoo/sop_quickstart", "--to=hf", "--adapters", f"--out={out}"]
    assert cli.main(arguments) == cli.EXIT_INPUT
    assert "model.lora" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    "name", ["plain", "layer_scale", "registers", "patches_alone", "rope", "rope_gated"]
)
def test_peft_computes_our_features(transformers, tmp_path, name):
    torch = pytest.importorskip("torch", reason="the oracle of adapters needs torch")
    peft = pytest.importorskip("peft", reason="the oracle of adapters", exc_type=ImportError)
    plain, adapters, merged = adapted(name)
    ssl_jax.export(plain, tmp_path / "base", to="hf")
    ours.write(tmp_path / "adapters", plain.shape, adapters, alpha=6.0, base="base")
    base = transformers.AutoModel.from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    images, c = networks.pictures((32, 32)), plain.shape
    values = ((images - np.array(c.mean)) / np.array(c.std)).astype(np.float32)
    with torch.no_grad():
        theirs = model(torch.from_numpy(values).permute(0, 3, 1, 2)).last_hidden_state.numpy()
    theirs = np.delete(theirs, slice(int(c.cls), c.cls + c.registers + c.queries), axis=1)
    np.testing.assert_allclose(networks.tokens(merged, images), theirs, atol=1e-4)
    assert np.abs(networks.tokens(plain, images) - theirs).max() > 0.1
