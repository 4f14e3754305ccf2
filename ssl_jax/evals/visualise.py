"""Figures of a run: curves, attention of the class token, nearest neighbours, dense-retrieval
segmentations.

Each figure is a pure function of arrays that writes one PNG into a folder and returns its path;
`draw` makes those of a run from its features. Matplotlib's Agg canvas is used directly: no display,
no global state.
"""

import csv
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps, colors, rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ssl_jax.config import InputError
from ssl_jax.data import scenes
from ssl_jax.evals import dense_retrieval, features, knn

STYLE = {
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
IMAGE_STYLE = {
    **STYLE,
    "axes.grid": False,
    "axes.titlelocation": "center",
    "axes.titleweight": "normal",
}  # of grids of images
_DPI = 130
# Okabe-Ito: safe for colour-blind readers.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
_RIGHT, _WRONG = "#1a9850", "#d73027"
_BACKGROUND, _IGNORED = "#d9d9d9", "#ffffff"
_SMOOTHING = 0.05  # width of the running mean, as share of the curve


class _Panel(NamedTuple):
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
_PANELS = (
    _Panel("Loss", "", lambda n: n == "loss" or n.endswith("_loss"), noisy=True),
    _Panel(
        "Divergence from the teacher",
        "KL, nats",
        lambda n: n == "kl" or n.endswith("_kl"),
        noisy=True,
    ),
    _Panel("Entropy of the targets", "nats", lambda n: n.endswith("entropy"), noisy=True),
    _Panel(
        "Usage and agreement",
        "share",
        lambda n: n.endswith(("usage", "agreement", "bootstrapping_ratio", "fill")),
        noisy=True,
    ),
    _Panel("Reconstruction", "PSNR, dB", lambda n: n == "psnr", noisy=True),
    _Panel("Spread of the embeddings", "", lambda n: n.endswith("spread"), noisy=True),
    _Panel("Gradient norm", "before clipping", lambda n: n == "grad_norm", noisy=True, log=True),
    *(
        _Panel(title.capitalize(), "", lambda n, name=name: n == name)
        for name, title in _SCHEDULES.items()
    ),
)


def read_metrics(path) -> dict[str, np.ndarray]:
    """Columns of a metrics CSV as float64 arrays; empty and non-numeric cells are NaN. Raises
    InputError without a column "step".
    """
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "step" not in rows[0]:
        raise InputError(
            f'{path} is not a table of metrics: it needs a header with "step" and at least one row'
        )
    return {
        name: np.array([_number(row[name]) for row in rows]) for name in rows[0] if name is not None
    }


def _number(text) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def curves(
    metrics: dict,
    folder,
    *,
    scores: dict | None = None,
    title: str = "Training",
    name: str = "curves.png",
) -> Path:
    """Loss, health and schedule curves over the step.

    Args:
      metrics: {"step": [n], column: [n], ...} as from `read_metrics`; known columns are sorted into
        panels, others are left out.
      scores: the same for scores in percent measured during the run (knn, linear, dense): one more
        panel.
      folder: where the PNG goes; made if needed.

    Raises:
      InputError: no column that can be drawn.
    """
    panels = [
        (panel, metrics, [n for n in metrics if panel.takes(n) and np.isfinite(metrics[n]).any()])
        for panel in _PANELS
    ]
    panels = [p for p in panels if p[2]]
    drawn = [n for n in ("knn", "linear", "dense") if scores and n in scores]
    if drawn:
        panels.insert(1, (_Panel("Scores on frozen features", "percent", None), scores, drawn))
    if not panels:
        raise InputError(f"no known curve among the columns {', '.join(metrics) or '(none)'}")
    columns = min(3 if len(panels) <= 9 else 4, len(panels))
    rows = -(-len(panels) // columns)
    with rc_context(STYLE):
        fig = Figure(figsize=(4.3 * columns, 2.7 * rows + 0.5), layout="constrained")
        set_title(fig, title)
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        for ax, (panel, table, names) in zip(axes, panels):
            _curve_panel(ax, panel, table, names)
        for ax in axes[len(panels) :]:
            ax.axis("off")
        return save(fig, folder, name)


def _curve_panel(ax, panel, table, names):
    for line, color in zip(names, LINES):
        finite = np.isfinite(table["step"]) & np.isfinite(table[line])
        x, y = table["step"][finite], table[line][finite]
        marker = "o" if len(x) < 12 else None
        label = line.replace("_", " ")
        window = max(1, round(_SMOOTHING * len(y)))
        if panel.noisy and window > 1:
            ax.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
            ax.plot(x, running_mean(y, window), color=color, linewidth=1.8, label=label)
        else:
            ax.plot(x, y, color=color, linewidth=1.8, marker=marker, markersize=3.5, label=label)
    ax.set_title(panel.title)
    ax.set_xlabel("step")
    ax.set_ylabel(panel.unit)
    if panel.log and all((table[n][np.isfinite(table[n])] > 0).all() for n in names):
        ax.set_yscale("log")
    else:
        ax.ticklabel_format(axis="y", useOffset=False)
    if len(names) > 1:
        ax.legend(fontsize=8)


def running_mean(values, window: int) -> np.ndarray:
    """Centred running mean of [n] over `window` entries; at the ends over those that exist."""
    values = np.asarray(values, np.float64)
    kernel = np.ones(window)
    return (
        np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
        if window <= len(values)
        else values
    )


def cls_attention(attention, grid) -> np.ndarray:
    """What the class token attends to: [B, heads, N, N] (tokens: class, patches, queries) -> [B,
    heads, h, w].
    """
    h, w = grid
    return np.asarray(attention)[:, :, 0, 1 : 1 + h * w].reshape(*attention.shape[:2], h, w)


def attention(
    images,
    maps,
    folder,
    *,
    title: str = "Attention of the class token, last block",
    name: str = "attention.png",
) -> Path:
    """One row per image: the image, the mean over heads laid over it, and each head.

    Args:
      images: [n, H, W, 3] in [0, 1] (or uint8). maps: [n, heads, h, w], attention of the class
        token to each patch (`cls_attention`).
    """
    images, maps = float_images(images), np.asarray(maps, np.float64)
    if maps.ndim != 4 or len(images) != len(maps):
        raise ValueError(
            f"images {images.shape} and maps {maps.shape} must be [n, H, W, 3] and [n, heads, h, w]"
        )
    n, heads = maps.shape[:2]
    height, width = images.shape[1:3]
    shown = np.concatenate([maps.mean(axis=1, keepdims=True), maps], axis=1)
    shown /= np.maximum(shown.max(axis=(2, 3), keepdims=True), 1e-12)
    side = 1.35
    with rc_context(IMAGE_STYLE):
        fig = Figure(
            figsize=(side * (heads + 2) + 0.9, side * height / width * n + 1.0),
            layout="constrained",
        )
        set_title(fig, title)
        axes = fig.subplots(n, heads + 2, squeeze=False)
        headings = ["image", "mean of heads", *(f"head {i + 1}" for i in range(heads))]
        extent = (0, width, height, 0)
        for i in range(n):
            axes[i, 0].imshow(images[i], extent=extent, interpolation="nearest")
            gray = images[i].mean(axis=-1)
            axes[i, 1].imshow(
                gray, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest"
            )
            axes[i, 1].imshow(
                shown[i, 0],
                cmap="inferno",
                vmin=0,
                vmax=1,
                alpha=0.65,
                extent=extent,
                interpolation="bilinear",
            )
            for j in range(heads):
                axes[i, j + 2].imshow(
                    shown[i, j + 1],
                    cmap="inferno",
                    vmin=0,
                    vmax=1,
                    extent=extent,
                    interpolation="nearest",
                )
        for ax, heading in zip(axes[0], headings):
            ax.set_title(heading, fontsize=9)
        for ax in axes.ravel():
            ax.set_axis_off()
        bar = fig.colorbar(
            ScalarMappable(colors.Normalize(0, 1), "inferno"),
            ax=axes,
            shrink=min(1.0, 2.2 / n),
            aspect=25,
            pad=0.01,
        )
        bar.set_label("attention, share of the map's maximum", fontsize=8)
        bar.outline.set_visible(False)
        return save(fig, folder, name)


def neighbours(
    queries,
    neighbour_images,
    similarity,
    query_labels,
    neighbour_labels,
    folder,
    *,
    class_names: Sequence[str] | None = None,
    title: str = "Nearest training images",
    name: str = "neighbours.png",
) -> Path:
    """One row per query: the query, then its nearest neighbours; the frame says whether the class
    agrees.

    Args:
      queries: [n, H, W, 3]; neighbour_images: [n, k, H, W, 3], nearest first; images in [0, 1] (or
        uint8). similarity: [n, k]. query_labels: [n] int, neighbour_labels: [n, k] int.
        class_names: names of the classes; default: numbers.
    """
    queries, found = float_images(queries), float_images(neighbour_images)
    similarity, truth, labels = (
        np.asarray(similarity),
        np.asarray(query_labels),
        np.asarray(neighbour_labels),
    )
    n, k = similarity.shape
    if (
        len(queries) != n
        or found.shape[:2] != (n, k)
        or truth.shape != (n,)
        or labels.shape != (n, k)
    ):
        raise ValueError(
            f"queries {queries.shape}, neighbours {found.shape}, similarity {similarity.shape}, "
            f"labels {truth.shape} and {labels.shape} do not fit"
        )
    say = _class_name(class_names)
    right = labels == truth[:, None]
    side = 1.15
    with rc_context(IMAGE_STYLE):
        fig = Figure(figsize=(side * (k + 1.3), (side + 0.2) * n + 1.0), layout="constrained")
        set_title(fig, f"{title}: {100 * right.mean():.0f} % of those shown have the query's class")
        axes = fig.subplots(
            n, k + 2, squeeze=False, gridspec_kw={"width_ratios": [1, 0.15, *[1] * k]}
        )
        for i in range(n):
            _framed(axes[i, 0], queries[i], "#333333", f"query: {_short(say(truth[i]))}", bold=True)
            axes[i, 1].axis("off")
            for j in range(k):
                # A check mark or a cross, for those who cannot tell red from green.
                color, mark = (_RIGHT, "\u2713") if right[i, j] else (_WRONG, "\u2717")
                _framed(
                    axes[i, j + 2],
                    found[i, j],
                    color,
                    f"{mark} {_short(say(labels[i, j]))} ({similarity[i, j]:.2f})",
                )
        marks = [
            Line2D([], [], color=c, linewidth=3, label=text)
            for c, text in ((_RIGHT, "same class"), (_WRONG, "other class"))
        ]
        note = "Left: query. Right: its neighbours, nearest first, with class and cosine similarity"
        fig.legend(handles=marks, loc="outside lower left", ncols=2, title=note, alignment="left")
        return save(fig, folder, name)


def _short(text, limit=12):
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def _framed(ax, image, color, text, bold=False):
    ax.imshow(image, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color=color, linewidth=2.6)
    ax.set_title(text, fontsize=8, pad=4, fontweight="bold" if bold else "normal")


def segmentations(
    images,
    truth,
    predicted,
    folder,
    *,
    class_names: Sequence[str] | None = None,
    background: int | None = None,
    iou=None,
    title: str = "Dense retrieval",
    name: str = "segmentation.png",
) -> Path:
    """One column per scene: image, true mask, true majority class per patch, retrieved class per
    patch; with a legend.

    Args:
      images: [n, H, W, 3] in [0, 1] (or uint8). truth: [n, H, W] int, 255 = ignore. predicted: [n,
        h, w] int, h and w divide H and W.
      class_names: names of all classes; default: numbers. background: class drawn in light gray.
        iou: [c] per class (0..1, NaN: not in the test set), shown in the legend.
    """
    images, truth, predicted = float_images(images), np.asarray(truth), np.asarray(predicted)
    if truth.shape != images.shape[:3] or len(predicted) != len(images):
        raise ValueError(
            f"images {images.shape}, truth {truth.shape} and predictions {predicted.shape} do"
            " not fit"
        )
    used = np.unique(np.concatenate([truth.ravel(), predicted.ravel()]))
    count = 1 + int(max(used[used != dense_retrieval.IGNORE], default=0))
    count = max(count, len(class_names or ()), len(iou) if iou is not None else 0)
    palette = class_colors(count, background)
    patches = dense_retrieval.patch_labels(truth, predicted.shape[1:], num_classes=count)
    valid = patches != dense_retrieval.IGNORE
    right = [
        100 * (p == q)[v].mean() if v.any() else float("nan")
        for p, q, v in zip(predicted, patches, valid)
    ]
    n, side = len(images), 1.5
    height, width = images.shape[1:3]
    with rc_context({**STYLE, "axes.grid": False}):
        fig = Figure(
            figsize=(side * n + 2.3, side * height / width * 4 + 1.0), layout="constrained"
        )
        set_title(fig, title)
        axes = fig.subplots(4, n, squeeze=False)
        for j in range(n):
            shown = (
                images[j],
                paint(truth[j], palette),
                paint(patches[j], palette),
                paint(predicted[j], palette),
            )
            for ax, picture in zip(axes[:, j], shown):
                ax.imshow(picture, interpolation="nearest", extent=(0, width, height, 0))
                ax.set_xticks([])
                ax.set_yticks([])
                for spine in ax.spines.values():
                    spine.set(visible=True, color="#999999", linewidth=0.6)
            axes[3, j].set_xlabel(f"{right[j]:.0f} % of patches right", fontsize=8)
        for ax, text in zip(axes[:, 0], ("image", "truth", "truth per patch", "retrieved")):
            ax.set_ylabel(text, fontsize=9, fontweight="bold")
        handles = _legend(count, palette, class_names, iou, used)
        fig.legend(
            handles=handles,
            loc="outside right center",
            title="class" if iou is None else "class (IoU, %)",
        )
        return save(fig, folder, name)


def _legend(count, palette, class_names, iou, used):
    """Patches for all classes (beyond 24: those that appear), and one for ignored pixels if there
    are any.
    """
    say = _class_name(class_names)
    classes = [c for c in range(count) if count <= 24 or c in used]

    def label(c):
        if iou is None:
            return say(c)
        return (
            f"{say(c)} ({100 * iou[c]:.0f})"
            if c < len(iou) and np.isfinite(iou[c])
            else f"{say(c)} (-)"
        )

    handles = [
        Patch(facecolor=palette[c], edgecolor="#999999", linewidth=0.5, label=label(c))
        for c in classes
    ]
    if dense_retrieval.IGNORE in used:
        handles.append(
            Patch(facecolor=_IGNORED, edgecolor="#999999", linewidth=0.5, label="not labelled")
        )
    return handles


def class_colors(count: int, background: int | None = None) -> np.ndarray:
    """[count, 3] RGB in [0, 1]: ten named colours, then hues by the golden angle; `background` is
    light gray.
    """
    # tab10 without its gray, which would pass for the background.
    named = [*(c for i, c in enumerate(colormaps["tab10"].colors) if i != 7), (0.05, 0.05, 0.05)]
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


def paint(labels, palette) -> np.ndarray:
    """[H, W] classes to [H, W, 3] colours; ignored places are white."""
    labels = np.asarray(labels)
    ignored = labels == dense_retrieval.IGNORE
    picture = palette[np.where(ignored, 0, labels)]
    picture[ignored] = colors.to_rgb(_IGNORED)
    return picture


def _class_name(class_names):
    return lambda c: (
        str(class_names[c]) if class_names is not None and c < len(class_names) else str(int(c))
    )


def float_images(images):
    """Images as floats in [0, 1]: uint8 divided by 255, floats clipped."""
    images = np.asarray(images)
    return images / 255.0 if images.dtype == np.uint8 else np.clip(images, 0, 1)


def set_title(fig, text):
    """Title at the left, broken into lines that fit the width; and a margin on all sides."""
    fig.get_layout_engine().set(w_pad=0.07, h_pad=0.06)
    fig.suptitle(textwrap.fill(text, max(16, int(fig.get_figwidth() * 7.5))), x=0.01, ha="left")


def save(fig, folder, name) -> Path:
    """Writes the figure as PNG into `folder`, which is made if needed; returns its path."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=_DPI, facecolor="white")
    return path


def draw(
    config,
    folder,
    extracted: dict,
    sources_of: dict,
    *,
    attention_fn=None,
    metrics=None,
    scores=None,
    count: int = 6,
) -> list[Path]:
    """All figures of a run that the given data allow; returns the PNGs written.

    Args:
      extracted: the dict that `evals.evaluate(..., extracted=...)` filled. sources_of: the sources
      it used. attention_fn: features_fn made with attention=True; None: no attention figure.
      metrics, scores: tables for `curves`, or None. count: queries and scenes shown.
    """
    cut = dict(crop=config.eval.crop, multiple=config.model.patch)
    paths = []
    if metrics is not None:
        paths.append(
            curves(
                metrics,
                folder,
                scores=scores,
                title=f"{config.method}, batch {config.optim.batch_size}",
            )
        )
    section = "dense" if "dense" in sources_of else "image"
    if attention_fn is not None and section in sources_of:
        source = sources_of[section][1]
        images = features.images_of(source, range(min(count, len(source))), **cut)
        found = attention_fn(images)
        if found.cls is not None and found.attention is not None:
            paths.append(
                attention(images, cls_attention(found.attention, found.patches.shape[1:3]), folder)
            )
    if "image" in extracted and extracted["image"][0].labels is not None:
        paths.append(
            _draw_neighbours(folder, *extracted["image"], *sources_of["image"], cut, count)
        )
    if "dense" in extracted and extracted["dense"][0].masks is not None:
        paths.append(
            _draw_segmentations(
                config, folder, *extracted["dense"], sources_of["dense"][1], cut, count
            )
        )
    return paths


def _draw_neighbours(folder, train, test, train_source, test_source, cut, count, k=8):
    """Queries: the first test image of each class, then the second, ... until there are `count`."""
    turn = [np.sum(test.labels[:i] == label) for i, label in enumerate(test.labels[:1000])]
    chosen = np.lexsort((test.labels[:1000], turn))[:count]
    classes = 1 + int(train.labels.max())
    found = knn.classify(
        train.image, train.labels, test.image[chosen], num_classes=classes, ks=(k,)
    )
    shown = [features.images_of(train_source, train.index[row], **cut) for row in found.index]
    return neighbours(
        features.images_of(test_source, test.index[chosen], **cut),
        np.stack(shown),
        found.similarity,
        test.labels[chosen],
        train.labels[found.index],
        folder,
    )


def _draw_segmentations(config, folder, train, test, test_source, cut, count):
    e = config.eval
    names = {}
    if e.dense.kind == "digit_scenes":
        digits = map(str, range(scenes.NUM_CLASSES))
        names = dict(class_names=[*digits, "background"], background=scenes.BACKGROUND)
    classes = dense_retrieval.num_mask_classes(train.masks, test.masks)
    result = dense_retrieval.segment(
        train.patches,
        train.masks,
        test.patches[:count],
        test.masks[:count],
        num_classes=classes,
        k=e.dense_k,
        rule=e.dense_vote,
    )
    return segmentations(
        features.images_of(test_source, test.index[:count], **cut),
        test.masks[:count],
        result.predicted,
        folder,
        title=(
            f"Dense retrieval: the class of each patch from its {e.dense_k} nearest training"
            " patches"
        ),
        **names,
    )
