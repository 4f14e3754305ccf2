"""Pictures made of real photographs that come with installed packages: no download.

`photos` are square windows of one photograph, and the photograph is the class. `photo_collages` are
objects in scenes: two or three regions with curved borders, each a gray window of another
photograph, with a mask and boxes.

There are seventeen photographs. Fifteen are from scikit-image (`skimage.data`; public domain, CC0
or without known restrictions by their docstrings, except that nothing is stated for `page` and for
`stereo_motorcycle`, which is from the Middlebury 2014 stereo benchmark of Scharstein et al.), two
from scikit-learn (`load_sample_image`, china and flower: CC BY 2.0, by danielbuechele and
vultilion). Training pictures are windows of the left 62 % of a photograph, test pictures of the
right 35 %: no pixel of a test picture is seen in training.

Picture i is a pure function of (seed, split, i): a Philox generator keyed by them makes every draw,
so a set has any length, allows random access, and does not depend on order, process or worker.
"""

import functools

import cv2
import numpy as np

from ssl_jax.data import names
from ssl_jax.data.generated import bounding_box, generator

CLASS_NAMES = names.PHOTOS
NUM_CLASSES = len(CLASS_NAMES)

_SHARE = {"train": (0.0, 0.62), "test": (0.65, 1.0)}  # columns of a photograph
_SHORT_SIDE = 512  # larger photographs are scaled down to it
_WINDOW = (48, 128)  # side of a window, pixels of the photograph
_PLAIN = 8.0  # standard deviation of a window below which it says nothing, of 255
_DRAWS = 8  # for a window that is not plain
_PHOTOS, _COLLAGES = 0, 1

_REGIONS = (2, 3)
_WARP = 0.12  # standard deviation of the borders' displacement, share of the side


def photos(seed: int, split: str, i: int, size: int = 64) -> dict[str, np.ndarray | int]:
    """A window of one photograph, turned by a multiple of 90 degrees.

    Args:
      seed: int in [0, 2**48), chooses the set.
      split: "train" or "test".
      i: int in [0, 2**63), index of the picture.
      size: side S of the picture in pixels, at least 16.
    Returns:
      dict(image uint8 [S,S,3], label int in [0, 17)).
    Raises:
      ValueError: an argument is outside of its range.
    """
    rng = generator(_PHOTOS, seed, split, i, size)
    label = int(rng.integers(NUM_CLASSES))
    return {"image": window(rng, split, label, size), "label": label}


def photo_collages(seed: int, split: str, i: int, size: int = 64) -> dict[str, np.ndarray]:
    """Two or three regions with curved borders, each a window of another photograph, in gray.

    They are gray, because hue alone separates these photographs: in colour, raw pixels of a patch
    predict its region better than the features of a trained network.

    Args: as `photos`.
    Returns:
      dict(image uint8 [S,S,3] (three equal channels), mask uint8 [S,S] (the class of each pixel),
      boxes float32 [n,4] (y, x, height, width of a region in pixels), box_labels int32 [n]) with
      n = 2 or 3.
    Raises:
      ValueError: an argument is outside of its range.
    """
    rng = generator(_COLLAGES, seed, split, i, size)
    count = int(rng.integers(_REGIONS[0], _REGIONS[1] + 1))
    labels = rng.permutation(NUM_CLASSES)[:count]
    owner = _regions(rng, count, size)
    image = np.empty((size, size, 3), np.uint8)
    for k, label in enumerate(labels):
        gray = cv2.cvtColor(window(rng, split, label, size), cv2.COLOR_RGB2GRAY)
        np.copyto(image, gray[..., None], where=(owner == k)[..., None])
    visible = [k for k in range(count) if (owner == k).any()]
    return {
        "image": image,
        "mask": labels.astype(np.uint8)[owner],
        "boxes": np.array([bounding_box(owner == k) for k in visible], np.float32),
        "box_labels": labels[visible].astype(np.int32),
    }


@functools.cache
def _photographs(split):
    """The part of each photograph that belongs to the split: tuple of uint8 [H,W,3]."""
    return tuple(_part(_load(name), split) for name in CLASS_NAMES)


def _load(name):
    """A photograph, uint8 [H,W,3]; of two views of the motorcycle the left."""
    # both take a second to import, which only those pay who look at these pictures
    from skimage import data
    from sklearn.datasets import load_sample_image

    if name in ("china", "flower"):
        return load_sample_image(f"{name}.jpg")
    image = getattr(data, name)()
    image = np.asarray(image[0] if isinstance(image, tuple) else image)
    image = image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
    zoom = _SHORT_SIDE / min(image.shape[:2])
    if zoom < 1:
        image = cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_AREA)
    return image


def _part(image, split):
    first, last = (round(share * image.shape[1]) for share in _SHARE[split])
    return np.ascontiguousarray(image[:, first:last])


def window(rng: np.random.Generator, split: str, label: int, size: int) -> np.ndarray:
    """A square window of the photograph of this class, turned and resized: uint8 [S,S,3], the
    caller's own."""
    source = _photographs(split)[label]
    for _ in range(_DRAWS):
        side = int(rng.integers(_WINDOW[0], _WINDOW[1] + 1))
        y, x = (int(rng.integers(0, length - side + 1)) for length in source.shape[:2])
        window = source[y : y + side, x : x + side]
        if window[::4, ::4].std() > _PLAIN:
            break
    how = cv2.INTER_AREA if size < side else cv2.INTER_CUBIC
    window = cv2.resize(window, (size, size), interpolation=how)
    return np.ascontiguousarray(np.rot90(window, int(rng.integers(4))))


def _regions(rng, count, size):
    """int [S,S], the region 0..count-1 of each pixel: the nearest of `count` centres, after pixels
    were displaced by a smooth random field, which bends the borders."""
    grid = (np.arange(size, dtype=np.float32) + 0.5) / size
    nodes = (_WARP * rng.standard_normal((4, 4, 2))).astype(np.float32)
    shift = cv2.resize(nodes, (size, size), interpolation=cv2.INTER_CUBIC)
    y, x = grid[:, None] + shift[..., 0], grid + shift[..., 1]
    return np.argmin([(y - b) ** 2 + (x - a) ** 2 for b, a in _centres(rng, count)], axis=0)


def _centres(rng, count):
    """float32 [count,2] in 0..1: each is the one of 16 draws that is farthest from those before."""
    draws = rng.uniform(0.1, 0.9, (count, 16, 2)).astype(np.float32)
    centres = draws[:1, 0]
    for candidates in draws[1:]:
        distance = ((candidates[:, None] - centres) ** 2).sum(-1).min(1)
        centres = np.append(centres, candidates[distance.argmax()][None], axis=0)
    return centres
