"""The comparison of networks as text, with the best score of each column."""

import math
from collections.abc import Mapping, Sequence

IMAGES = "_images"  # key in results.json: {score: number of test images it is a share of}


def standard_error(percent: float, images: int) -> float:
    """Standard error in percent of a share of images, with two correct and two wrong images added
    (Agresti and Coull 1998), so that it is not 0 at 0 and 100."""
    right = (percent * images / 100 + 2) / (images + 4)
    return 100 * math.sqrt(max(right * (1 - right), 0) / (images + 4))


def best(scores: Sequence[float], images: int = 0) -> tuple[float | None, str]:
    """(highest score, note on its standard error). The score is None if it is the only one, or if
    another one is as high within the standard error of the difference.

    images: number of test images, of which the scores are shares in percent; 0 = not shares.
    """
    first, *others = sorted(scores, reverse=True)
    if not images:
        return first if others else None, ""
    error = standard_error(first, images)
    alike = not others or first - others[0] <= math.hypot(error, standard_error(others[0], images))
    return None if alike else first, f"{images} test images, standard error {error:.1f}"


def comparison_table(
    results: Mapping[str, Mapping[str, float]],
    headings: Mapping[str, str],
    images: Mapping[str, int] | None = None,
) -> str:
    """Aligned text with one row per network and one column per score. * marks the best of a column;
    the last lines give the numbers of test images and standard errors.

    Args:
      results: {row: scores}, e.g. {"untrained network": {...}, "raw pixels": {...}, "trained":
        {...}}; "-" stands for a missing score.
      headings: {score: heading} of the columns; scores that no row has are left out.
      images: {score: number of test images of which it is a share}.
    """
    columns = {
        name: heading
        for name, heading in headings.items()
        if any(name in row for row in results.values())
    }
    highest = {
        name: best(
            [row[name] for row in results.values() if name in row], (images or {}).get(name, 0)
        )
        for name in columns
    }

    def cell(row, name):
        return (
            f"{row[name]:.1f}{'*' if row[name] == highest[name][0] else ' '}"
            if name in row
            else "- "
        )

    lines = [["features", *(f"{heading} " for heading in columns.values())]]
    lines += [[label, *(cell(row, name) for name in columns)] for label, row in results.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]

    def padded(line):
        label, *values = line
        values = [value.rjust(width) for value, width in zip(values, widths[1:])]
        return "  ".join([label.ljust(widths[0]), *values]).rstrip()

    rule = "-" * (sum(widths) + 2 * len(columns))
    head, *rows = map(padded, lines)
    errors = [f"{columns[name]}: {text}" for name, (_, text) in highest.items() if text]
    end = f" by more than the standard error\n{'; '.join(errors)}" if errors else ""
    last = f"in percent unless a unit is given; * = best of its column{end}"
    return "\n".join([head, rule, *rows, last])
