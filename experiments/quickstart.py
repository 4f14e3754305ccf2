"""Writes what runs of the quickstart gave into docs/results.md.

python -m experiments quickstart runs/quickstart runs/quickstart-1
"""

import argparse
from pathlib import Path

from experiments import runs
from experiments.runs import ROOT
from ssl_jax import evals

SCORES = {name: evals.TYPES[name].heading for name in ("knn", "linear", "dense")}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, one for each seed")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "results.md")
    args = parser.parse_args(argv)
    results = [runs.read(folder) for folder in args.folders]
    text = runs.markdown(table(results))
    minutes = ", ".join(f"{result['minutes']:.0f}" for result in results)
    text += f"\nRuns with different seeds: {len(results)}; minutes of training: {minutes}."
    runs.fill(args.document, "quickstart", f"{text} {runs.provenance(*args.folders)}\n")
    print(text)
    return 0


def table(results: list[dict]) -> list[list[str]]:
    """Rows of cells: each network's scores, and by how much the trained one is above the better
    of the others, with the worst seed."""
    rows = [["features", *SCORES.values()]]
    for name, title in runs.ROWS.items():
        cells = [runs.spread(result[name][key] for result in results) for key in SCORES]
        rows.append([title, *cells])
    margins = [[runs.margin(result, key) for result in results] for key in SCORES]
    cells = [f"{runs.spread(values, '+')} ({min(values):+.1f})" for values in margins]
    return [*rows, ["margin (worst seed)", *cells]]
