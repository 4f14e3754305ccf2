"""What a detector sees: boxes stay on their objects through every change of the image."""

from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax.views import boxed

CONFIG = SimpleNamespace(
    flip=0.5, crop_prob=0.7, crop_from=(80, 100), crop_sides=(50, 90), sizes=(64, 96), longest=140
)
COLORS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])


def record(seed=0, height=90, width=120):
    """Three rectangles of pure colours on black, which do not overlap."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.uint8)
    boxes = []
    for i, left in enumerate((4, 44, 84)):
        y, x = rng.integers(2, 40), left + rng.integers(0, 8)
        h, w = rng.integers(20, 45), rng.integers(15, 24)
        image[y : y + h, x : x + w] = 255 * COLORS[i]
        boxes.append((y, x, h, w))
    return {"image": image, "boxes": np.array(boxes, np.float32), "box_labels": np.arange(3)}


def found(image, label):
    """The box of the pixels of that colour, None where there are none."""
    rows, columns = np.nonzero((image * (2 * COLORS[label] - 1)).sum(axis=-1) > 0.5)
    if not len(rows):
        return None
    return rows.min(), columns.min(), np.ptp(rows) + 1, np.ptp(columns) + 1


def check(view):
    for label in range(3):
        box = found(view.image, label)
        (rows,) = np.nonzero(view.labels == label)
        if box is not None:
            np.testing.assert_allclose(view.boxes[rows[0]], box, atol=1.6)
        else:
            assert not len(rows) or view.boxes[rows[0], 2:].min() < 2
    height, width = view.image.shape[:2]
    assert (view.boxes >= 0).all()
    assert (view.boxes[:, :2] + view.boxes[:, 2:] <= (height + 1e-3, width + 1e-3)).all()


def test_boxes_follow_their_pixels_through_every_change():
    """Changes follow from the generator."""
    one, two = (
        [boxed.drawn(record(i), np.random.default_rng((0, i)), CONFIG) for i in range(40)]
        for _ in range(2)
    )
    assert all(np.array_equal(a.image, b.image) for a, b in zip(one, two))
    for view in one:
        check(view)
    shapes = {view.image.shape[:2] for view in one}
    assert (64, 85) in shapes and (96, 128) in shapes and len(shapes) > 10
    whole = [view for view in one if view.image.shape[:2] in ((64, 85), (96, 128))]
    left = [view.boxes[0, 1] < view.boxes[-1, 1] for view in whole]
    assert 3 < sum(left) < len(left) - 3


def test_a_plain_view_keeps_shape_and_boxes():
    view = boxed.plain(record(), 45, 1000)
    assert view.image.shape == (45, 60, 3) and view.image.max() <= 1
    np.testing.assert_allclose(view.boxes, record()["boxes"] / 2)
    assert list(view.labels) == [0, 1, 2]
    check(view)
    made = {name: value for name, value in record().items() if name != "box_labels"}
    assert list(boxed.plain(made, 90, 1000).labels) == [0, 0, 0]  # of one class


@pytest.mark.parametrize(
    "size, short, longest, wanted",
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((300, 900), 800, 1333, (444, 1333)),
        ((1, 3000), 800, 1333, (1, 1333)),
    ],
)
def test_sizes(size, short, longest, wanted):
    assert boxed.fitted(*size, short, longest) == wanted


def test_boxes_outside_of_a_crop_are_gone_and_others_are_cut():
    image = np.zeros((100, 100, 3), np.uint8)
    boxes = np.array([(0, 0, 20, 20), (40, 40, 40, 40), (60, 10, 10, 30)], np.float32)
    made = {"image": image, "boxes": boxes, "box_labels": np.array([5, 6, 7])}
    view = boxed.cut(made, (50, 20, 40, 50), (80, 100))
    assert list(view.labels) == [6, 7]
    np.testing.assert_allclose(view.boxes, [(0, 40, 60, 60), (20, 0, 20, 40)])


def test_a_batch_shares_a_canvas():
    made = [boxed.plain(record(i), short, 1000) for i, short in enumerate((45, 60))]
    made.append(made[0]._replace(boxes=np.zeros((0, 4)), labels=np.zeros(0, int)))
    batch = boxed.batch(made, most=2, multiple=32, fill=(0.1, 0.2, 0.3))
    assert batch.image.shape == (3, 64, 96, 3)
    np.testing.assert_array_equal(batch.image[0, :45, :60], made[0].image)
    np.testing.assert_allclose(batch.image[0, 45:], np.broadcast_to((0.1, 0.2, 0.3), (19, 96, 3)))
    assert batch.present.tolist() == [[True, True], [True, True], [False, False]]
    y, x, h, w = made[1].boxes[1]
    np.testing.assert_allclose(
        batch.boxes[1, 1], [(y + h / 2) / 64, (x + w / 2) / 96, h / 64, w / 96], rtol=1e-5
    )
