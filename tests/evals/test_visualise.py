"""Figures are written, are not blank, and show what they are given; the helpers behind them."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals, settings
from ssl_jax.config import InputError
from ssl_jax.evals import visualise
from ssl_jax.methods.base import Features

_RNG = np.random.default_rng(0)


def _pixels(path):
    assert path.is_file() and path.suffix == ".png"
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def _is_a_picture(path):
    pixels = _pixels(path)
    assert min(pixels.shape[:2]) > 150
    assert pixels.std() > 10 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    assert (pixels[[0, -1]] > 240).all() and (
        pixels[:, [0, -1]] > 240
    ).all()  # nothing runs over the edge
    return pixels


def _share(pixels, color):
    return np.mean(np.abs(pixels - np.array(color)).max(axis=-1) < 6)


def test_curves(tmp_path):
    table = tmp_path / "metrics.csv"
    rows = ["step,loss,cls_kl,lr,momentum,note,grad_norm"]
    rows += [
        f"{i},{5 - i / 20 + (i % 3) / 5},{1 / (i + 1)},{0.001 * i},{0.99},x,{1 + i % 4}"
        for i in range(40)
    ]
    rows += ["40,nan,,0.04,0.99,x,"]
    table.write_text("\n".join(rows))
    metrics = visualise.read_metrics(table)
    assert (
        metrics["step"][-1] == 40
        and np.isnan(metrics["loss"][-1])
        and np.isnan(metrics["note"]).all()
    )
    scores = {"step": np.array([0.0, 20, 40]), "knn": np.array([10.0, 40, 50])}
    path = visualise.curves(metrics, tmp_path / "new" / "folder", scores=scores)
    _is_a_picture(path)
    assert path == tmp_path / "new" / "folder" / "curves.png"


def test_curves_need_something_to_draw(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match='header with "step"'):
        visualise.read_metrics(tmp_path / "empty.csv")
    with pytest.raises(InputError, match="no known curve"):
        visualise.curves({"step": np.arange(3.0), "loss": np.full(3, np.nan)}, tmp_path)


def test_running_mean_keeps_constants_and_the_length():
    np.testing.assert_allclose(visualise.running_mean(np.full(10, 3.0), 4), 3)
    np.testing.assert_allclose(visualise.running_mean([0, 3, 6, 9], 3), [1.5, 3, 6, 7.5])
    assert len(visualise.running_mean([1.0, 2.0], 5)) == 2


def test_attention(tmp_path):
    images = _RNG.random((2, 16, 24, 3))
    _is_a_picture(visualise.attention(images, _RNG.random((2, 3, 4, 6)), tmp_path))
    with pytest.raises(ValueError, match="heads"):
        visualise.attention(images, np.zeros((3, 3, 4, 6)), tmp_path)
    _pixels(
        visualise.attention(images, np.zeros((2, 1, 4, 6)), tmp_path, name="zeros.png")
    )  # a dead map is no error


def test_neighbours_frames_say_right_and_wrong(tmp_path):
    images = np.full((2, 8, 8, 3), 128, np.uint8)
    found = np.full((2, 3, 8, 8, 3), 128, np.uint8)
    green, red = (0x1A, 0x98, 0x50), (0xD7, 0x30, 0x27)
    shares = []
    for labels in ([[0, 0, 0], [1, 1, 1]], [[1, 1, 1], [0, 0, 0]]):
        path = visualise.neighbours(
            images, found, _RNG.random((2, 3)), [0, 1], labels, tmp_path, class_names=("cat", "dog")
        )
        pixels = _is_a_picture(path)
        shares.append((_share(pixels, green), _share(pixels, red)))
    assert shares[0][0] > 3 * shares[0][1] and shares[1][1] > 3 * shares[1][0]
    with pytest.raises(ValueError, match="do not fit"):
        visualise.neighbours(images, found, np.zeros((2, 2)), [0, 1], [[0, 0, 0]] * 2, tmp_path)


def test_segmentations_show_the_classes(tmp_path):
    images = _RNG.random((2, 16, 16, 3))
    truth = np.full((2, 16, 16), 2, np.uint8)
    truth[:, :8] = 0
    truth[0, :2, :2] = 255
    path = visualise.segmentations(
        images,
        truth,
        truth[:, ::4, ::4] % 255,
        tmp_path,
        class_names=("zero", "one", "background"),
        background=2,
        iou=[0.5, np.nan, 0.9],
    )
    pixels = _is_a_picture(path)
    palette = np.round(255 * visualise.class_colors(3, 2))
    assert _share(pixels, palette[0]) > 0.1 and _share(pixels, palette[2]) > 0.1
    assert _share(pixels, palette[1]) < 0.01  # only in the legend


@pytest.mark.parametrize("count, background", [(11, 10), (21, 0), (60, None), (171, None)])
def test_class_colors_are_distinct(count, background):
    palette = visualise.class_colors(count, background)
    assert palette.shape == (count, 3) and palette.min() >= 0 and palette.max() <= 1
    distance = np.abs(palette[:, None] - palette[None]).sum(-1) + 9 * np.eye(count)
    assert distance.min() > (0.2 if count < 22 else 0.01)
    if background is not None:
        np.testing.assert_allclose(palette[background], 0xD9 / 255)


def test_ignored_places_are_white():
    picture = visualise.paint(np.array([[0, 255]]), np.zeros((1, 3)))
    np.testing.assert_array_equal(picture[0], [[0, 0, 0], [1, 1, 1]])


def test_class_token_attention_takes_the_patches_in_order():
    attention = np.arange(1 * 2 * 8 * 8).reshape(
        1, 2, 8, 8
    )  # class, 2 x 3 patches, one query token
    maps = visualise.cls_attention(attention, (2, 3))
    np.testing.assert_array_equal(maps[0, 1], [[65, 66, 67], [68, 69, 70]])


def test_draw_makes_every_figure_the_data_allow(tmp_path):
    config = settings.base_config("dino")
    config.model.patch = 4
    for section in (config.eval.image, config.eval.dense):
        section.update(dict(length=16, size=24))
    config.eval.update(dict(batch_size=16, knn_k=(3,), dense_k=5, tasks=("knn", "dense"), crop=16))
    sources, extracted = evals.sources(config), {}
    evals.evaluate(evals.raw_pixels(4), config, sources_of=sources, extracted=extracted)

    def attend(images):
        assert images.shape[1:] == (16, 16, 3)  # cropped like the images that were scored
        tokens = np.full((len(images), 2, 17, 17), 1 / 17)
        return Features(
            None, np.zeros((len(images), 3)), np.zeros((len(images), 4, 4, 3)), attention=tokens
        )

    metrics = {"step": np.arange(5.0), "loss": np.arange(5.0)}
    paths = visualise.draw(
        config, tmp_path, extracted, sources, attention_fn=attend, metrics=metrics, count=3
    )
    assert [p.name for p in paths] == [
        "curves.png",
        "attention.png",
        "neighbours.png",
        "segmentation.png",
    ]
    for path in paths:
        _pixels(path)
    del extracted["dense"]
    assert [p.name for p in visualise.draw(config, tmp_path, extracted, sources)] == [
        "neighbours.png"
    ]
