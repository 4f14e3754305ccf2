"""The tokenizer against a float64 NumPy network with loops, its weights in and out of files, and
the targets made of it.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.signal import correlate2d

from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.models import tokenizer

SMALL = dict(channels=32, multipliers=(1, 2), blocks=1, num_codes=11, code_width=6)


@pytest.fixture(scope="module")
def small():
    return tokenizer.maskgit_vqgan(**SMALL)


@pytest.fixture(scope="module")
def published():
    """{published name: random array in PyTorch's layout}."""
    rng = np.random.default_rng(0)
    layout = tokenizer._layout(*SMALL.values())

    def draw(name, shape):
        x = rng.normal(size=shape)
        return 1 + 0.1 * x if "norm" in name else x / np.prod(shape[1:] or (4,)) ** 0.5

    return {name: np.float32(draw(name, shape)) for name, shape in layout.items()}


@pytest.fixture(scope="module")
def weights(published, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "vqgan.npz"
    np.savez(path, **published)
    return path


# The reference: activations [C, H, W], weights as published.


def conv(w, name, x):
    kernel = w[f"{name}.weight"].astype(np.float64)
    pad = kernel.shape[-1] // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    y = np.stack(
        [sum(correlate2d(plane, k, "valid") for plane, k in zip(x, kernels)) for kernels in kernel]
    )
    return y + w[f"{name}.bias"][:, None, None] if f"{name}.bias" in w else y


def norm(w, name, x):
    groups = x.reshape(32, -1)
    mean, var = groups.mean(axis=1, keepdims=True), groups.var(axis=1, keepdims=True)
    y = ((groups - mean) / np.sqrt(var + 1e-6)).reshape(x.shape)
    return y * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]


def silu(x):
    return x / (1 + np.exp(-x))


def residual(w, name, x):
    y = conv(w, f"{name}.conv1", silu(norm(w, f"{name}.norm1", x)))
    y = conv(w, f"{name}.conv2", silu(norm(w, f"{name}.norm2", y)))
    return y + (conv(w, f"{name}.nin_shortcut", y) if f"{name}.nin_shortcut.weight" in w else x)


