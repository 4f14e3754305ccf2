"""Pictures of evaluations and methods: what they are given, and which a run draws."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals, settings
from ssl_jax.data.base import Wrapper
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import pictures
from ssl_jax.evals.pictures import neighbours, segmentation
from ssl_jax.features import windows
from ssl_jax.methods.base import Features
from ssl_jax.methods.pictures import attention, base, pca
from ssl_jax.methods.pictures.base import Panel, Picture
from ssl_jax.report import evaluation as report_evaluation
from ssl_jax.report.evaluation import Evaluation

_RNG = np.random.default_rng(0)


def test_attention():
    images, maps = _RNG.random((2, 16, 24, 3)), _RNG.random((2, 3, 4, 6))
    for i, (image, *heads) in enumerate(attention.picture(images, maps).rows):
        np.testing.assert_array_equal(image.image, images[i])
        shown = {panel.heat.tobytes() for panel in heads}
        assert {head.tobytes() for head in maps[i]} <= shown
    with pytest.raises(ValueError, match="heads"):
        attention.picture(images, np.zeros((3, 3, 4, 6)))
    weights = np.arange(1 * 2 * 8 * 8).reshape(1, 2, 8, 8)  # class, 2 x 3 patches, one query token
    maps = attention.cls_attention(weights, (2, 3))
    np.testing.assert_array_equal(maps[0, 1], [[65, 66, 67], [68, 69, 70]])


def test_neighbours_frames_say_right_and_wrong():
    images, found = _RNG.random((2, 8, 8, 3)), _RNG.random((2, 3, 8, 8, 3))
    labels, names = [[0, 1, 0], [1, 1, 0]], ("cat", "dog")
    picture = neighbours.picture(
        images, found, _RNG.random((2, 3)), [0, 1], labels, class_names=names
    )
    (right, wrong, again), others = ([p.frame for p in row[1:]] for row in picture.rows)
    assert right == again != wrong and others == [right, right, wrong]
    assert [colour for colour, _ in picture.legend] == [right, wrong]
    for i, (query, *panels) in enumerate(picture.rows):
        np.testing.assert_array_equal(query.image, images[i])
        np.testing.assert_array_equal([panel.image for panel in panels], found[i])
    assert "cat" in picture.rows[0][0].title and "dog" in picture.rows[0][2].title
    with pytest.raises(ValueError):
        neighbours.picture(images, found, np.zeros((2, 2)), [0, 1], [[0, 0, 0]] * 2)


def test_segmentations_show_the_classes():
    images = _RNG.random((2, 16, 16, 3))
    truth = np.full((2, 16, 16), 2, np.uint8)
    truth[:, :8] = 0
    truth[0, :2, :2] = 255
    patches, names = truth[:, ::4, ::4], ("zero", "one", "background")
    maps = {"truth": truth, "per patch": patches, "predicted": patches % 255}
    picture = segmentation.picture(images, maps, title="Classes", names=names)
    for i, (image, *shown) in enumerate(picture.rows):
        np.testing.assert_array_equal(image.image, images[i])
        expected = (x[i].astype(int) for x in (truth, patches, patches % 255))
        for panel, labels in zip(shown, expected, strict=True):
            np.testing.assert_array_equal(panel.labels, np.where(labels == 255, -1, labels))
        assert "100 %" in shown[-1].title
    assert [text for _, text in picture.legend] == [*names, "not labelled"]


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

    monkeypatch.setattr(report_evaluation, "Encoder", Encoder)
    return asked


def own_pictures(monkeypatch, draw, **wanted):
    monkeypatch.setattr(base, "_OWN", {})
    pictures.register("dino", draw, **wanted)


@pytest.mark.slow
def test_a_run_draws_every_figure_the_data_allow(tmp_path, config, encoder, monkeypatch):
    """Curves, attention, those of each evaluation under its name, the method's own; images are cut
    as they are for the scores, and are the first of the test images with masks."""
    got = []

    def draw(encoder, images):
        got.append(images)
        return {"own": Picture("own", ((Panel(images[0]),),))}

    own_pictures(monkeypatch, draw)
    (tmp_path / "metrics.csv").write_text("step,loss\n0,3\n1,2\n2,1\n")
    evaluation = Evaluation(config)
    folder = tmp_path / "pictures"
    of_all, of_tasks = {"pca", "dino_own"}, {"knn_classes", "neighbours"}
    of_others = {"curves", "attention", "segmentation", "far_knn_classes", "far_neighbours"}
    paths = evaluation.draw("weights", None, folder, tmp_path)
    assert {path.stem for path in paths} >= of_all | of_tasks | of_others
    for path in paths:
        with Image.open(path) as drawn:
            assert min(drawn.size) > 150
    assert encoder == [(6, 16, 16, 3)]
    (images,) = got
    source = evaluation.sources["dense"][1]
    expected = windows.images_of(source, range(16), crop=16, multiple=4)
    np.testing.assert_array_equal(images, expected)
    config.evals.tasks = ("knn",)
    config.model.cls = False
    paths = Evaluation(config).draw("weights", None, folder, tmp_path / "nothing")
    assert {path.stem for path in paths} == of_all | of_tasks
    assert len(got) == 2 and not np.array_equal(got[1], got[0])
    config.evals.tasks = ()
    assert Evaluation(config).draw("weights", None, tmp_path / "none", tmp_path / "no") == []
    assert len(got) == 2 and not (tmp_path / "none").exists()


def test_pictures_can_show_larger_images_than_are_scored(tmp_path, config, encoder, monkeypatch):
    config.evals.tasks = ("dense",)
    got = []
    own_pictures(monkeypatch, lambda encoder, images: got.append(images.shape) or {})
    config.evals.picture_size = 32
    Evaluation(config).draw("weights", None, tmp_path / "pictures", tmp_path)
    assert encoder == [(6, 32, 32, 3)] and got == [(16, 32, 32, 3)]
    assert config.evals.dense.data.size == 24


@pytest.mark.parametrize("side", [0, 32])
def test_the_process_that_draws_shares_no_work(tmp_path, config, encoder, monkeypatch, side):
    """The others do not draw: what one waits for would never come."""
    shared = []
    dense = dataclasses.replace(
        evals.TYPES["dense"], draw=lambda case, _: shared.append(case.shared) or {}
    )
    monkeypatch.setitem(evals.TYPES, "dense", dense)
    config.evals.tasks, config.evals.picture_size = ("dense",), side
    Evaluation(config).draw("weights", None, tmp_path / "pictures", tmp_path)
    assert shared == [False]


@pytest.mark.parametrize("damaged", [(), (1, 4)])
def test_a_picture_gets_a_memory_of_training_images(
    tmp_path, config, encoder, monkeypatch, damaged
):
    """Images that cannot be read are left out, also of the test images."""

    class Damaged(Wrapper):
        def __getitem__(self, i):
            if i in damaged:
                raise Unreadable(self.name(i), "damaged")
            return self._source[i]

    config.evals.tasks, got = ("dense",), []

    def draw(encoder, images, memory):
        got.append((memory.size, memory.images([2, 0]), images))
        return {}

    own_pictures(monkeypatch, draw, images=4, memory=7)
    evaluation = Evaluation(config)
    train, test = evaluation.sources["dense"]
    evaluation.sources = {"dense": (Damaged(train), Damaged(test))}
    folder = tmp_path / "pictures"
    assert len(evaluation.draw("weights", None, folder, tmp_path)) == 3
    assert encoder == [(6, 16, 16, 3)]
    assert not list(folder.glob("*.failed.txt"))
    ((size, of_memory, images),) = got
    left = [i for i in range(16) if i not in damaged]
    assert size == 7
    for found, source, rows in ((of_memory, train, [left[2], 0]), (images, test, left[:4])):
        wanted = windows.images_of(source, rows, crop=16, multiple=4)
        np.testing.assert_array_equal(found, wanted)


def test_principal_colours_are_alike_for_patches_that_are_alike():
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(4, 12)) * 5
    which = rng.integers(0, 4, (3, 6, 5))
    colours = pca.principal_colours(kinds[which] + 0.01 * rng.normal(size=(3, 6, 5, 12)))
    assert colours.shape == (3, 6, 5, 3) and colours.min() >= 0 and colours.max() <= 1
    means = np.stack([colours[which == k].mean(0) for k in range(4)])
    assert max(colours[which == k].std(0).max() for k in range(4)) < 0.01
    assert min(np.abs(means[a] - means[b]).max() for a in range(4) for b in range(a)) > 0.3
    # The mean is ignored; red follows the strongest direction, whose largest weight is positive.
    patches = np.random.default_rng(0).normal(size=(2, 4, 4, 8)) * np.arange(1, 9)
    colours = pca.principal_colours(patches)
    np.testing.assert_allclose(pca.principal_colours(patches + 7), colours, atol=1e-9)
    assert np.corrcoef(colours[..., 0].ravel(), patches[..., 7].ravel())[0, 1] > 0.9
    assert np.isfinite(pca.principal_colours(np.ones((1, 3, 3, 5)))).all()


def test_figures_call_classes_by_the_names_of_their_source(config):
    cases = evals.cases(evals.raw_pixels(4), config)
    segments = evals.TYPES["dense"].figures(cases["dense"])["segmentation"]
    assert segments.legend[:2] == ((0, "astronaut"), (1, "brick")) and segments.background is None
    cases["knn"].test.class_names = [f"photograph {i}" for i in range(17)]
    rows = evals.TYPES["knn"].figures(cases["knn"])["neighbours"].rows
    assert all(row[0].title.startswith("query: photograph ") for row in rows)
    assert all("photograph " in panel.title for panel in rows[0][1:])
    right = evals.run({"knn": cases["knn"]})["knn"]
    classes = evals.TYPES["knn"].figures(cases["knn"])["knn_classes"]
    assert classes.names == tuple(f"photograph {i}" for i in range(17))
    shares = classes.values[cases["knn"].features("test").labels]
    assert 100 * np.mean(shares) == pytest.approx(right)
