"""Transformer decoders from tokens to one output per image cell: MAE's (with mask tokens) and
STELLAR's (without).

    from ssl_jax.models import decoder, position
    model = decoder.decoder(768, 16 * 16 * 3, depth=8, heads=16, mask_token=True, cls=True)
    params = model.init(jax.random.key(0))
    codes = position.sincos_2d(14, 512)                            # [196, 512]
    # tokens [B, 1 + 49, 768] and keep [B, 49] -> [B, 196, 768]
    pixels = model.apply(params, tokens, codes, keep=keep)

The caller passes the position embeddings: `position.sincos_2d` for MAE, random Fourier features for
STELLAR.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import layers as layers_lib
from ssl_jax.models import stack
from ssl_jax.models.functional import Model, functional


@functools.cache
def decoder(
    in_dim: int,
    out_dim: int,
    *,
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    mlp_ratio: float = 4.0,
    norm_eps: float = 1e-6,
    init_std: float = 0.02,
    gelu: str = "erf",
    mask_token: bool = False,
    cls: bool = False,
    remat: str = "none",
    attention: str = "auto",
    dtype: str = "float32",
) -> Model:
    """Linear, + position embeddings, pre-norm blocks, LayerNorm, Linear.

    Args:
      in_dim: channels of a token; out_dim: channels of an output (patch * patch * 3 for pixels, K
        for codes).
      width, depth, heads, mlp_ratio, norm_eps, gelu, dtype, remat, attention: settings of the
        blocks, as in `ViTConfig`.
      init_std: standard deviation of the initial kernels and of the mask token.
      mask_token: whether the model has a mask token, which fills cells without a token.
      cls: whether the first token is a class token: its position embedding is zero, others attend
        to it, and it has no output.

    Returns:
      Model with parameters "embed", "mask_token" [1, width], "blocks" (each array
      [depth, ...]), "norm", "out", and
      apply(params, tokens, codes, *, keep=None) -> float32 [B, n, out_dim]:
        tokens [B, m, in_dim], or [B, 1 + m, in_dim] with `cls`; any float type;
        codes [n, width], position embeddings of all n cells, row by row;
        keep [B, m] int, distinct: the cell of each token; the mask token fills the other cells.
          None: m = n, in order.
      apply raises ValueError for wrong shapes, naming the argument.

    Raises:
      ValueError: invalid sizes.

    Reference: He et al. 2021, "Masked Autoencoders Are Scalable Vision Learners", section 3 (MAE
    decoder).
    """
    hidden = int(width * mlp_ratio)
    sizes = dict(in_dim=in_dim, out_dim=out_dim, width=width, depth=depth, heads=heads)
    for name, value in (sizes | {"mlp_ratio * width": hidden}).items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if width % heads:
        raise ValueError(f"width is {width}; it must be a multiple of heads = {heads}")
    if gelu not in ("erf", "tanh"):
        raise ValueError(f'gelu is "{gelu}"; choose one of erf, tanh')
    layers_lib.check_init_std(init_std)
    block = functools.partial(
        layers_lib.Block,
        width=width,
        heads=heads,
        hidden=hidden,
        init_std=init_std,
        eps=norm_eps,
        activation=gelu,
        dtype=dtype,
        attention_kind=attention,
    )
    model = functional(
        _Decoder,
        in_dim=in_dim,
        out_dim=out_dim,
        width=width,
        depth=depth,
        norm_eps=norm_eps,
        init_std=init_std,
        dtype=dtype,
        block=block,
        mask_token=mask_token,
        lead=int(cls),
        remat=remat,
    )

    def apply(params, tokens, codes, *, keep=None):
        _check_inputs(
            tokens, codes, keep, in_dim=in_dim, width=width, mask_token=mask_token, cls=cls
        )
        return model.apply(params, tokens, codes, keep)

    return model._replace(apply=apply)


class _Decoder(nnx.Module):
    def __init__(
        self,
        key,
        *,
        in_dim,
        out_dim,
        width,
        depth,
        norm_eps,
        init_std,
        dtype,
        block,
        mask_token,
        lead,
        remat,
    ):
        keys = jax.random.split(key, 4)
        self.embed = layers_lib.linear(layers_lib.normal(keys[0], (in_dim, width), init_std), dtype)
        if mask_token:
            self.mask_token = nnx.Param(layers_lib.normal(keys[1], (1, width), init_std))
        self.blocks = stack.stacked(block, keys[2], depth)
        self.norm = layers_lib.LayerNorm(width, norm_eps)
        self.out = layers_lib.linear(layers_lib.normal(keys[3], (width, out_dim), init_std), dtype)
        self.lead, self.remat = lead, remat  # lead: number of leading tokens without a cell

    def __call__(self, tokens, codes, keep):
        lead = self.lead
        x = self.embed(tokens).astype(jnp.float32)
        first, cells = x[:, :lead], x[:, lead:]
        if keep is not None:
            cells = self._fill(cells, keep, codes.shape[0])
        x = jnp.concatenate([first, cells + codes.astype(jnp.float32)], axis=1)
        x = stack.run(self.blocks, x, remat=self.remat)
        return self.out(self.norm(x[:, lead:])).astype(jnp.float32)

    def _fill(self, cells, keep, n: int):
        """[B, n, width]: `cells` [B, m, width] at the indices `keep`, the mask token elsewhere."""
        empty = jnp.broadcast_to(self.mask_token[...], (n, cells.shape[-1]))
        return jax.vmap(lambda rows, index: empty.at[index].set(rows, unique_indices=True))(
            cells, keep
        )


def _check_inputs(tokens, codes, keep, *, in_dim, width, mask_token, cls) -> None:
    if tokens.ndim != 3 or tokens.shape[-1] != in_dim or tokens.shape[1] <= cls:
        raise ValueError(
            f"tokens have shape {tokens.shape}; expected [B, {'1 + ' * cls}m, {in_dim}] with m at"
            " least 1"
        )
    if codes.ndim != 2 or codes.shape[1] != width:
        raise ValueError(f"codes have shape {codes.shape}; expected [n, {width}]")
    (b, m), n = (tokens.shape[0], tokens.shape[1] - cls), codes.shape[0]
    if keep is None:
        if m != n:
            raise ValueError(
                f"tokens are for {m} cells but codes for {n}; without keep there must be one for"
                " each"
            )
        return
    if not mask_token:
        raise ValueError("keep needs a mask token; make the model with mask_token=True")
    if keep.shape != (b, m) or not jnp.issubdtype(keep.dtype, jnp.integer):
        raise ValueError(
            f"keep is {keep.dtype} of shape {keep.shape}; expected integers of shape {(b, m)}"
        )
    if m > n:
        raise ValueError(
            f"keep places {m} tokens in {n} cells; there must be at least as many cells"
        )
