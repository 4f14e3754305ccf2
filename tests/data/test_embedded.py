"""embedded.py: the pictures of `photos` as records; other splits, lengths and sizes are refused."""

import pytest

from ssl_jax.config import InputError
from ssl_jax.data import photos
from ssl_jax.data.source import make_source
from tests.data.records import same_record


@pytest.mark.parametrize(
    "kind, classes, masks", [("photos", 17, False), ("photo_collages", None, True)]
)
def test_generated(kind, classes, masks):
    records = make_source(dict(kind=kind, split="test", length=10**9, size=32))
    assert (len(records), records.size, records.num_classes, records.has_masks) == (
        10**9,
        (32, 32),
        classes,
        masks,
    )
    same_record(records[123456789], getattr(photos, kind)(0, "test", 123456789, size=32))
    assert ("label" in records[0]) == (classes is not None)
    assert make_source(dict(kind=kind, length=1)).size == (64, 64)


@pytest.mark.parametrize(
    "change, key",
    [
        (dict(split="val"), "data.split"),
        (dict(length=0), "data.length"),
        (dict(size=4), "data.size"),
        (dict(size=-1), "data.size"),
    ],
)
def test_generated_refuses(change, key):
    with pytest.raises(InputError, match=key):
        make_source({**dict(kind="photos", split="train", length=5), **change})
