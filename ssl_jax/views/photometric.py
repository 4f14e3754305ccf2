"""Photometric augmentation inside the jitted step: colour jitter, grayscale, Gaussian blur,
solarize.

Torchvision's operations in the order of DINO and iBOT: jitter (its four operations in an order
drawn per view), grayscale, blur, solarize; every view draws which of them apply. All branches are
computed for all views, and a mask selects (static shapes). The operations work on `rows`: float32
[..., H, 3, W] in [0, 1], the channel axis before the columns. With a minor axis of 3 a CPU cannot
vectorise, and in this layout both passes of the blur are plain batched matrix products.

Images without exactly three channels have no colours: saturation, hue and grayscale are refused,
and the rest acts on each channel separately, the contrast around the channel's mean.

Nothing is rounded to 8 bit between operations, unlike in Pillow. A NaN stays NaN.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ssl_jax.config import key
from ssl_jax.views import section

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's convert("L")
BRIGHTNESS, CONTRAST, SATURATION = 0, 1, 2
# The 24 orders of the four jitter operations: an order of the three blends, and how many of them
# come before the hue.
ORDERS = np.array(
    [(*blends, hue) for blends in itertools.permutations(range(3)) for hue in range(4)], np.int32
)
TAPS_SIGMA = 4.0  # the blur kernel is cut off at this many standard deviations: 6e-5 of its mass
_ALTERNATIVE = key((0.0, 0.0), "probabilities of blur and solarisation", least=0, most=1, length=2)


@dataclass(frozen=True)
class Photometric:
    """Photometric augmentation of one view.

    Attributes:
      jitter: (brightness, contrast, saturation, hue) strengths: factors U(max(0, 1 - s), 1 + s),
        hue shift U(-s, s) turns.
      jitter_prob, gray_prob, blur_prob, solarize_prob: probabilities.
      blur_radius: (lo, hi) standard deviation of the Gaussian in pixels of the view, drawn
        uniformly.
      solarize_threshold: values from here on are inverted.
      alternative_prob: probability that the view takes `alternative`, (blur_prob, solarize_prob),
        in place of the two above (FLSL's code: with 1/2 each either {blur .5} or {blur .1, then
        solarize .2}).

    Raises:
      InputError: a value is out of range.
    """

    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_prob: float = 0.0
    gray_prob: float = 0.0
    blur_prob: float = 0.0
    blur_radius: tuple[float, float] = (0.1, 2.0)
    solarize_prob: float = 0.0
    solarize_threshold: float = 0.5
    alternative_prob: float = 0.0
    alternative: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self):
        for name in ("jitter", "blur_radius"):
            section.KEYS[name].check(name, getattr(self, name))
        section.check_hue("jitter", self.jitter)
        for name in ("jitter_prob", "gray_prob", "blur_prob", "solarize_prob", "alternative_prob"):
            section.KEYS["jitter_prob"].check(name, getattr(self, name))
        _ALTERNATIVE.check("alternative", self.alternative)


class Draws(NamedTuple):
    """Random numbers [B, V] in [0, 1): what applies, how strongly, and whether a view takes its
    alternative probabilities."""

    jittered: jax.Array
    brightness: jax.Array
    contrast: jax.Array
    saturation: jax.Array
    hue: jax.Array
    order: jax.Array
    grayed: jax.Array
    blurred: jax.Array
    radius: jax.Array
    solarized: jax.Array
    alternative: jax.Array


DRAWS = len(Draws._fields)


def uniforms(keys: jax.Array) -> jax.Array:
    """The random numbers of `augment`: keys [...] -> float32 [..., DRAWS] in [0, 1)."""

    def one(key):
        return jax.random.uniform(key, (DRAWS,), jnp.float32)

    return jax.vmap(one)(keys.reshape(-1)).reshape(*keys.shape, DRAWS)


def augment(rows: jax.Array, u: jax.Array, views: tuple[Photometric, ...]) -> jax.Array:
    """Applies the photometric operations to views.

    Args:
      rows: float32 [B, V, H, C, W] in [0, 1].
      u: float32 [B, V, DRAWS], what decides the draws (`uniforms`).
      views: the recipe of each of the V views.

    Returns:
      float32, same shape, in [0, 1]. View [b, v] depends on rows[b, v], u[b, v] and views[v] only.

    Raises:
      InputError: colours are drawn of other than three channels.
    """
    for view in views if rows.shape[-2] != 3 else ():
        section.check_colours("", rows.shape[-2], view)
    draws, each = Draws(*jnp.moveaxis(u, -1, 0)), functools.partial(_each, views)

    def probability(name, index):
        """[B, V] of blur (index 0) or solarize (1), which may depend on the draw between the two
        pairs.
        """
        return jnp.where(
            draws.alternative < each("alternative_prob"),
            each("alternative", lambda pair: pair[index]),
            each(name),
        )

    def possible(view, name, index):
        return getattr(view, name) > 0 or view.alternative_prob * view.alternative[index] > 0

    if any(view.jitter_prob > 0 and any(view.jitter) for view in views):
        rows = _jittered(rows, draws, views)
    if any(view.gray_prob > 0 for view in views):
        rows = jnp.where(_image(draws.grayed < each("gray_prob")), grayscale(rows), rows)
    if any(possible(view, "blur_prob", 0) for view in views):
        lo, hi = (each("blur_radius", lambda bounds, i=i: bounds[i]) for i in range(2))
        taps = math.ceil(TAPS_SIGMA * max(view.blur_radius[1] for view in views))
        rows = jnp.where(
            _image(draws.blurred < probability("blur_prob", 0)),
            blur(rows, lo + (hi - lo) * draws.radius, radius=taps),
            rows,
        )
    if any(possible(view, "solarize_prob", 1) for view in views):
        inverted = solarize(rows, _image(each("solarize_threshold")))
        on = draws.solarized < probability("solarize_prob", 1)
        rows = jnp.where(_image(on), inverted, rows)
    return rows


def _each(views, name, pick=lambda value: value):
    """An attribute of all views, or what `pick` takes of it: [V], broadcasts over B."""
    return np.array([pick(getattr(view, name)) for view in views], np.float32)


def _jittered(rows, draws, views):
    """The views that draw the jitter, with factors, shift and order as they draw them."""
    each = functools.partial(_each, views)

    def strength(u, index):
        lo = each("jitter", lambda jitter: max(0.0, 1 - jitter[index]))
        hi = each("jitter", lambda jitter: 1 + jitter[index])
        return lo + (hi - lo) * u

    on = draws.jittered < each("jitter_prob")
    blends = (draws.brightness, draws.contrast, draws.saturation)
    strengths = [strength(x, i) for i, x in enumerate(blends)]
    factors = jnp.where(on[..., None], jnp.stack(strengths, axis=-1), 1.0)
    shift = jnp.where(on, each("jitter", lambda jitter: jitter[3]) * (2.0 * draws.hue - 1.0), 0.0)
    order = (draws.order * len(ORDERS)).astype(jnp.int32)
    return jitter(rows, factors, shift, jnp.asarray(ORDERS)[order])


def _image(x):
    """[...] per image -> [..., 1, 1, 1], broadcasts over its rows."""
    return x[..., None, None, None]


def luma(rows: jax.Array) -> jax.Array:
    """Brightness L = 0.299 R + 0.587 G + 0.114 B (ITU-R 601): [..., H, 3, W] -> [..., H, 1, W]. Of
    other than three channels each is its own."""
    if rows.shape[-2] != 3:
        return rows
    return LUMA[0] * rows[..., 0:1, :] + LUMA[1] * rows[..., 1:2, :] + LUMA[2] * rows[..., 2:3, :]


def grayscale(rows: jax.Array) -> jax.Array:
    """Replaces all three channels by `luma`: same shape."""
    return jnp.broadcast_to(luma(rows), rows.shape)


def blend(rows: jax.Array, factor: jax.Array, kind: jax.Array) -> jax.Array:
    """One of torchvision's three blends, clip(f x + (1 - f) m, 0, 1), chosen per image.

    m is 0 for brightness, the mean luma of the image for contrast, the luma of the pixel for
    saturation.

    Args:
      rows: float32 [..., H, 3, W].
      factor: float32 [...], 1 = unchanged, bit by bit.
      kind: int32 [...], BRIGHTNESS, CONTRAST or SATURATION.
    """
    factor, kind = _image(factor), _image(kind)
    gray = luma(rows)
    mean = gray.mean(axis=(-3, -1), keepdims=True)
    toward = jnp.where(kind == SATURATION, gray, jnp.where(kind == CONTRAST, mean, 0.0))
    return jnp.clip(factor * rows + (1.0 - factor) * toward, 0.0, 1.0)


def shift_hue(rows: jax.Array, shift: jax.Array) -> jax.Array:
    """Turns the hue of HSV by `shift` turns ([...], 0 = unchanged, bit by bit); saturation and
    value stay.

    The conversion there and back in one: value v = max and chroma d = max - min stay, so with the
    hue h in sixths of a turn channel c becomes

        v - d clip(2 - |w(h + offset_c)|, 0, 1)

    where w wraps to [-3, 3] and offset_c is 3, 1, -1.
    """
    r, g, b = (rows[..., c : c + 1, :] for c in range(3))
    value = jnp.maximum(jnp.maximum(r, g), b)
    chroma = value - jnp.minimum(jnp.minimum(r, g), b)
    numerator = jnp.where(value == r, g - b, jnp.where(value == g, b - r, r - g))
    sector = jnp.where(value == r, 0.0, jnp.where(value == g, 2.0, 4.0))
    shift = _image(shift)
    hue = numerator / jnp.where(chroma > 0, chroma, 1.0) + sector + 6.0 * shift
    hue = hue + jnp.array([3.0, 1.0, -1.0], jnp.float32)[:, None]  # [..., H, 3, W]
    distance = jnp.abs(hue - 6.0 * jnp.round(hue / 6.0))
    turned = value - chroma * jnp.clip(2.0 - distance, 0.0, 1.0)
    return jnp.where(shift == 0, rows, turned)


def jitter(rows: jax.Array, factors: jax.Array, shift: jax.Array, order: jax.Array) -> jax.Array:
    """Brightness, contrast, saturation and hue in an order of its own per image (torchvision's
    ColorJitter).

    The three blends share one form, so every image runs three rounds of it before the hue and three
    after; a blend that belongs to the other side has factor 1 there and changes nothing. That is
    cheaper than computing the hue four times.

    Args:
      rows: float32 [..., H, 3, W] in [0, 1].
      factors: [..., 3] of brightness, contrast, saturation.
      shift: [...] of the hue in turns.
      order: int32 [..., 4], a row of ORDERS: the three blends in turn and how many come before
        the hue.
    """
    kinds, before = jnp.moveaxis(order[..., :3], -1, 0), order[..., 3]
    in_order = jnp.take_along_axis(factors, order[..., :3], axis=-1)
    in_order = jnp.moveaxis(in_order, -1, 0)  # [3, ...]
    first = jnp.arange(3).reshape(3, *(1,) * before.ndim) < before

    def blends(rows, on):
        # A loop: unrolled, XLA would fuse the rounds and compute the earlier ones again for each
        # mean (3 x slower).
        def body(rows, draw):
            return (blend(rows, *draw), None)

        return jax.lax.scan(body, rows, (jnp.where(on, in_order, 1.0), kinds))[0]

    between = blends(rows, first)
    return blends(shift_hue(between, shift) if rows.shape[-2] == 3 else between, ~first)


def blur_matrix(sigma: jax.Array, size: int, radius: int) -> jax.Array:
    """Matrices [..., size, size] of a one-dimensional Gaussian blur with standard deviations sigma
    [...], in pixels.

    2 radius + 1 taps that sum to 1; beyond the border the edge pixel is repeated (as Pillow does).
    Rows sum to 1.
    """
    i = np.arange(size)
    # How often pixel j counts for pixel i at distance t.
    basis = np.zeros((radius + 1, size, size), np.float32)
    for t in range(-radius, radius + 1):
        basis[abs(t), i, np.clip(i + t, 0, size - 1)] += 1
    taps = jnp.exp(-0.5 * (jnp.arange(radius + 1, dtype=jnp.float32) / sigma[..., None]) ** 2)
    taps = taps / (2.0 * taps.sum(-1, keepdims=True) - taps[..., :1])
    return jnp.einsum("...t,tij->...ij", taps, basis, precision=jax.lax.Precision.HIGHEST)


def blur(rows: jax.Array, sigma: jax.Array, *, radius: int) -> jax.Array:
    """Gaussian blur, separable: one matrix product per axis.

    Args:
      rows: float32 [..., H, 3, W].
      sigma: [...] standard deviation in pixels, above 0.
      radius: taps on each side, pixels.
    """
    height, width = rows.shape[-3], rows.shape[-1]
    vertical = blur_matrix(sigma, height, radius)
    horizontal = vertical if height == width else blur_matrix(sigma, width, radius)
    exact = jax.lax.Precision.HIGHEST  # as in `crops`
    half = jnp.einsum("...oh,...hcw->...ocw", vertical, rows, precision=exact)
    # Weights sum to 1 only up to rounding: keep the range.
    return jnp.clip(jnp.einsum("...ocw,...pw->...ocp", half, horizontal, precision=exact), 0.0, 1.0)


def solarize(rows: jax.Array, threshold: ArrayLike = 0.5) -> jax.Array:
    """Inverts values >= threshold: x -> 1 - x. On 8-bit values 0.5 is Pillow's threshold 128."""
    return jnp.where(rows >= threshold, 1.0 - rows, rows)
