"""The renderer: draws a picture of any kind of `base` as a PNG, an `Animation` as a GIF.

Matplotlib's Agg canvas is used directly: no display, no global state."""

import contextlib
import textwrap
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, colors, rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike
from PIL import Image

from ssl_jax.config import reason
from ssl_jax.evals.pictures.base import Animation, Chart, Classes, Panel, Picture, Scatter
from ssl_jax.runtime import progress

# A bare dict, because matplotlib types the keys as a Literal of all names there are.
STYLE: dict = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "figure.titlesize": 13,
    "figure.titleweight": "bold",
}
_GRID_STYLE: dict = {
    **STYLE,
    "axes.grid": False,
    "axes.titlelocation": "center",
    "axes.titleweight": "normal",
}
# Okabe-Ito: safe for colour-blind readers.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
_BACKGROUND, _NOTHING = "#d9d9d9", "#ffffff"
_DPI = 130
_SIDE, _WIDEST = 1.5, 16.0  # inches: of a panel; of a grid, which makes panels smaller if many
# More rows than this stand side by side, as far as they have no more columns together.
_ROWS, _COLUMNS = 8, 12
_ANIMATED = 480  # pixels of the longer side of an animation, at most
_TITLE = 0.19  # inches a line of a panel's title takes
_NAMED, _ROW, _BARS = 40, 0.19, 2.2  # classes that are all named; inches: of each, of bars


def draw(
    make: Callable[[], Mapping[str, Picture | Chart | Scatter | Classes | Animation]],
    folder: Path,
    what: str,
    prefix: str = "",
) -> list[Path]:
    """Draws the pictures {name: one of any kind} that `make()` returns as FOLDER/PREFIXname.png, or
    .gif; returns the files written.

    A run is not lost to a picture: where one fails, a warning says so, the traceback goes to a file
    beside the others, and the rest is drawn. Only a disk or folder that refuses (OSError) is passed
    on.

    what: `make` is called if it fails as a whole.
    """
    paths = []
    with progress.part(what), _survived(folder, what):
        for name, picture in make().items():
            with _survived(folder, f"{prefix}{name}"):
                if isinstance(picture, Animation):
                    paths.append(animation(picture, folder, f"{prefix}{name}.gif"))
                else:
                    paths.append(one(picture, folder, f"{prefix}{name}.png"))
    return paths


@contextlib.contextmanager
def _survived(folder: Path, name: str):
    """Turns an exception into a warning and FOLDER/NAME.failed.txt; the file of an earlier failure
    is removed.
    """
    report = Path(folder) / f"{name}.failed.txt"
    report.unlink(missing_ok=True)
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(traceback.format_exc())
        print(
            f"  warning: could not draw {name} ({type(error).__name__}: {reason(error)[:200]});"
            f" traceback: {report}",
            flush=True,
        )


def one(picture: Picture | Chart | Scatter | Classes, folder: Path | str, name: str) -> Path:
    """Draws one picture of any kind as FOLDER/NAME."""
    if isinstance(picture, Chart):
        return chart(picture, folder, name)
    if isinstance(picture, Scatter):
        return scatter(picture, folder, name)
    if isinstance(picture, Classes):
        return classes(picture, folder, name)
    return grid(picture, folder, name)


def chart(picture: Chart, folder: Path | str, name: str) -> Path:
    """Draws curves as FOLDER/NAME. Raises ValueError if no curve has a finite point."""
    with rc_context(STYLE):
        fig = Figure(figsize=(6.4, 4.2), layout="constrained")
        set_title(fig, picture.title)
        ax, drawn = fig.subplots(), 0
        for i, curve in enumerate(picture.curves):
            x, y = (np.asarray(v, np.float64) for v in (curve.x, curve.y))
            finite = np.isfinite(x) & np.isfinite(y)
            drawn += int(finite.any())
            if finite.any():
                style: dict = dict(
                    linestyle="--" if curve.dashed else "-", linewidth=1.8, markersize=4
                )
                color = LINES[i % len(LINES)]
                ax.plot(x[finite], y[finite], color=color, marker="o", label=curve.label, **style)
        if not drawn:
            raise ValueError(f'chart "{picture.title}" has no finite point')
        ax.set(xlabel=picture.x, ylabel=picture.y)
        ax.legend(fontsize=8)
        return save(fig, folder, name)


