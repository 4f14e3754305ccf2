"""Pictures of methods: what a panel holds is seen in the PNG, and a picture that fails does not
lose the run.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals, settings
from ssl_jax.evals import panels, report, visualise
from ssl_jax.methods.base import Panel, Picture
from tests.evals import fakes

GRAY = np.full((16, 24, 3), 0.5)


def pixels(path):
    assert path.is_file() and path.suffix == ".png"
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def share(image, color):
    return np.mean(np.abs(image - np.round(255 * np.asarray(color))).max(axis=-1) < 8)


def drawn(tmp_path, *rows, title="A picture"):
    image = pixels(panels.grid(Picture(title, tuple(rows)), tmp_path / "new", "picture.png"))
    assert (image[[0, -1]] > 240).all() and (image[:, [0, -1]] > 240).all(), (
        "nothing runs over the edge"
    )
    return image


def test_an_image_is_shown_as_it_is_whole_and_in_its_shape(tmp_path):
    color = (0.2, 0.6, 0.9)
    image = drawn(tmp_path, (Panel(np.broadcast_to(color, (16, 32, 3)), title="wide"),))
    inside = np.abs(image - np.round(255 * np.array(color))).max(axis=-1) < 8
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    assert (np.ptp(columns) + 1) / (np.ptp(rows) + 1) == pytest.approx(2, rel=0.05)
    assert share(drawn(tmp_path, (Panel(np.full((8, 8, 3), 51, np.uint8)),)), (0.2, 0.2, 0.2)) > 0.1


def test_a_map_is_bright_where_it_is_highest_whatever_its_scale(tmp_path):
    heat = np.zeros((4, 6))
    heat[:, 3:] = 1e-4
    image = drawn(tmp_path, (Panel(GRAY, heat=heat),))
    np.testing.assert_allclose(drawn(tmp_path, (Panel(GRAY, heat=7 + 1e6 * heat),)), image, atol=2)
    brightness = image.sum(axis=-1)[
        image.shape[0] // 2
    ]  # of the middle line: white, dark, bright, white, and the colour bar
    inside = np.flatnonzero(brightness[: image.shape[1] * 2 // 3] < 600)
    left, right = brightness[inside[len(inside) // 6]], brightness[inside[len(inside) * 5 // 6]]
    assert right > left + 150


@pytest.mark.parametrize(
    "heat", [np.zeros((2, 2)), np.full((2, 2), np.nan), np.array([[0, np.inf], [1, np.nan]])]
)
def test_dead_maps_are_no_error(tmp_path, heat):
    drawn(tmp_path, (Panel(GRAY, heat=heat),))


def test_regions_have_one_colour_per_label_in_all_panels_and_none_below_zero(tmp_path):
    black = np.zeros((16, 16, 3))
    labels = np.array([[0, 1], [2, -1]])
    palette = visualise.class_colors(3) * 0.6
    image = drawn(tmp_path, (Panel(black, labels=labels), Panel(black, labels=np.full((2, 2), 2))))
    shares = [share(image, color) for color in palette]
    assert shares[0] == pytest.approx(shares[1], rel=0.05) and shares[2] == pytest.approx(
        5 * shares[0], rel=0.05
    )
    assert share(image, (0, 0, 0)) == pytest.approx(shares[0], rel=0.15)  # black letters count too
    unsigned = drawn(tmp_path, (Panel(black, labels=np.array([[0, 1], [2, 2]], np.uint8)),))
    assert share(unsigned, palette[2]) > 0.1


def test_marks_lie_where_they_should_each_in_its_colour(tmp_path):
    marks = ((0.25, 0.25), (0.75, 0.5))
    image = drawn(tmp_path, (Panel(GRAY, marks=marks),))
    gray = np.abs(image - 128).max(axis=-1) < 8
    rows, columns = np.flatnonzero(gray.mean(axis=1) > 0.3), np.flatnonzero(gray.mean(axis=0) > 0.3)
    for (y, x), color in zip(marks, visualise.LINES):
        rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        found = np.argwhere(np.abs(image - rgb).max(axis=-1) < 8).mean(axis=0)
        wanted = rows[0] + y * np.ptp(rows), columns[0] + x * np.ptp(columns)
        np.testing.assert_allclose(found, wanted, atol=4)


def test_rows_may_be_shorter_and_titles_long(tmp_path):
    row = tuple(
        Panel(
            GRAY,
            title=f"panel {i} with a title that is far too long for its width and has to be cut",
        )
        for i in range(3)
    )
    tall = drawn(tmp_path, row, row[:1], (), title="A title of many words " * 5)
    assert tall.shape[0] > drawn(tmp_path, row).shape[0] + 100
    many = drawn(tmp_path, tuple(Panel(GRAY) for _ in range(40)))
    assert many.shape[1] < 2600


@pytest.mark.parametrize(
    ("rows", "columns", "shape"),
    [(16, 3, (8, 6)), (9, 2, (5, 4)), (17, 4, (6, 12)), (16, 7, (16, 7)), (8, 1, (8, 1))],
)
def test_many_rows_stand_in_blocks_side_by_side(rows, columns, shape):
    given = [tuple(range(100 * i, 100 * i + columns)) for i in range(rows - 1)] + [(100 * rows,)]
    folded, widths = panels._fold(given)
    assert (len(folded), widths.count(1.0)) == shape
    blocks = [
        [line[start : start + columns] for line in folded]
        for start in range(0, len(widths), columns + 1)
    ]
    assert [
        tuple(p for p in row if p is not None)
        for block in blocks
        for row in block
        if row and row[0] is not None
    ] == given
    assert [w for w in widths if w != 1.0] == [0.2] * (len(blocks) - 1)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Picture("empty", ()), 'picture "empty" has no panels'),
        (Picture("empty", ((),)), 'picture "empty" has no panels'),
        (
            Picture("x", ((Panel(np.zeros((4, 4)), title="flat"),),)),
            r'panel "flat": image is \(4, 4\); it must be \[H, W, 3\]',
        ),
        (Picture("x", ((Panel(GRAY, heat=np.zeros(4)),),)), r"heat is \(4,\); it must be \[h, w\]"),
        (Picture("x", ((Panel(GRAY, labels=np.zeros((2, 2, 2))),),)), r"labels is \(2, 2, 2\)"),
    ],
)
def test_what_is_no_picture_is_named(tmp_path, picture, message):
    with pytest.raises(ValueError, match=message):
        panels.grid(picture, tmp_path, "x.png")


# --- the pictures of a method


def method_of(pictures):
    return SimpleNamespace(name="mine", pictures=pictures)


@pytest.fixture
def config():
    c = settings.base_config("dino")
    c.model.patch, c.eval.crop = 4, 0
    return c


def sources_of(*names, size=10):
    return {
        name: (None, fakes.Source(fakes.images(40, size, size, seed=i)))
        for i, name in enumerate(names)
    }


@pytest.mark.parametrize(
    ("names", "seed"), [(("image", "dense"), 1), (("dense",), 0), (("image",), 0)]
)
def test_a_method_gets_the_first_test_images_of_the_dense_set_else_of_the_image_set(
    tmp_path, config, names, seed
):
    got = []

    def pictures(weights, images, config):
        got.append((weights, images))
        return {
            "first": Picture("1", ((Panel(images[0]),),)),
            "second": Picture("2", ((Panel(images[1]),),)),
        }

    paths = panels.draw(method_of(pictures), "weights", config, sources_of(*names), tmp_path)
    assert [path.name for path in paths] == ["mine_first.png", "mine_second.png"] and all(
        path.is_file() for path in paths
    )
    ((weights, images),) = got
    assert weights == "weights" and images.shape == (16, 8, 8, 3), (
        "cut to a multiple of the patch, like the images that are scored"
    )
    np.testing.assert_allclose(
        images, fakes.images(40, 10, 10, seed=seed)[:16, 1:9, 1:9] / np.float32(255)
    )


def test_nothing_is_drawn_without_pictures_or_images(tmp_path, config):
    assert panels.draw(method_of(None), None, config, sources_of("image"), tmp_path) == []
    assert panels.draw(method_of(lambda *a: 1 / 0), None, config, {}, tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_a_picture_that_fails_is_reported_and_the_others_are_drawn(tmp_path, config, capsys):
    def pictures(weights, images, config):
        return {"bad": Picture("", ()), "good": Picture("", ((Panel(images[0]),),))}

    folder = tmp_path / "pictures"
    paths = panels.draw(method_of(pictures), None, config, sources_of("image"), folder)
    assert [path.name for path in paths] == ["mine_good.png"]
    out = capsys.readouterr().out
    assert (
        out.count("\n") == 1
        and "warning: picture mine_bad failed (ValueError: picture" in out
        and "mine_bad.failed.txt" in out
    )
    assert "Traceback" in (folder / "mine_bad.failed.txt").read_text()
    panels.draw(
        method_of(lambda *a: {"bad": Picture("", ((Panel(GRAY),),))}),
        None,
        config,
        sources_of("image"),
        folder,
    )
    assert {path.name for path in folder.iterdir()} == {"mine_bad.png", "mine_good.png"}, (
        "an old report does not stay"
    )


def test_a_method_that_fails_loses_only_its_pictures(tmp_path, config, capsys):
    def pictures(weights, images, config):
        raise TypeError("of several\nlines")

    assert panels.draw(method_of(pictures), None, config, sources_of("image"), tmp_path) == []
    assert "picture mine_pictures failed (TypeError: of several lines)" in capsys.readouterr().out


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_and_an_interrupt_are_passed_on(tmp_path, config, error):
    def pictures(weights, images, config):
        raise error

    with pytest.raises(type(error)):
        panels.draw(method_of(pictures), None, config, sources_of("image"), tmp_path)


def test_the_report_of_a_run_has_them_after_its_own(tmp_path, config, monkeypatch):
    """Evaluation.draw hands method, weights and sources on, and lists these pictures last."""
    monkeypatch.setattr(visualise, "draw", lambda *a, **k: [tmp_path / "curves.png"])
    monkeypatch.setattr(evals, "network", lambda *a, **k: lambda weights: None)
    evaluation = report.Evaluation(
        method_of(lambda w, x, c: {"own": Picture(str(w), ((Panel(x[0]),),))}), config, tasks=()
    )
    evaluation._sources = sources_of("dense")
    paths = evaluation.draw("weights", tmp_path, tmp_path)
    assert [path.name for path in paths] == ["curves.png", "mine_own.png"]
