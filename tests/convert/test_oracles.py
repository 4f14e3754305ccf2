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
from tests.convert.published import MEAN, STD

torch = pytest.importorskip("torch", reason="the oracles of weight import need torch")

NATIVE, OTHERS = (32, 32), ((16, 16), (48, 24), (64, 64))


@pytest.fixture(scope="module")
def operators():
    """Both libraries import torchvision, which asks for operators that it lacks beside a CPU build
    of torch; no ViT calls them.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@pytest.fixture
def timm(operators):
    return pytest.importorskip("timm", reason="the oracle of timm's weights", exc_type=ImportError)


@pytest.fixture
def transformers(operators):
    return pytest.importorskip(
        "transformers", reason="the oracle of Hugging Face's weights", exc_type=ImportError
    )


def randomised(module, scale=0.1):
    """Every weight counts: norms, biases and codes too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def pictures(size):
    return np.random.default_rng(0).random((2, *size, 3), np.float32)


def normalised(images):
    return torch.from_numpy(((images - MEAN) / STD).astype(np.float32)).permute(0, 3, 1, 2)


def tokens(config, params, images):
    out = vit.vit(config).apply(params, jnp.asarray(images))
    return np.concatenate([out.cls[:, None], out.patches], axis=1)


@pytest.mark.parametrize("size", [NATIVE, *OTHERS], ids=str)
def test_timm(timm, tmp_path, size):
    model = timm.create_model(
        "vit_tiny_patch16_224",
        pretrained=False,
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=2,
        num_classes=5,
        dynamic_img_size=True,
    )
    torch.save(randomised(model).state_dict(), tmp_path / "weights.pth")
    config, params, report = convert.load_vit(tmp_path / "weights.pth", heads=2)
    assert set(report.left) == {"head.weight", "head.bias"}
    images = pictures(size)
    with torch.no_grad():
        wanted = model.forward_features(normalised(images)).numpy()
    np.testing.assert_allclose(tokens(config, params, images), wanted, atol=1e-4)


@pytest.mark.parametrize("size", [NATIVE, *OTHERS], ids=str)
@pytest.mark.parametrize("file", ["folder", "state_dict.pth"])
def test_hugging_face_vit(transformers, tmp_path, size, file):
    shape = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
    )
    model = randomised(transformers.ViTModel(transformers.ViTConfig(**shape)))
    if file == "folder":
        model.save_pretrained(tmp_path / file)  # under the published names
    else:
        torch.save(
            model.state_dict(), tmp_path / file
        )  # under those of this version of transformers
    config, params, report = convert.load_vit(tmp_path / file, heads=2)
    assert set(report.left) == {"pooler.dense.weight", "pooler.dense.bias"}
    images = pictures(size)
    with torch.no_grad():
        wanted = model(normalised(images), interpolate_pos_encoding=True).last_hidden_state.numpy()
    np.testing.assert_allclose(tokens(config, params, images), wanted, atol=1e-4)


@pytest.mark.parametrize("size", [NATIVE, *OTHERS], ids=str)
@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("file", ["folder", "state_dict.pth"])
def test_hugging_face_dinov2(transformers, tmp_path, size, registers, file):
    shape = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    if registers:
        config = transformers.Dinov2WithRegistersConfig(**shape, num_register_tokens=registers)
        model = randomised(transformers.Dinov2WithRegistersModel(config))
    else:
        model = randomised(transformers.Dinov2Model(transformers.Dinov2Config(**shape)))
    if file == "folder":
        model.save_pretrained(tmp_path / file)  # under the published names
    else:
        torch.save(model.state_dict(), tmp_path / file)  # under those of this version
    config, params, report = convert.load_vit(tmp_path / file, heads=2)
    assert not report.left and config.registers == registers and config.layer_scale > 0
    images = pictures(size)
    with torch.no_grad():
        wanted = model(normalised(images)).last_hidden_state.numpy()
    wanted = np.concatenate([wanted[:, :1], wanted[:, 1 + registers :]], axis=1)
    np.testing.assert_allclose(tokens(config, params, images), wanted, atol=1e-4)


def test_hugging_face_dinov2_with_swiglu_is_refused(transformers, tmp_path):
    shape = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, patch_size=8)
    config = transformers.Dinov2Config(**shape, image_size=32, use_swiglu_ffn=True)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no place for encoder\.layer\..*\.mlp\.weights_in"):
        convert.load_vit(tmp_path, heads=2)


@pytest.mark.parametrize("size", [NATIVE, *OTHERS], ids=str)
def test_timm_dinov2_with_registers(timm, tmp_path, size):
    """Its class token has no position code, which is zero here."""
    model = timm.create_model(
        "vit_small_patch14_reg4_dinov2",
        pretrained=False,
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=2,
        num_classes=0,
        dynamic_img_size=True,
    )
    torch.save(randomised(model).state_dict(), tmp_path / "weights.pth")
    config, params, _ = convert.load_vit(tmp_path / "weights.pth", heads=2)
    assert config.registers == 4 and config.layer_scale > 0
    images = pictures(size)
    with torch.no_grad():
        wanted = model.forward_features(normalised(images)).numpy()
    wanted = np.concatenate([wanted[:, :1], wanted[:, 5:]], axis=1)
    np.testing.assert_allclose(tokens(config, params, images), wanted, atol=1e-4)


@pytest.fixture
def vitmae(transformers, tmp_path):
    """(model, path of its weights, images, patches it keeps): random masking made a choice
    of ours.
    """
    shape = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        decoder_hidden_size=24,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=3,
        decoder_intermediate_size=96,
    )
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**shape, mask_ratio=0.75))
    randomised(model).decoder.decoder_pos_embed.data[0] = torch.from_numpy(
        np.pad(position.sincos_2d(4, 24), ((1, 0), (0, 0)))
    )
    torch.save({"model": model.state_dict()}, tmp_path / "weights.pth")
    images = pictures(NATIVE)
    noise = np.random.default_rng(1).random((2, 16), np.float32)
    return model, tmp_path / "weights.pth", images, noise


def test_hugging_face_vitmae(vitmae):
    model, path, images, noise = vitmae
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


@pytest.mark.parametrize("size", OTHERS, ids=str)
def test_hugging_face_vitmae_encoder_at_other_sizes(vitmae, size):
    model, path, _, _ = vitmae
    config, params, _ = convert.load_vit(path, heads=2)
    images = pictures(size)
    model.vit.embeddings.config.mask_ratio = 0.0  # sees everything, in the order of the noise
    noise = torch.arange((size[0] // 8) * (size[1] // 8), dtype=torch.float32).expand(2, -1)
    with torch.no_grad():
        wanted = model.vit(
            normalised(images), noise=noise, interpolate_pos_encoding=True
        ).last_hidden_state.numpy()
    np.testing.assert_allclose(tokens(config, params, images), wanted, atol=1e-4)
