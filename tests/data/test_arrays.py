"""arrays.py: records of arrays in memory; other shapes and dtypes are refused."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from tests.data.records import IMAGES, LABELS, MASKS, same_record


def test_array_source():
    records = ArraySource(IMAGES, LABELS, MASKS)
    same_record(records[5], {"image": IMAGES[5], "label": LABELS[5], "mask": MASKS[5]})
    assert (len(records), records.size, records.num_classes, records.has_masks) == (
        12,
        (8, 8),
        3,
        True,
    )
    bare = ArraySource((IMAGES / 255).astype(np.float32))
    assert (
        bare[0].keys() == {"image"}
        and bare[0]["image"].dtype == np.float32
        and bare.num_classes is None
    )
    with pytest.raises(IndexError):
        bare[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((IMAGES[0],), r"images must be .*uint8 \[8, 8, 3\]"),
        ((IMAGES[:0],), "N > 0"),
        ((IMAGES.astype(np.float64),), "float64"),
        ((IMAGES, LABELS[:5]), r"labels must be integers \[12\], got int64 \[5\]"),
        ((IMAGES, LABELS * 1.0), "labels must be integers"),
        ((IMAGES, LABELS - 1), "negative"),
        ((IMAGES, None, MASKS[:, :4]), "masks must be uint8"),
    ],
)
def test_array_source_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        ArraySource(*arguments)
