"""Draws what only one method can show: its `pictures`, grids of images with maps, regions and marks
over them.
"""

import contextlib
import textwrap
import traceback
from pathlib import Path

import numpy as np
from matplotlib import colors, rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from ssl_jax.evals import features, pictures, visualise
from ssl_jax.evals.pictures import Panel, Picture

COUNT = 16  # images handed to a method
_SIDE, _WIDEST = (
    1.5,
    16.0,
)  # inches: of a panel, and of a whole figure, which makes panels smaller where there are many
_ROWS, _COLUMNS = (
    8,
    12,
)  # more rows than this stand side by side, as far as they have no more columns together
_TITLE = 0.19  # inches a line of a panel's title takes


def draw(encoder, sources_of: dict, folder: Path) -> list[Path]:
    """All pictures of a method as FOLDER/METHOD_NAME.png, of the first test images of the dense
    set, else of the image set.

    A run is not lost to a picture: where one fails, a warning says so, the traceback goes to a file
    beside the others, and the rest is drawn. Only a disk or folder that refuses (OSError) is passed
    on.

    Args:
      encoder: methods.encoder.Encoder; of a method without pictures nothing is drawn.
      sources_of: {section: (train source, test source)} as from `evals.sources`.

    Returns:
      The files written.
    """
    config, method = encoder.config, encoder.config.method
    section = next((name for name in ("dense", "image") if name in sources_of), None)
    if section is None:
        return []
    paths = []
    with _survived(folder, f"{method}_pictures"):
        source = sources_of[section][1]
        images = features.images_of(
            source,
            range(min(COUNT, len(source))),
            crop=config.eval.crop,
            multiple=config.model.patch,
        )
        for name, picture in pictures.draw(encoder, images).items():
            with _survived(folder, f"{method}_{name}"):
                paths.append(grid(picture, folder, f"{method}_{name}.png"))
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
        reason = " ".join(str(error).split())
        print(
            f"  warning: picture {name} failed ({type(error).__name__}: {reason[:200]}); traceback:"
            f" {report}",
            flush=True,
        )


def grid(picture: Picture, folder, name: str) -> Path:
    """Draws one picture as FOLDER/NAME.

    Maps and regions are laid over a gray image; each map goes from its own minimum to its own
    maximum. Regions have one colour per label and marks one per position in `marks`, the same in
    all panels, so that what belongs together is seen across them. Many rows stand in blocks side by
    side.

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
    palette = visualise.class_colors(
        1 + max((int(np.max(p.labels)) for p in panels if p.labels is not None), default=0)
    )
    with_maps = any(p.heat is not None for p in panels)
    size = (max(side * sum(widths) + 0.2, 3.2) + (0.8 if with_maps else 0), sum(heights) + 0.7)
    with rc_context(visualise.IMAGE_STYLE):
        fig = Figure(figsize=size, layout="constrained")
        visualise.set_title(fig, picture.title)
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
                    _panel(ax, panel, palette, side)
        if with_maps:
            bar = fig.colorbar(
                ScalarMappable(colors.Normalize(0, 1), "inferno"),
                ax=axes,
                shrink=min(1.0, 2.2 / sum(heights)),
                aspect=25,
                pad=0.01,
            )
            bar.set_ticks([0, 1], labels=["lowest", "highest"], fontsize=8)
            bar.set_label("value in its map", fontsize=8, labelpad=-20)
            bar.outline.set_visible(False)
        return visualise.save(fig, folder, name)


def _check(panel: Panel) -> None:
    if np.ndim(panel.image) != 3 or np.shape(panel.image)[2] != 3:
        raise ValueError(
            f'panel "{panel.title}": image is {np.shape(panel.image)}; it must be [H, W, 3]'
        )
    for name in ("heat", "labels"):
        value = getattr(panel, name)
        if value is not None and np.ndim(value) != 2:
            raise ValueError(
                f'panel "{panel.title}": {name} is {np.shape(value)}; it must be [h, w]'
            )


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


def _height(row, side: float) -> float:
    """Inches a row takes: its highest image and its longest title."""
    panels = [panel for panel in row if panel is not None]
    lines = max(len(_title(panel, side).splitlines()) for panel in panels)
    return (
        side * max(np.shape(p.image)[0] / np.shape(p.image)[1] for p in panels)
        + 0.06
        + _TITLE * lines
    )


def _panel(ax, panel: Panel, palette, side: float) -> None:
    image = visualise.float_images(panel.image)
    height, width = image.shape[:2]
    over = dict(extent=(0, width, height, 0))
    if panel.heat is None and panel.labels is None:
        ax.imshow(image, interpolation="nearest", **over)
    else:  # colours belong to what is laid over
        ax.imshow(image.mean(axis=-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest", **over)
    if panel.heat is not None:
        ax.imshow(
            _unit(panel.heat),
            cmap="inferno",
            vmin=0,
            vmax=1,
            alpha=0.65,
            interpolation="bilinear",
            **over,
        )
    if panel.labels is not None:
        labels = np.asarray(panel.labels)
        region = np.concatenate(
            [palette[np.maximum(labels, 0)], np.where(labels < 0, 0, 0.6)[..., None]], axis=-1
        )
        ax.imshow(region, interpolation="nearest", **over)
    for i, (y, x) in enumerate(panel.marks):
        color = (
            visualise.LINES[i % len(visualise.LINES)]
            if len(panel.marks) > 1
            else visualise.LINES[1]
        )
        # A dark ring around the white one, so that a mark shows on any image.
        ring = dict(
            markeredgecolor="white",
            markeredgewidth=1.2,
            path_effects=[withStroke(linewidth=2.4, foreground="#222222")],
        )
        ax.plot(x * width, y * height, "o", color=color, markersize=4.5 * side, **ring)
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.set_title(_title(panel, side), fontsize=8, pad=3)


def _unit(heat) -> np.ndarray:
    """A map from its minimum (0) to its maximum (1); a constant one is 0, and what is not finite is
    left out.
    """
    heat = np.ma.masked_invalid(np.asarray(heat, np.float64))
    low, high = (heat.min(), heat.max()) if heat.count() else (0.0, 0.0)
    return (heat - low) / (high - low) if high > low else heat * 0
