"""A frozen image tokenizer from images to one code per cell. STELLAR's published models reconstruct
such codes instead of pixels.

    from ssl_jax.models import tokenizer
    vqgan = tokenizer.maskgit_vqgan()
    params = vqgan.load("maskgit-vqgan-imagenet-f16-256.safetensors")
    codes = vqgan.encode(params, images)    # [B, 224, 224, 3] in [0, 1] -> int32 [B, 196], 0..1023

The architecture is the VQGAN of MaskGIT (Chang et al. 2022), a VQGAN (Esser et al. 2021) without
attention, with the parameter names of its PyTorch port. Untested on the published weights, which
the test machines lack.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.models import position, weights
from ssl_jax.ops import patchify, unpatchify

FILE = "maskgit-vqgan-imagenet-f16-256"
FETCH = (
    f"fetch {FILE}.bin (Hugging Face, fun-research/TiTok; 1024 codes, 16 px cells) and convert it"
    f" once where torch is: safetensors.torch.save_file(torch.load('{FILE}.bin',"
    f" map_location='cpu'), '{FILE}.safetensors')"
)
_GROUPS = 32  # of every group norm
_EPS = 1e-6


class Tokenizer(NamedTuple):
    """An image tokenizer as pure functions over a nested dict of float32 arrays.

    num_codes: K.
    cell: side of a cell, pixels.
    shapes: parameters of the encoder ("encoder", "quantize") as jax.ShapeDtypeStruct.
    load(path, decoder=False) -> params as NumPy arrays; with decoder=True also "decoder". Raises
      InputError, naming the file to fetch.
    encode(params, images, dtype="float32") -> codes: images float [B, H, W, 3] in [0, 1], H and W
      multiples of cell; int32 [B, H W / cell^2], row by row, in [0, K), or K where the image is not
      finite. Group norms and distances stay float32.
    decode(params, codes, grid) -> images: codes int [B, h w] of a grid (h, w); float32
      [B, h cell, w cell, 3] in [0, 1].
    """

    num_codes: int
    cell: int
    shapes: dict[str, Any]
    load: Callable
    encode: Callable
    decode: Callable


@functools.cache
def maskgit_vqgan(
    channels: int = 128,
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4),
    blocks: int = 2,
    num_codes: int = 1024,
    code_width: int = 256,
) -> Tokenizer:
    """The VQGAN of MaskGIT; the defaults are those of the published weights.

    Raises:
      ValueError: `channels` is not a multiple of 32.
    """
    if channels < 1 or channels % _GROUPS:
        raise ValueError(f"channels is {channels}; it must be a multiple of {_GROUPS}")
    layout = _layout(channels, multipliers, blocks, num_codes, code_width)
    cell = 2 ** (len(multipliers) - 1)

    def select(decoder):
        parts = ("encoder", "quantize", "decoder") if decoder else ("encoder", "quantize")
        return {name: shape for name, shape in layout.items() if name.split(".")[0] in parts}

    # A run reads the same file when it is checked, planned and started.
    @functools.lru_cache(maxsize=2)
    def read(path, changed, decoder):
        del changed
        return _read(path, select(decoder))

    def load(path, decoder: bool = False):
        file = Path(path)
        changed = file.stat().st_mtime_ns if file.is_file() else None
        return read(str(path), changed, decoder)

    def encode(params, images, dtype="float32"):
        b, h, w = images.shape[:3]
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ValueError(f"images are {images.dtype}; expected floating point in [0, 1]")
        if h % cell or w % cell:
            raise ValueError(f"images are {h} x {w} pixels; both must be multiples of {cell}")
        x = _encoder(params["encoder"], images.astype(dtype), len(multipliers), blocks)
        x = x.astype(jnp.float32)
        codebook = params["quantize"]["embedding"]["kernel"]
        # |x - e|^2 without |x|^2, which is equal for all codes.
        product = jnp.einsum("bhwe,ke->bhwk", x, codebook, precision=jax.lax.Precision.HIGHEST)
        distance = jnp.square(codebook).sum(axis=-1) - 2 * product
        finite = jnp.isfinite(distance).all(axis=-1)
        codes = jnp.where(finite, jnp.argmin(distance, axis=-1), num_codes)
        return codes.reshape(b, -1).astype(jnp.int32)

    def decode(params, codes, grid):
        x = jnp.asarray(params["quantize"]["embedding"]["kernel"])[codes]
        x = x.reshape(codes.shape[0], *grid, -1)
        return jnp.clip(_decoder(params["decoder"], x, len(multipliers), blocks), 0.0, 1.0)

    shapes = trees.nest(
        {
            _path(name): jax.ShapeDtypeStruct(_ours(shape), jnp.float32)
            for name, shape in select(False).items()
        }
    )
    return Tokenizer(num_codes, cell, shapes, load, encode, decode)


class Target(NamedTuple):
    """A decoder's reconstruction target for each patch: its pixels, or its code.

    width: outputs per patch.
    codes: whether the outputs are logits of codes.
    shapes: the tree of `constants` as jax.ShapeDtypeStruct.
    constants(path) -> frozen arrays of the target: {} or {"tokenizer": ...}, NumPy float32, read
      from the file at `path` and checked. Raises InputError (MissingFile if there is no file).
    encode(constants, images, dtype="float32") -> [B, n, width] pixels or int32 [B, n] codes, of
      images [B, H, W, 3] in [0, 1].
    show(outputs, grid) -> pixels [B, H, W, 3] in [0, 1], or codes int [B, h, w], from outputs
      [B, n, width] for a grid (h, w) of patches.
    decode(path, codes, whole=False) -> images in [0, 1] of codes [B, h, w], by the tokenizer's
      decoder from the file at `path`, resized to the network's patches, or `whole`, as it decodes
      them. Raises InputError.
    """

    width: int
    codes: bool
    shapes: dict[str, Any]
    constants: Callable
    encode: Callable
    show: Callable
    decode: Callable | None = None


def target(kind: str, patch: int, vqgan: Tokenizer | None = None, channels: int = 3) -> Target:
    """The target "pixel", or "vq" (one code of `vqgan` per patch; default: MaskGIT's).

    patch: side in pixels. channels: of the images.

    Raises:
      ValueError: another kind. InputError: "vq" for images that are not RGB.
    """
    if kind == "pixel":
        return _pixels(patch, channels)
    if kind == "vq" and channels != 3:
        raise InputError(f'images have {channels} channels, and codes are of RGB; use "pixel"')
    if kind == "vq":
        return _codes(patch, vqgan or maskgit_vqgan())
    raise ValueError(f'target is "{kind}"; choose one of pixel, vq')


def _pixels(patch: int, channels: int) -> Target:
    def constants(path):
        del path
        return {}

    def encode(constants, images, dtype="float32"):
        del constants, dtype
        return patchify(images, patch)

    def show(outputs, grid):
        return jnp.clip(unpatchify(outputs, patch, grid), 0.0, 1.0)

    return Target(channels * patch**2, False, {}, constants, encode, show)


def _codes(patch: int, vqgan: Tokenizer) -> Target:
    shapes = {"tokenizer": vqgan.shapes}

    def constants(path):
        return {"tokenizer": vqgan.load(path)}

    def encode(constants, images, dtype="float32"):
        height, width = (side // patch * vqgan.cell for side in images.shape[1:3])
        return vqgan.encode(constants["tokenizer"], resize(images, height, width), dtype)

    def show(outputs, grid):
        return outputs.argmax(axis=-1).reshape(-1, *grid)

    def decode(path, codes, whole=False):
        # Only pictures need the decoder's weights, so they are not among a run's constants.
        grid = codes.shape[1:]
        cells = jnp.reshape(codes, (len(codes), -1))
        images = vqgan.decode(vqgan.load(path, decoder=True), cells, grid)
        if whole:
            return images
        return jnp.clip(resize(images, grid[0] * patch, grid[1] * patch), 0.0, 1.0)

    return Target(vqgan.num_codes, True, shapes, constants, encode, show, decode)


def resize(images: jax.Array, height: int, width: int) -> jax.Array:
    """Resamples images [B, H, W, 3] by torch's bicubic without antialiasing, as the official code
    does for patches of 14 px.
    """
    if images.shape[1:3] == (height, width):
        return images
    rows, columns = (
        position.resize_matrix(n, to).astype(np.float32)
        for n, to in zip(images.shape[1:3], (height, width))
    )
    return jnp.einsum(
        "yh,bhwc,xw->byxc", rows, images, columns, precision=jax.lax.Precision.HIGHEST
    )


# The network. Activations are [B, H, W, C]; convolutions keep the size.


def _encoder(params, x, levels: int, blocks: int):
    x = _conv(params["conv_in"], x)
    for level in range(levels):
        for i in range(blocks):
            x = _residual(params["down"][str(level)]["block"][str(i)], x)
        if level < levels - 1:
            b, h, w, c = x.shape
            x = x.reshape(b, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4))
    for i in range(blocks):
        x = _residual(params["mid"][str(i)], x)
    return _conv(params["conv_out"], jax.nn.silu(_group_norm(params["norm_out"], x)))


def _decoder(params, x, levels: int, blocks: int):
    x = _conv(params["conv_in"], x)
    for i in range(blocks):
        x = _residual(params["mid"][str(i)], x)
    for level in reversed(range(levels)):
        for i in range(blocks):
            x = _residual(params["up"][str(level)]["block"][str(i)], x)
        if level:
            x = _conv(
                params["up"][str(level)]["upsample_conv"], x.repeat(2, axis=1).repeat(2, axis=2)
            )
    return _conv(params["conv_out"], jax.nn.silu(_group_norm(params["norm_out"], x)))


def _residual(params, x):
    y = _conv(params["conv1"], jax.nn.silu(_group_norm(params["norm1"], x)))
    y = _conv(params["conv2"], jax.nn.silu(_group_norm(params["norm2"], y)))
    # If the width changes, the published network applies the shortcut to the branch's OUTPUT, not
    # to its input.
    return y + (_conv(params["nin_shortcut"], y) if "nin_shortcut" in params else x)


def _conv(params, x):
    y = jax.lax.conv_general_dilated(
        x,
        params["kernel"].astype(x.dtype),
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + params["bias"].astype(x.dtype) if "bias" in params else y


def _group_norm(params, x):
    b, h, w, c = x.shape
    y = x.astype(jnp.float32).reshape(b, h * w, _GROUPS, c // _GROUPS)
    y = y - y.mean(axis=(1, 3), keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=(1, 3), keepdims=True) + _EPS)
    return (y.reshape(x.shape) * params["scale"] + params["bias"]).astype(x.dtype)


# Weights: their layout {published name: shape in PyTorch's order}, and reading them.


def _layout(channels, multipliers, blocks, num_codes, code_width) -> dict[str, tuple[int, ...]]:
    widths = [channels * m for m in multipliers]
    layout: dict[str, tuple[int, ...]] = {"quantize.embedding.weight": (num_codes, code_width)}

    def conv(name, fan_in, fan_out, side, bias):
        layout[f"{name}.weight"] = (fan_out, fan_in, side, side)
        if bias:
            layout[f"{name}.bias"] = (fan_out,)

    def norm(name, width):
        layout[f"{name}.weight"] = layout[f"{name}.bias"] = (width,)

    def residuals(name, fan_in, fan_out):
        for i in range(blocks):
            norm(f"{name}.{i}.norm1", fan_in)
            conv(f"{name}.{i}.conv1", fan_in, fan_out, 3, False)
            norm(f"{name}.{i}.norm2", fan_out)
            conv(f"{name}.{i}.conv2", fan_out, fan_out, 3, False)
            if fan_in != fan_out:
                conv(f"{name}.{i}.nin_shortcut", fan_out, fan_out, 1, False)
            fan_in = fan_out

    conv("encoder.conv_in", 3, channels, 3, False)
    for level, (fan_in, fan_out) in enumerate(zip([channels, *widths], widths)):
        residuals(f"encoder.down.{level}.block", fan_in, fan_out)
    residuals("encoder.mid", widths[-1], widths[-1])
    norm("encoder.norm_out", widths[-1])
    conv("encoder.conv_out", widths[-1], code_width, 1, True)

    conv("decoder.conv_in", code_width, widths[-1], 3, True)
    residuals("decoder.mid", widths[-1], widths[-1])
    for level, (fan_in, fan_out) in enumerate(zip([*widths[1:], widths[-1]], widths)):
        residuals(f"decoder.up.{level}.block", fan_in, fan_out)
        if level:
            conv(f"decoder.up.{level}.upsample_conv", fan_out, fan_out, 3, True)
    norm("decoder.norm_out", widths[0])
    conv("decoder.conv_out", widths[0], 3, 3, True)
    return layout


def _path(name: str) -> str:
    """The path of a published parameter in our tree; norm weights are "scale", others "kernel"."""
    *parts, leaf = name.split(".")
    weight = "scale" if parts[-1].startswith("norm") else "kernel"
    return "/".join((*parts, weight if leaf == "weight" else leaf))


def _ours(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a published array in our tree: [out, in, height, width] -> [height, width, in,
    out]; others are unchanged."""
    return (*shape[2:], shape[1], shape[0]) if len(shape) == 4 else shape


def _read(path: str, layout: dict[str, tuple[int, ...]]):
    arrays = weights.read(path, "tokenizer", FETCH)
    # A file of a larger model has a prefix such as "tokenizer." or "module.tokenizer.".
    known = "encoder.conv_in.weight"
    prefix = next(
        (name.removesuffix(known) for name in sorted(arrays, key=len) if name.endswith(known)), ""
    )
    flat = {}
    for name, shape in layout.items():
        if prefix + name not in arrays:
            raise InputError(
                f"{path} has no {prefix + name}: these are not the weights of MaskGIT's VQGAN;"
                f" {FETCH}"
            )
        array = np.asarray(arrays[prefix + name], np.float32)
        if array.shape != shape:
            raise InputError(
                f"{path}: {prefix + name} has shape {array.shape}; the tokenizer needs {shape};"
                f" {FETCH}"
            )
        flat[_path(name)] = (
            np.ascontiguousarray(array.transpose(2, 3, 1, 0)) if array.ndim == 4 else array
        )
    return trees.nest(flat)
