"""The evaluation `box_knn`."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.data.prepared import Prepared
from ssl_jax.evals import box_knn
from ssl_jax.evals.case import Case
from tests.evals import fakes


def _sets(count=12, box_labels=False):
    """Gray noise with a coloured square, the class, somewhere; a small square of another colour is
    boxed too. Training and test sets; the last test image has no box."""
    rng = np.random.default_rng(0)
    colors = np.array([(250, 20, 20), (20, 250, 20), (20, 20, 250)])
    images, placed, labels = [], [], []
    for i in range(2 * count):
        image = rng.integers(100, 156, (40, 60, 3)).astype(np.uint8)
        y, x = rng.integers(0, 24), rng.integers(10, 34)
        image[y : y + 16, x : x + 16] = colors[i % 3]
        images.append(image)
        placed.append([[0, 10, 3, 3], [y, x, 16, 16]])
        labels.append([(i + 1) % 3, i % 3])
    placed[-1] = []
    labels = np.array(labels)
    kind = dict(box_labels=labels) if box_labels else dict(labels=labels[:, 1])
    return [
        fakes.boxed(images[part], placed[part], **{k: v[part] for k, v in kind.items()})
        for part in (slice(count), slice(count, None))
    ]


@pytest.mark.parametrize("box_labels", [False, True])
def test_the_class_of_the_largest_box_is_found(box_labels):
    train, test = (Prepared(s, size=32) for s in _sets(box_labels=box_labels))
    config = evals.new("box_knn", k=(5, 30), data=dict(size=32), crop=28)
    case = Case(evals.raw_pixels(4), config, train, test, patch=4, batch_size=4)
    scores = evals.TYPES["box_knn"].run(case)
    assert scores == dict.fromkeys(("box_knn", "box_knn_best", "box_knn_k5", "box_knn_k30"), 100)
    assert evals.TYPES["box_knn"].images(case) == 11  # for the standard error
    (picture,) = evals.TYPES["box_knn"].figures(case).values()
    assert sum(map(len, picture.rows)) == 11
    panel = picture.rows[0][0]
    assert panel.image.shape == (28, 28, 3) and len(panel.marks) == 9


def test_one_right_feature_is_enough(monkeypatch):
    predicted = {5: np.array([[0, 1, 1], [1, 1, 1], [2, 0, 2]])}
    labels = np.array([0, 0, 2])
    monkeypatch.setattr(box_knn, "_result", lambda *_: (predicted, labels, None, None))
    scores = evals.TYPES["box_knn"].run(fakes.case("box_knn", None, None))
    assert scores["box_knn"] == pytest.approx(200 / 3)
