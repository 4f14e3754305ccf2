"""Vision transformer (Dosovitskiy et al. 2021) as self-supervised methods use it: any image size,
masks, queries, registers, drop-path.

    from ssl_jax.models import vit
    model = vit.vit(vit.ViTConfig(width=192, depth=12, heads=3, patch=16, image_size=224))
    params = model.init(jax.random.key(0))
    tokens = model.apply(params, images)    # images [B, H, W, 3] in [0, 1]
    tokens.cls, tokens.patches              # [B, 192], [B, n, 192]

Tokens inside the network are ordered: class token, registers, patches (row by row), queries.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.config import InputError, check_multiple, field, keys_of
from ssl_jax.models import attention as attention_lib
from ssl_jax.models import layers as layers_lib
from ssl_jax.models import position as position_lib
from ssl_jax.models import stack, stem
from ssl_jax.models.functional import Model, functional
from ssl_jax.ops import patchify

_BY_SIZE = '0 = from the size; set by hand for model.size="custom"'


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Shape and numerics of a vision transformer.

    Parameters, norms, softmax, residual stream and outputs are float32 whatever `dtype` is.

    Raises:
      InputError: values that cannot work; it names the field.
    """

    width: int = field(
        0, f"token width; {_BY_SIZE}", "channels", required=True, least=0, most=65536
    )
    depth: int = field(
        0, f"number of blocks; {_BY_SIZE}", "blocks", required=True, least=0, most=1000
    )
    heads: int = field(
        0, f"attention heads; {_BY_SIZE}", "heads", required=True, least=0, most=4096
    )
    patch: int = field(16, "side of a square patch", "pixels", required=True, above=0, most=1024)
    image_size: int = field(
        224,
        "native grid of the position codes; other image sizes are interpolated",
        "pixels, square",
        required=True,
        above=0,
        most=16384,
    )
    stem: str = field(
        "linear",
        'from pixels to tokens: "linear", or "conv": convolutions of 3 x 3 (Xiao et al. 2021)',
        choices=("linear", "conv"),
    )
    mlp_ratio: float = field(4.0, "hidden width of the MLP / token width", above=0, most=100)
    cls: bool = field(True, "class token")
    registers: int = field(
        0,
        "extra learned tokens that no output shows (Darcet et al. 2023)",
        "tokens",
        least=0,
        most=10000,
    )
    queries: int = field(0, "extra learned query tokens", "tokens", least=0, most=10000)
    position: str = field(
        "learned",
        'position codes: "sincos" are fixed, and none for the class token',
        choices=("learned", "sincos"),
    )
    position_resize: str = field(
        "exact",
        'resizing of position codes: "exact", or "dino_offset" (DINO-family weights)',
        choices=position_lib.RULES,
    )
    resize_kernel: str = field(
        "keys-0.75",
        'its cubic kernel: "keys-0.75" (torch, plain), or "antialias-0.5" (timm weights)',
        choices=position_lib.KERNELS,
    )
    layer_scale: float = field(
        0.0,
        "LayerScale: initial value of a learned factor per channel of each branch; 0 = none",
        least=0,
        most=100,
    )
    drop_path: float = field(
        0.0,
        "highest stochastic-depth rate (last block), linear over blocks; student only",
        least=0,
        below=1,
    )
    init_std: float = field(
        0.02,
        "standard deviation of initial weights; above 0.4 torch's cut at +-2 would matter",
        above=0,
        most=0.4,
    )
    position_std: float = field(
        0.0, "the same for learned position codes alone; 0 = init_std", least=0, most=4
    )
    cls_std: float = field(0.0, "the same for the class token alone; 0 = init_std", least=0, most=4)
    norm_eps: float = field(
        1e-6,
        "added to the variance in every LayerNorm; Hugging Face's ViT has 1e-12",
        above=0,
        most=1,
    )
    gelu: str = field(
        "erf", '"erf" (exact) or "tanh" (approximate, faster)', choices=("erf", "tanh")
    )
    scan: bool = field(
        False,
        "scan one compiled block: compiles faster, but a GPU step copies every residual;"
        " same numbers",
        free=True,
    )
    attention: str = field(
        "auto",
        'kernel: "auto" takes the fused one of cuDNN or of TPUs where it is faster, else "xla"',
        choices=attention_lib.KINDS,
        free=True,
    )
    remat: str = field(
        "none",
        'recomputed in the backward pass: "none", all but linear layers ("dots"), or all of a'
        ' "block"; less memory, same numbers',
        choices=stack.REMAT,
        free=True,
    )
    dtype: str = field(
        "float32",
        "of the computation; parameters, losses and softmax are always float32",
        choices=("float32", "bfloat16"),
    )
    in_channels: int = field(3, "channels of an image", "channels", above=0, most=1024)
    mean: tuple[float, ...] = field(
        (0.485, 0.456, 0.406),
        "subtracted from images in [0, 1], per channel (ImageNet's)",
        least=0,
        most=1,
    )
    std: tuple[float, ...] = field(
        (0.229, 0.224, 0.225), "divides them then, per channel (ImageNet's)", above=0, most=1
    )
    mask_token: bool = field(False, "own the vector that replaces masked patches")

    def __post_init__(self):
        for name, declared in keys_of(self).items():
            declared.check(name, getattr(self, name))
        check_together(dataclasses.asdict(self))

    @property
    def grid(self) -> int:
        """Side of the native patch grid."""
        return self.image_size // self.patch

    @property
    def hidden(self) -> int:
        """Hidden width of a block's MLP."""
        return int(self.width * self.mlp_ratio)


