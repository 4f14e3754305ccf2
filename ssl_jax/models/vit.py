"""Vision transformer (Dosovitskiy et al. 2021) as self-supervised methods use it: any image size,
masks, queries, drop-path.

    from ssl_jax.models import vit
    model = vit.vit(vit.ViTConfig(width=192, depth=12, heads=3, patch=16, image_size=224))
    params = model.init(jax.random.key(0))
    tokens = model.apply(params, images)          # images [B, H, W, 3] in [0, 1]; tokens.cls [B,
    192], tokens.patches [B, n, 192]

Tokens inside the network are ordered: class token, patches (row by row), queries.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import layers as layers_lib
from ssl_jax.models import position
from ssl_jax.models.functional import Model, functional


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Shape and numerics of a vision transformer. Raises ValueError, naming the field, for values
    that cannot work.
    """

    width: int  # d, channels of a token
    depth: int  # transformer blocks
    heads: int  # attention heads; must divide width
    patch: int  # side of a square patch, pixels
    # side of the square image the position codes are stored for, pixels; others are resized to
    image_size: int
    mlp_ratio: float = 4.0  # hidden width of a block's MLP over width
    cls: bool = True  # a class token in front of the patches
    queries: int = 0  # learned extra tokens behind the patches, without position codes
    position: str = (
        "learned"  # "learned" or "sincos" (fixed, no parameters; the class token gets none)
    )
    position_resize: str = "exact"  # see position.resize_matrix
    resize_kernel: str = "keys-0.75"  # see position.resize_matrix
    drop_path: float = 0.0  # rate at the last block, rising linearly from 0 at the first
    init_std: float = 0.02  # standard deviation of initial kernels, class token and position codes
    position_std: float = (
        0.0  # standard deviation of initial learned position codes alone; 0 = init_std
    )
    norm_eps: float = 1e-6
    gelu: str = (
        "erf"  # "erf" (exact, as published weights need) or "tanh" (approximation, a little faster)
    )
    mask_token: bool = False  # own the vector that replaces masked patches
    scan: bool = False  # one compiled block for all layers: compiles in constant time; same numbers
    remat: bool = False  # recompute each block in the backward pass: memory for time; same numbers
    # compute dtype; parameters, norms, softmax, residual stream and outputs stay float32
    dtype: str = "float32"
    in_channels: int = 3
    mean: tuple[float, ...] = (
        0.485,
        0.456,
        0.406,
    )  # subtracted from images in [0, 1] first (ImageNet)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)  # then divided by

    def __post_init__(self):
        for name in ("width", "depth", "heads", "patch", "image_size", "in_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.width % self.heads:
            raise ValueError(
                f"width is {self.width}; it must be a multiple of heads = {self.heads}"
            )
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size is {self.image_size}; it must be a multiple of patch = {self.patch}"
            )
        if self.hidden < 1:
            raise ValueError(
                f"mlp_ratio is {self.mlp_ratio}; it leaves the MLP of width {self.width} no hidden"
                " unit"
            )
        if self.queries < 0:
            raise ValueError(f"queries is {self.queries}; it must be at least 0")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path is {self.drop_path}; it must lie in [0, 1)")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f'{name} is "{getattr(self, name)}"; choose one of {", ".join(allowed)}'
                )
        if self.position == "sincos" and self.width % 4:
            raise ValueError(
                f'width is {self.width}; it must be a multiple of 4 for position = "sincos"'
            )
        layers_lib.check_init_std(self.init_std)
        if not 0 <= self.position_std <= 4:
            raise ValueError(
                f"position_std is {self.position_std}; it must lie in [0, 4] (0 = init_std)"
            )
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.in_channels:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} values; in_channels ="
                    f" {self.in_channels} are needed"
                )

    @property
    def grid(self) -> int:
        """Side of the native patch grid."""
        return self.image_size // self.patch

    @property
    def hidden(self) -> int:
        """Hidden width of a block's MLP."""
        return int(self.width * self.mlp_ratio)


_CHOICES = {
    "position": ("learned", "sincos"),
    "position_resize": position.RULES,
    "resize_kernel": position.KERNELS,
    "gelu": ("erf", "tanh"),
    "dtype": ("float32", "bfloat16"),
}


