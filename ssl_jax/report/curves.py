"""Curves of a run: losses, health, schedules and scores over the step, as one PNG."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ssl_jax.config import InputError
from ssl_jax.methods.base import Meaning
from ssl_jax.report.style import LINES, STYLE, Line, draw_lines, save, set_title

SMOOTHING = 0.05  # width of the running mean, as a share of the curve
_NOTE = 70  # characters in a line of the note below a plot


class _Plot(NamedTuple):
    """A set of axes.

    columns: regular expression for the names of its columns. noisy: whether to draw a running mean
    over the values. log: whether the axis is logarithmic.
    """

    title: str
    unit: str
    columns: str
    noisy: bool = True
    log: bool = False


_PLOTS = (
    _Plot("Loss", "", "(.+_)?loss"),
    _Plot("Divergence from the teacher", "KL, nats", "(.+_)?kl"),
    _Plot("Entropy of the targets", "nats", ".*entropy"),
    _Plot("Usage and agreement", "share", ".*(usage|agreement|fill)"),
    # CrIBo figure 6, which has epochs on the x axis: (Z_1 + Z_2) / (2 K) of a batch, with K all
    # clusters of an image (share) or the existing ones (ratio).
    _Plot(
        "Objects whose neighbour leads back", "bootstrapping ratio", ".*bootstrapping_(ratio|share)"
    ),
    _Plot("Reconstruction", "PSNR, dB", "psnr"),
    _Plot("Spread of the embeddings", "", ".*spread"),
    _Plot("Gradient norm", "before clipping", "grad_norm", log=True),
    _Plot("Learning rate", "", "lr", noisy=False),
    _Plot("Weight decay", "", "weight_decay", noisy=False),
    _Plot("Teacher momentum", "", "momentum", noisy=False),
    _Plot("Teacher temperature", "", "teacher_temperature", noisy=False),
)


def draw(
    metrics: dict[str, np.ndarray],
    folder: Path | str,
    *,
    scores: dict[str, np.ndarray] | None = None,
    shown: Mapping[str, str] = MappingProxyType({}),
    meanings: Mapping[str, Meaning] = MappingProxyType({}),
    title: str = "Training",
    name: str = "curves.png",
) -> Path:
    """Draws loss, health and schedule curves over the step.

    Args:
      metrics: {"step": [n], column: [n], ...} as returned by `folders.read_metrics`; unknown
        columns are left out.
      scores: likewise for scores measured during the run.
      shown: {score: heading, see `registry.Type`} of the scores to draw, with one plot per unit.
      meanings: of columns, see `methods.base.Meaning`: an entropy gets a line at log K, a curve
        that may rise in a healthy run gets a note.
      folder: in which the PNG is written; created if needed.

    Raises:
      InputError: no column can be drawn.
    """
    plots = [
        (
            plot,
            metrics,
            [n for n in metrics if re.fullmatch(plot.columns, n) and np.isfinite(metrics[n]).any()],
        )
        for plot in _PLOTS
    ]
    plots = [p for p in plots if p[2]]
    scores = scores or {}
    units: dict[str, list[str]] = {}
    for score in shown:
        if score in scores:
            unit = shown[score].partition(", ")[2] or "percent"
            units.setdefault(unit, []).append(score)
    for unit, measured in reversed(units.items()):
        several = "Scores on frozen features"
        heading = several if len(measured) > 1 else shown[measured[0]].partition(", ")[0]
        plots.insert(1, (_Plot(heading, unit, "", noisy=False), scores, measured))
    if not plots:
        raise InputError(f"no known curve among the columns {', '.join(metrics) or '(none)'}")
    columns = min(3 if len(plots) <= 9 else 4, len(plots))
    rows = -(-len(plots) // columns)
    with rc_context(STYLE):
        fig = Figure(figsize=(4.3 * columns, 2.7 * rows + 0.5), layout="constrained")
        set_title(fig, title)
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        for ax, (plot, table, names) in zip(axes, plots):
            _draw_plot(ax, plot, table, names)
            _explain(ax, [meanings[name] for name in names if name in meanings])
        for ax in axes[len(plots) :]:
            ax.axis("off")
        return save(fig, folder, name)


def _draw_plot(ax, plot, table, names):
    lines = [
        Line(table["step"], table[name], color, name.replace("_", " "))
        for name, color in zip(names, LINES)
    ]
    draw_lines(ax, lines, smooth=SMOOTHING if plot.noisy else 0.0)
    ax.set_title(plot.title)
    ax.set_xlabel("step")
    ax.set_ylabel(plot.unit)
    if plot.log and all((table[n][np.isfinite(table[n])] > 0).all() for n in names):
        ax.set_yscale("log")
    if len(names) > 1:
        ax.legend(fontsize=8, ncols=1 + (len(names) > 4))


def _explain(ax, meanings: Sequence[Meaning]) -> None:
    """Draws log K into plots of entropies, and notes why a curve may rise."""
    for classes in sorted({m.classes for m in meanings if m.classes}):
        height = np.log(classes)
        ax.axhline(height, color="#777777", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        place = dict(xy=(0, height), xytext=(3, -3), xycoords=("axes fraction", "data"))
        ax.annotate(f"log {classes}", va="top", textcoords="offset points", fontsize=8, **place)
    for why in dict.fromkeys(m.why for m in meanings if m.why):
        note = textwrap.fill(f"may rise while learning goes well: {why}", _NOTE)
        ax.set_xlabel(f"step\n{note}", fontsize=7)