def check_together(values: Mapping, prefix: str = "") -> None:
    """Refuses fields that contradict each other.

    Args:
      values: {field: value} of a ViTConfig.
      prefix: of the names in messages, "model." for a config.

    Raises:
      InputError: names field, value and remedy.
    """
    for name in ("width", "depth", "heads"):
        if values[name] < 1:
            raise InputError(f"{prefix}{name} is {values[name]}; it must be at least 1")
    width, ratio = values["width"], values["mlp_ratio"]
    check_multiple(f"{prefix}width", width, values["heads"], f"{prefix}heads")
    if values["position"] == "sincos":
        check_multiple(f"{prefix}width", width, 4, f'{prefix}position="sincos"')
    check_multiple(f"{prefix}image_size", values["image_size"], values["patch"], f"{prefix}patch")
    if values["stem"] == "conv" and (values["patch"] < 2 or values["patch"].bit_count() > 1):
        raise InputError(
            f'{prefix}patch is {values["patch"]}; {prefix}stem="conv" halves images until a patch'
            " is one pixel: it must be 2, 4, 8, 16 or a higher power of 2"
        )
    if int(width * ratio) < 1:
        raise InputError(
            f"{prefix}mlp_ratio is {ratio}, which leaves the MLP of width {width} no hidden unit;"
            f" use at least {1 / width:.3g}"
        )
    for name in ("mean", "std"):
        if len(values[name]) != values["in_channels"]:
            raise InputError(
                f"{prefix}{name} is {tuple(values[name])}; it must hold one number for each of the"
                f" {values['in_channels']} channels ({prefix}in_channels)"
            )


class Tokens(NamedTuple):
    """Encoder outputs after the final norm, float32. A pytree: absent parts are None.

    cls: [B, d].
    patches: [B, n, d], row by row; [B, m, d] in the order of `keep` if tokens were dropped.
    queries: [B, q, d].
    layers: {block index: Tokens} for the requested blocks, each after the final norm if asked for
      without `norm_layers=False`.
    attention: [B, heads, N, N] of the last block; rows attend to columns, in the order class token,
      patches, queries. A row sums to 1 less what it gives to the registers, which are left out.
    """

    cls: jax.Array | None
    patches: jax.Array
    queries: jax.Array | None
    layers: dict[int, "Tokens"]
    attention: jax.Array | None


@functools.cache
def vit(config: ViTConfig) -> Model:
    """The network of that config as init(key) -> params and apply(params, images, ...) -> Tokens
    (see `apply` in this function).

    Parameters: "patch" (kernel [patch * patch * channels, d], rows ordered by row, column, channel
    within the patch; or those of `stem.ConvStem`), "cls" [1, d], "position" [(1 if cls) + n, d]
    (class token's code first), "registers" [r, d], "queries" [q, d], "mask_token" [1, d], "blocks"
    (of all blocks: each array is [depth, ...]), "norm".
    """
    model = functional(functools.partial(_ViT, config=config), _ViT.__call__)

    def apply(
        params,
        images,
        *,
        masks=None,
        keep=None,
        keys=None,
        layers=(),
        norm_layers=True,
        attention=False,
    ) -> Tokens:
        """Encodes images.

        Args:
          params: what init returned. A "mask_token" that this config does not own is ignored, so
            that a clean (teacher or evaluation) pass can read the student's tree.
          images: float [B, H, W, channels] in [0, 1]; H and W multiples of the patch.
          masks: bool [B, n], True = the patch embedding is replaced by the mask token before
            position codes are added.
          keep: int32 [B, m], indices of the patches to keep; the others are dropped after position
            codes were added.
          keys: [B] typed PRNG keys, one per image, for drop-path; None = no drop-path.
          layers: block indices whose outputs to return too; norm_layers: after the final norm.
          attention: also return the last block's attention weights.

        Raises:
          ValueError: a shape, dtype or index that does not fit, by name.
        """
        if not config.mask_token:
            params = {name: value for name, value in params.items() if name != "mask_token"}
        _check_inputs(config, images, masks, keep, keys, layers)
        what = tuple(layers), norm_layers, attention
        return model.apply(params, images, masks, keep, keys, *what)

    return model._replace(apply=apply)


