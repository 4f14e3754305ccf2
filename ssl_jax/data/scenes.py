"""Generated pictures of real handwriting: one digit per image, or two to five digits in a scene.

The handwriting is scikit-learn's `load_digits` (1797 digits of 8x8 pixels from the UCI set "optical
recognition of handwritten digits", installed with scikit-learn, no download). The 1797 digits are
split into train and test BEFORE any picture is composed, so no digit of a test picture is in a
train picture.

Picture i is a pure function of (seed, split, i): a Philox generator keyed by them makes every draw,
so a set has any length, allows random access, and does not depend on order, process or worker.

How the pictures are made, and why:
- Background: a field of strong hues, whose nodes are independent draws from ONE distribution, with
  a window into one shared atlas of textures painted over it in another hue. All of it has (nearly)
  one lightness: hue swamps the distance between raw pixels and says nothing, lightness shows the
  shape, and a gray view shows little but the digit.
- Digit: rotated, sheared, stretched, placed at random, painted in a pale tint that is lighter than
  what is behind it.
- A scene has one digit that fills it and one to four small ones, so that most crops of a scene
  share something to recognise, and the class of a patch follows from what is around it. With a
  large digit of half the side, free to be anywhere, not even supervised training on the masks gets
  beyond raw patches in 800 steps (13 % mIoU, raw 14 %); now it does at once (45 % and more).
- Tint, size, pose, background and class are drawn independently: nothing but the shape tells the
  class.
- Labels: a pixel belongs to a digit where its paint covers more than half of it; a later digit
  hides an earlier one.
"""

import functools
import math

import cv2
import numpy as np
from sklearn.datasets import load_digits

from ssl_jax.data.generated import bounding_box, generator

NUM_CLASSES = 10
BACKGROUND = 10  # mask value of a pixel that belongs to no digit
CLASS_NAMES = (*map(str, range(NUM_CLASSES)), "background")
NUM_MASK_CLASSES = 11

_TEST_SHARE = 3  # every third digit of a class is a test digit
_GLYPH = 32  # side to which the 8x8 digits are enlarged once, smoothly; pictures are warped from it
_GLYPH_THRESHOLD = 0.4  # ink (0..1) from which a point of the enlarged digit counts as painted
_ATLAS = 256  # side of the texture atlas (periodic)
_ATLAS_KEY = (0x5CE9E, 0)  # the atlas and the split are the same for every seed
_DIGITS, _DIGIT_SCENES = 0, 1

_SCENE_COUNT = (2, 5)
# Of the first digit of a scene, as share of the image side; its ink reaches over .72 of it.
_LARGE_SIZE = (1.05, 1.2)
_SMALL_SIZE = (0.2, 0.3)  # of the others
_SINGLE_SIZE = (0.5, 0.75)
_ROTATION = math.radians(15.0)  # a 6 must not become a 9
_SHEAR = 0.15
_STRETCH = 0.2  # natural log of the largest height to width change
_CONTRAST = (0.35, 0.45)  # a digit is lighter by this than what is behind it
_DARK = (0.4, 0.5)  # lightness of the background, one per picture
# Largest distance from gray. The background's is beyond what most hues allow, so it is nearly
# everywhere as colourful as can be.
_BACKGROUND_CHROMA, _TEXTURE_CHROMA, _DIGIT_CHROMA = 3.0, 0.3, 0.3
_TEXTURE_LIGHT = (0.0, 0.02)  # lightness of the texture
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def digits(seed: int, split: str, i: int, size: int = 64) -> dict[str, np.ndarray | int]:
    """One digit on a textured background.

    Args:
      seed: int in [0, 2**48), chooses the set.
      split: "train" or "test".
      i: int in [0, 2**63), index of the picture.
      size: side S of the picture in pixels, at least 16.
    Returns:
      dict(image uint8 [S,S,3], label int 0..9, mask uint8 [S,S] (label on the digit, 10 elsewhere),
      boxes float32 [1,4] (y, x, height, width in pixels), labels int64 [1]).
    Raises:
      ValueError: an argument is outside of its range.
    """
    rng = generator(_DIGITS, seed, split, i, size)
    scale = rng.uniform(*_SINGLE_SIZE) * size
    slack = max(0.0, size - 0.95 * scale) / 2
    centre = size / 2 + slack * rng.uniform(-1.0, 1.0, 2)
    sample = _compose(rng, split, size, np.array([scale]), centre[None])
    return {"label": int(sample["labels"][0]), **sample}


