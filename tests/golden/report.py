"""Prints how far the package is from the golden numbers.

    JAX_PLATFORMS=cpu python -m tests.golden.report [NAME ...]

A Markdown table, case x largest relative difference; below it all that is beyond its limit.
"""

import sys

import numpy as np

from tests.golden import measure

COLUMNS = ("loss", "metrics", "gradients", "params", "teacher", "carry", "features")
SHARP = 1e-5


TEXT = f"""\
Largest relative difference of the numbers whose limit is at most {SHARP:.0e}; in brackets the
largest difference of all numbers, in units of its limit (above 1: the test fails).
"""


def row(name: str, differences) -> str:
    """One line of the table."""
    cells = []
    for kind in COLUMNS:
        own = [d for d in differences if d.kind == kind]
        if not own:
            cells.append("none")
            continue
        relative = max((_missing(d.relative) for d in own if d.limit <= SHARP), default=0)
        share = max(_missing(d.relative) / d.limit for d in own)
        cells.append(f"{relative:.1e} ({share:.2f})" if share else "0")
    return f"| {name} | {' | '.join(cells)} |"


def _missing(x: float) -> float:
    """A number that is missing is infinitely far off."""
    return float(np.nan_to_num(x, nan=np.inf))


if __name__ == "__main__":
    print(TEXT)
    print(f"| | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    beyond = []
    for case in sys.argv[1:] or measure.CASES:
        differences = measure.compare(case)
        print(row(case, differences), flush=True)
        beyond += [(case, d) for d in measure.failures(differences)]
    if not sys.argv[1:]:
        views = measure.compare_views()
        print(f"\nviews: {max(_missing(d.relative) for d in views):.1e} over {len(views)} arrays")
        beyond += [("views", d) for d in measure.failures(views)]
    print(f"\nbeyond their limit: {len(beyond)}")
    for case, difference in beyond:
        print(f"- {case}: {difference}")
