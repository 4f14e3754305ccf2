"""Made-up images of five channels: `python -m tests.bands FOLDER` writes train and test parts, each
with eight folders of TIFF files [64, 64, 5], uint16 from 0 to 10000.

A class is a texture (stripes along one of two axes, a checkerboard, or rings) in two channels, 0
and 1 or 3 and 4, of opposite sign in the two. What is different in each image says nothing: a
smooth background that all channels share, with a gain of its own in each, the place and period of
the texture, and noise. The background is faint: what all crops of an image share and other images
lack is what training without labels learns first.
"""

import argparse
from pathlib import Path

import numpy as np

SIDE, HIGH, CLASSES = 64, 10000, 8
_PAIRS = ((0, 1), (3, 4))


def image(rng: np.random.Generator, label: int) -> np.ndarray:
    """An image of a class: uint16 [64, 64, 5]."""
    y, x = np.mgrid[:SIDE, :SIDE] - rng.uniform(0, SIDE, (2, 1, 1))
    wave = 2 * np.pi / rng.uniform(7, 11)
    texture = (
        np.sin(wave * y),
        np.sin(wave * x),
        np.sin(wave * y) * np.sin(wave * x),
        np.sin(wave * np.hypot(y, x)),
    )[label // 2]
    phases, angles = rng.uniform(0, 2 * np.pi, (2, 4))
    smooth = sum(
        np.sin(2 * np.pi / 40 * (y * np.sin(a) + x * np.cos(a)) + p) for a, p in zip(angles, phases)
    )
    gain, offset = rng.uniform(0.02, 0.06, 5), 0.5
    pixels = offset + gain * smooth[..., None] / 2 + rng.normal(0, 0.05, (SIDE, SIDE, 5))
    for channel, sign in zip(_PAIRS[label % 2], (1, -1)):
        pixels[..., channel] += sign * 0.15 * texture
    return (HIGH * np.clip(pixels, 0, 1)).astype(np.uint16)


def write(folder: Path, train: int, test: int) -> None:
    """Writes so many images of each class, the same ones each time."""
    import tifffile

    for part, count in (("train", train), ("test", test)):
        for label in range(CLASSES):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            for i in range(count):
                rng = np.random.default_rng([part == "test", label, i])
                pixels = image(rng, label)
                name = place / f"{i:04d}.tif"
                tifffile.imwrite(name, pixels, photometric="minisblack", planarconfig="contig")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=250, help="images of each class")
    parser.add_argument("--test", type=int, default=50, help="images of each class")
    options = parser.parse_args()
    write(options.folder, options.train, options.test)
