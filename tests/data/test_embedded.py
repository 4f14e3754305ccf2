"""The embedded sets: pictures are functions of (seed, split, index); labels are exact."""

import subprocess
import sys

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data import embedded, generated, photos, videos
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.source import make_source
from tests.data.records import same_record

MAKERS = [entry.make for entry in embedded.SETS.values()]


@pytest.mark.parametrize("kind", embedded.SETS)
def test_sets_have_any_length_and_refuse_what_cannot_be(kind):
    config = dict(kind=kind, split="test", length=10**9, size=32)
    records, last = make_source(config), 10**9 - 1
    assert len(records) == 10**9 and records.size == (32, 32)
    same_record(records[last], embedded.SETS[kind].make(0, "test", last, size=32))
    assert make_source(dict(kind=kind, length=1)).size == (64, 64)
    for key, value in (("split", "val"), ("length", 0), ("size", 4), ("size", -1)):
        with pytest.raises(InputError, match=f"data.{key}"):
            make_source(config | {key: value})


@pytest.mark.parametrize("make", MAKERS)
def test_a_picture_is_a_function_of_seed_split_and_index(make):
    first = make(3, "train", 12345678901, 48)
    make(0, "test", 1, 32)
    same_record(first, make(3, "train", 12345678901, 48))
    for other in (
        make(4, "train", 12345678901, 48),
        make(3, "test", 12345678901, 48),
        make(3, "train", 12345678901 + videos.FRAMES, 48),  # of another video
    ):
        assert (first["image"] != other["image"]).mean() > 0.5
    wrong = ((0, "valid", 0), (-1, "train", 0), (2**48, "train", 0), (0, "train", -1))
    for arguments in (*wrong, (0, "train", 0, 8)):
        with pytest.raises(ValueError, match="seed|split|size"):
            make(*arguments)


def test_pictures_are_the_same_in_a_fresh_process():
    code = "; ".join(
        f"from {make.__module__} import {make.__name__} as make;"
        " print(make(1, 'test', 7, 32)['image'].astype(int).sum())"
        for make in MAKERS
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sums = [make(1, "test", 7, 32)["image"].astype(int).sum() for make in MAKERS]
    assert list(map(int, printed.split())) == sums


# --- photos and collages of them


def windows(count, split="train"):
    return [photos.photos(0, split, i, 32) for i in range(count)]


def collages(count):
    return [photos.photo_collages(0, "train", i, 64) for i in range(count)]


@pytest.fixture
def flat_colours(monkeypatch):
    """Photographs of one colour each, so that a pixel tells where it is from: [classes, 3]."""
    colours = np.random.default_rng(0).integers(0, 256, (photos.NUM_CLASSES, 3)).astype(np.uint8)
    sheets = tuple(np.broadcast_to(c, (200, 150, 3)) for c in colours)
    monkeypatch.setattr(photos, "_photographs", lambda split: sheets)
    return colours


def test_every_photograph_is_drawn_and_few_windows_are_plain():
    samples = windows(600)
    counts = np.bincount([s["label"] for s in samples], minlength=photos.NUM_CLASSES)
    assert counts.min() > 15 and len(counts) == len(photos.CLASS_NAMES) == photos.NUM_CLASSES
    assert np.mean([s["image"].std() < 8 for s in samples]) < 0.05


def test_labels_and_masks_say_which_photograph_a_pixel_is_from(flat_colours):
    for sample in windows(50):
        assert (sample["image"] == flat_colours[sample["label"]]).all()
    for sample in collages(50):
        luma = flat_colours[sample["mask"]] @ [0.299, 0.587, 0.114]
        np.testing.assert_allclose(sample["image"], np.stack(3 * [luma], -1), rtol=0, atol=1)


def test_boxes_bound_the_regions_exactly():
    samples = collages(100)
    assert {len(s["box_labels"]) for s in samples} == {2, 3}
    for sample in samples:
        mask, labels = sample["mask"], sample["box_labels"].tolist()
        assert set(np.unique(mask)) == set(labels) and len(set(labels)) == len(labels)
        for box, label in zip(sample["boxes"], labels, strict=True):
            np.testing.assert_array_equal(box, generated.bounding_box(mask == label))
    inside = np.zeros((9, 9), bool)
    assert generated.bounding_box(inside) == (0, 0, 0, 0)
    inside[2, 3] = inside[5, 1] = True
    assert generated.bounding_box(inside) == (2, 1, 4, 3)


def test_no_pixel_of_a_test_picture_is_in_a_training_picture(monkeypatch):
    """Photographs whose pixels hold their column: windows of the two splits have none in common."""
    width = 500
    column = np.broadcast_to(np.arange(width), (300, width))
    sheet = np.stack([column // 256, column % 256, 0 * column], axis=-1).astype(np.uint8)
    monkeypatch.setattr(photos, "_load", lambda name: sheet)
    monkeypatch.setattr(photos, "_photographs", photos._photographs.__wrapped__)
    monkeypatch.setattr(photos.cv2, "resize", lambda window, *a, **k: window)
    columns = {}
    for split in ("train", "test"):
        pixels = np.concatenate([s["image"].reshape(-1, 3) for s in windows(60, split)])
        columns[split] = set(np.unique(pixels[:, 0].astype(int) * 256 + pixels[:, 1]))
    assert max(columns["train"]) < 0.62 * width and min(columns["test"]) >= 0.65 * width
    assert len(columns["train"]) > 0.6 * width and len(columns["test"]) > 0.33 * width


# --- videos


def test_objects_of_videos_are_there_and_move_before_a_background_that_stands_still():
    for start in range(0, 96, 16):
        clip = [videos.moving_shapes(0, "train", start + t, 48) for t in range(16)]
        images, masks = (np.stack([frame[key] for frame in clip]) for key in ("image", "mask"))
        assert masks.max() in (1, 2) and (masks == 1).any(axis=(1, 2)).sum() > 8
        steps = [(a != b).mean() for a, b in zip(masks, masks[1:])]
        assert 0 < min(steps) and max(steps) < 0.1 < (masks[0] != masks[-1]).mean() + 0.05
        both = (masks[0] == 0) & (masks[-1] == 0)
        assert both.any()
        np.testing.assert_array_equal(images[0][both], images[-1][both])


def test_sequences_are_whole_videos_also_when_kept_in_memory():
    source = make_source(dict(kind="moving_shapes", split="test", length=50, size=32))
    assert list(source.sequences) == [f"moving_shapes/test/{i}" for i in range(3)]
    assert source.sequences["moving_shapes/test/1"] == range(videos.FRAMES, 2 * videos.FRAMES)
    assert Prepared(source, cache=True).sequences == source.sequences
    many = make_source(dict(kind="moving_shapes", length=2**31 - 1)).sequences  # no dict of them
    assert len(many) == 2**27 - 1 and next(iter(many)) == "moving_shapes/train/0"
    assert many["moving_shapes/train/5"] == range(80, 96) and "moving_shapes/train/-1" not in many
