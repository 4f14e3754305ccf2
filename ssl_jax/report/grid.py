"""Draws pictures as grids of panels: images overlaid with maps, regions and marks."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib import colors, rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike

from ssl_jax.methods.pictures.base import Panel, Picture
from ssl_jax.report.style import GRID_STYLE, LINES, class_colors, paint, save, set_title

_SIDE, _WIDEST = 1.5, 16.0  # inches: side of a panel; largest width of a grid, shrinks panels
# More than _ROWS rows are split into blocks side by side, of at most _COLUMNS columns in total.
_ROWS, _COLUMNS = 8, 12
_TITLE = 0.19  # inches per line of a panel's title


def grid(picture: Picture, folder: Path | str, name: str) -> Path:
    """Draws one picture as FOLDER/NAME.

    Maps and regions overlay a gray image, if there is one; each map is scaled to its own maximum.
    Regions have one colour per label, and marks one per position in `marks`, the same in all
    panels. Many rows are split into blocks side by side.

    Raises:
      ValueError: no panel, or a panel whose arrays are not [H, W, C], [h, w], [h, w].
    """
    panels = [panel for row in picture.rows for panel in row]
    if not panels:
        raise ValueError(f'picture "{picture.title}" has no panels')
    for panel in panels:
        check(panel)
    rows, widths = _fold([row for row in picture.rows if row])
    side = min(_SIDE, _WIDEST / sum(widths))
    heights = [_height(row, side) for row in rows]
    palette = class_colors(_classes(picture, panels), picture.background)
    with_maps = any(p.heat is not None for p in panels)
    margin = 0.8 * with_maps + 1.5 * bool(picture.legend)
    size = max(side * sum(widths) + 0.2, 3.2) + margin, sum(heights) + 0.7
    with rc_context(GRID_STYLE):
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
                handles=[legend_entry(palette, *entry) for entry in picture.legend],
                loc="outside right center",
                title=picture.legend_title,
            )
        return save(fig, folder, name)


def check(panel: Panel) -> None:
    if panel.image is None and panel.heat is None and panel.labels is None:
        raise ValueError(f'panel "{panel.title}" shows nothing: no image, map or regions')
    if panel.image is not None and (np.ndim(panel.image) != 3 or not np.shape(panel.image)[2]):
        raise ValueError(
            f'panel "{panel.title}": image is {np.shape(panel.image)}; it must be [H, W, C]'
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
    """Splits many rows into blocks side by side with a narrow gap: (rows of panels, with None for
    gaps; width of each column in panels).
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
    """The panel's title, wrapped to at most two lines."""
    return textwrap.fill(panel.title, int(14.5 * side), max_lines=2, placeholder="\u2026")


def _shape(panel: Panel) -> tuple[int, int]:
    """(height, width) of the panel's image, map or regions."""
    arrays = (panel.image, panel.heat, panel.labels)
    return np.shape(next(array for array in arrays if array is not None))[:2]


def _height(row, side: float) -> float:
    """Height of a row in inches: its highest panel and its longest title."""
    panels = [panel for panel in row if panel is not None]
    lines = max(len(_title(panel, side).splitlines()) for panel in panels)
    ratio = max(height / width for height, width in map(_shape, panels))
    return side * ratio + 0.06 + _TITLE * lines


def _panel(ax, panel: Panel, palette, side: float, from_zero: bool) -> None:
    height, width = _shape(panel)
    over = dict(extent=(0, width, height, 0))
    alone = panel.image is None
    if not alone:
        image = as_float(panel.image)
        if panel.heat is not None or panel.labels is not None:
            image = image.mean(axis=-1)  # gray, so that colours are the overlay's
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
        # A dark ring around a white one, so that a mark is visible on any image.
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


def _unit(heat, from_zero: bool) -> np.ndarray:
    """Scales a map from its minimum, or 0, to its maximum into [0, 1]. A constant map becomes 0;
    values that are not finite are masked.
    """
    heat = np.ma.masked_invalid(np.asarray(heat, np.float64))
    low, high = (heat.min(), heat.max()) if heat.count() else (0.0, 0.0)
    low = 0.0 if from_zero else low
    return (heat - low) / (high - low) if high > low else heat * 0


def legend_entry(palette: np.ndarray, which: str | int, text: str) -> Patch:
    """A line of the legend. which: a colour, or a label that has one."""
    color = which if isinstance(which, str) else tuple(paint(which, palette))
    return Patch(facecolor=color, edgecolor="#999999", linewidth=0.5, label=text)


def as_float(image: ArrayLike) -> np.ndarray:
    """An image [H, W, C] as floats [H, W, 3] in [0, 1]: uint8 divided by 255, floats clipped. The
    first three channels are red, green and blue; fewer are repeated."""
    image = np.asarray(image)
    image = image[..., np.arange(3) % image.shape[-1]]
    return image / 255.0 if image.dtype == np.uint8 else np.clip(image, 0, 1)
