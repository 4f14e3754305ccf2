"""Made-up images of five channels: `python -m tests.bands FOLDER` writes train and test parts, each
with a folder of TIFF files [64, 64, 5], uint16 from 0 to 10000, for each class.

An image is a window of a photograph that comes with the packages, and the photograph is its class.
A channel is a band of a made-up sensor: a weighted sum of red, green and blue with a response curve
of its own, and noise.
"""

import argparse
from pathlib import Path

import numpy as np

from ssl_jax.data import photos

SIDE, HIGH, CLASSES = 64, 10000, photos.NUM_CLASSES
_BANDS = np.array(
    [[0.0, 0.2, 0.8], [0.1, 0.8, 0.1], [0.8, 0.2, 0.0], [0.6, 0.0, 0.4], [0.3, 0.4, 0.3]]
)  # [5, 3]: weights of red, green, blue
_CURVES = np.array([1.0, 0.7, 1.4, 2.0, 0.5])  # exponents


def image(split: str, label: int, i: int) -> np.ndarray:
    """Image i of a class: uint16 [64, 64, 5]."""
    rng = np.random.default_rng([split == "test", label, i])
    colours = photos.window(rng, split, label, SIDE) / 255
    pixels = (colours @ _BANDS.T) ** _CURVES + rng.normal(0, 0.02, (SIDE, SIDE, 5))
    return (HIGH * np.clip(pixels, 0, 1)).astype(np.uint16)


def write(folder: Path, train: int, test: int) -> None:
    """Writes so many images of each class, the same ones each time."""
    import tifffile

    for split, count in (("train", train), ("test", test)):
        for label in range(CLASSES):
            place = folder / split / photos.CLASS_NAMES[label]
            place.mkdir(parents=True)
            for i in range(count):
                name, pixels = place / f"{i:04d}.tif", image(split, label, i)
                tifffile.imwrite(name, pixels, photometric="minisblack", planarconfig="contig")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=240, help="images of each class")
    parser.add_argument("--test", type=int, default=40, help="images of each class")
    options = parser.parse_args()
    write(options.folder, options.train, options.test)
