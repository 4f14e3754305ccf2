"""Pictures of evaluations and methods are written, are not blank, and show what they are given."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals, settings
from ssl_jax.evals import pictures, report
from ssl_jax.evals.pictures import Panel, Picture, attention, neighbours, pca, render, segmentation
from ssl_jax.methods.base import Features
from tests.evals import fakes

_RNG = np.random.default_rng(0)


def pixels(path):
    assert path.is_file() and path.suffix == ".png"
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def is_a_picture(path):
    image = pixels(path)
    assert min(image.shape[:2]) > 150
    assert image.std() > 10 and len(np.unique(image.reshape(-1, 3), axis=0)) > 20
    edges = np.concatenate([*image[[0, -1]], *image[:, [0, -1]].swapaxes(0, 1)])
    assert (edges > 240).all(), "nothing runs over the edge"
    return image


def _share(pixels, color):
    return np.mean(np.abs(pixels - np.array(color)).max(axis=-1) < 6)


def test_attention(tmp_path):
    images = _RNG.random((2, 16, 24, 3))
    picture = attention.picture(images, _RNG.random((2, 3, 4, 6)))
    is_a_picture(render.grid(picture, tmp_path, "attention.png"))
    with pytest.raises(ValueError, match="heads"):
        attention.picture(images, np.zeros((3, 3, 4, 6)))
    dead = attention.picture(images, np.zeros((2, 1, 4, 6)))
    pixels(render.grid(dead, tmp_path, "zeros.png"))  # a dead map is no error


def test_class_token_attention_takes_the_patches_in_order():
    weights = np.arange(1 * 2 * 8 * 8).reshape(1, 2, 8, 8)  # class, 2 x 3 patches, one query token
    maps = attention.cls_attention(weights, (2, 3))
    np.testing.assert_array_equal(maps[0, 1], [[65, 66, 67], [68, 69, 70]])


def test_neighbours_frames_say_right_and_wrong(tmp_path):
    images = np.full((2, 8, 8, 3), 128, np.uint8)
    found = np.full((2, 3, 8, 8, 3), 128, np.uint8)
    green, red = (0x1A, 0x98, 0x50), (0xD7, 0x30, 0x27)
    shares = []
    for labels in ([[0, 0, 0], [1, 1, 1]], [[1, 1, 1], [0, 0, 0]]):
        picture = neighbours.picture(
            images, found, _RNG.random((2, 3)), [0, 1], labels, class_names=("cat", "dog")
        )
        image = is_a_picture(render.grid(picture, tmp_path, "neighbours.png"))
        shares.append((_share(image, green), _share(image, red)))
    assert shares[0][0] > 3 * shares[0][1] and shares[1][1] > 3 * shares[1][0]
    assert picture.rows[0][0].title == "query: cat" and "dog (" in picture.rows[0][1].title
    with pytest.raises(ValueError, match="do not fit"):
        neighbours.picture(images, found, np.zeros((2, 2)), [0, 1], [[0, 0, 0]] * 2)


def test_segmentations_show_the_classes(tmp_path):
    images = _RNG.random((2, 16, 16, 3))
    truth = np.full((2, 16, 16), 2, np.uint8)
    truth[:, :8] = 0
    truth[0, :2, :2] = 255
    picture = segmentation.picture(
        images,
        truth,
        truth[:, ::4, ::4],
        truth[:, ::4, ::4] % 255,
        title="Classes",
        class_names=("zero", "one", "background"),
    )
    image = is_a_picture(render.grid(picture, tmp_path, "segmentation.png"))
    palette = np.round(255 * render.class_colors(3, 2))
    assert _share(image, palette[0]) > 0.1 and _share(image, palette[2]) > 0.1
    assert _share(image, palette[1]) < 0.01  # only in the legend
    assert [text for _, text in picture.legend] == ["zero", "one", "background", "not labelled"]
    assert picture.rows[0][3].title == picture.rows[1][3].title == "retrieved, 100 % right"


@pytest.fixture
def config():
    c = settings.base_config("dino")
    c.model.update(size="custom", width=16, depth=1, heads=2, patch=4, image_size=16)
    images = dict(data=dict(length=16, size=24), crop=16)
    evals.add(c, "knn", k=(3,), **images)
    evals.add(c, "dense", k=5, **images)
    c.evals.far = evals.new("knn", k=(3,), **images)
    c.evals.batch_size = 16
    return c


@pytest.fixture
def encoder(monkeypatch):
    """The encoder of a report: raw pixels and even attention; returns the shapes of the images for
    which attention was asked."""
    asked = []

    class Encoder:
        def __init__(self, config, params, constants):
            self.config = config

        def __call__(self, images, attention=False):
            rows = evals.raw_pixels(4)(images)
            if attention:
                asked.append(images.shape)
            even = np.full((len(images), 2, 17, 17), 1 / 17) if attention else None
            return Features(rows.image, np.zeros((len(images), 3)), rows.patches, even)

    monkeypatch.setattr(report, "Encoder", Encoder)
    return asked


def own_pictures(monkeypatch, draw, **wanted):
    monkeypatch.setattr(pictures.base, "_OWN", {})
    pictures.register("dino", draw, **wanted)


def test_a_run_draws_every_figure_the_data_allow(tmp_path, config, encoder, monkeypatch):
    """Curves, attention, those of each evaluation under its name, the method's own; images are cut
    as they are for the scores, and are the first of the test images with masks."""
    got = []

    def draw(encoder, images):
        got.append(images)
        return {"own": Picture("own", ((Panel(images[0]),),))}

    own_pictures(monkeypatch, draw)
    (tmp_path / "metrics.csv").write_text("step,loss\n0,3\n1,2\n2,1\n")
    evaluation = report.Evaluation(config)
    folder = tmp_path / "pictures"
    paths = evaluation.draw("weights", None, folder, tmp_path)
    assert [p.name for p in paths] == [
        "curves.png",
        "attention.png",
        "pca.png",
        "segmentation.png",
        "far_knn_classes.png",
        "far_neighbours.png",
        "knn_classes.png",
        "neighbours.png",
        "dino_own.png",
    ]
    for path in paths:
        pixels(path)
    assert encoder == [(6, 16, 16, 3)]
    (images,) = got
    source = evaluation.sources["dense"][1]
    expected = evals.windows.images_of(source, range(16), crop=16, multiple=4)
    np.testing.assert_array_equal(images, expected)
    config.evals.tasks = ("knn",)
    config.model.cls = False
    paths = report.Evaluation(config).draw("weights", None, folder, tmp_path / "nothing")
    assert [p.name for p in paths] == [
        "pca.png",
        "knn_classes.png",
        "neighbours.png",
        "dino_own.png",
    ]
    assert len(got) == 2 and not np.array_equal(got[1], got[0])


def test_a_method_may_want_many_images_of_one_object(tmp_path, config, encoder, monkeypatch):
    got = []
    own_pictures(monkeypatch, lambda _, images: got.append(images) or {}, images=20, scenes=False)
    config.evals.far.data.length = 25
    evaluation = report.Evaluation(config)
    evaluation.draw("weights", None, tmp_path / "pictures", tmp_path)
    source = evaluation.sources["far"][1]
    expected = evals.windows.images_of(source, range(20), crop=16, multiple=4)
    np.testing.assert_array_equal(got[0], expected)


def test_pictures_can_show_larger_images_than_are_scored(tmp_path, config, encoder, monkeypatch):
    got = []
    own_pictures(monkeypatch, lambda encoder, images: got.append(images.shape) or {})
    config.evals.picture_size = 32
    report.Evaluation(config).draw("weights", None, tmp_path / "pictures", tmp_path)
    assert encoder == [(6, 32, 32, 3)] and got == [(16, 32, 32, 3)]
    assert config.evals.dense.data.size == 24


def test_larger_pictures_train_nothing_again_and_look_at_few_images(config):
    config.evals.picture_size, config.evals.dense.train_examples = 32, 0
    evals.add(config, "decode", data=dict(kind="photos", size=16, length=30), test_examples=5)
    config.evals.tasks = ("decode", "dense")
    cases = report.Evaluation(config)._pictured(evals.raw_pixels(4))
    assert list(cases) == ["decode", "dense"]
    dense, decode = cases["dense"].config, cases["decode"].config
    assert dense.data.size == 32 and dense.train_examples == report._PICTURED
    assert decode.data.size == 16 and decode.test_examples == 5


def test_principal_colours_are_alike_for_patches_that_are_alike():
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(4, 12)) * 5
    which = rng.integers(0, 4, (3, 6, 5))
    colours = pca.principal_colours(kinds[which] + 0.01 * rng.normal(size=(3, 6, 5, 12)))
    assert colours.shape == (3, 6, 5, 3) and colours.min() >= 0 and colours.max() <= 1
    means = np.stack([colours[which == k].mean(0) for k in range(4)])
    assert max(colours[which == k].std(0).max() for k in range(4)) < 0.01
    assert min(np.abs(means[a] - means[b]).max() for a in range(4) for b in range(a)) > 0.3


def test_principal_colours_have_one_sign_and_ignore_the_mean():
    patches = np.random.default_rng(0).normal(size=(2, 4, 4, 8)) * np.arange(1, 9)
    colours = pca.principal_colours(patches)
    np.testing.assert_allclose(pca.principal_colours(patches + 7), colours, atol=1e-9)
    # red follows the strongest direction, whose largest weight is positive
    red, strongest = colours[..., 0].ravel(), patches[..., 7].ravel()
    assert np.corrcoef(red, strongest)[0, 1] > 0.9


def test_equal_patches_have_a_colour_too():
    assert np.isfinite(pca.principal_colours(np.ones((1, 3, 3, 5)))).all()


def test_the_pca_picture_has_each_image_above_its_colours():
    images = np.random.default_rng(0).random((8, 16, 16, 3))
    picture = pca.draw(evals.raw_pixels(4), images)["pca"]
    assert [len(row) for row in picture.rows] == [6, 6, 2, 2]
    np.testing.assert_array_equal(picture.rows[2][1].image, images[7])
    assert picture.rows[3][1].image.shape == (4, 4, 3)


def test_dense_pictures_of_images_of_their_own_sizes():
    rng = np.random.default_rng(0)
    sizes = ((8, 12), (12, 8), (8, 8))
    images = [rng.random((*size, 3), np.float32) for size in sizes]
    masks = [np.full(size, i % 2, np.uint8) for i, size in enumerate(sizes)]

    class Mixed(fakes.Source):
        def __getitem__(self, i):
            return {"image": images[i], "mask": masks[i]}

    source = Mixed(np.zeros((3, 8, 8, 3)), masks=masks, size=None)
    source.shape = lambda i: sizes[i]
    case = evals.Case(evals.raw_pixels(4), evals.new("dense", k=1), source, source, patch=4)
    assert evals.dense.figures(case) == {}
    assert evals.run({"dense": case})["dense"] == pytest.approx(100)
    found = evals.dense.figures(case)
    assert [panel.image.shape for panel, *_ in found["segmentation"].rows] == [
        (*size, 3) for size in sizes
    ]
    classes = found["dense_classes"]
    assert classes.names == ("0", "1") and list(classes.values) == [1, 1]


def test_figures_call_classes_by_the_names_of_their_source(config):
    cases = evals.cases(evals.raw_pixels(4), config)
    segments = evals.dense.figures(cases["dense"])["segmentation"]
    assert segments.legend[:2] == ((0, "astronaut"), (1, "brick")) and segments.background is None
    cases["knn"].test.class_names = [f"photograph {i}" for i in range(17)]
    rows = evals.knn.figures(cases["knn"])["neighbours"].rows
    assert all(row[0].title.startswith("query: photograph ") for row in rows)
    assert all("photograph " in panel.title for panel in rows[0][1:])
    right = evals.run({"knn": cases["knn"]})["knn"]
    classes = evals.knn.figures(cases["knn"])["knn_classes"]
    assert classes.names == tuple(f"photograph {i}" for i in range(17))
    shares = classes.values[cases["knn"].part("test").labels]
    assert 100 * np.mean(shares) == pytest.approx(right)


def test_nothing_is_drawn_without_evaluations(tmp_path, config, encoder, monkeypatch):
    own_pictures(monkeypatch, lambda *_: 1 / 0)
    evaluation = report.Evaluation(config, tasks=())
    assert evaluation.draw("weights", None, tmp_path / "pictures", tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_a_method_without_pictures_has_none(config):
    encoder = SimpleNamespace(config=SimpleNamespace(method="plain"))
    assert pictures.draw(encoder, None) == {}
