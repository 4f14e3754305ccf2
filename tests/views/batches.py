"""Records and views for the tests of the loader, in one process and in several."""

import numpy as np

from ssl_jax.data.arrays import ArraySource
from ssl_jax.views.loader import Loader
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.randaugment import RandAugment
from ssl_jax.views.recipe import GroupRecipe, ViewRecipe

SIZE = 12
IMAGES = np.random.default_rng(0).integers(0, 256, (37, SIZE, SIZE, 3), np.uint8)
LABELS = np.arange(37) % 5
RECORDS = ArraySource(IMAGES, LABELS)
MASK = MaskRecipe("random", (0.5, 0.5), 1.0)
VIEWS = ViewRecipe(
    (
        ("global", GroupRecipe(2, 8, (0.3, 1.0), 4, mask=MASK)),
        ("local", GroupRecipe(3, 4, (0.1, 0.3), 4)),
    )
)
AUGMENTED = GroupRecipe(1, 8, (0.3, 1.0), 4, randaugment=RandAugment(2, prob=1.0))


def labelled(**changes):
    return ViewRecipe((("global", AUGMENTED),), **dict(classes=5) | changes)


def loader(records=RECORDS, views=VIEWS, **options):
    return Loader(records, views, **dict(batch_size=8, seed=3) | options)


def take(count, records=RECORDS, views=VIEWS, **options):
    """The first `count` batches of a loader."""
    batches = loader(records, views, **options)
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()
