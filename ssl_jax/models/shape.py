"""Settings of vision transformers, their output tokens, and checks of settings and inputs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError, check_multiple, field, keys_of
from ssl_jax.models import attention as attention_lib
from ssl_jax.models import position as position_lib
from ssl_jax.models import rope as rope_lib
from ssl_jax.models import stack

_BY_SIZE = '0 = from model.size; set it for model.size="custom"'


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Shape and numerics of a vision transformer.

    Parameters, norms, softmax, residual stream and outputs are float32 for any `dtype`.

    Raises:
      InputError: an invalid value; the message names the field.
    """

    width: int = field(
        0, f"width of the tokens; {_BY_SIZE}", "channels", required=True, least=0, most=65536
    )
    depth: int = field(
        0, f"number of blocks; {_BY_SIZE}", "blocks", required=True, least=0, most=1000
    )
    heads: int = field(
        0, f"number of attention heads; {_BY_SIZE}", "heads", required=True, least=0, most=4096
    )
    patch: int = field(16, "side of a square patch", "pixels", required=True, above=0, most=1024)
    image_size: int = field(
        224,
        "image size of the position embeddings, which are interpolated for other sizes",
        "pixels, square",
        required=True,
        above=0,
        most=16384,
    )
    stem: str = field(
        "linear",
        'patch embedding: "linear", or "conv", 3 x 3 convolutions (Xiao et al. 2021)',
        choices=("linear", "conv"),
    )
    mlp_ratio: float = field(
        4.0, "ratio of the MLP's hidden width to the token width", above=0, most=100
    )
    mlp: str = field(
        "gelu",
        'MLP of each block: "gelu", or "swiglu", gated (DINOv3 S+, H+, 7B)',
        choices=("gelu", "swiglu"),
    )
    qkv_bias: str = field(
        "all",
        'which of query, key and value have a bias: "all", "qv" (DINOv3), or "none"',
        choices=("all", "qv", "none"),
    )
    cls: bool = field(True, "whether the network has a class token")
    registers: int = field(
        0,
        "extra learned tokens that are dropped from the outputs (Darcet et al. 2023)",
        "tokens",
        least=0,
        most=10000,
    )
    queries: int = field(
        0, "extra learned query tokens, the sparse tokens of STELLAR", "tokens", least=0, most=10000
    )
    position: str = field(
        "learned",
        'position embeddings: "learned"; "sincos", fixed, without one for the class token; or'
        ' "rope", rotation of queries and keys of patches (DINOv3)',
        choices=("learned", "sincos", "rope"),
    )
    rope_base: float = field(100.0, "base of RoPE's periods", above=1, most=1e6)
    rope_rounded: bool = field(
        False, "round RoPE's periods to bfloat16, as DINOv3's files; timm and transformers do not"
    )
    rope_shift: float = field(
        0.0,
        "largest random shift of the student's RoPE coordinates (an image spans -1 to 1); 0 = none",
        least=0,
        most=10,
    )
    rope_jitter: float = field(
        1.0,
        "largest random stretch of the student's RoPE coordinates per axis; 1 = none",
        least=1,
        most=100,
    )
    rope_rescale: float = field(
        1.0,
        "largest random stretch of the student's RoPE coordinates, both axes alike (DINOv3 7B: 2);"
        " 1 = none",
        least=1,
        most=100,
    )
    position_resize: str = field(
        "exact",
        'resizing rule of position embeddings: "exact", or "dino_offset" (DINO-family weights)',
        choices=position_lib.RULES,
    )
    resize_kernel: str = field(
        "keys-0.75",
        'cubic kernel that resizes position embeddings: "keys-0.75" (torch, without antialiasing),'
        ' or "antialias-0.5" (timm weights)',
        choices=position_lib.KERNELS,
    )
    layer_scale: float = field(
        0.0,
        "initial value of LayerScale, a learned factor per channel of each residual branch; 0 = no"
        " LayerScale",
        least=0,
        most=100,
    )
    stages: tuple[int, ...] = field(
        (),
        "Swin: number of blocks in each stage; the last stage has model.width, model.heads and"
        " patches of model.patch pixels, each earlier stage half of all three; () = a plain vision"
        " transformer",
        element=2,
        above=0,
        most=1000,
    )
    window: int = field(7, "Swin: side of a window", "tokens", above=0, most=1024)
    shift_first: bool = field(
        False,
        "Swin: shift the grid before padding it to whole windows (timm); False = after padding"
        " (EsViT, iBOT, SOP). Both agree if windows divide the grid",
    )
    drop_path: float = field(
        0.0,
        "stochastic-depth rate of the last block, rising linearly from 0 at the first; student"
        " only",
        least=0,
        below=1,
    )
    init_std: float = field(
        0.02,
        "standard deviation of the initial weights; at most 0.4, where truncation at +-2 is"
        " negligible",
        above=0,
        most=0.4,
    )
    position_std: float = field(
        0.0,
        "standard deviation of initial learned position embeddings; 0 = init_std",
        least=0,
        most=4,
    )
    cls_std: float = field(
        0.0, "standard deviation of the initial class token; 0 = init_std", least=0, most=4
    )
    norm_eps: float = field(
        1e-6, "constant added to LayerNorm's variance (Hugging Face's ViT: 1e-12)", above=0, most=1
    )
    gelu: str = field(
        "erf", 'GELU: "erf" (exact) or "tanh" (approximate, faster)', choices=("erf", "tanh")
    )
    scan: bool = field(
        False,
        "compile one block and scan over all: compiles faster, but a GPU step copies every"
        " residual; same numbers",
        free=True,
    )
    attention: str = field(
        "auto",
        'attention kernel: "auto" takes the fused kernel of cuDNN or of TPUs where it is faster,'
        ' otherwise "xla"',
        choices=attention_lib.KINDS,
        free=True,
    )
    remat: str = field(
        "none",
        'what the backward pass recomputes to save memory: "none", all but linear layers ("dots"),'
        ' or all of each "block"; same numbers',
        choices=stack.REMAT,
        free=True,
    )
    dtype: str = field(
        "float32",
        "type of the computation; parameters, losses and softmax are always float32",
        choices=("float32", "bfloat16"),
    )
    in_channels: int = field(3, "number of channels of an image", "channels", above=0, most=1024)
    mean: tuple[float, ...] = field(
        (0.485, 0.456, 0.406),
        "mean per channel that is subtracted from images in [0, 1] (ImageNet's)",
        least=0,
        most=1,
    )
    std: tuple[float, ...] = field(
        (0.229, 0.224, 0.225),
        "divisor per channel after subtracting mean (ImageNet's)",
        above=0,
        most=1,
    )
    mask_token: bool = field(
        False, "whether the network has the learned vector that replaces masked patches"
    )

    def __post_init__(self):
        for name, declared in keys_of(self).items():
            declared.check(name, getattr(self, name))
        check_together(dataclasses.asdict(self))

    @property
    def grid(self) -> int:
        """Side of the native patch grid."""
        return self.image_size // self.patch

    @property
    def activation(self) -> str:
        """Activation of the blocks' MLP, see `layers.Mlp`."""
        return self.mlp if self.mlp == "swiglu" else self.gelu

    @property
    def rope(self) -> rope_lib.Settings:
        """The settings `rope_*`."""
        fields = rope_lib.Settings._fields
        return rope_lib.Settings(*(getattr(self, f"rope_{name}") for name in fields))

    @property
    def hidden(self) -> int:
        """Hidden width of a block's MLP."""
        return int(self.width * self.mlp_ratio)


