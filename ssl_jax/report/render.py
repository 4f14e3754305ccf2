"""Draws pictures of any kind of `methods.pictures.base` as PNG, and an `Animation` as GIF.

Figures are created without pyplot, so there is no display and no global state."""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from ssl_jax.config import reason
from ssl_jax.methods.pictures.base import Animation, Chart, Classes, Picture, Scatter
from ssl_jax.report.grid import as_float, check, grid, legend_entry
from ssl_jax.report.style import (
    GRID_STYLE,
    LINES,
    STYLE,
    Line,
    class_colors,
    draw_lines,
    paint,
    save,
    set_title,
)
from ssl_jax.runtime import progress

_DASHES = (5.0, 2.0)
_ANIMATED = 480  # longest side of an animation, in pixels
_NAMED, _ROW, _BARS = 40, 0.19, 2.2  # most named classes; inches: of a class, of the bars


def draw(
    make: Callable[[], Mapping[str, Picture | Chart | Scatter | Classes | Animation]],
    folder: Path,
    what: str,
    prefix: str = "",
) -> list[Path]:
    """Draws the pictures {name: picture} that `make()` returns as FOLDER/PREFIXname.png or .gif;
    returns the files.

    A failing picture does not end the run: a warning is printed, the traceback is written to a file
    next to the pictures, and the others are drawn. Only OSError, from a full disk for example, is
    raised.

    what: name in the warning if `make` itself fails.
    """
    paths = []
    with progress.part(what), survived(folder, what):
        for name, picture in make().items():
            with survived(folder, f"{prefix}{name}"):
                if isinstance(picture, Animation):
                    paths.append(animation(picture, folder, f"{prefix}{name}.gif"))
                else:
                    paths.append(one(picture, folder, f"{prefix}{name}.png"))
    return paths


@contextlib.contextmanager
def survived(folder: Path, name: str) -> Iterator[None]:
    """Turns an exception, except OSError, into a warning and FOLDER/NAME.failed.txt. Removes the
    file of an earlier failure.
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
    lines = [
        Line(curve.x, curve.y, LINES[i % len(LINES)], curve.label, _DASHES if curve.dashed else ())
        for i, curve in enumerate(picture.curves)
        if np.isfinite(np.add(curve.x, curve.y, dtype=np.float64)).any()
    ]
    if not lines:
        raise ValueError(f'chart "{picture.title}" has no finite point')
    with rc_context(STYLE):
        fig = Figure(figsize=(6.4, 4.2), layout="constrained")
        set_title(fig, picture.title)
        ax = fig.subplots()
        draw_lines(ax, lines, marked=100)
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
    with rc_context(GRID_STYLE):
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
                handles=[legend_entry(palette, *entry) for entry in picture.legend],
                loc="outside right center",
                fontsize=8,
            )
        return save(fig, folder, name)


def classes(picture: Classes, folder: Path | str, name: str) -> Path:
    """Draws a bar for each class and the confusion matrix as FOLDER/NAME. With more than 40 classes
    only some are named, and bars have no numbers."""
    count = len(picture.names)
    step = -(-count // _NAMED)
    ticks = range(0, count, step), picture.names[::step]
    side = _ROW * max(min(count, _NAMED), 8)  # inches, of the matrix
    longest = 0.09 * max(map(len, ticks[1]))  # of a name
    with rc_context(GRID_STYLE):
        size = longest + _BARS + side + 0.9, longest + side + 0.9
        fig = Figure(figsize=size, layout="constrained")
        set_title(fig, picture.title)
        left, right = fig.subplots(1, 2, width_ratios=(_BARS, side), sharey=True)
        percent = 100 * np.nan_to_num(picture.values)
        left.barh(range(count), percent, 0.75 if step == 1 else 1.0, color=LINES[0])
        left.set(xlim=(0, 100), title=f"{picture.measure}, %")
        left.set_yticks(*ticks)
        for i, value in enumerate(percent if step == 1 else ()):
            text = "not there" if np.isnan(picture.values[i]) else f"{value:.1f}"
            color, side_of_end = ("white", "right") if value > 70 else ("black", "left")
            left.text(value, i, f" {text} ", color=color, ha=side_of_end, va="center", fontsize=8)
        map_of = dict(cmap="inferno", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
        shares = right.imshow(100 * picture.shares, **map_of)
        right.set_title("predicted, % of the row")
        right.set_xticks(*ticks, rotation=90)
        fig.colorbar(shares, ax=right, shrink=0.6, pad=0.02)
        return save(fig, folder, name)


def animation(animation: Animation, folder: Path | str, name: str) -> Path:
    """Draws an animation as FOLDER/NAME in the size of its images, shrunk to at most 480 pixels to
    keep the report small.

    Raises:
      ValueError: no frames, or a frame without an image or with labels of another size.
    """
    if not animation.frames:
        raise ValueError(f'animation "{animation.title}" has no frames')
    labels = [panel.labels for panel in animation.frames if panel.labels is not None]
    palette = class_colors(1 + max((int(np.max(part)) for part in labels), default=0))
    frames = []
    for panel in animation.frames:
        check(panel)
        if panel.image is None:
            raise ValueError(f'animation "{animation.title}" has a frame without an image')
        image = as_float(panel.image)
        if panel.labels is not None:
            labelled = np.asarray(panel.labels)[..., None] >= 0
            image = np.where(labelled, 0.5 * image + 0.5 * paint(panel.labels, palette), image)
        frames.append(Image.fromarray((255 * image).round().astype(np.uint8)))
        frames[-1].thumbnail((_ANIMATED, _ANIMATED))  # does not enlarge
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # loop=0 repeats for ever
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=animation.milliseconds, loop=0
    )
    return path