def encoded(w, image):
    x = conv(w, "encoder.conv_in", np.moveaxis(np.asarray(image, np.float64), -1, 0))
    x = residual(w, "encoder.down.0.block.0", x)
    x = x.reshape(len(x), x.shape[1] // 2, 2, -1, 2).mean(axis=(2, 4))
    x = residual(w, "encoder.mid.0", residual(w, "encoder.down.1.block.0", x))
    return np.moveaxis(conv(w, "encoder.conv_out", silu(norm(w, "encoder.norm_out", x))), 0, -1)


def codes_of(w, image):
    x = encoded(w, image)
    distance = np.square(x[:, :, None] - w["quantize.embedding.weight"]).sum(axis=-1)
    return distance.argmin(axis=-1).reshape(-1)


def decoded(w, codes, grid):
    rows = w["quantize.embedding.weight"][codes].astype(np.float64)
    x = np.moveaxis(rows.reshape(*grid, -1), -1, 0)
    x = residual(w, "decoder.mid.0", conv(w, "decoder.conv_in", x))
    x = residual(w, "decoder.up.1.block.0", x).repeat(2, axis=1).repeat(2, axis=2)
    x = residual(w, "decoder.up.0.block.0", conv(w, "decoder.up.1.upsample_conv", x))
    x = conv(w, "decoder.conv_out", silu(norm(w, "decoder.norm_out", x)))
    return np.clip(np.moveaxis(x, 0, -1), 0, 1)


def images_of(*shape, seed=0):
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def test_codes_equal_the_reference(small, published, weights):
    images = images_of(2, 8, 12, 3)
    codes = np.asarray(small.encode(small.load(weights), jnp.asarray(images)))
    assert codes.shape == (2, 24) and codes.dtype == np.int32
    for got, image in zip(codes, images):
        np.testing.assert_array_equal(got, codes_of(published, image))
    assert len(set(codes.reshape(-1))) > 2, "the case says something"


def test_decoded_images_equal_the_reference(small, published, weights):
    codes = np.random.default_rng(1).integers(11, size=(2, 6))
    params = small.load(weights, decoder=True)
    images = np.asarray(small.decode(params, jnp.asarray(codes), (2, 3)))
    assert images.shape == (2, 4, 6, 3)
    for got, row in zip(images, codes):
        np.testing.assert_allclose(got, decoded(published, row, (2, 3)), atol=1e-5)


def test_an_image_that_is_not_finite_has_no_code(small, weights):
    images = images_of(2, 8, 8, 3)
    images[1, 3, 3, 0] = np.nan
    codes = np.asarray(small.encode(small.load(weights), jnp.asarray(images)))
    assert codes[0].max() < 11 and np.all(codes[1] == 11)


def test_weights_from_every_format_and_under_a_prefix(small, published, weights, tmp_path):
    want = small.load(weights)
    save_file(published, tmp_path / "a.safetensors")
    prefixed = {f"module.tokenizer.{name}": x for name, x in published.items()}
    np.savez(tmp_path / "b.npz", **prefixed, other=np.zeros(3))
    for name in ("a.safetensors", "b.npz"):
        got = small.load(tmp_path / name)
        chex.assert_trees_all_equal_shapes(got, small.shapes)
        chex.assert_trees_all_equal(got, want)
    assert "decoder" not in want and "decoder" in small.load(weights, decoder=True)


def test_a_file_is_read_once_until_it_changes(small, published, tmp_path):
    path, name = tmp_path / "a.npz", "quantize.embedding.weight"
    np.savez(path, **published)
    first = small.load(path)
    assert small.load(path) is first
    np.savez(path, **published | {name: 0 * published[name]})
    assert not np.any(small.load(path)["quantize"]["embedding"]["kernel"])


CONV = "encoder.conv_in.weight"


@pytest.mark.parametrize("file", ["", "no.npz", "a.bin", "a.safetensors", "lacks.npz", "wide.npz"])
def test_files_that_are_no_weights_are_refused(small, published, tmp_path, file):
    for name in ("a.bin", "a.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    np.savez(tmp_path / "lacks.npz", **{n: x for n, x in published.items() if n != CONV})
    wide = np.zeros((32, 3, 5, 5), np.float32)
    np.savez(tmp_path / "wide.npz", **published | {CONV: wide})
    with pytest.raises(InputError, match=CONV if file in ("lacks.npz", "wide.npz") else None):
        small.load(file and tmp_path / file)


def test_the_published_network_has_the_published_shapes():
    full = tokenizer.maskgit_vqgan()
    assert full.num_codes == 1024 and full.cell == 16
    shapes = {name: leaf.shape for name, leaf in trees.flatten(full.shapes).items()}
    assert shapes["quantize/embedding/kernel"] == (1024, 256)
    assert shapes["encoder/conv_out/kernel"] == (1, 1, 512, 256)
    assert shapes["encoder/down/4/block/0/nin_shortcut/kernel"] == (1, 1, 512, 512)
    assert shapes["encoder/conv_in/kernel"] == (3, 3, 3, 128)
    images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
    assert jax.eval_shape(full.encode, full.shapes, images).shape == (2, 196)


# Targets


def test_pixels_of_patches_go_row_by_row_and_back_without_weights():
    images, target = images_of(2, 6, 9, 3), tokenizer.target("pixel", 3)
    assert target.width == 27 and not target.codes
    assert target.constants("") == target.shapes == {}
    cells = np.asarray(target.encode({}, jnp.asarray(images)))
    assert cells.shape == (2, 6, 27)
    np.testing.assert_array_equal(cells[1, 4], images[1, 3:6, 3:6].reshape(-1))
    np.testing.assert_array_equal(target.show(cells, (2, 3)), images)
    np.testing.assert_array_equal(target.show(3 * cells - 1, (2, 3)), np.clip(3 * images - 1, 0, 1))


@pytest.mark.slow
def test_code_target_has_one_code_per_patch_whatever_the_patch(small, published, weights):
    images = jnp.asarray(images_of(2, 9, 6, 3))
    for patch, grid in ((3, (3, 2)), (1, (9, 6))):
        target = tokenizer.target("vq", patch, small)
        constants = target.constants(weights)
        assert jax.tree.map(jnp.shape, constants) == jax.tree.map(jnp.shape, target.shapes)
        codes = target.encode(constants, images)
        assert target.width == 11 and codes.shape == (2, grid[0] * grid[1])
        resized = tokenizer.resize(images, 2 * grid[0], 2 * grid[1])
        np.testing.assert_array_equal(codes[0], codes_of(published, resized[0]))
        shown = target.show(jax.nn.one_hot(codes, 11), grid)
        np.testing.assert_array_equal(shown, codes.reshape(2, *grid))
        assert target.decode(weights, shown).shape == images.shape
        whole = target.decode(weights, shown, whole=True)
        assert whole.shape == (len(images), 2 * grid[0], 2 * grid[1], 3)
    native = tokenizer.target("vq", 2, small)
    codes = native.encode(native.constants(weights), images[:, :8])
    rebuilt = native.decode(weights, codes.reshape(2, 4, 3))
    np.testing.assert_allclose(rebuilt[0], decoded(published, codes[0], (4, 3)), atol=1e-5)


def test_sizes_targets_and_absent_weights_are_refused(small):
    with pytest.raises(ValueError, match="channels"):
        tokenizer.maskgit_vqgan(channels=33)
    with pytest.raises(ValueError, match="multiples of 2"):
        jax.eval_shape(small.encode, small.shapes, jnp.ones((1, 9, 8, 3)))
    with pytest.raises(InputError):
        tokenizer.target("vq", 2, small).constants("")
    with pytest.raises(ValueError, match="target"):
        tokenizer.target("pixels", 4)
