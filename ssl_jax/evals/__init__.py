"""Evaluation of frozen features: k-NN, linear probe, retrieval, dense retrieval, videos, PSNR, ...

    encoder = ssl_jax.load("runs/a")
    evals.evaluate(encoder, encoder.config, tasks=("knn", "dense"))  # {"knn": 81.2, ...}

A config names its evaluations (`section`). Each has a type (`registry`) and runs on a network as a
`Case`. A new type is one module that calls `register`. Pictures (`pictures`) are data, drawn by
`ssl_jax.report`.
"""

from ssl_jax.evals import (  # noqa: F401, each registers its type
    box_knn,
    classify,
    collapse,
    davis,
    decode,
    dense,
    imagenet9,
    knn,
    linear,
    logistic,
    pictures,
    psnr,
    purity,
    rank,
    reconstruct,
    retrieval,
    segment,
    stability,
    tsne,
    yolos,
)
from ssl_jax.evals.case import Case, cases, evaluate, run
from ssl_jax.evals.follow import fit_to_data, follow
from ssl_jax.evals.opened import sources
from ssl_jax.evals.registry import BASELINES, ROWS, TRAINED, TYPES, Type, register
from ssl_jax.evals.section import add, check, defaults, folder, headings, keys, named, new, selected
from ssl_jax.features.pixels import raw_pixels

__all__ = [
    "BASELINES",
    "ROWS",
    "TRAINED",
    "TYPES",
    "Case",
    "Type",
    "add",
    "cases",
    "check",
    "selected",
    "defaults",
    "evaluate",
    "folder",
    "follow",
    "headings",
    "keys",
    "named",
    "new",
    "raw_pixels",
    "register",
    "run",
    "fit_to_data",
    "sources",
]
