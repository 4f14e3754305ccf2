"""What all pictures of `report` share: styles, colours, lines, and how a figure is written."""

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps, colors
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import ArrayLike

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
    ax, lines: Iterable[Line], *, smooth: float = 0.0, points: int = 2**31, marked: int = 11
) -> None:
    """Draws lines into axes.

    Args:
      smooth: width of a running mean that is drawn over the faint values, as share of a line; 0 =
        none.
      points: most points of a line; of a longer one, every so many are drawn.
      marked: a line of at most so many points has a marker at each.
    """
    for line in lines:
        x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        x, y = x[finite], y[finite]
        every = slice(None, None, max(1, -(-len(x) // points)))
        window = max(1, round(smooth * len(y)))
        if window > 1:
            ax.plot(x[every], y[every], color=line.color, alpha=0.25, linewidth=0.8)
            y = running_mean(y, window)
        words: dict = dict(color=line.color, label=line.label, linewidth=1.8, markersize=3.5)
        words["linestyle"] = (0, line.dashes) if line.dashes else "solid"
        ax.plot(x[every], y[every], marker="o" if len(x) <= marked else None, **words)
    ax.ticklabel_format(axis="y", useOffset=False)


def running_mean(values: ArrayLike, window: int) -> np.ndarray:
    """Centred running mean of [n] over `window` entries; at the ends over those that exist."""
    values = np.asarray(values, np.float64)
    kernel = np.ones(window)
    if window > len(values):
        return values
    counts = np.convolve(np.ones(len(values)), kernel, "same")
    return np.convolve(values, kernel, "same") / counts


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