def digit_scenes(seed: int, split: str, i: int, size: int = 64) -> dict[str, np.ndarray]:
    """Two to five digits of different size, tint and rotation on a textured background.

    Args: as `digits`.
    Returns:
      dict(image uint8 [S,S,3], mask uint8 [S,S] (0..9 digit, 10 background), boxes float32 [n,4]
      (y, x, height, width of the visible part, in pixels), labels int64 [n]) with n from 2 to 5.
      Digits may hide each other in part.
    Raises:
      ValueError: an argument is outside of its range.
    """
    rng = generator(_DIGIT_SCENES, seed, split, i, size)
    count = int(rng.integers(_SCENE_COUNT[0], _SCENE_COUNT[1] + 1))
    scales = np.append(rng.uniform(*_LARGE_SIZE), rng.uniform(*_SMALL_SIZE, count - 1)) * size
    return _compose(rng, split, size, scales, _places(rng, scales, size))


@functools.cache
def _glyphs(split):
    """The digits of a split, enlarged: (float32 [n,32,32] in [0,1], int64 [n] classes)."""
    source = load_digits()
    order = np.random.Generator(np.random.Philox(key=np.array(_ATLAS_KEY, np.uint64))).permutation(
        len(source.target)
    )
    chosen = [order[source.target[order] == c] for c in range(NUM_CLASSES)]
    rank_is_test = [np.arange(len(rows)) % _TEST_SHARE == 0 for rows in chosen]
    keep = [
        rows[test if split == "test" else ~test]
        for rows, test in zip(chosen, rank_is_test, strict=True)
    ]
    rows = np.sort(np.concatenate(keep))
    ink = (source.images[rows] / 16).astype(np.float32)
    large = [cv2.resize(image, (_GLYPH, _GLYPH), interpolation=cv2.INTER_CUBIC) for image in ink]
    return np.stack([cv2.GaussianBlur(image, (0, 0), 1.0) for image in large]), source.target[
        rows
    ].astype(np.int64)


@functools.cache
def _atlas():
    """float32 [256,256] mostly in [-1,1]: grain, stripes, checks, spots, marble in patches;
    periodic.
    """
    rng = np.random.Generator(np.random.Philox(key=np.array(_ATLAS_KEY, np.uint64)))
    y, x = np.mgrid[:_ATLAS, :_ATLAS].astype(np.float32) * np.float32(2 * math.pi / _ATLAS)
    octaves = {cells: _periodic_noise(rng, cells) for cells in (4, 6, 8, 16, 32, 64, 128)}
    marble = np.sin(10 * x + 4 * octaves[4] + 2 * octaves[16])
    textures = [
        0.7 * octaves[32] + 0.5 * octaves[64],
        octaves[128],
        np.sin(24 * x + 16 * y + 1.5 * octaves[8]),
        np.sign(np.sin(16 * x + octaves[6])) * np.sign(np.sin(16 * y + octaves[8])) * 0.7,
        np.sin(32 * x + octaves[16]) * np.sin(32 * y - octaves[16]) * 1.3,
        marble,
        0.6 * octaves[16] + 0.3 * octaves[128],
    ]
    choice = np.stack([np.roll(octaves[6], rng.integers(0, _ATLAS, 2), (0, 1)) for _ in textures])
    weight = np.exp(8 * (choice - choice.max(0)))
    return ((np.stack(textures) * weight).sum(0) / weight.sum(0)).astype(np.float32)