def scatter(picture: Scatter, folder: Path | str, name: str) -> Path:
    """Draws points as FOLDER/NAME. Raises ValueError unless they are [n, 2 or 3]."""
    points = np.asarray(picture.points, np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or not len(points):
        raise ValueError(
            f'points of "{picture.title}" are {points.shape}; they must be [n, 2 or 3]'
        )
    with rc_context(_GRID_STYLE):
        fig = Figure(figsize=(7.6, 5.6), layout="constrained")
        set_title(fig, picture.title)
        flat = points.shape[1] == 2
        ax: Any = fig.subplots() if flat else fig.add_subplot(projection="3d")
        labels = np.zeros(len(points), int) if picture.labels is None else picture.labels
        palette = class_colors(1 + int(np.max(labels)))
        ax.scatter(*points.T, c=paint(labels, palette), s=7, linewidths=0)
        ax.set_xticks([])
        ax.set_yticks([])
        if not flat:
            ax.set_zticks([])
        if picture.legend:
            fig.legend(
                handles=[_entry(palette, *entry) for entry in picture.legend],
                loc="outside right center",
                fontsize=8,
            )
        return save(fig, folder, name)


def classes(picture: Classes, folder: Path | str, name: str) -> Path:
    """Draws a bar for each class and the matrix of what it was taken for as FOLDER/NAME. Of more
    than 40 classes every so many are named, and bars have no numbers."""
    count = len(picture.names)
    step = -(-count // _NAMED)
    named = range(0, count, step), picture.names[::step]
    side = _ROW * max(min(count, _NAMED), 8)  # inches, of the matrix
    longest = 0.09 * max(map(len, named[1]))  # of a name
    with rc_context(_GRID_STYLE):
        size = longest + _BARS + side + 0.9, longest + side + 0.9
        fig = Figure(figsize=size, layout="constrained")
        set_title(fig, picture.title)
        left, right = fig.subplots(1, 2, width_ratios=(_BARS, side), sharey=True)
        percent = 100 * np.nan_to_num(picture.values)
        left.barh(range(count), percent, 0.75 if step == 1 else 1.0, color=LINES[0])
        left.set(xlim=(0, 100), title=f"{picture.measure}, %")
        left.set_yticks(*named)
        for i, value in enumerate(percent if step == 1 else ()):
            text = "not there" if np.isnan(picture.values[i]) else f"{value:.1f}"
            color, side_of_end = ("white", "right") if value > 70 else ("black", "left")
            left.text(value, i, f" {text} ", color=color, ha=side_of_end, va="center", fontsize=8)
        map_of = dict(cmap="inferno", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
        shares = right.imshow(100 * picture.shares, **map_of)
        right.set_title("predicted, % of the row")
        right.set_xticks(*named, rotation=90)
        fig.colorbar(shares, ax=right, shrink=0.6, pad=0.02)
        return save(fig, folder, name)


def grid(picture: Picture, folder: Path | str, name: str) -> Path:
    """Draws one picture as FOLDER/NAME.

    Maps and regions are laid over a gray image, or drawn alone; each map goes to its own maximum.
    Regions have one colour per label and marks one per position in `marks`, the same in all panels,
    so that what belongs together is seen across them. Many rows stand in blocks side by side.

    Raises:
      ValueError: no panel, or a panel whose arrays are not [H, W, 3], [h, w], [h, w].
    """
    panels = [panel for row in picture.rows for panel in row]
    if not panels:
        raise ValueError(f'picture "{picture.title}" has no panels')
    for panel in panels:
        _check(panel)
    rows, widths = _fold([row for row in picture.rows if row])
    side = min(_SIDE, _WIDEST / sum(widths))
    heights = [_height(row, side) for row in rows]
    palette = class_colors(_classes(picture, panels), picture.background)
    with_maps = any(p.heat is not None for p in panels)
    beside = 0.8 * with_maps + 1.5 * bool(picture.legend)
    size = max(side * sum(widths) + 0.2, 3.2) + beside, sum(heights) + 0.7
    with rc_context(_GRID_STYLE):
        fig = Figure(figsize=size, layout="constrained")
        set_title(fig, picture.title)
        axes = fig.subplots(
            len(rows),
            len(widths),
            squeeze=False,
            gridspec_kw=dict(height_ratios=heights, width_ratios=widths),
        )
        for ax in axes.ravel():
            ax.set_axis_off()
        for row, line in zip(rows, axes):
            for panel, ax in zip(row, line):
                if panel is not None:
                    _panel(ax, panel, palette, side, picture.from_zero)
        if with_maps:
            _color_bar(fig, axes, sum(heights), picture.from_zero)
        if picture.legend:
            fig.legend(
                handles=[_entry(palette, *entry) for entry in picture.legend],
                loc="outside right center",
                title=picture.legend_title,
            )
        return save(fig, folder, name)


def animation(animation: Animation, folder: Path | str, name: str) -> Path:
    """Draws an animation as FOLDER/NAME, one pixel for each of the images'; larger ones than 480
    pixels are shrunk, as a page of the report holds them all.

    Raises:
      ValueError: no frames, or one without an image or with labels of another size.
    """
    if not animation.frames:
        raise ValueError(f'animation "{animation.title}" has no frames')
    labels = [panel.labels for panel in animation.frames if panel.labels is not None]
    palette = class_colors(1 + max((int(np.max(part)) for part in labels), default=0))
    frames = []
    for panel in animation.frames:
        _check(panel)
        if panel.image is None:
            raise ValueError(f'animation "{animation.title}" has a frame without an image')
        image = _float(panel.image)
        if panel.labels is not None:
            seen = np.asarray(panel.labels)[..., None] >= 0
            image = np.where(seen, 0.5 * image + 0.5 * paint(panel.labels, palette), image)
        frames.append(Image.fromarray((255 * image).round().astype(np.uint8)))
        frames[-1].thumbnail((_ANIMATED, _ANIMATED))  # keeps smaller ones
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # loop=0: over and over again
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=animation.milliseconds, loop=0
    )
    return path


def _check(panel: Panel) -> None:
    if panel.image is None and panel.heat is None and panel.labels is None:
        raise ValueError(f'panel "{panel.title}" shows nothing: no image, map or regions')
    if panel.image is not None and (np.ndim(panel.image) != 3 or np.shape(panel.image)[2] != 3):
        raise ValueError(
            f'panel "{panel.title}": image is {np.shape(panel.image)}; it must be [H, W, 3]'
        )
    for name in ("heat", "labels"):
        value = getattr(panel, name)
        if value is not None and np.ndim(value) != 2:
            raise ValueError(
                f'panel "{panel.title}": {name} is {np.shape(value)}; it must be [h, w]'
            )


def _classes(picture: Picture, panels) -> int:
    """Number of labels that need a colour."""
    labels = [int(np.max(p.labels)) for p in panels if p.labels is not None]
    labels += [entry for entry, _ in picture.legend if not isinstance(entry, str)]
    return 1 + max(labels, default=0)


def _fold(rows):
    """Many rows in blocks side by side, with a narrow gap: rows of panels (None: nothing there),
    and the width of each column in panels.
    """
    columns = max(map(len, rows))
    blocks = min(-(-len(rows) // _ROWS), max(1, _COLUMNS // columns))
    length = -(-len(rows) // blocks)
    padded = [(*row, *[None] * (columns - len(row))) for row in rows]
    folded = []
    for i in range(length):
        parts = padded[i::length]
        folded.append(
            [panel for j, part in enumerate(parts) for panel in ((None, *part) if j else part)]
        )
    return folded, [*[1.0] * columns, *[0.2, *[1.0] * columns] * (blocks - 1)]


def _title(panel: Panel, side: float) -> str:
    """At most two lines that fit the panel."""
    return textwrap.fill(panel.title, int(14.5 * side), max_lines=2, placeholder="\u2026")


def _shape(panel: Panel) -> tuple[int, int]:
    """(height, width) of what the panel shows."""
    shown = (panel.image, panel.heat, panel.labels)
    return np.shape(next(array for array in shown if array is not None))[:2]


def _height(row, side: float) -> float:
    """Inches a row takes: its highest image and its longest title."""
    panels = [panel for panel in row if panel is not None]
    lines = max(len(_title(panel, side).splitlines()) for panel in panels)
    ratio = max(height / width for height, width in map(_shape, panels))
    return side * ratio + 0.06 + _TITLE * lines


def _panel(ax, panel: Panel, palette, side: float, from_zero: bool) -> None:
    height, width = _shape(panel)
    over = dict(extent=(0, width, height, 0))
    alone = panel.image is None
    if not alone:
        image = _float(panel.image)
        if panel.heat is not None or panel.labels is not None:
            image = image.mean(axis=-1)  # colours belong to what is laid over
        ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest", **over)
    if panel.heat is not None:
        ax.imshow(
            _unit(panel.heat, from_zero),
            cmap="inferno",
            vmin=0,
            vmax=1,
            alpha=1.0 if alone else 0.65,
            interpolation="nearest" if alone else "bilinear",
            **over,
        )
    if panel.labels is not None:
        region = paint(panel.labels, palette)
        alpha = 1.0 if alone else np.where(np.asarray(panel.labels) < 0, 0.0, 0.6)
        ax.imshow(region, alpha=alpha, interpolation="nearest", **over)
    for i, (y, x) in enumerate(panel.marks):
        color = LINES[i % len(LINES)] if len(panel.marks) > 1 else LINES[1]
        # A dark ring around the white one, so that a mark shows on any image.
        ring = dict(
            markeredgecolor="white",
            markeredgewidth=1.2,
            path_effects=[withStroke(linewidth=2.4, foreground="#222222")],
        )
        ax.plot(x * width, y * height, "o", color=color, markersize=4.5 * side, **ring)
    if panel.frame:
        ax.set_axis_on()
        ax.set_xticks([])
        ax.set_yticks([])
        for spine in ax.spines.values():
            spine.set(visible=True, color=panel.frame, linewidth=2.6)
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.set_title(_title(panel, side), fontsize=8, pad=3)


def _color_bar(fig, axes, height: float, from_zero: bool) -> None:
    bar = fig.colorbar(
        ScalarMappable(colors.Normalize(0, 1), "inferno"),
        ax=axes,
        shrink=min(1.0, 2.2 / height),
        aspect=25,
        pad=0.01,
    )
    bar.set_ticks([0, 1], labels=["0" if from_zero else "lowest", "highest"], fontsize=8)
    bar.set_label("value in its map", fontsize=8, labelpad=-20)
    bar.outline.set_visible(False)


def _entry(palette, which: str | int, text: str) -> Patch:
    """A line of the legend: a colour, or that of a label."""
    color = which if isinstance(which, str) else tuple(paint(which, palette))
    return Patch(facecolor=color, edgecolor="#999999", linewidth=0.5, label=text)


def _unit(heat, from_zero: bool) -> np.ndarray:
    """A map from its minimum, or 0, (0) to its maximum (1); a constant one is 0, and what is not
    finite is left out.
    """
    heat = np.ma.masked_invalid(np.asarray(heat, np.float64))
    low, high = (heat.min(), heat.max()) if heat.count() else (0.0, 0.0)
    low = 0.0 if from_zero else low
    return (heat - low) / (high - low) if high > low else heat * 0


def class_colors(count: int, background: int | None = None) -> np.ndarray:
    """[count, 3] RGB in [0, 1]: ten named colours, then hues by the golden angle; `background` is
    light gray.
    """
    # tab10 without its gray, which would pass for the background.
    named = [*(colormaps["tab10"](i)[:3] for i in range(10) if i != 7), (0.05, 0.05, 0.05)]
    order = [c for c in range(count) if c != background]
    result = np.empty((count, 3))
    for i, c in enumerate(order):
        hue, ring = (i * 0.618034) % 1.0, i // 20
        result[c] = (
            named[i]
            if i < len(named)
            else colors.hsv_to_rgb((hue, 0.75 - 0.25 * (ring % 2), 0.9 - 0.2 * (ring % 3)))
        )
    if background is not None and background < count:
        result[background] = colors.to_rgb(_BACKGROUND)
    return result


def paint(labels: ArrayLike, palette: np.ndarray) -> np.ndarray:
    """Labels [...] to colours [..., 3]; those below 0 are white."""
    labels = np.asarray(labels)
    white = colors.to_rgb(_NOTHING)
    return np.where(labels[..., None] < 0, white, palette[np.maximum(labels, 0)])


def _float(image):
    """An image as floats in [0, 1]: uint8 divided by 255, floats clipped."""
    image = np.asarray(image)
    return image / 255.0 if image.dtype == np.uint8 else np.clip(image, 0, 1)


def set_title(fig: Figure, text: str) -> None:
    """Title at the left, broken into lines that fit the width; and a margin on all sides."""
    engine = fig.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(w_pad=0.07, h_pad=0.06)
    fig.suptitle(textwrap.fill(text, max(16, int(fig.get_figwidth() * 7.5))), x=0.01, ha="left")


def save(fig: Figure, folder: Path | str, name: str) -> Path:
    """Writes the figure as PNG into `folder`, which is made if needed; returns its path."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=_DPI, facecolor="white")
    return path