class Tokens(NamedTuple):
    """Encoder outputs after the final norm, float32. A pytree: absent parts are None."""

    cls: jax.Array | None  # [B, d]
    patches: (
        jax.Array
    )  # [B, n, d], row by row; [B, m, d] in the order of `keep` if tokens were dropped
    queries: jax.Array | None  # [B, q, d]
    layers: dict  # {block index: Tokens} for the requested blocks, each after the final norm
    attention: (
        jax.Array | None
    )  # [B, heads, N, N], last block; rows attend to columns; order: cls, patches, queries


@functools.cache
def vit(config: ViTConfig) -> Model:
    """The network of that config as init(key) -> params and apply(params, images, ...) -> Tokens
    (see `apply` in this function).

    Parameters: "patch" (kernel [patch * patch * channels, d], rows ordered by row, column, channel
    within the patch), "cls" [1, d], "position" [(1 if cls) + n, d] (class token's code first),
    "queries" [q, d], "mask_token" [1, d], "blocks/i/...", "norm"."""
    model = functional(functools.partial(_ViT, config=config), _ViT.__call__)

    def apply(
        params, images, *, masks=None, keep=None, keys=None, layers=(), attention=False
    ) -> Tokens:
        """Encodes images.

        Args:
          params: what init returned. A "mask_token" that this config does not own is ignored, so
            that a clean (teacher or evaluation) pass can read the student's tree.
          images: float [B, H, W, channels] in [0, 1]; H and W multiples of the patch.
          masks: bool [B, n], True = the patch embedding is replaced by the mask token before
          position codes are added. keep: int32 [B, m], indices of the patches to keep; the others
          are dropped after position codes were added. keys: [B] typed PRNG keys, one per image, for
          drop-path; None = no drop-path.
          layers: block indices whose outputs to return too.
          attention: also return the last block's attention weights.

        Raises:
          ValueError: a shape, dtype or index that does not fit, by name.
        """
        if not config.mask_token:
            params = {name: value for name, value in params.items() if name != "mask_token"}
        _check_inputs(config, images, masks, keep, keys, layers)
        return model.apply(params, images, masks, keep, keys, tuple(layers), attention)

    return model._replace(apply=apply)


