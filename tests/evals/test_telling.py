"""What an evaluation cannot read is named, and more than one record in a hundred is refused."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals, settings
from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.prepared import Prepared
from ssl_jax.evals.telling import Telling
from tests.evals import fakes


def read(source, i):
    with pytest.raises(Unreadable, match=f"record/{i}: broken on purpose"):
        source[i]


def test_one_in_a_hundred_is_told_once_and_the_second_is_refused(capsys):
    inner = fakes.Source(fakes.images(100), labels=np.arange(100) % 2, broken=(3, 7))
    source = Telling(inner)
    assert len(source) == 100 and source.num_classes == 2 and source.size == (8, 8)
    assert repr(source) == repr(inner) and source.shape(3) == (8, 8)
    assert source[0]["label"] == 0
    read(source, 3)
    read(source, 3)
    assert capsys.readouterr().out == (
        "  warning: without record/3, which cannot be used (broken on purpose)\n"
    )
    with pytest.raises(InputError, match=r"2 of 100 .*record/3 \(broken on purpose\), record/7"):
        source[7]


def test_records_before_they_are_resized_are_counted_with_the_others(capsys):
    stored = fakes.Source(fakes.images(200), broken=(3, 4, 5))
    source = Telling(Prepared(stored, size=4))
    assert source[0]["image"].shape == (4, 4, 3) and source.unresized[0]["image"].shape[0] == 8
    read(source, 3)
    read(source.unresized, 3)
    read(source.unresized, 4)
    assert capsys.readouterr().out.count("\n") == 2
    with pytest.raises(InputError, match="3 of 200"):
        source[5]
    assert Telling(stored).unresized is not stored  # tells, too


def test_a_sample_is_judged_by_its_own_size():
    source = Telling(fakes.Source(fakes.images(1000), broken=(3, 7)), examples=100)
    read(source, 3)
    with pytest.raises(InputError, match="2 of 100 images"):
        source[7]


@pytest.mark.parametrize(
    "type, changes",
    [
        ("collapse", {}),
        ("stability", dict(shifts=(4,))),
        ("decode", dict(epochs=2, batch=4, width=16, depth=1, heads=2, tokens="dense")),
    ],
)
def test_evaluations_that_read_images_themselves_leave_out_what_cannot_be_read(type, changes):
    images = fakes.images(9, 16, 16)
    section = evals.new(type, data=dict(kind="training", size=16), **changes)

    pixels = evals.raw_pixels(4)

    def network(images, extras=False):
        return pixels(images)

    def scores(source):
        case = evals.Case(network, section, source, source, patch=4, batch_size=4)
        return evals.TYPES[type].run(case)

    whole = scores(fakes.Source(np.delete(images, 3, axis=0)))
    assert scores(fakes.Source(images, broken=(3,))) == pytest.approx(whole)


@pytest.mark.parametrize("type", ["dense", "segment"])
@pytest.mark.parametrize(
    "size, value, message",
    [
        ((8, 8), 1, r"val/3.png \(the mask has 8x8 pixels, its image .* 16x16\)"),
        ((16, 16), 9, r"val/3.png \(the mask has the value 9, which is no class"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(type, size, value, message, tmp_path):
    """Not the first of its part, which is looked at before."""
    for part in ("train", "val"):
        for i in range(5):
            wrong = part == "val" and i == 3
            mask = np.full(size if wrong else (16, 16), value if wrong else i % 2, np.uint8)
            for folder, pixels in (("images", np.zeros((16, 16, 3), np.uint8)), ("masks", mask)):
                path = tmp_path / folder / part / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    (tmp_path / "names.txt").write_text("a\nb\n")
    config = settings.base_config("dino")
    config.model.patch = 4
    places = dict(dir=str(tmp_path), class_names=str(tmp_path / "names.txt"))
    images = dict(kind="folder", split="train", test_split="val", size=0, **places)
    evals.add(config, type, data=images, train_examples=0, test_examples=0)
    with pytest.raises(InputError, match=f"1 of 5 images to evaluate cannot be used: .*{message}"):
        evals.evaluate(evals.raw_pixels(4), config)