def check_together(values: Mapping, prefix: str = "") -> None:
    """Refuses fields that contradict each other.

    Args:
      values: {field: value} of a ViTConfig.
      prefix: prefix of names in messages, such as "model.".

    Raises:
      InputError: naming field, value and remedy.
    """
    for name in ("width", "depth", "heads"):
        if values[name] < 1:
            raise InputError(f"{prefix}{name} is {values[name]}; it must be at least 1")
    width, ratio = values["width"], values["mlp_ratio"]
    check_multiple(f"{prefix}width", width, values["heads"], f"{prefix}heads")
    if values["position"] == "sincos":
        check_multiple(f"{prefix}width", width, 4, f'{prefix}position="sincos"')
    if values["position"] == "rope":
        heads = values["heads"]
        check_multiple(f"{prefix}width", width, 4 * heads, f'4 {prefix}heads (position="rope")')
    check_multiple(f"{prefix}image_size", values["image_size"], values["patch"], f"{prefix}patch")
    if values["stem"] == "conv" and (values["patch"] < 2 or values["patch"].bit_count() > 1):
        raise InputError(
            f'{prefix}patch is {values["patch"]}; {prefix}stem="conv" halves images until a patch'
            " is one pixel: it must be 2, 4, 8, 16 or a higher power of 2"
        )
    if values["stages"]:
        _check_stages(values, prefix)
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


