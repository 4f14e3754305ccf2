"""Writes what runs of the quickstart gave into docs/results.md.

python -m experiments quickstart runs/quickstart runs/quickstart-1
"""

import argparse
from pathlib import Path

from experiments import runs, tables
from ssl_jax import evals

SCORES = {name: evals.TYPES[name].heading for name in ("knn", "linear", "dense")}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, one for each seed")
    args = parser.parse_args(argv)
    results = [runs.read(folder) for folder in args.folders]
    minutes = ", ".join(f"{result['minutes']:.0f}" for result in results)
    text = f"{tables.markdown(table(results))}\nRuns with different seeds: {len(results)}; minutes"
    text += f" of training: {minutes}. {tables.provenance(*args.folders)}\n"
    tables.fill("docs/results.md", "quickstart", text)
    print(text)
    return 0


def table(results: list[dict]) -> list[list[str]]:
    """Rows of cells: each network's scores, and by how much the trained one is above the better
    of the others, with the worst seed."""
    rows = [["features", *SCORES.values()]]
    for name, title in runs.ROWS.items():
        cells = [tables.spread(result[name][key] for result in results) for key in SCORES]
        rows.append([title, *cells])
    return [*rows, ["margin (worst seed)", *(runs.margins(results, key) for key in SCORES)]]
