"""Images as files for tiny runs."""

from pathlib import Path

import numpy as np
from PIL import Image

COUNT, CLASSES, SIZE = 34, 17, 24


def write(folder: Path) -> Path:
    """The folder with small JPEGs in folders of classes, two of them damaged; always the same."""
    rng = np.random.default_rng(0)
    for index in range(COUNT):
        path = folder / f"{index % CLASSES:02}" / f"{index:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(path)
    for index in (5, 20):
        path = folder / f"{index % CLASSES:02}" / f"{index:03}.jpg"
        path.write_bytes(path.read_bytes()[:60])
    return folder
