"""Styles, colours, lines and files shared by all pictures of `report`."""

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps, colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import ArrayLike

# Annotated as dict, because matplotlib's type of the keys is a Literal of all names.
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
GRID_STYLE: dict = {
    **STYLE,
    "axes.grid": False,
    "axes.titlelocation": "center",
    "axes.titleweight": "normal",
}
# Okabe-Ito: safe for colour-blind readers.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
_BACKGROUND, _NOTHING = "#d9d9d9", "#ffffff"
_DPI = 130


class Line(NamedTuple):
    """Values y [n] over x [n]; those that are not finite are left out.

    dashes: lengths in widths of the line; () = solid.
    """

    x: ArrayLike
    y: ArrayLike
    color: str
    label: str = ""
    dashes: tuple[float, ...] = ()


def draw_lines(
    ax: Axes, lines: Iterable[Line], *, smooth: float = 0.0, points: int = 2**31, marked: int = 11
) -> None:
    """Draws lines into axes.

    Args:
      smooth: width of the running mean drawn over the faint values, as a share of the line; 0 =
        none.
      points: most points of a line; longer ones are subsampled.
      marked: lines of at most this many points have markers.
    """
    for line in lines:
        x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        x, y = x[finite], y[finite]
        subsample = slice(None, None, max(1, -(-len(x) // points)))
        window = max(1, round(smooth * len(y)))
        if window > 1:
            ax.plot(x[subsample], y[subsample], color=line.color, alpha=0.25, linewidth=0.8)
            y = running_mean(y, window)
        options: dict = dict(color=line.color, label=line.label, linewidth=1.8, markersize=3.5)
        options["linestyle"] = (0, line.dashes) if line.dashes else "solid"
        ax.plot(x[subsample], y[subsample], marker="o" if len(x) <= marked else None, **options)
    ax.ticklabel_format(axis="y", useOffset=False)


def running_mean(values: ArrayLike, window: int) -> np.ndarray:
    """Centred running mean of [n] over `window` entries, fewer at the ends."""
    values = np.asarray(values, np.float64)
    kernel = np.ones(window)
    if window > len(values):
        return values
    counts = np.convolve(np.ones(len(values)), kernel, "same")
    return np.convolve(values, kernel, "same") / counts


def class_colors(count: int, background: int | None = None) -> np.ndarray:
    """RGB colours [count, 3] in [0, 1]: ten named ones, then hues by the golden angle; class
    `background` is light gray.
    """
    # tab10 without its gray, which would look like the background.
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
    """Colours [..., 3] of labels [...]; white for those below 0."""
    labels = np.asarray(labels)
    white = colors.to_rgb(_NOTHING)
    return np.where(labels[..., None] < 0, white, palette[np.maximum(labels, 0)])


def set_title(fig: Figure, text: str) -> None:
    """Sets a title at the left, wrapped to the figure's width, and a margin on all sides."""
    engine = fig.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(w_pad=0.07, h_pad=0.06)
    fig.suptitle(textwrap.fill(text, max(16, int(fig.get_figwidth() * 7.5))), x=0.01, ha="left")


def save(fig: Figure, folder: Path | str, name: str) -> Path:
    """Writes the figure as PNG to `folder`, created if needed; returns its path."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=_DPI, facecolor="white")
    return path
