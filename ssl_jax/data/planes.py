"""Images of any number of channels as Pillow's, which has no type for them."""

import numpy as np
from PIL import Image


def split(image: np.ndarray) -> list[Image.Image]:
    """An image [H,W,C], uint8 or float32, as Pillow has them: RGB, or one for each channel."""
    if image.shape[2] == 3 and image.dtype == np.uint8:
        return [Image.fromarray(image)]
    return [Image.fromarray(np.ascontiguousarray(image[..., i])) for i in range(image.shape[2])]


def resampled(
    parts: list[Image.Image],
    size: tuple[int, int],
    box: tuple[float, float, float, float] | None = None,
    bilinear: bool = False,
) -> np.ndarray:
    """`decode.resize` of an image from its `split` parts; floats stay in [0, 1]."""
    kind = Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC
    arrays = [np.asarray(x.resize(size[::-1], kind, box=box)) for x in parts]
    if arrays[0].ndim == 3:
        return arrays[0]
    pixels = np.stack(arrays, axis=-1)
    return pixels if pixels.dtype == np.uint8 else np.clip(pixels, 0, 1)
