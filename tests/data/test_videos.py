"""moving_shapes: videos whose objects move little from frame to frame and much from end to end."""

import numpy as np
import pytest

from ssl_jax.data import embedded, videos
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.source import make_source


@pytest.fixture(scope="module")
def clips():
    return [[videos.moving_shapes(0, "train", 16 * v + t, 48) for t in range(16)] for v in range(6)]


def test_frames_are_functions_of_their_number(clips):
    again = videos.moving_shapes(0, "train", 21, 48)
    np.testing.assert_array_equal(again["image"], clips[1][5]["image"])
    np.testing.assert_array_equal(again["mask"], clips[1][5]["mask"])
    assert again["image"].dtype == again["mask"].dtype == np.uint8
    other = videos.moving_shapes(1, "train", 21, 48)
    assert (other["image"] != again["image"]).mean() > 0.5


def test_objects_are_there_and_move(clips):
    counts = []
    for clip in clips:
        masks = np.stack([frame["mask"] for frame in clip])
        counts.append(masks.max())
        assert (masks == 1).any(axis=(1, 2)).sum() > 8
        steps = [(a != b).mean() for a, b in zip(masks, masks[1:])]
        assert max(steps) < 0.1 < (masks[0] != masks[-1]).mean() + 0.05
        assert all(step > 0 for step in steps)
    assert set(counts) == {1, 2}


def test_the_background_stands_still(clips):
    first, last = clips[0][0], clips[0][15]
    both = (first["mask"] == 0) & (last["mask"] == 0)
    assert both.any()
    np.testing.assert_array_equal(first["image"][both], last["image"][both])


def test_sequences_are_whole_videos_also_when_kept_in_memory():
    source = make_source(dict(kind="moving_shapes", split="test", length=50, size=32))
    assert list(source.sequences) == [f"moving_shapes/test/{i}" for i in range(3)]
    assert Prepared(source, cache=True).sequences == source.sequences
    assert source.has_masks and source.mask_names == videos.MASK_NAMES
    assert make_source(dict(kind="photos", length=50)).sequences is None


def test_the_set_is_embedded():
    assert embedded.SETS["moving_shapes"].frames == videos.FRAMES