def _check_stages(values: Mapping, prefix: str) -> None:
    """`check_together` for a Swin transformer."""
    stages = tuple(values["stages"])
    if sum(stages) != values["depth"]:
        raise InputError(
            f"{prefix}stages is {stages}, {sum(stages)} blocks, but {prefix}depth is"
            f" {values['depth']}; make them agree"
        )
    halves = 2 ** (len(stages) - 1)
    for name in ("width", "heads", "patch"):
        check_multiple(f"{prefix}{name}", values[name], halves, f"2^({prefix}stages - 1)")
    lacking = dict(cls=False, registers=0, queries=0, stem="linear", mlp="gelu", qkv_bias="all")
    for name, without in lacking.items():
        if values[name] != without:
            raise InputError(
                f"{prefix}{name} is {values[name]!r}, which a Swin transformer ({prefix}stages)"
                f" does not have; set {prefix}{name}={without!r}"
            )
    if values["position"] == "rope":
        raise InputError(
            f'{prefix}position is "rope", but a Swin transformer ({prefix}stages) has relative'
            f' position biases; set {prefix}position="learned"'
        )
    if values["layer_scale"]:
        raise InputError(
            f"{prefix}layer_scale is {values['layer_scale']}, which a Swin transformer"
            f" ({prefix}stages) does not have; set it to 0"
        )


class Tokens(NamedTuple):
    """Encoder outputs after the final norm, float32. A pytree: absent parts are None.

    cls: [B, d].
    patches: [B, n, d], row by row; [B, m, d] in the order of `keep` if tokens were dropped.
    queries: [B, q, d].
    layers: {block index: Tokens} for the requested blocks, -1 = before the first, each after the
      final norm unless `norm_layers` is false.
    attention: [B, heads, N, N] of the last block; rows attend to columns, in the order class token,
      patches, queries. Registers are omitted: a row sums to 1 minus its weight on them.
    """

    cls: jax.Array | None
    patches: jax.Array
    queries: jax.Array | None
    layers: dict[int, "Tokens"]
    attention: jax.Array | None

    def on_grid(self, height: int, width: int) -> jax.Array:
        """The patches as a grid [B, f height, f width, d], for height x width patches in the last
        block; f is 1, or a power of 2 in earlier stages of a Swin transformer."""
        b, n, d = self.patches.shape
        finer = math.isqrt(n // (height * width))
        return self.patches.reshape(b, finer * height, finer * width, d)


def check_inputs(
    config: ViTConfig,
    images: jax.Array,
    masks: jax.Array | None,
    keep: jax.Array | None,
    keys: jax.Array | None,
    layers: Sequence[int],
) -> None:
    """Raises ValueError for inputs that a network of this config cannot encode; arguments as in
    `vit.vit(...).apply`."""
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
    if keep is not None and config.stages:
        raise ValueError("keep drops patches, which a network with windows (stages) cannot do")
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
        if not -1 <= i < config.depth:
            raise ValueError(
                f"layers asks for block {i}; blocks are numbered 0 to {config.depth - 1}, and -1 is"
                " before the first"
            )
