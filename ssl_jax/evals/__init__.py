"""Evaluation of frozen features: k-NN, linear probe, dense retrieval, PSNR, RankMe.

    encoder = ssl_jax.load("runs/a")
    evals.evaluate(encoder, encoder.config, tasks=("knn", "dense"))  # {"knn": 81.2, ...}

A config names its evaluations (`section`), each has a type (`registry`), and runs on a network as a
`Case`. A new type is one module that calls `register`. Pictures (`pictures`) are data; the modules
that draw them, `pictures.render` and `curves`, import matplotlib and are not imported here.
"""

from ssl_jax.evals import (
    collapse,
    decode,
    dense,
    features,
    frechet,
    knn,
    linear,
    pictures,
    psnr,
    purity,
    quality,
    rank,
    reconstruct,
    stability,
    tsne,
)
from ssl_jax.evals.case import Case, cases, evaluate, run, sources
from ssl_jax.evals.features import Extracted, extract, raw_pixels, subset
from ssl_jax.evals.registry import BASELINES, ROWS, TRAINED, TYPES, Type, register
from ssl_jax.evals.section import add, check, chosen, defaults, folder, headings, keys, named, new
from ssl_jax.evals.table import comparison_table

__all__ = [
    "BASELINES",
    "ROWS",
    "TRAINED",
    "TYPES",
    "Case",
    "Extracted",
    "Type",
    "add",
    "cases",
    "check",
    "chosen",
    "collapse",
    "comparison_table",
    "decode",
    "defaults",
    "dense",
    "evaluate",
    "extract",
    "features",
    "folder",
    "frechet",
    "headings",
    "keys",
    "knn",
    "linear",
    "named",
    "new",
    "pictures",
    "psnr",
    "purity",
    "quality",
    "rank",
    "raw_pixels",
    "reconstruct",
    "register",
    "run",
    "sources",
    "stability",
    "subset",
    "tsne",
]