def module(config: ViTConfig, key: jax.Array) -> "_ViT":
    """The network as a flax.nnx.Module, to be part of another one."""
    return _ViT(key, config)


class _ViT(nnx.Module):
    def __init__(self, key, config: ViTConfig):
        c, d = config, config.width
        keys = jax.random.split(key, 5)
        self.config = c
        if c.stem == "conv":
            conv = stem.ConvStem(keys[0], c.patch, c.in_channels, d, c.norm_eps, c.dtype)
            self.patch: nnx.Module = conv
        else:
            # torch's default for convolutions, which DINO's initialisation leaves alone: it follows
            # the patch size, 0.02 would not.
            self.patch = layers_lib.linear(
                layers_lib.uniform(keys[0], (c.patch * c.patch * c.in_channels, d)), c.dtype
            )
        if c.cls:
            self.cls = nnx.Param(layers_lib.normal(keys[1], (1, d), c.cls_std or c.init_std))
        if c.position == "learned":
            codes = layers_lib.normal(keys[2], (c.cls + c.grid**2, d), c.position_std or c.init_std)
            self.position = nnx.Param(codes)
        if c.registers:  # almost zero, as in the code of DINOv2
            key_registers = jax.random.fold_in(keys[3], 1)
            self.registers = nnx.Param(layers_lib.normal(key_registers, (c.registers, d), 1e-6))
        if c.queries:  # N(0, 1/d), as in STELLAR
            self.queries = nnx.Param(layers_lib.normal(keys[3], (c.queries, d), d**-0.5))
        if c.mask_token:
            self.mask_token = nnx.Param(jnp.zeros((1, d), jnp.float32))
        block = functools.partial(
            layers_lib.Block,
            width=d,
            heads=c.heads,
            hidden=c.hidden,
            init_std=c.init_std,
            eps=c.norm_eps,
            approximate=c.gelu == "tanh",
            dtype=c.dtype,
            layer_scale=c.layer_scale,
            attention_kind=c.attention,
        )
        self.blocks = stack.stacked(block, keys[4], c.depth)
        self.norm = layers_lib.LayerNorm(d, c.norm_eps)

    def __call__(
        self, images, masks=None, keep=None, keys=None, layers=(), norm_layers=True, attention=False
    ) -> Tokens:
        c = self.config
        x = self._embed(images, masks, keep)
        scales = None
        if keys is not None and c.drop_path > 0:
            scales = stack.drop_path_scales(keys, c.drop_path, c.depth)
        x, inner, weights = self._encode(x, scales, layers, attention)
        if weights is not None and c.registers:
            hidden = slice(int(c.cls), c.cls + c.registers)
            for axis in (2, 3):
                weights = jnp.delete(weights, hidden, axis=axis)
        first, last = c.cls + c.registers, x.shape[1] - c.queries

        def tokens(x, layers, weights, norm=True):
            x = self.norm(x) if norm else x.astype(jnp.float32)
            cls = x[:, 0] if c.cls else None
            queries = x[:, last:] if c.queries else None
            return Tokens(cls, x[:, first:last], queries, layers, weights)

        inner = {i: tokens(y, {}, None, norm_layers) for i, y in inner.items()}
        return tokens(x, inner, weights)

    def queries_after(self, images: jax.Array, middle: jax.Array | None) -> jax.Array:
        """The query tokens [B, q, d] after the final norm, with codes [depth - 1, N, d] added to
        all tokens after every block but the last."""
        c = self.config
        codes = None if middle is None else jnp.pad(middle, ((0, 1), (0, 0), (0, 0)))
        x = self._embed(images, None, None)
        x = stack.run(self.blocks, x, codes=codes, scan=c.scan, remat=c.remat)
        return self.norm(x[:, x.shape[1] - c.queries :])

    def _embed(self, images, masks, keep):
        """Images [B, H, W, C] -> tokens [B, N, d] (float32) before the first block."""
        c = self.config
        b, height, width, _ = images.shape
        mean, std = (jnp.array(values, jnp.float32) for values in (c.mean, c.std))
        x = (images.astype(jnp.float32) - mean) / std
        x = self.patch(x if c.stem == "conv" else patchify(x, c.patch)).astype(jnp.float32)
        if masks is not None:
            x = jnp.where(masks[..., None], self.mask_token[...], x)
        cls_code, codes = self._codes((height // c.patch, width // c.patch))
        x = x + codes
        if keep is not None:
            x = jnp.take_along_axis(x, keep[..., None], axis=1)
        parts = [x]
        if c.registers:
            parts.insert(0, jnp.broadcast_to(self.registers[...], (b, c.registers, c.width)))
        if c.cls:
            parts.insert(0, jnp.broadcast_to(self.cls[...] + cls_code, (b, 1, c.width)))
        if c.queries:
            parts.append(jnp.broadcast_to(self.queries[...], (b, c.queries, c.width)))
        return jnp.concatenate(parts, axis=1)

    def _codes(self, grid):
        """Position codes of the class token ([1, d], or 0) and of the patches [n, d] for an image
        of that grid.
        """
        c = self.config
        resize = functools.partial(
            position_lib.resize_codes,
            native=c.grid,
            target=grid,
            rule=c.position_resize,
            kernel=c.resize_kernel,
        )
        if c.position == "sincos":
            return 0.0, resize(jnp.asarray(position_lib.sincos_2d(c.grid, c.width), jnp.float32))
        codes = self.position[...]
        return codes[: int(c.cls)], resize(codes[int(c.cls) :])

    def _encode(self, x, scales, layers, attention):
        """Runs all blocks: x after the last, {i: x after block i} for i in layers, and the last
        block's weights or None.

        With scan, the stack is split only where an output is requested.
        """
        c, depth = self.config, self.config.depth
        # The last block runs by itself if it has to show its weights.
        stacked = depth - 1 if attention else depth
        outputs, start, weights = {}, 0, None
        for stop in sorted({i + 1 for i in layers if i < stacked} | {stacked}):
            x = stack.run(
                self.blocks, x, scales, start=start, stop=stop, scan=c.scan, remat=c.remat
            )
            outputs[stop - 1], start = x, stop
        if attention:
            last = stack.block_of(self.blocks, depth - 1)
            x, weights = last(x, None if scales is None else scales[depth - 1], return_weights=True)
            outputs[depth - 1] = x
        return x, {i: outputs[i] for i in sorted(layers)}, weights


def _check_inputs(config: ViTConfig, images, masks, keep, keys, layers) -> None:
    if images.ndim != 4 or images.shape[-1] != config.in_channels:
        raise ValueError(
            f"images have shape {images.shape}; expected [B, H, W, {config.in_channels}]"
        )
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(
            f"images are {images.dtype}; expected floating point in [0, 1] (divide uint8 by 255)"
        )
    b, height, width, _ = images.shape
    if height < 1 or width < 1 or height % config.patch or width % config.patch:
        raise ValueError(
            f"images are {height} x {width} pixels; both must be multiples of patch ="
            f" {config.patch}"
        )
    n = (height // config.patch) * (width // config.patch)
    if masks is not None:
        if not config.mask_token:
            raise ValueError("masks need a mask token; make the model with mask_token=True")
        if masks.shape != (b, n) or masks.dtype != bool:
            raise ValueError(
                f"masks are {masks.dtype} of shape {masks.shape}; expected bool of shape {(b, n)}"
            )
    if keep is not None:
        if keep.ndim != 2 or keep.shape[0] != b or not jnp.issubdtype(keep.dtype, jnp.integer):
            raise ValueError(
                f"keep is {keep.dtype} of shape {keep.shape}; expected integers of shape ({b}, m)"
            )
        if not 1 <= keep.shape[1] <= n:
            raise ValueError(f"keep lists {keep.shape[1]} patches per image; expected 1 to {n}")
    if keys is not None and (
        not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) or keys.shape != (b,)
    ):
        raise ValueError(
            f"keys are {keys.dtype} of shape {keys.shape}; expected PRNG keys of jax.random.key"
            f" of shape ({b},)"
        )
    for i in layers:
        if not 0 <= i < config.depth:
            raise ValueError(
                f"layers asks for block {i}; blocks are numbered 0 to {config.depth - 1}"
            )