def _periodic_noise(rng, cells):
    """float32 [256,256], smooth noise of unit variance with `cells` cells per side, periodic at the
    border.
    """
    nodes = np.pad(rng.standard_normal((cells, cells)).astype(np.float32), 2, mode="wrap")
    step = _ATLAS // cells if _ATLAS % cells == 0 else _ATLAS / cells
    side = round((cells + 4) * step)
    start = round(2 * step)
    inside = slice(start, start + _ATLAS)
    noise = cv2.resize(nodes, (side, side), interpolation=cv2.INTER_CUBIC)[inside, inside]
    return noise / noise.std()


def _affine(angle, scale_y, scale_x, shear, from_centre, to_centre):
    """2x3 matrix of `cv2.warpAffine` with WARP_INVERSE_MAP: output (x, y) -> input (x, y).

    The input is sheared, enlarged by the two scales, turned by `angle` (radians), and its
    `from_centre` is set down on `to_centre` (both x, y).
    """
    cos, sin = math.cos(angle), math.sin(angle)
    rows = (
        ((cos - shear * -sin) / scale_x, (sin - shear * cos) / scale_x),
        (-sin / scale_y, cos / scale_y),
    )
    offset = [
        from_centre[k] - rows[k][0] * to_centre[0] - rows[k][1] * to_centre[1] for k in (0, 1)
    ]
    return np.array([[*rows[0], offset[0]], [*rows[1], offset[1]]])


def _hues(rng, count, chroma):
    """float32 [count,3]: RGB offsets of random hue that leave the luma alone; length uniform in [0,
    chroma].
    """
    angle = rng.uniform(0, 2 * math.pi, count)
    radius = chroma * rng.random(count)
    offsets = np.empty((count, 3))
    offsets[:, 0] = 1.4 * radius * np.cos(angle)
    offsets[:, 2] = 1.77 * radius * np.sin(angle)
    # Green makes up for red and blue.
    offsets[:, 1] = -(_LUMA[0] * offsets[:, 0] + _LUMA[2] * offsets[:, 2]) / _LUMA[1]
    return offsets.astype(np.float32)


def _in_gamut(lightness, offsets):
    """Colours float32 [...,3] in [0,1] of that lightness: offsets are shortened where a channel
    would leave [0,1], so the luma stays.
    """
    room = np.where(offsets > 0, 1 - lightness, lightness) / np.maximum(np.abs(offsets), 1e-6)
    return lightness + np.minimum(room.min(-1, keepdims=True), 1.0) * offsets


def _background(rng, size):
    """(float32 [S,S,3] in [0,1], its lightness): fields and textures of hue over one lightness, and
    a trace of light texture.
    """
    nodes = 10  # the number of colour cells in a picture does not depend on S
    field = _hues(rng, nodes * nodes, _BACKGROUND_CHROMA).reshape(nodes, nodes, 3)
    zoom = size / rng.uniform(2.5, 5.0)  # pixels per colour cell
    centre = (size / 2, size / 2)
    matrix = _affine(rng.uniform(0, 2 * math.pi), zoom, zoom, 0.0, rng.uniform(4.0, 5.0, 2), centre)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    field = cv2.warpAffine(
        field, matrix, (size, size), flags=flags, borderMode=cv2.BORDER_REFLECT_101
    )
    zoom = size / 64 * math.exp(rng.uniform(-0.4, 0.5))
    matrix = _affine(
        rng.uniform(0, 2 * math.pi), zoom, zoom, 0.0, rng.uniform(0, _ATLAS, 2), centre
    )
    texture = cv2.warpAffine(
        _atlas(), matrix, (size, size), flags=flags, borderMode=cv2.BORDER_WRAP
    )[..., None]
    lightness = rng.uniform(*_DARK)
    field = _in_gamut(np.float32(lightness), field + texture * _hues(rng, 1, _TEXTURE_CHROMA))
    field += texture * np.float32(rng.uniform(*_TEXTURE_LIGHT))
    return np.minimum(np.maximum(field, 0.0), 1.0), lightness


