"""The renderer: figures hold the numbers that a picture holds, and a picture that fails does not
lose the run."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax.evals.pictures import confusion
from ssl_jax.methods.pictures.base import Animation, Chart, Curve, Panel, Picture, Scatter
from ssl_jax.report import render, style

GRAY = np.full((16, 24, 3), 0.5)


@pytest.fixture
def drawn(figures, tmp_path):
    """draw(picture) -> the figure, after it was written."""

    def draw(picture):
        with Image.open(render.one(picture, tmp_path / "new", "picture.png")) as image:
            assert min(image.size) > 100
        return figures[-1]

    return draw


def panel_of(drawn, panel, **options):
    """The axes of a panel that is drawn alone."""
    return drawn(Picture("A picture", ((panel,),), **options)).axes[0]


def arrays(axes):
    return [np.ma.filled(image.get_array(), np.nan) for image in axes.images]


def test_an_image_is_shown_as_it_is_and_its_marks_where_they_should(drawn):
    image = np.random.default_rng(0).random((16, 24, 3))
    axes = panel_of(drawn, Panel(image, marks=((0.25, 0.25), (0.75, 0.5))))
    np.testing.assert_array_equal(arrays(axes)[0], image)
    found = [(float(line.get_ydata()[0]), float(line.get_xdata()[0])) for line in axes.lines]
    assert found == [(4, 6), (12, 12)]
    (shown,) = arrays(panel_of(drawn, Panel(np.full((8, 8, 3), 51, np.uint8))))
    np.testing.assert_allclose(shown, 0.2)


@pytest.mark.parametrize(
    "heat, from_zero, expected",
    [
        ([[0, 1e-4]], False, [[0, 1]]),  # whatever its scale
        ([[0.9, 1.0]], False, [[0, 1]]),
        ([[0.9, 1.0]], True, [[0.9, 1]]),
        ([[0, 0]], False, [[0, 0]]),  # dead maps are no error
        ([[np.nan, np.nan]], False, [[np.nan, np.nan]]),
        ([[0, np.inf, 1, np.nan]], False, [[0, np.nan, 1, np.nan]]),
    ],
)
def test_maps_go_from_zero_or_from_their_minimum(drawn, heat, from_zero, expected):
    axes = panel_of(drawn, Panel(GRAY, heat=np.array(heat)), from_zero=from_zero)
    np.testing.assert_allclose(arrays(axes)[1], expected)


def test_regions_have_one_colour_per_label_in_all_panels_and_none_below_zero(drawn):
    labels, palette = np.array([[0, 1], [2, -1]]), style.class_colors(3)
    panels = (Panel(GRAY, labels=labels), Panel(labels=labels), Panel(GRAY, labels=labels * 0 + 2))
    laid, alone, other = drawn(Picture("x", (panels,))).axes[:3]
    np.testing.assert_array_equal(laid.images[1].get_alpha() > 0, labels >= 0)
    np.testing.assert_array_equal(arrays(laid)[1][labels >= 0], palette)
    np.testing.assert_array_equal(arrays(alone)[0], [[*palette[:2]], [palette[2], np.ones(3)]])
    np.testing.assert_array_equal(arrays(other)[1], np.broadcast_to(palette[2], (2, 2, 3)))


def test_a_legend_has_colours_and_labels(drawn):
    panel = Panel(labels=np.zeros((2, 2), int))
    legend = (("#d73027", "red"), (3, "three"), (-1, "nothing"))
    (found,) = drawn(Picture("legend", ((panel,),), background=3, legend=legend)).legends
    assert [text.get_text() for text in found.get_texts()] == ["red", "three", "nothing"]
    colours = [handle.get_facecolor()[:3] for handle in found.legend_handles]
    expected = [(0xD7, 0x30, 0x27), (0xD9,) * 3, (255,) * 3]
    np.testing.assert_allclose(colours, np.array(expected) / 255)


@pytest.mark.parametrize(
    "picture, named",
    [
        (Picture("empty", ()), "empty"),
        (Picture("empty", ((),)), "empty"),
        (Picture("x", ((Panel(np.zeros((4, 4)), title="flat"),),)), "flat"),
        (Picture("x", ((Panel(title="void"),),)), "void"),
        (Picture("x", ((Panel(GRAY, heat=np.zeros(4)),),)), "heat"),
        (Picture("x", ((Panel(GRAY, labels=np.zeros((2, 2, 2))),),)), "labels"),
        (Chart("none", (Curve("none", [1], [np.nan]),)), "none"),
        (Scatter("line", np.zeros((3, 1))), "line"),
        (Animation("none", ()), "frame"),
        (Animation("flat", (Panel(labels=np.zeros((2, 2), int)),)), "frame"),
    ],
)
def test_what_is_no_picture_is_named(tmp_path, picture, named):
    one = render.animation if isinstance(picture, Animation) else render.one
    with pytest.raises(ValueError, match=named):
        one(picture, tmp_path, "x.png")


def test_a_chart_has_the_finite_points_of_its_curves(drawn):
    x = np.arange(5)
    curves = (
        Curve("rises", x, np.where(x == 2, np.nan, x)),
        Curve("none", x, x * np.nan),
        Curve("falls", x, -x, dashed=True),
    )
    one, two = drawn(Chart("A chart", curves, x="pixels", y="change")).axes[0].lines
    np.testing.assert_array_equal(one.get_xydata(), [(i, i) for i in (0, 1, 3, 4)])
    np.testing.assert_array_equal(two.get_ydata(), -x)
    assert one.get_color() != two.get_color() and two.get_linestyle() != "-"


@pytest.mark.parametrize("dimensions", [2, 3])
def test_points_have_the_colour_of_their_class(drawn, dimensions):
    points = np.random.default_rng(0).normal(size=(6, dimensions))
    labels, legend = np.repeat([0, 1], 3), ((0, "cat"), (1, "dog"))
    (found,) = drawn(Scatter("Points", points, labels, legend)).axes[0].collections
    if dimensions == 2:  # in three they are sorted by depth
        np.testing.assert_array_equal(found.get_offsets(), points)
        colours = found.get_facecolors()[:, :3]
        np.testing.assert_array_equal(colours, style.class_colors(2)[labels])
    drawn(Scatter("Points", points))


COUNTS = np.array([[3, 1, 0], [0, 0, 0], [2, 0, 6]])


def test_values_are_the_shares_that_are_right_unless_others_are_given(drawn):
    picture = confusion.picture(COUNTS, names=["ant", "bee", "cat"])
    np.testing.assert_allclose(picture.values, [0.75, np.nan, 0.75])
    np.testing.assert_allclose(picture.shares, [[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]])
    bars, matrix, _ = drawn(picture).axes
    assert [bar.get_width() for bar in bars.patches] == [75, 0, 75]
    for axis in (bars.yaxis, matrix.xaxis):
        assert [text.get_text() for text in axis.get_ticklabels()] == ["ant", "bee", "cat"]
    np.testing.assert_allclose(arrays(matrix)[0], [[75, 25, 0], [0, 0, 0], [25, 0, 75]])
    assert bars.get_ylim() == matrix.get_ylim() == (2.5, -0.5)  # row by row, the first on top
    others = confusion.picture(COUNTS, np.array([0.5, np.nan, 1.0]))
    np.testing.assert_allclose(others.values, [0.5, np.nan, 1.0])
    assert others.names == ("0", "1", "2") and others.measure == "IoU"


GOOD, BAD = Picture("", ((Panel(GRAY),),)), Picture("", ())


def test_a_picture_that_fails_is_reported_and_the_others_are_drawn(tmp_path, capsys):
    (path,) = render.draw(lambda: dict(bad=BAD, good=GOOD), tmp_path, "mine_pictures", "mine_")
    out = capsys.readouterr().out
    assert path.exists() and "mine_bad" in out
    (report,) = tmp_path.glob("*.txt")
    assert report.name in out and "Traceback" in report.read_text()
    assert len(render.draw(lambda: dict(bad=GOOD), tmp_path, "mine_pictures", "mine_")) == 1
    assert not report.exists(), "an old report does not stay"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_and_an_interrupt_are_passed_on(tmp_path, error):
    def make():
        raise next(errors)

    errors = iter([TypeError("of several\nlines"), error])
    assert render.draw(make, tmp_path, "mine_pictures") == []  # others lose only the pictures
    with pytest.raises(type(error)):
        render.draw(make, tmp_path, "mine_pictures")


@pytest.mark.parametrize("size, expected", [((6, 8), (8, 6)), ((300, 960), (480, 150))])
def test_an_animation_is_a_gif_and_a_large_one_is_shrunk(tmp_path, size, expected):
    labels = np.full(size, -1)
    labels[:3] = 1
    frames = (Panel(np.full((*size, 3), 0.5), labels=labels), Panel(np.zeros((*size, 3))))
    moving = Animation("one", (*frames, frames[0]), milliseconds=70)
    (path,) = render.draw(lambda: dict(a=moving), tmp_path, "mine", "p_")
    with Image.open(path) as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (3, expected, 70)
