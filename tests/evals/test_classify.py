"""The accuracy of a network's own classifier: its scores and pictures, and what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.data import decode
from tests import tiny
from tests.data.records import save
from tests.evals import fakes

LABELS = np.arange(11) % 7
# Images that say which they are, and the scores of a network that is wrong about three of them:
# there the truth is third.
IMAGES = np.broadcast_to(np.arange(11, dtype=np.uint8)[:, None, None, None], (11, 8, 8, 3))
WRONG = np.isin(np.arange(11), (0, 5, 9))
SCORES = np.zeros((11, 7), np.float32)
for row, label, wrong in zip(SCORES, LABELS, WRONG):
    row[[(label + 1) % 7, (label + 2) % 7, label]] = 2.0, 1.5, 1.0 if wrong else 3.0


def case(scores=SCORES, labels=LABELS):
    def encoder(images, *, extras):
        rows = np.round(images[:, 0, 0, 0] * 255).astype(int)
        return SimpleNamespace(extras={} if scores is None else {"logits": scores[rows]})

    source = fakes.Source(IMAGES, labels=labels)
    return evals.Case(encoder, evals.new("classify"), source, source, batch_size=4)


def test_scores_of_a_network_in_percent():
    scores = evals.TYPES["classify"].run(case())
    assert scores == {"classify": pytest.approx(100 * 8 / 11), "classify_top5": 100.0}
    values = evals.TYPES["classify"].figures(case())["classify_classes"].values
    for label in range(7):
        assert values[label] == pytest.approx(np.mean(~WRONG[LABELS == label]))
    # With five classes or fewer the top 5 say nothing.
    assert set(evals.TYPES["classify"].run(case(SCORES[:, :5], LABELS % 5))) == {"classify"}


@pytest.mark.parametrize("scores", [SCORES[:, :6], None])
def test_networks_of_other_classes_or_without_a_classifier_are_refused(scores):
    with pytest.raises(InputError):
        evals.TYPES["classify"].run(case(scores))


def test_a_folder_that_numbers_fewer_classes_is_refused(tmp_path):
    for name in "ac":  # of a, b, c
        save(tmp_path / "test" / name / "0.png", fakes.images(1)[0])
    data = dict(kind="folder", dir=str(tmp_path), split="test", test_split="test")
    config = tiny.config("finetune")
    config.evals.classify = evals.new("classify", data=data)
    _, test = evals.sources(config, ["classify"])["classify"]
    network = SimpleNamespace(extras={"logits": np.eye(2, 3, dtype=np.float32)})
    one = evals.Case(lambda images, *, extras: network, config.evals.classify, test, test)
    with pytest.raises(InputError, match="2 classes.* 3"):
        evals.TYPES["classify"].run(one)


def test_images_are_resized_by_the_filter_of_the_protocol(tmp_path):
    config, image = tiny.config("finetune"), fakes.images(1, 40, 56)[0]
    for part in ("train/a", "train/b", "val/a", "val/b"):
        save(tmp_path / part / "0.png", image)
    for name, protocol in (("cubic", "imagenet"), ("linear", "sop")):
        data = dict(kind="folder", dir=str(tmp_path), name="", test_split="val", size=24)
        config.evals[name] = evals.new("classify", protocol=protocol, data=data, crop=16)
    cubic, linear = (test for _, test in evals.sources(config, ("cubic", "linear")).values())
    np.testing.assert_array_equal(cubic[0]["image"], decode.resize_square(image, 24))
    np.testing.assert_array_equal(linear[0]["image"], decode.resize_square(image, 24, True))
    assert not np.array_equal(cubic[0]["image"], linear[0]["image"])
    assert repr(cubic) != repr(linear)  # the name of cached features
