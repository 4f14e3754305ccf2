"""The renderer: what a panel holds is seen in the PNG, and a picture that fails does not lose the
run.
"""

import numpy as np
import pytest
from PIL import Image

from ssl_jax.evals.pictures import Animation, Panel, Picture, render

GRAY = np.full((16, 24, 3), 0.5)


def pixels(path):
    assert path.is_file() and path.suffix == ".png"
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def share(image, color):
    return np.mean(np.abs(image - np.round(255 * np.asarray(color))).max(axis=-1) < 8)


def drawn(tmp_path, *rows, title="A picture"):
    image = pixels(render.grid(Picture(title, tuple(rows)), tmp_path / "new", "picture.png"))
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
    palette = render.class_colors(3) * 0.6
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
    for (y, x), color in zip(marks, render.LINES):
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
    folded, widths = render._fold(given)
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
        (Picture("x", ((Panel(title="void"),),)), 'panel "void" shows nothing'),
        (Picture("x", ((Panel(GRAY, heat=np.zeros(4)),),)), r"heat is \(4,\); it must be \[h, w\]"),
        (Picture("x", ((Panel(GRAY, labels=np.zeros((2, 2, 2))),),)), r"labels is \(2, 2, 2\)"),
    ],
)
def test_what_is_no_picture_is_named(tmp_path, picture, message):
    with pytest.raises(ValueError, match=message):
        render.grid(picture, tmp_path, "x.png")


def test_what_is_shown_alone_keeps_its_cells_and_colours(tmp_path):
    labels = np.array([[0, 1], [-1, 1]])
    image = drawn(tmp_path, (Panel(labels=labels, frame="#00ff00"),))
    palette = render.class_colors(2)
    assert share(image, palette[1]) == pytest.approx(2 * share(image, palette[0]), rel=0.05)
    assert share(image, (0, 1, 0)) > 0.003, "the frame"
    heat = drawn(tmp_path, (Panel(heat=np.array([[0.0, 1.0]])),))
    assert (
        share(heat, (0, 0, 0.016)) > 0.1 and share(heat, (0.988, 1, 0.645)) > 0.1
    )  # inferno's ends


def test_maps_go_from_zero_or_from_their_minimum(tmp_path):
    panel = Panel(heat=np.array([[0.9, 1.0]]))
    dark = (0, 0, 0.016)
    assert share(drawn(tmp_path, (panel,)), dark) > 0.1
    path = render.grid(Picture("zero", ((panel,),), from_zero=True), tmp_path, "zero.png")
    assert share(pixels(path), dark) < 0.02


def test_a_legend_has_colours_and_labels(tmp_path):
    panel = Panel(labels=np.zeros((2, 2), int))
    legend = (("#d73027", "red"), (3, "three"), (-1, "nothing"))
    path = render.grid(
        Picture("legend", ((panel,),), background=3, legend=legend), tmp_path, "x.png"
    )
    image = pixels(path)
    assert share(image, (0xD7 / 255, 0x30 / 255, 0x27 / 255)) > 0.001
    assert share(image, (0xD9 / 255,) * 3) > 0.001


@pytest.mark.parametrize("count, background", [(11, 10), (21, 0), (60, None), (171, None)])
def test_class_colors_are_distinct(count, background):
    palette = render.class_colors(count, background)
    assert palette.shape == (count, 3) and palette.min() >= 0 and palette.max() <= 1
    distance = np.abs(palette[:, None] - palette[None]).sum(-1) + 9 * np.eye(count)
    assert distance.min() > (0.2 if count < 22 else 0.01)
    if background is not None:
        np.testing.assert_allclose(palette[background], 0xD9 / 255)


def test_places_without_a_label_are_white():
    picture = render.paint(np.array([[0, -1]]), np.zeros((1, 3)))
    np.testing.assert_array_equal(picture[0], [[0, 0, 0], [1, 1, 1]])


def test_a_single_place_without_a_label_leaves_the_palette_as_it_is():
    palette = np.zeros((2, 3))
    np.testing.assert_array_equal(render.paint(-1, palette), [1, 1, 1])
    np.testing.assert_array_equal(palette, 0)


# --- pictures that fail


def make(**pictures):
    return lambda: pictures


GOOD, BAD = Picture("", ((Panel(GRAY),),)), Picture("", ())


def test_a_picture_that_fails_is_reported_and_the_others_are_drawn(tmp_path, capsys):
    folder = tmp_path / "pictures"
    paths = render.draw(make(bad=BAD, good=GOOD), folder, "mine_pictures", "mine_")
    assert [path.name for path in paths] == ["mine_good.png"]
    out = capsys.readouterr().out
    assert (
        out.count("\n") == 1
        and "warning: picture mine_bad failed (ValueError: picture" in out
        and "mine_bad.failed.txt" in out
    )
    assert "Traceback" in (folder / "mine_bad.failed.txt").read_text()
    render.draw(make(bad=GOOD), folder, "mine_pictures", "mine_")
    assert {path.name for path in folder.iterdir()} == {"mine_bad.png", "mine_good.png"}, (
        "an old report does not stay"
    )


def test_a_method_that_fails_loses_only_its_pictures(tmp_path, capsys):
    def fails():
        raise TypeError("of several\nlines")

    assert render.draw(fails, tmp_path, "mine_pictures") == []
    assert "picture mine_pictures failed (TypeError: of several lines)" in capsys.readouterr().out


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_and_an_interrupt_are_passed_on(tmp_path, error):
    def fails():
        raise error

    with pytest.raises(type(error)):
        render.draw(fails, tmp_path, "mine_pictures")


def test_an_animation_is_a_gif_with_objects_in_colour(tmp_path):
    image = np.full((6, 8, 3), 0.5)
    labels = np.full((6, 8), -1)
    labels[:3] = 1
    frames = (Panel(image, labels=labels), Panel(np.zeros((6, 8, 3))), Panel(image, labels=labels))
    moving = Animation("one", frames, milliseconds=70)
    (path,) = render.draw(make(a=moving), tmp_path, "mine", "p_")
    assert path.name == "p_a.gif"
    with Image.open(path) as drawn:
        assert (drawn.n_frames, drawn.size, drawn.info["duration"]) == (3, (8, 6), 70)
        first = np.asarray(drawn.convert("RGB"))
        drawn.seek(1)
        assert not np.asarray(drawn.convert("RGB")).any()
    np.testing.assert_allclose(first[4, 4], 127.5, atol=3)
    expected = 255 * (0.25 + 0.5 * render.class_colors(2)[1])
    np.testing.assert_allclose(first[1, 1], expected, atol=4)


def test_a_large_animation_is_shrunk(tmp_path):
    frames = tuple(Panel(np.full((300, 960, 3), x)) for x in (0.2, 0.8))
    with Image.open(render.animation(Animation("one", frames), tmp_path, "a.gif")) as found:
        assert found.size == (480, 150) and found.n_frames == 2


@pytest.mark.parametrize("frames", [(), (Panel(labels=np.zeros((2, 2), int)),)])
def test_an_animation_needs_images(tmp_path, frames):
    with pytest.raises(ValueError, match="frame"):
        render.animation(Animation("one", frames), tmp_path, "a.gif")
