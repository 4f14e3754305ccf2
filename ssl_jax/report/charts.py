"""Line charts as SVG text, whose colours follow the light or dark page that contains them.

Matplotlib draws with placeholder colours, which are then replaced by CSS: `currentColor` for text,
`--rule` for the grid, `--run-0`, `--run-1`, ... for the lines.
"""

import html
import io
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ssl_jax.report import style

COLORS = 7  # colours of lines in the page; further lines change the dashes
DASHES = ((), (5, 2), (1.2, 1.6), (6, 2, 1.2, 2))  # in widths of the line
_POINTS = 400  # of a line at most; a chart of this size cannot show more
_TEXT, _RULE = "#000001", "#000002"
_STYLE: dict = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ssl_jax",  # the same ids in every run
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _TEXT,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "text.color": _TEXT,
    "text.parse_math": False,  # names of runs and evaluations may hold a dollar sign
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
}


class Line(NamedTuple):
    """A line through x and y [n]; the number of the run determines colour and dashes."""

    x: np.ndarray
    y: np.ndarray
    run: int


def dash(run: int) -> tuple[float, ...]:
    """The dashes of a run's line, in widths of the line; () = solid."""
    return DASHES[run // COLORS % len(DASHES)]


def lines(drawn: Sequence[Line], *, label: str, number: int, smooth: float = 0.0) -> str:
    """Draws lines over the step as an <svg> element.

    Args:
      drawn: the lines; values that are not finite are left out.
      label: description of the chart for screen readers. number: of the chart in its page.
      smooth: width of the running mean drawn over the faint values, as a share of the line; 0 =
        none.
    """
    with rc_context(_STYLE):
        fig = Figure(figsize=(5.0, 2.9), layout="constrained")
        fig.patch.set_visible(False)
        ax = fig.subplots()
        ax.patch.set_visible(False)
        styled = [
            style.Line(line.x, line.y, f"#0001{line.run % COLORS:02x}", dashes=dash(line.run))
            for line in drawn
        ]
        style.draw_lines(ax, styled, smooth=smooth, points=_POINTS)
        ax.set_xlabel("step")
        buffer = io.StringIO()
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), label, f"c{number}-")


def _inline(svg: str, label: str, prefix: str) -> str:
    """Extracts the <svg> element and gives it CSS colours and ids that begin with `prefix`."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    svg = svg.replace(_TEXT, "currentColor").replace(_RULE, "var(--rule)")
    svg = re.sub(r"#0001([0-9a-f]{2})", lambda m: f"var(--run-{int(m[1], 16)})", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    inner = svg[svg.index(">") + 1 :]
    return f'<svg role="img" aria-label="{html.escape(label)}" {view[0]}>{inner}'.strip()
