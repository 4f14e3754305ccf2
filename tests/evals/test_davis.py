"""The evaluation of videos: frame sizes, which videos, scores."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.features import frames, pixels
from ssl_jax.scores import video
from tests.evals import fakes


class Videos(fakes.Source):
    """Videos of the given lengths, one after the other: a textured square that moves by one patch
    of four pixels per frame; each of these pixels is zoom x zoom in the end."""

    def __init__(self, *lengths, side=48, width=48, broken=(), zoom=1):
        rng = np.random.default_rng(0)
        ground, square = (rng.integers(0, 256, (s, w, 3)) for s, w in ((side, width), (12, 12)))
        images, masks, self.sequences, start = [], [], {}, 0
        for number, length in enumerate(lengths):
            self.sequences[f"video {number}"] = range(start, start + length)
            start += length
            for t in range(length):
                image, mask = ground.astype(np.uint8), np.zeros((side, width), np.uint8)
                y, x = 8 + 4 * number, 4 + 4 * t
                image[y : y + 12, x : x + 12], mask[y : y + 12, x : x + 12] = square, 1
                images.append(image)
                masks.append(mask)
        images, masks = (np.stack(x).repeat(zoom, 1).repeat(zoom, 2) for x in (images, masks))
        super().__init__(images, masks=masks, broken=broken, size=None)


def _case(source, encoder=None, patch=4, **changes):
    config = evals.new("davis", frames=2, **changes)
    return Case(encoder or evals.raw_pixels(patch), config, None, source, patch=patch)


@pytest.mark.parametrize(
    "size, settings, expected",
    [
        ((480, 854), (480, 64, 16), (480, 832)),
        ((1080, 1920), (480, 64, 8), (480, 832)),
        ((1920, 1080), (480, 64, 16), (832, 480)),
        ((480, 854), (480, 64, 14), (476, 826)),
        ((50, 70), (0, 64, 16), (48, 64)),
    ],
)
def test_frame_sizes(size, settings, expected):
    short, multiple, patch = settings
    assert frames.resized(size, short=short, multiple=multiple, patch=patch) == expected


def test_whole_videos_are_taken():
    videos = Videos(5, 4, 6).sequences
    assert frames.first(videos) == videos
    for count, number in ((9, 2), (8, 1), (2, 1)):
        assert list(frames.first(videos, count)) == [f"video {i}" for i in range(number)]
    with pytest.raises(InputError, match="video 1"):
        frames.first(Videos(5, 2).sequences)


def test_scores_of_features_that_match_and_of_noise():
    source = Videos(7, 6)
    case = _case(source)
    scores = evals.TYPES["davis"].run(case)
    assert set(scores) == {"davis", "davis_j", "davis_f", "davis_j_recall", "davis_f_recall"}
    assert scores["davis_j"] > 75 and scores["davis_j_recall"] == 100
    assert scores["davis"] == pytest.approx((scores["davis_j"] + scores["davis_f"]) / 2)
    rng = np.random.default_rng(1)

    def noise(images):
        patches = rng.normal(size=(len(images), 12, 12, 8)).astype(np.float32)
        return pixels.Pixels(patches[:, 0, 0], patches)

    lost = evals.TYPES["davis"].run(_case(source, noise))
    assert lost["davis_j"] < scores["davis_j"] - 25
    with pytest.raises(InputError, match="video 0.*record/2"):  # which cannot be read
        evals.TYPES["davis"].run(_case(Videos(5, broken=[2])))
    # objects of all videos count alike, however long
    videos = case.extracted[case.key_of("davis")].values()
    parts = [video.measure(*masks)[0].j for _, *masks in videos]
    assert scores["davis_j"] == pytest.approx(100 * np.mean(parts))


def test_frames_are_resized_for_the_network_and_masks_come_back_at_their_own_size():
    source, shapes = Videos(4, side=32, width=44, zoom=2), []

    def seen(images):
        shapes.append(images.shape)
        return evals.raw_pixels(4)(images)

    case = _case(source, seen, short_side=32, multiple=8)
    evals.TYPES["davis"].run(case)
    ((_, truth, predicted),) = case.extracted[case.key_of("davis")].values()
    assert shapes == [(2, 32, 40, 3)] * 2
    assert predicted.shape == truth.shape == (4, 64, 88)
    np.testing.assert_array_equal(predicted[0], truth[0])
    # at the right place of the larger frame, though it was narrower by a tenth for the network
    assert video.region_similarity(truth[1], predicted[1]) > 0.5
