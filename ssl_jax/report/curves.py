"""Curves of a run: losses, health, schedules and scores over the step, as one PNG."""

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, reading
from ssl_jax.methods.base import Meaning
from ssl_jax.report.render import LINES, STYLE, save, set_title

_SMOOTHING = 0.05  # width of the running mean, as share of the curve
_LARGEST = 2**28  # bytes of a table
_LAST_STEP = 2**31  # steps are counted in 32 bits
_NOTE = 70  # characters of a line of what is said below a plot


class _Plot(NamedTuple):
    """One set of axes, with the curves it takes."""

    title: str
    unit: str
    takes: Callable  # column name -> bool
    noisy: bool = False  # draw the running mean over the raw values
    log: bool = False


_SCHEDULES = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "momentum": "teacher momentum",
    "teacher_temperature": "teacher temperature",
}
_PLOTS = (
    _Plot("Loss", "", lambda n: n == "loss" or n.endswith("_loss"), noisy=True),
    _Plot(
        "Divergence from the teacher",
        "KL, nats",
        lambda n: n == "kl" or n.endswith("_kl"),
        noisy=True,
    ),
    _Plot("Entropy of the targets", "nats", lambda n: n.endswith("entropy"), noisy=True),
    _Plot(
        "Usage and agreement",
        "share",
        lambda n: n.endswith(("usage", "agreement", "fill")),
        noisy=True,
    ),
    # CrIBo figure 6, there against epochs: (Z_1 + Z_2) / (2 K) of a batch, of all K clusters of an
    # image (share) or of those that exist (ratio).
    _Plot(
        "Objects whose neighbour leads back",
        "bootstrapping ratio",
        lambda n: n.endswith(("bootstrapping_ratio", "bootstrapping_share")),
        noisy=True,
    ),
    _Plot("Reconstruction", "PSNR, dB", lambda n: n == "psnr", noisy=True),
    _Plot("Spread of the embeddings", "", lambda n: n.endswith("spread"), noisy=True),
    _Plot("Gradient norm", "before clipping", lambda n: n == "grad_norm", noisy=True, log=True),
    *(
        _Plot(title.capitalize(), "", lambda n, name=name: n == name)
        for name, title in _SCHEDULES.items()
    ),
)


def read_metrics(path: Path | str, rows: int = 1) -> dict[str, np.ndarray]:
    """Columns of a metrics CSV as float64 arrays; empty and non-numeric cells are NaN. {} for a
    table of fewer rows than one.

    rows: that there must be, 0 or 1. Raises InputError for what is no such table.
    """
    path = Path(path)
    try:
        text = reading.read_bytes(path, _LARGEST).decode()
        found = list(csv.DictReader(io.StringIO(text, newline="")))
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a table of metrics: {error}") from error
    if not found and not rows:
        return {}
    if not found or "step" not in found[0]:
        raise InputError(
            f'{path} is not a table of metrics: it needs a header with "step" and at least one row'
        )
    table = {n: np.array([_number(row[n]) for row in found]) for n in found[0] if n is not None}
    steps = table["step"][np.isfinite(table["step"])]
    if (np.abs(steps) > _LAST_STEP).any():
        raise InputError(f"{path} is not a table of metrics: a step is {np.abs(steps).max():g}")
    return table


def _number(text) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


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
    """Loss, health and schedule curves over the step.

    Args:
      metrics: {"step": [n], column: [n], ...} as from `read_metrics`; known columns are sorted into
        plots, others are left out.
      scores: the same for scores measured during the run.
      shown: {score: heading, see `registry.Type`} of the scores that get a plot, one for each unit.
      meanings: of columns, see `methods.base.Meaning`: an entropy gets the line of log K, a curve
        that may rise while all is well a sentence.
      folder: where the PNG goes; made if needed.

    Raises:
      InputError: no column that can be drawn.
    """
    plots = [
        (plot, metrics, [n for n in metrics if plot.takes(n) and np.isfinite(metrics[n]).any()])
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
        plots.insert(1, (_Plot(heading, unit, measured.__contains__), scores, measured))
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
    for line, color in zip(names, LINES):
        finite = np.isfinite(table["step"]) & np.isfinite(table[line])
        x, y = table["step"][finite], table[line][finite]
        marker = "o" if len(x) < 12 else None
        label = line.replace("_", " ")
        window = max(1, round(_SMOOTHING * len(y)))
        if plot.noisy and window > 1:
            ax.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
            ax.plot(x, running_mean(y, window), color=color, linewidth=1.8, label=label)
        else:
            ax.plot(x, y, color=color, linewidth=1.8, marker=marker, markersize=3.5, label=label)
    ax.set_title(plot.title)
    ax.set_xlabel("step")
    ax.set_ylabel(plot.unit)
    if plot.log and all((table[n][np.isfinite(table[n])] > 0).all() for n in names):
        ax.set_yscale("log")
    else:
        ax.ticklabel_format(axis="y", useOffset=False)
    if len(names) > 1:
        ax.legend(fontsize=8, ncols=1 + (len(names) > 4))


def _explain(ax, meanings: Sequence[Meaning]) -> None:
    """Draws log K where the curves of an axes are entropies, and says why one may rise."""
    for classes in sorted({m.classes for m in meanings if m.classes}):
        height = np.log(classes)
        ax.axhline(height, color="#777777", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        place = dict(xy=(0, height), xytext=(3, -3), xycoords=("axes fraction", "data"))
        ax.annotate(f"log {classes}", va="top", textcoords="offset points", fontsize=8, **place)
    for why in dict.fromkeys(m.why for m in meanings if m.why):
        note = textwrap.fill(f"may rise while learning goes well: {why}", _NOTE)
        ax.set_xlabel(f"step\n{note}", fontsize=7)


def running_mean(values: ArrayLike, window: int) -> np.ndarray:
    """Centred running mean of [n] over `window` entries; at the ends over those that exist."""
    values = np.asarray(values, np.float64)
    kernel = np.ones(window)
    if window > len(values):
        return values
    counts = np.convolve(np.ones(len(values)), kernel, "same")
    return np.convolve(values, kernel, "same") / counts