def _places(rng, scales, size):
    """float64 [n,2] centres (y, x) of digits of these sizes.

    Each is the first of 24 draws that touches no earlier digit, or else the draw that overlaps
    least.
    """
    radius = 0.36 * scales
    draws = rng.random((len(scales), 24, 2))
    centres = np.empty((len(scales), 2))
    for k, r in enumerate(radius):
        places = r + draws[k] * (size - 2 * r)
        gap = np.full(24, np.inf)
        if k:
            distance = np.sqrt(((places[:, None] - centres[None, :k]) ** 2).sum(-1))
            gap = (distance - r - radius[:k]).min(1)
        fits = gap >= 0
        centres[k] = places[np.argmax(fits) if fits.any() else np.argmax(gap)]
    return centres


def _compose(rng, split, size, scales, centres):
    """Paint one digit per row of `scales` (pixels) and `centres` (y, x; pixels); later rows lie on
    top.
    """
    image, lightness = _background(rng, size)
    glyphs, classes = _glyphs(split)
    count = len(scales)
    chosen = rng.integers(0, len(classes), count)
    labels = classes[chosen]
    owner = np.full((size, size), count, np.uint8)
    for k in range(count):
        _paint(rng, image, owner, k, glyphs[chosen[k]], scales[k], centres[k], lightness)
    boxes = np.array([bounding_box(owner == k) for k in range(count)], np.float32)
    mask = np.append(labels, BACKGROUND).astype(np.uint8)[owner]
    image *= 255.0
    image += 0.5
    return {
        "image": np.minimum(np.maximum(image, 0.0), 255.0).astype(np.uint8),
        "mask": mask,
        "boxes": boxes,
        "labels": labels,
    }


def _paint(rng, image, owner, index, glyph, scale, centre, behind):
    """Paint `glyph` [32,32] into image [S,S,3] and write `index` into owner [S,S], both in
    place.
    """
    size = len(owner)
    angle, shear = rng.uniform(-_ROTATION, _ROTATION), rng.uniform(-_SHEAR, _SHEAR)
    stretch = math.exp(rng.uniform(-_STRETCH, _STRETCH) / 2)
    reach = 0.75 * scale  # no corner of the glyph's ink lies further from the centre
    y0, x0 = (max(0, math.floor(c - reach)) for c in centre)
    y1, x1 = (min(size, math.ceil(c + reach)) for c in centre)
    matrix = _affine(
        angle,
        scale * stretch / _GLYPH,
        scale / stretch / _GLYPH,
        shear,
        ((_GLYPH - 1) / 2,) * 2,
        (centre[1] - x0 - 0.5, centre[0] - y0 - 0.5),
    )
    cover = cv2.warpAffine(
        glyph, matrix, (x1 - x0, y1 - y0), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    )
    # Ink fades over about an eighth of the glyph's side: make that edge about one pixel wide.
    steep = max(1.5, scale / 8)
    cover = np.minimum(np.maximum(cover * steep + (0.5 - _GLYPH_THRESHOLD * steep), 0.0), 1.0)
    patch = image[y0:y1, x0:x1]
    inside = (cover > 0.5).view(np.uint8)
    tint = _in_gamut(np.float32(behind + rng.uniform(*_CONTRAST)), _hues(rng, 1, _DIGIT_CHROMA))[0]
    # A trace of the background shows through, so that no digit is of one flat colour.
    patch += cover[..., None] * ((tint - 0.15 * behind) - 0.85 * patch)
    owner[y0:y1, x0:x1][inside.view(bool)] = index
