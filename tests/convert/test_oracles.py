"""Against timm and transformers themselves, with random weights, at the native size and others.
Skipped where they are not installed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import convert
from ssl_jax.config import InputError
from ssl_jax.models import decoder as decoder_lib
from ssl_jax.models import position, vit
from tests.convert.networks import pictures
from tests.convert.published import MEAN, STD

torch = pytest.importorskip("torch", reason="the oracles of weight import need torch")

NATIVE, OTHERS = (32, 32), ((16, 16), (48, 24), (64, 64))


def randomised(module, scale=0.1):
    """Every weight counts: norms, biases and codes too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def normalised(images):
    return torch.from_numpy(((images - MEAN) / STD).astype(np.float32)).permute(0, 3, 1, 2)


def weights(model, path):
    """`convert.load_vit` of the model's weights, randomised and written to `path`: a folder has the
    published names, a file those of this version of the library.
    """
    randomised(model)
    if path.suffix:
        torch.save(model.state_dict(), path)
    else:
        model.save_pretrained(path)
    return convert.load_vit(path, heads=2)


def assert_same_tokens(config, params, size, forward):
    """Ours of images of that size, and theirs of `forward` without registers, which ours hide."""
    images = pictures(size)
    out = vit.vit(config).apply(params, jnp.asarray(images))
    with torch.no_grad():
        wanted = forward(normalised(images)).numpy()
    wanted = np.delete(wanted, slice(1, 1 + config.registers), axis=1)
    ours = np.concatenate([out.cls[:, None], out.patches], axis=1)
    np.testing.assert_allclose(ours, wanted, atol=1e-4)


SHAPE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
)
TIMM_SHAPE = dict(
    img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, dynamic_img_size=True
)
# Given timm or transformers. In timm, DINOv2's class token has no position embedding: zeros here.
MODELS = {
    "timm": lambda timm: timm.create_model("vit_tiny_patch16_224", num_classes=5, **TIMM_SHAPE),
    "timm dinov2": lambda timm: timm.create_model(
        "vit_small_patch14_reg4_dinov2", num_classes=0, **TIMM_SHAPE
    ),
    "hf vit": lambda hf: hf.ViTModel(hf.ViTConfig(**SHAPE, intermediate_size=48)),
    "hf dinov2": lambda hf: hf.Dinov2Model(hf.Dinov2Config(**SHAPE)),
    "timm dinov3": lambda timm: timm.create_model(
        "vit_small_patch16_dinov3_qkvb", num_classes=0, **TIMM_SHAPE
    ),
    "timm dinov3 gated": lambda timm: timm.create_model(
        "vit_small_plus_patch16_dinov3", num_classes=0, **TIMM_SHAPE
    ),
    "hf dinov3": lambda hf: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(**SHAPE, intermediate_size=48, num_register_tokens=4)
    ),
    "hf dinov3 gated": lambda hf: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(
            **SHAPE,
            intermediate_size=24,
            use_gated_mlp=True,
            hidden_act="silu",
            query_bias=False,
            value_bias=False,
        )
    ),
    "hf dinov2 gated": lambda hf: hf.Dinov2Model(hf.Dinov2Config(**SHAPE, use_swiglu_ffn=True)),
    "hf dinov2 registers": lambda hf: hf.Dinov2WithRegistersModel(
        hf.Dinov2WithRegistersConfig(**SHAPE, num_register_tokens=3)
    ),
}
LEFT = {
    "timm": {"head.weight", "head.bias"},
    "hf vit": {"pooler.dense.weight", "pooler.dense.bias"},
    "hf dinov2": set(),
    "hf dinov2 registers": set(),
}
REGISTERS = {"timm dinov2": 4, "hf dinov2 registers": 3, "hf dinov3": 4}
REGISTERS |= {"timm dinov3": 4, "timm dinov3 gated": 4}


@pytest.mark.parametrize("file", ["folder", "state_dict.pth"])
@pytest.mark.parametrize("name", MODELS)
def test_features(request, tmp_path, name, file):
    library = "timm" if name.startswith("timm") else "transformers"
    if library == "timm" and file == "folder":
        pytest.skip("timm saves no folder so")
    model = MODELS[name](request.getfixturevalue(library))
    config, params, report = weights(model, tmp_path / file)
    assert set(report.left) == LEFT.get(name, set(report.left))
    assert config.registers == REGISTERS.get(name, 0)
    assert config.layer_scale > 0 or "dino" not in name
    assert (config.mlp == "swiglu") == name.endswith("gated")
    options = {"interpolate_pos_encoding": True} if name == "hf vit" else {}

    def forward(images):
        if library == "timm":
            return model.forward_features(images)
        return model(images, **options).last_hidden_state

    for size in (NATIVE, *OTHERS):
        assert_same_tokens(config, params, size, forward)


def test_networks_of_another_kind_are_refused(timm, transformers, tmp_path):
    shape = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=32)
    config = transformers.SiglipVisionConfig(**shape, patch_size=8, intermediate_size=64)
    transformers.SiglipVisionModel(config).save_pretrained(tmp_path / "siglip")
    for name in ("eva02_tiny_patch14_224", "beit_base_patch16_224"):
        model = timm.create_model(name, num_classes=0, depth=1)
        torch.save(model.state_dict(), tmp_path / f"{name}.pth")
    kinds = {"siglip": "siglip", "eva02_tiny_patch14_224.pth": "q_bias"}
    for name, named in (kinds | {"beit_base_patch16_224.pth": "relative_position"}).items():
        with pytest.raises(InputError, match=named):
            convert.load_vit(tmp_path / name, heads=2)


def test_hugging_face_vitmae(transformers, tmp_path):
    """Random masking is made a choice of ours."""
    shape = dict(
        **SHAPE,
        intermediate_size=64,
        decoder_hidden_size=24,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=3,
        decoder_intermediate_size=96,
    )
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**shape, mask_ratio=0.75))
    randomised(model).decoder.decoder_pos_embed.data[0] = torch.from_numpy(
        np.pad(position.sincos_2d(4, 24), ((1, 0), (0, 0)))
    )
    path, images = tmp_path / "weights.pth", pictures(NATIVE)
    torch.save({"model": model.state_dict()}, path)
    noise = np.random.default_rng(1).random((2, 16), np.float32)
    config, params, _ = convert.load_vit(path, heads=2)
    keep = jnp.asarray(np.argsort(noise, axis=1, kind="stable")[:, :4].astype(np.int32))
    network = vit.vit(config)
    latent = network.apply(params, jnp.asarray(images), keep=keep)
    latent = jnp.concatenate([latent.cls[:, None], latent.patches], axis=1)
    with torch.no_grad():
        inner = model.vit(normalised(images), noise=torch.from_numpy(noise))
        wanted = model(normalised(images), noise=torch.from_numpy(noise)).logits.numpy()
    np.testing.assert_allclose(latent, inner.last_hidden_state.numpy(), atol=1e-4)

    decode = decoder_lib.decoder(
        32, 192, width=24, depth=2, heads=3, mask_token=True, cls=True, norm_eps=config.norm_eps
    )
    empty = {"backbone": params, "decoder": jax.eval_shape(decode.init, jax.random.key(0))}
    filled, report = convert.load_torch(path, empty)
    assert not report.missing and not report.left, report
    rebuilt = decode.apply(filled["decoder"], latent, position.sincos_2d(4, 24), keep=keep)
    np.testing.assert_allclose(rebuilt, wanted, atol=1e-4)
