"""ImageNet-9 on small folders: the mapping, classifiers from files and fitted here, the scores."""

import json

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals import linear
from ssl_jax.evals.case import Case
from ssl_jax.features.pixels import Pixels
from ssl_jax.models import classifiers
from tests.evals import fakes

MAPPING = {"0": 0, "1": -1, "2": 1, "3": 0}
# what each variant shows of class 0 (red) and class 1 (green), as levels of red, green, blue
SHOWN = {
    "original": [(250, 0, 0), (0, 250, 0)],
    "mixed_same": [(250, 0, 0), (0, 250, 0)],
    "mixed_rand": [(250, 0, 0), (250, 0, 0)],
    "only_bg_b": [(0, 0, 250), (0, 0, 250)],
}


@pytest.fixture
def folder(tmp_path):
    for variant, colors in SHOWN.items():
        for name, color in zip(("00_dog", "01_bird"), colors):
            place = tmp_path / variant / "val" / name
            place.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (12 + i, 16), color).save(place / f"{i}.png")
    (tmp_path / "map.json").write_text(json.dumps(MAPPING))
    return tmp_path


def _head(path, **others):
    """Red is class 3, green 2, blue 1."""
    kernel = np.array([[0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]], np.float32)
    np.savez(path, **dict(kernel=kernel, bias=np.zeros(4, np.float32)) | others)
    return str(path)


def _colors(images):
    return Pixels(np.asarray(images).mean(axis=(1, 2)), None)


def _case(folder, encoder=_colors, train=None, test=None, **changes):
    places = dict(dir=str(folder), mapping=str(folder / "map.json"), variants=tuple(SHOWN))
    config = evals.new("imagenet9", **places | dict(data=dict(size=12), crop=8) | changes)
    return Case(encoder, config, train, test, patch=4, batch_size=4)


def test_scores_of_a_classifier_from_a_file(folder):
    scores = evals.TYPES["imagenet9"].run(_case(folder, head=_head(folder / "head.npz")))
    assert scores == {
        "imagenet9": 100,
        "imagenet9_original": 100,
        "imagenet9_mixed_same": 100,
        "imagenet9_mixed_rand": 50,
        "imagenet9_only_bg_b": 0,  # a class of ImageNet-1K that is none of ImageNet-9
        "imagenet9_bg_gap": 50,
    }


def test_a_classifier_that_is_fitted_here_can_be_saved_and_read(folder, monkeypatch):
    rng = np.random.default_rng(0)
    colors = np.array([(200, 90, 10), (10, 10, 200), (10, 200, 10), (250, 10, 10)])
    labels = np.arange(80) % 4
    images = np.broadcast_to(colors[labels][:, None, None], (80, 12, 12, 3))
    images = np.clip(images + rng.normal(0, 5, images.shape), 0, 255).astype(np.uint8)
    source = fakes.Source(images, labels=labels)
    kept, fit = [], linear.fit
    monkeypatch.setattr(linear, "fit", lambda *a, **k: kept.append(fit(*a, **k)) or kept[-1])
    case = _case(folder, train=source, test=source, epochs=40, batch=16, lrs=(1e-2,))
    scores = evals.TYPES["imagenet9"].run(case)
    assert scores["imagenet9_head"] > 90 and scores["imagenet9"] == 100
    np.savez(folder / "own.npz", **kept[0].params)
    again = evals.TYPES["imagenet9"].run(_case(folder, head=str(folder / "own.npz")))
    assert again == {name: value for name, value in scores.items() if name != "imagenet9_head"}


@pytest.mark.parametrize(
    "change, named",
    [
        (dict(mapping="nowhere.json"), "nowhere.json"),
        (dict(head="nowhere.npz"), "nowhere.npz"),
        (dict(variants=("original", "no_fg")), "no_fg/val"),
    ],
)
def test_what_is_missing_is_named_before_work_is_done(folder, change, named):
    def never(images):
        raise AssertionError("encoded")

    with pytest.raises(InputError, match=named):
        evals.TYPES["imagenet9"].run(_case(folder, never, **change))


_BAD = [dict(bias=np.zeros(3)), dict(scale=np.zeros(3)), dict(kernel=np.zeros(4))]
_BAD += [dict(kernel=np.array([{}], object))]  # no pickle is run
_BAD += [dict(kernel=np.array([["a"]]))]


@pytest.mark.parametrize("content", _BAD)
def test_classifiers_that_are_none_are_named(folder, content):
    with pytest.raises(InputError, match="h.npz"):
        classifiers.read_head(_head(folder / "h.npz", **content))


def test_mappings_that_are_none_or_do_not_fit_are_refused(folder):
    for content in ({"0": 1, "2": 0}, [1], {"a": 1}, {"0": -1}, {"0": -2, "1": 0}):
        (folder / "bad.json").write_text(json.dumps(content))
        with pytest.raises(InputError, match="bad.json"):
            classifiers.read_mapping(folder / "bad.json")
    (folder / "more.json").write_text(json.dumps({"0": 0, "1": 1, "2": 2, "3": 0}))
    few = _head(folder / "few.npz", kernel=np.eye(3), bias=np.zeros(3))
    narrow = _head(folder / "narrow.npz", kernel=np.zeros((2, 4)))
    for changes in (dict(mapping=str(folder / "more.json")), dict(head=few), dict(head=narrow)):
        with pytest.raises(InputError):
            evals.TYPES["imagenet9"].run(_case(folder, **changes))
