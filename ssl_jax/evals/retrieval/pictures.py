"""Queries next to the retrieved images."""

import numpy as np

from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.retrieval.gallery import Gallery, shown
from ssl_jax.evals.retrieval.settings import Settings
from ssl_jax.features import windows
from ssl_jax.features.scales import shrunk
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores import ranking

_QUERIES, _SHOWN, _SIDE = 6, 8, 224  # queries, neighbours, pixels of a longer side


def retrieved(case: Case, settings: Settings, searched: Gallery) -> Picture:
    """Some queries with their nearest images, judged by the first level."""
    targets, names = next(iter(searched.targets.values())), searched.titles
    able = [i for i in range(len(targets)) if len(targets[i].relevant)]
    turns = neighbours.turns([names[i] for i in able])  # so that queries differ
    chosen = [able[n] for n in np.argsort(turns, kind="stable")[:_QUERIES]]

    def image(record, box=None):
        view = shown(case.test[int(record)]["image"], settings, box)
        return windows.unit(shrunk(view, _SIDE) if view.dtype == np.uint8 else view)

    queries, rows, right, titles = [], [], [], []
    for i in chosen:
        order = ranking.ranking(searched.queries[i : i + 1], searched.gallery)[0]
        order = order[~np.isin(order, targets[i].ignored)][:_SHOWN]
        box = None if searched.boxes is None else searched.boxes[i]
        queries.append(image(searched.query_records[i], box))
        rows.append([image(searched.gallery_records[row]) for row in order])
        right.append(np.isin(order, targets[i].relevant))
        titles.append([f"{searched.queries[i] @ searched.gallery[row]:.2f}" for row in order])
    marks = np.array([row[: min(map(len, titles))] for row in right])
    return neighbours.rows(
        queries,
        rows,
        titles,
        right=marks,
        query_titles=[f"query: {names[i]}" for i in chosen],
        title=f"Nearest images, with cosine similarity: {100 * marks.mean():.0f} % of those shown"
        " are relevant",
        meaning=("relevant", "not relevant"),
    )