class _ViT(nnx.Module):
    def __init__(self, key, config: ViTConfig):
        c, d = config, config.width
        keys = jax.random.split(key, 5)
        self.config = c
        # torch's default for convolutions, which DINO's initialisation leaves alone: it follows the
        # patch size, 0.02 would not.
        self.patch = layers_lib.linear(
            layers_lib.uniform(keys[0], (c.patch * c.patch * c.in_channels, d)), c.dtype
        )
        if c.cls:
            self.cls = nnx.Param(layers_lib.normal(keys[1], (1, d), c.init_std))
        if c.position == "learned":
            self.position = nnx.Param(
                layers_lib.normal(keys[2], (c.cls + c.grid**2, d), c.position_std or c.init_std)
            )
        if c.queries:
            self.queries = nnx.Param(
                layers_lib.normal(keys[3], (c.queries, d), d**-0.5)
            )  # STELLAR: N(0, 1/d)
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
        )
        self.blocks = nnx.List([block(jax.random.fold_in(keys[4], i)) for i in range(c.depth)])
        self.norm = layers_lib.layer_norm(d, c.norm_eps)

    def __call__(self, images, masks, keep, keys, layers, attention) -> Tokens:
        c = self.config
        x = self._embed(images, masks, keep)
        patches = x.shape[1] - c.cls - c.queries
        scales = None
        if keys is not None and c.drop_path > 0:
            scales = layers_lib.drop_path_scales(keys, c.drop_path, c.depth)
        x, seen, weights = self._encode(x, scales, layers, attention)

        def tokens(x, layers, weights):
            x = self.norm(x)
            cls = x[:, 0] if c.cls else None
            queries = x[:, c.cls + patches :] if c.queries else None
            return Tokens(cls, x[:, c.cls : c.cls + patches], queries, layers, weights)

        return tokens(x, {i: tokens(y, {}, None) for i, y in seen.items()}, weights)

    def _embed(self, images, masks, keep):
        """Images [B, H, W, C] -> tokens [B, N, d] (float32) before the first block."""
        c = self.config
        b, height, width, _ = images.shape
        grid = (height // c.patch, width // c.patch)
        x = (images.astype(jnp.float32) - jnp.array(c.mean, jnp.float32)) / jnp.array(
            c.std, jnp.float32
        )
        x = x.reshape(b, grid[0], c.patch, grid[1], c.patch, c.in_channels).transpose(
            0, 1, 3, 2, 4, 5
        )
        x = self.patch(x.reshape(b, grid[0] * grid[1], -1)).astype(jnp.float32)
        if masks is not None:
            x = jnp.where(masks[..., None], self.mask_token[...], x)
        cls_code, codes = self._codes(grid)
        x = x + codes
        if keep is not None:
            x = jnp.take_along_axis(x, keep[..., None], axis=1)
        parts = [x]
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
            position.resize_codes,
            native=c.grid,
            target=grid,
            rule=c.position_resize,
            kernel=c.resize_kernel,
        )
        if c.position == "sincos":
            return 0.0, resize(jnp.asarray(position.sincos_2d(c.grid, c.width), jnp.float32))
        codes = self.position[...]
        return codes[: int(c.cls)], resize(codes[int(c.cls) :])

    def _encode(self, x, scales, layers, attention):
        """Runs all blocks: x after the last, {i: x after block i} for i in layers, and the last
        block's weights or None.

        With scan, the stack is cut only where an output is asked for.
        """
        depth = self.config.depth
        stacked = (
            depth - 1 if attention else depth
        )  # the last block runs by itself if it has to show its weights
        outputs, start, weights = {}, 0, None
        for stop in sorted({i + 1 for i in layers if i < stacked} | {stacked}):
            x = self._run(x, scales, start, stop)
            outputs[stop - 1], start = x, stop
        if attention:
            x, weights = self.blocks[depth - 1](
                x, None if scales is None else scales[depth - 1], return_weights=True
            )
            outputs[depth - 1] = x
        return x, {i: outputs[i] for i in sorted(layers)}, weights

    def _run(self, x, scales, start: int, stop: int):
        """Blocks start .. stop - 1, one after the other or as a scan over their stacked
        parameters.
        """
        if start == stop:
            return x
        graphdef = nnx.split(self.blocks[start], graph=True)[0]
        states = [nnx.split(self.blocks[i], graph=True)[1] for i in range(start, stop)]

        def body(x, inputs):
            state, scale = inputs
            return nnx.merge(graphdef, state)(x, scale)[0], None

        if self.config.remat:
            body = jax.checkpoint(body, prevent_cse=not self.config.scan)
        if self.config.scan:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
            return jax.lax.scan(body, x, (stacked, None if scales is None else scales[start:stop]))[
                0
            ]
        for i, state in zip(range(start, stop), states, strict=True):
            x, _ = body(x, (state, None if scales is None else scales[i]))
        return x


def _check_inputs(config: ViTConfig, images, masks, keep, keys, layers) -> None:
    if images.ndim != 4 or images.shape[-1] != config.in_channels:
        raise ValueError(
            f"images have shape {images.shape}; wanted [B, H, W, {config.in_channels}]"
        )
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(
            f"images are {images.dtype}; wanted floating point in [0, 1] (divide uint8 by 255)"
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
            raise ValueError(
                "masks were given but mask_token is False; make the model with mask_token=True"
            )
        if masks.shape != (b, n) or masks.dtype != bool:
            raise ValueError(
                f"masks are {masks.dtype} of shape {masks.shape}; wanted bool of shape {(b, n)}"
            )
    if keep is not None:
        if keep.ndim != 2 or keep.shape[0] != b or not jnp.issubdtype(keep.dtype, jnp.integer):
            raise ValueError(
                f"keep is {keep.dtype} of shape {keep.shape}; wanted integers of shape ({b}, m)"
            )
        if not 1 <= keep.shape[1] <= n:
            raise ValueError(f"keep lists {keep.shape[1]} patches per image; wanted 1 to {n}")
    if keys is not None and (
        not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) or keys.shape != (b,)
    ):
        raise ValueError(
            f"keys are {keys.dtype} of shape {keys.shape}; wanted typed PRNG keys (jax.random.key)"
            f" of shape ({b},)"
        )
    for i in layers:
        if not 0 <= i < config.depth:
            raise ValueError(
                f"layers asks for block {i}; blocks are numbered 0 to {config.depth - 1}"
            )
