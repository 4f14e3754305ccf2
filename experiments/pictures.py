"""Draws the README's picture: features of a network of the zoo, of photographs that it never saw.

python -m experiments pictures            writes docs/pictures/patch_colours.jpg, in half a minute
python -m experiments pictures OUT.jpg    writes another file
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image

import ssl_jax
from ssl_jax.methods.pictures.pca import principal_colours

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "patch_colours.jpg"
SIDE = 288  # pixels of a photograph
# Photographs of scikit-image and scikit-learn, and the patch (row, column) to compare others with.
PHOTOGRAPHS = {
    "camera": (20, 12),
    "coffee": (12, 16),
    "chelsea": (14, 10),
    "rocket": (17, 18),
    "astronaut": (24, 12),
    "flower.jpg": (18, 18),
}


def photograph(name: str) -> np.ndarray:
    """Its central square [SIDE, SIDE, 3], uint8."""
    pixels = load_sample_image(name) if name.endswith(".jpg") else getattr(data, name)()
    image = Image.fromarray(pixels).convert("RGB")
    edge = min(image.size)
    left, top = ((length - edge) // 2 for length in image.size)
    return np.asarray(image.crop((left, top, left + edge, top + edge)).resize((SIDE, SIDE)))


def draw(out: Path) -> None:
    images = np.stack([photograph(name) for name in PHOTOGRAPHS])
    patches = np.asarray(ssl_jax.load("zoo/sop_imagenette")(images).patches)
    tokens = patches - patches.mean(axis=(0, 1, 2))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    side = SIDE // patches.shape[1]
    figure, axes = plt.subplots(3, len(images), figsize=(12.3, 6.2))
    for column, image, own, unit, (y, x) in zip(
        axes.T, images, patches, tokens, PHOTOGRAPHS.values(), strict=True
    ):
        column[0].imshow(image)
        column[0].plot((x + 0.5) * side, (y + 0.5) * side, "P", color="white", mec="black", ms=12)
        column[1].imshow(principal_colours(own[None])[0], interpolation="nearest")
        similarity = unit @ unit[y, x]
        column[2].imshow(similarity, cmap="magma", vmin=-0.2, vmax=1, interpolation="nearest")
        for axis in column:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    titles = ("photograph", "patches as colours", "similarity to +")
    for axis, title in zip(axes[:, 0], titles, strict=True):
        axis.set_ylabel(title, fontsize=12)
    figure.tight_layout(pad=0.3)
    figure.savefig(out, dpi=72, pil_kwargs={"quality": 88})


def main() -> int:
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
    return 0
