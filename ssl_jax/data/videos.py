"""Short videos made of the embedded photographs: no download.

`moving_shapes`: one or two blobs, each cut from a photograph, drift, turn and grow before another
photograph; with masks. See `photos` for the photographs and their split.

Frame t of video v is a pure function of (seed, split, v, t).
"""

import cv2
import numpy as np

from ssl_jax.data import photos
from ssl_jax.data.generated import generator

FRAMES = 16  # of a video
_OBJECTS = (1, 2)
_SHAPES = 2  # number of this set among those that share the generator: `photos` has 0 and 1
MASK_NAMES = ("background", "object 1", "object 2")


def moving_shapes(seed: int, split: str, i: int, size: int = 64) -> dict[str, np.ndarray]:
    """Frame i % 16 of video i // 16.

    Args: as `photos.photos`.
    Returns:
      dict(image uint8 [S,S,3], mask uint8 [S,S]: number of the object, 0 = background).
    Raises:
      ValueError: an argument is outside of its range.
    """
    rng = generator(_SHAPES, seed, split, i // FRAMES, size)
    time = i % FRAMES / (FRAMES - 1) - 0.5  # -0.5..0.5
    count = int(rng.integers(_OBJECTS[0], _OBJECTS[1] + 1))
    labels = rng.permutation(photos.NUM_CLASSES)[: count + 1]
    image = photos.window(rng, split, int(labels[0]), size)
    mask = np.zeros((size, size), np.uint8)
    for number, label in enumerate(labels[1:], start=1):
        texture = photos.window(rng, split, int(label), size)
        move = _motion(rng, size, time)
        inside = cv2.warpAffine(_blob(rng, size), move, (size, size), flags=cv2.INTER_LINEAR) > 0.5
        moved = cv2.warpAffine(texture, move, (size, size), borderMode=cv2.BORDER_REFLECT_101)
        np.copyto(image, moved, where=inside[..., None])
        mask[inside] = number
    return {"image": image, "mask": mask}


def _motion(rng, size, time):
    """The affine map [2,3] of a blob in the middle to where it is at `time`."""
    centre = size * rng.uniform(0.35, 0.65, 2)
    drift = size * rng.uniform(0.1, 0.35, 2) * rng.choice((-1, 1), 2)
    turn, growth = rng.uniform(-60, 60), rng.uniform(-0.5, 0.5)
    middle = (size - 1) / 2
    move = cv2.getRotationMatrix2D((middle, middle), turn * time, float(np.exp(growth * time)))
    move[:, 2] += centre + drift * time - middle
    return move


def _blob(rng, size):
    """float32 [S,S], 1 inside of a round shape with two to four bumps in the middle, else 0."""
    radius, bumps = size * rng.uniform(0.14, 0.22), int(rng.integers(2, 5))
    depth, turn = rng.uniform(0.1, 0.3), rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    edge = radius * (1 + depth * np.cos(bumps * np.arctan2(y, x) + turn))
    return (np.hypot(y, x) < edge).astype(np.float32)
