"""What the embedded sets share: a random generator for each picture, and boxes of regions."""

import numpy as np

SPLITS = ("train", "test")
MIN_SIZE = 16  # pixels; below it the objects of a scene are a few pixels large


def generator(kind: int, seed: int, split: str, i: int, size: int) -> np.random.Generator:
    """The random generator of picture i of a set; pictures of different (kind, seed, split, i) are
    independent.

    Args:
      kind: 0 or 1, of the sets of one module. seed: in [0, 2**48). split: "train" or "test".
      i: in [0, 2**63). size: side of the picture in pixels, at least 16; only checked.
    Raises:
      ValueError: an argument is outside of its range.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    if not 0 <= seed < 2**48 or not 0 <= i < 2**63:
        raise ValueError(f"seed must be in [0, 2**48) and i in [0, 2**63), got seed={seed}, i={i}")
    if size < MIN_SIZE:
        raise ValueError(f"size must be at least {MIN_SIZE} pixels, got {size}")
    key = np.array([(int(seed) << 8) | (kind << 1) | SPLITS.index(split), int(i)], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def bounding_box(inside: np.ndarray) -> tuple[int, int, int, int]:
    """(y, x, height, width) of the True pixels of a [S,S] mask; zeros if there are none."""
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    if not len(rows):
        return 0, 0, 0, 0
    return rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
