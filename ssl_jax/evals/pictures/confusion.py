"""How each class fared, and what it was taken for."""

from collections.abc import Sequence

import numpy as np

from ssl_jax.evals.pictures.base import Panel, Picture, class_name

_LEGEND = 24  # with more classes than this, the largest are named
_FRAME = "#bbbbbb"
_BAND, _SIDE = 12, 600  # pixels of a class, and of all classes at most


def picture(
    counts: np.ndarray,
    values: np.ndarray | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "Share of each class that is right, and what it is taken for",
    measure: str = "right",
) -> Picture:
    """A bar for each class, and on the same rows where its examples went.

    Args:
      counts: [c, c] examples by true (row) and predicted class. values: [c] in 0..1, what the bars
        show, NaN for a class that is not there; None: the share of the class that is right.
      names: of the classes. measure: what the values are called.
    """
    total = counts.sum(axis=1)
    shares = counts / np.maximum(total, 1)[:, None]
    if values is None:
        values = np.where(total > 0, np.diagonal(shares), np.nan)
    count = len(counts)
    band = max(2, min(_BAND, _SIDE // count))
    bars = np.full((count, band, 10 * _BAND), -1)
    gap = int(band > 4)  # between two bars
    for i, value in enumerate(np.nan_to_num(values)):
        bars[i, gap : band - gap, : round(value * bars.shape[-1])] = i
    largest = np.argsort(-total, kind="stable")[:_LEGEND]

    def entry(i):
        value = "not there" if np.isnan(values[i]) else f"{100 * values[i]:.1f}"
        return int(i), f"{class_name(names, i)} {value}"

    return Picture(
        title,
        (
            (
                Panel(
                    labels=bars.reshape(-1, bars.shape[-1]),
                    title=f"{measure}, 0 to 100",
                    frame=_FRAME,
                ),
                Panel(
                    heat=shares.repeat(band, 0).repeat(max(1, 10 * _BAND // count), 1),
                    title="truth (rows), predicted (columns)",
                    frame=_FRAME,
                ),
            ),
        ),
        legend=tuple(entry(i) for i in sorted(largest)),
        legend_title=f"{measure}, percent",
        from_zero=True,
    )
