"""What a type of evaluation needs of its images: refused by kind at once, else when opened."""

import numpy as np
import pytest

from ssl_jax import evals, settings
from ssl_jax.config import InputError, key
from tests.data.records import IMAGES, save, write_tfds, xml


@pytest.fixture
def config():
    """An evaluation that counts boxes, beside those of the package."""
    before = dict(evals.TYPES)
    seen = []

    def run(case):
        records = [case.test[i] for i in range(len(case.test))]
        seen.extend(len(r["box_labels"]) for r in records)
        return {"counted": float(sum(len(r["boxes"]) for r in records))}

    evals.register("counted", run, lambda: dict(extra=key(1, "none")), needs="boxes")
    c = settings.base_config("dino")
    c.model.patch = 4
    evals.add(c, "counted", data=dict(length=3, size=16))
    yield c
    evals.TYPES.clear()
    evals.TYPES.update(before)


def test_boxes_of_the_embedded_set(config):
    assert config.evals.counted.data.kind == "photo_collages"
    settings.validate(config, None)
    assert 6 <= evals.evaluate(evals.raw_pixels(4), config)["counted"] <= 9


@pytest.mark.parametrize(
    "type, kind, fits",
    [
        ("counted", "photos", False),
        ("counted", "folder", False),
        ("counted", "ade20k", False),
        ("counted", "coco", True),
        ("counted", "voc", True),
        ("counted", "tfds", True),
        ("dense", "folder", True),
        ("dense", "coco", False),
        ("dense", "davis", True),
        ("knn", "voc", False),
        ("knn", "folder", True),
    ],
)
def test_kinds_that_cannot_have_it_are_refused_at_once(type, kind, fits, config):
    evals.add(config, type)
    config.evals.tasks = (type,)
    config.evals[type].data.update(dict(kind=kind, dir="x", name="y"))
    if fits:
        return settings.validate(config, None)
    with pytest.raises(InputError, match=f'evals.{type}.data.kind is "{kind}", which has no'):
        settings.validate(config, None)


def test_folders_with_masks_or_boxes_are_good(config, tmp_path):
    for i in range(3):
        save(tmp_path / "images" / f"{i}.png", IMAGES[i])
        save(tmp_path / "masks" / f"{i}.png", np.full((8, 8), i, np.uint8))
        (tmp_path / "xml").mkdir(exist_ok=True)
        (tmp_path / "xml" / f"{i}.xml").write_text(xml((8, 8), [("a", (0, 0, 4, 4))] * i))
    folder = dict(kind="folder", dir=str(tmp_path), test_split="train")
    evals.add(config, "counted", data=folder | dict(boxes="xml"))
    evals.add(config, "dense", k=1, data=folder | dict(masks="masks", size=8))
    settings.validate(config, None)
    scores = evals.evaluate(evals.raw_pixels(4), config)
    assert scores["counted"] == 3 and scores["dense"] == 100


@pytest.mark.parametrize(
    "type, message",
    [
        ("counted", r"evals.counted: .* needs boxes, which .*Tfds\('bare'.* \(see .*data.boxes\)"),
        ("dense", r"evals.dense: .* needs masks, which .*Tfds\('bare'"),
        ("knn", r"evals.knn: .* needs labels, which .*Tfds\('bare'"),
    ],
)
def test_sets_that_lack_it_are_named_when_opened(type, message, config, tmp_path):
    write_tfds(tmp_path, "bare", {"train": [0, 1], "test": [2]}, label=False, mask=False)
    evals.add(config, type, data=dict(kind="tfds", name="bare", dir=str(tmp_path)))
    settings.validate(config, None)
    with pytest.raises(InputError, match=message):
        evals.sources(config, (type,))


def test_lists_of_both_parts(config, tmp_path):
    for split in ("train", "val"):
        for i in range(4):
            save(tmp_path / "set" / split / "ab"[i % 2] / f"{i}.png", IMAGES[i])
    (tmp_path / "few.txt").write_text("0.png\n1.png\n")
    data = dict(kind="folder", dir=str(tmp_path / "set"), test_split="val")
    data["list"] = str(tmp_path / "few.txt")
    evals.add(config, "knn", data=data)
    assert [len(s) for s in evals.sources(config, ("knn",))["knn"]] == [2, 4]
    config.evals.knn.data.test_list = data["list"]
    assert [len(s) for s in evals.sources(config, ("knn",))["knn"]] == [2, 2]
