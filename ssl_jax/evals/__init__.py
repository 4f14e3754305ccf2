"""Evaluation of frozen features: k-NN, linear probe, dense retrieval, PSNR, RankMe.

    encoder = ssl_jax.load("runs/a")
    evals.evaluate(encoder, encoder.config, tasks=("knn", "dense"))  # {"knn": 81.2, ...}

A config names its evaluations (`section`), each has a type (`registry`), and runs on a network as a
`Case`. A new type is one module that calls `register`. Pictures (`pictures`) are data; the modules
that draw them, `pictures.render` and `curves`, import matplotlib and are not imported here.
"""

from ssl_jax.evals import dense, detection, features, knn, linear, pictures, psnr, rank, yolos
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
    "comparison_table",
    "defaults",
    "dense",
    "detection",
    "evaluate",
    "extract",
    "features",
    "folder",
    "headings",
    "keys",
    "knn",
    "linear",
    "named",
    "new",
    "pictures",
    "psnr",
    "rank",
    "raw_pixels",
    "register",
    "run",
    "sources",
    "subset",
    "yolos",
]
