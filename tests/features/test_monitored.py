"""What an evaluation cannot read is named, and more than a share of it is refused."""

import itertools

import numpy as np
import pytest

from ssl_jax import evals, settings
from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.subset import Subset
from ssl_jax.features.monitored import Monitored, sample_records
from tests.data.records import save
from tests.evals import fakes


def read(source, i):
    with pytest.raises(Unreadable, match=f"record/{i}"):
        source[i]


def test_one_in_a_hundred_is_told_once_and_the_second_is_refused(capsys):
    inner = fakes.Source(fakes.images(100), labels=np.arange(100) % 2, broken=(3, 7))
    source = Monitored(inner)
    assert len(source) == 100 and source.num_classes == 2 and source.size == (8, 8)
    assert repr(source) == repr(inner) and source.shape(3) == (8, 8)
    assert source[0]["label"] == 0
    read(source, 3)
    read(source, 3)
    assert capsys.readouterr().out.count("record/3") == 1
    with pytest.raises(InputError, match="2 of 100.*record/3.*record/7"):
        source[7]
    many = Monitored(inner, share=0.02)
    many.look()
    assert many.readable() == 98


def test_unlabelled_records_count_where_they_are_read():
    labels = np.where(np.arange(200) < 2, 0, -1)
    inner = fakes.Source(fakes.images(200), labels=labels, broken=(7,))
    inner.unlabelled = np.flatnonzero(labels < 0)
    read(Monitored(inner), 7)  # one of 200, not of 2


def test_records_without_a_mask_are_no_examples_of_masks():
    inner = fakes.Source(fakes.images(4), masks=[np.zeros((8, 8), np.uint8)] * 4)
    inner.unmasked = [1]
    assert sample_records(inner, 0, 0).tolist() == [0, 1, 2, 3]
    assert sample_records(inner, 0, 0, masked=True).tolist() == [0, 2, 3]
    assert Subset(inner, [3, 1]).unmasked == [1]


def test_records_before_they_are_resized_are_counted_with_the_others(capsys):
    stored = fakes.Source(fakes.images(200), broken=(3, 4, 5))
    source = Monitored(Prepared(stored, size=4))
    assert source[0]["image"].shape == (4, 4, 3) and source.unresized[0]["image"].shape[0] == 8
    read(source, 3)
    read(source.unresized, 3)
    read(source.unresized, 4)
    assert capsys.readouterr().out.count("\n") == 2
    with pytest.raises(InputError, match="3 of 200"):
        source[5]
    assert Monitored(stored).unresized is not stored  # warns, too
    # A sample is judged by its own size.
    source = Monitored(fakes.Source(fakes.images(1000), broken=(3, 7)), examples=100)
    read(source, 3)
    with pytest.raises(InputError, match="2 of 100 "):
        source[7]


@pytest.mark.parametrize(
    "type, size, value, named",
    [
        ("dense", (8, 8), 1, "8x8.*16x16"),
        ("segment", (16, 16), 9, "value 9"),
        ("knn", (16, 16), 1, "image"),  # which is none, and named before anything is encoded
    ],
)
def test_what_cannot_be_used_is_named(type, size, value, named, tmp_path):
    """By the rule of training; not the first of its part, which is looked at before."""
    for part, i in itertools.product(("train", "val"), range(5)):
        wrong = part == "val" and i == 3
        mask = np.full(size if wrong else (16, 16), value if wrong else i % 2, np.uint8)
        place = f"{part}/{'ab'[i % 2]}/{i}.png"
        save(tmp_path / "images" / place, np.full((16, 16, 3), i, np.uint8))
        save(tmp_path / "masks" / place, mask)
    if type == "knn":
        (tmp_path / "images/val/b/3.png").write_bytes(b"no image")
    (tmp_path / "names.txt").write_text("a\nb\n")
    config = settings.base_config("dino")
    config.model.patch = 4
    places = dict(dir=str(tmp_path), class_names=str(tmp_path / "names.txt"))
    images = dict(kind="folder", split="train", test_split="val", size=0, **places)
    few = dict(side=16, batch=4, steps=1, lrs=(0.1,)) if type == "segment" else {}
    evals.add(config, type, data=images, train_examples=0, test_examples=0, **few)
    with pytest.raises(InputError, match=f"max_unreadable=0.01.*1 of 5.*val/b/3.png.*{named}"):
        evals.evaluate(None if type == "knn" else evals.raw_pixels(4), config)
    config.data.max_unreadable = 0.3
    assert type != "knn" or evals.sources(config)[type][1].readable() == 4
