"""The comparison of networks as text."""

from collections.abc import Mapping


def comparison_table(
    results: Mapping[str, Mapping[str, float]], headings: Mapping[str, str]
) -> str:
    """Aligned text: one row per network, one column per score, the best of each column marked
    with *.

    Args:
      results: {row: scores}, e.g. {"untrained network": {...}, "raw pixels": {...}, "trained":
        {...}}; a score that a row lacks shows "-".
      headings: {score: heading} of the columns; scores that no row has are left out.
    """
    columns = {
        name: heading
        for name, heading in headings.items()
        if any(name in row for row in results.values())
    }
    best = {name: max(row[name] for row in results.values() if name in row) for name in columns}

    def cell(row, name):
        return f"{row[name]:.1f}{'*' if row[name] == best[name] else ' '}" if name in row else "- "

    lines = [["features", *(f"{heading} " for heading in columns.values())]]
    lines += [[label, *(cell(row, name) for name in columns)] for label, row in results.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]

    def padded(line):
        label, *values = line
        values = [value.rjust(width) for value, width in zip(values, widths[1:])]
        return "  ".join([label.ljust(widths[0]), *values]).rstrip()

    rule = "-" * (sum(widths) + 2 * len(columns))
    head, *rows = map(padded, lines)
    return "\n".join([head, rule, *rows, "percent where no unit is named; * = best of the column"])
