"""What tests of the scripts share: folders of finished runs, cells of tables."""

import csv
import json

# As little as a run can do: one step, 20 images of each part.
TINY = """
    optim.steps=1 optim.batch_size=8 model.depth=1 evals.picture_size=0 evals.tasks=('knn',)
    evals.knn.train_examples=20 evals.knn.test_examples=20
""".split()
TINY = [f"--config.{key}" for key in TINY]


def finished(
    folder, *, trained, untrained=None, raw=None, speed=(1, 400), end=None, batch=64, size=32
) -> None:
    """A run folder as `ssl-jax train` leaves it; speed: images a second of each row of metrics,
    end: further columns; size: of large views."""
    folder.mkdir(parents=True)
    scores = {"untrained network": untrained or trained, "raw pixels": raw or {}}
    (folder / "results.json").write_text(json.dumps(scores | {"trained": trained}))
    (folder / "environment.json").write_text(json.dumps({"git": "0123456789"}))
    config = {"optim": {"batch_size": batch}, "views": {"global_size": size}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"step": 10 * i, "images_per_second": s} | (end or {}) for i, s in enumerate(speed)]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def cells(text: str, name: str) -> list[str]:
    """The cells to the right of `name`, in the one row of a table that has it."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    (row,) = [row for row in rows if name in row]
    return row[row.index(name) + 1 :]


def page(path, *names):
    """A document with an empty place for each table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in names))
    return path
