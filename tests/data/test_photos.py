"""Pictures of photographs: purity, exact labels, and no test pixel in a training picture."""

import time

import numpy as np
import pytest

from ssl_jax.data import photos

SIZES = (32, 48, 96)


def windows(count, split="train", size=32, seed=0):
    return [photos.photos(seed, split, i, size) for i in range(count)]


def collages(count, split="train", size=32, seed=0):
    return [photos.photo_collages(seed, split, i, size) for i in range(count)]


@pytest.fixture
def flat_colours(monkeypatch):
    """Photographs of one colour each, so that a pixel tells where it is from: [classes, 3]."""
    colours = np.random.default_rng(0).integers(0, 256, (photos.NUM_CLASSES, 3)).astype(np.uint8)
    sheets = tuple(np.broadcast_to(c, (200, 150, 3)) for c in colours)
    monkeypatch.setattr(photos, "_photographs", lambda split: sheets)
    return colours


@pytest.mark.parametrize("size", SIZES)
def test_shapes_types_and_ranges(size):
    for sample in windows(20, size=size):
        assert set(sample) == {"image", "label"} and 0 <= sample["label"] < photos.NUM_CLASSES
        assert sample["image"].shape == (size, size, 3) and sample["image"].dtype == np.uint8
    for sample in collages(20, size=size):
        assert set(sample) == {"image", "mask", "boxes", "box_labels"}
        assert sample["image"].shape == (size, size, 3) and sample["image"].dtype == np.uint8
        assert sample["mask"].shape == (size, size) and sample["mask"].dtype == np.uint8
        assert sample["boxes"].dtype == np.float32
        assert sample["boxes"].shape == (len(sample["box_labels"]), 4)


def test_every_photograph_is_drawn_and_regions_are_two_or_three():
    labels = [s["label"] for s in windows(600)]
    counts = np.bincount(labels, minlength=photos.NUM_CLASSES)
    assert counts.min() > 15 and len(counts) == len(photos.CLASS_NAMES) == photos.NUM_CLASSES
    samples = collages(100)
    assert {len(s["box_labels"]) for s in samples} == {2, 3}
    assert all(len(set(s["box_labels"])) == len(s["box_labels"]) for s in samples)


def test_the_label_is_the_photograph(flat_colours):
    for sample in windows(50):
        assert (sample["image"] == flat_colours[sample["label"]]).all()


def test_the_mask_says_which_photograph_a_pixel_is_from(flat_colours):
    for sample in collages(50, size=48):
        luma = flat_colours[sample["mask"]] @ [0.299, 0.587, 0.114]
        np.testing.assert_allclose(sample["image"], np.stack(3 * [luma], -1), rtol=0, atol=1)


def test_boxes_bound_the_regions_exactly():
    for sample in collages(60, size=64):
        assert set(np.unique(sample["mask"])) == set(sample["box_labels"].tolist())
        for (y, x, h, w), label in zip(
            sample["boxes"].astype(int), sample["box_labels"], strict=True
        ):
            outside = sample["mask"] == label
            inside = outside[y : y + h, x : x + w].copy()
            outside[y : y + h, x : x + w] = False
            assert not outside.any()
            assert inside[[0, -1]].any(1).all() and inside[:, [0, -1]].any(0).all()


def test_regions_are_large_enough_to_be_objects():
    shares = [np.bincount(s["mask"].ravel()).max() / s["mask"].size for s in collages(100)]
    assert 0.3 < np.mean(shares) < 0.7
    smallest = [(s["boxes"][:, 2] * s["boxes"][:, 3]).min() / 32**2 for s in collages(100)]
    assert np.quantile(smallest, 0.1) > 0.03


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


def test_windows_are_turned_all_four_ways(monkeypatch):
    corner = np.zeros((128, 128, 3), np.uint8)
    corner[:64, :64] = 255
    monkeypatch.setattr(photos, "_photographs", lambda split: (corner,) * photos.NUM_CLASSES)
    monkeypatch.setattr(photos, "_WINDOW", (128, 128))
    bright = [s["image"].mean(-1) > 128 for s in windows(40)]
    assert {
        (b[:16].mean() > b[16:].mean(), b[:, :16].mean() > b[:, 16:].mean()) for b in bright
    } == {(up, left) for up in (True, False) for left in (True, False)}


def test_few_windows_are_plain():
    contrast = [s["image"].std() for s in windows(300)]
    assert np.mean(np.array(contrast) < 8) < 0.05


def test_fast_enough_for_training():
    """About a millisecond a collage is meant; the bound is loose, since machines differ."""
    photos.photo_collages(0, "train", 0)
    start = time.process_time()
    collages(50, size=64)
    assert (time.process_time() - start) / 50 < 1e-2
