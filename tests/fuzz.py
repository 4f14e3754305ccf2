"""What nobody should give, tried and counted: every key of every config with bad and edge values,
image files with changed bytes.

    python -m tests.fuzz --write docs/reliability.md

Exit code 1 where anything but a clear answer came.
"""

import argparse
import dataclasses
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

from launch import runs
from ssl_jax import methods
from tests import damaged, values_of_keys

Row = tuple[str | int, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    values = len(values_of_keys.VALUES)
    parser.add_argument("--values", type=int, default=values, help="of each key, drawn anew")
    parser.add_argument("--images", type=int, default=20000, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="document whose <!-- fuzz --> gets the tables")
    given = parser.parse_args(arguments)
    keys, images = keys_tried(given.values, given.seed), images_tried(given.images, given.seed)
    text = "\n".join((runs.markdown(keys), runs.markdown(images)))
    print(text)
    if given.write:
        options = f"--values {given.values} --images {given.images} --seed {given.seed}"
        command = f"`python -m tests.fuzz {options}`"
        runs.fill(given.write, "fuzz", f"{text}\n{command}. {runs.provenance()}\n")
    wrong = sum(sum(row[-2:]) for row in keys[1:]) + sum(row[4] for row in images[1:])
    return int(wrong > 0)


def keys_tried(values: int, seed: int) -> list[Row]:
    """A table: what became of so many values of each key, for each method."""
    rows: list[Row] = [("keys", "tried", "values", "refused", "accepted", "other errors", "hangs")]
    for method in methods.METHODS:
        chance = random.Random(f"{seed}/{method}")
        tally, wrong = values_of_keys.try_all(method, values, 0.02, chance)
        name = "all that belong to no method, and DINO's" if method == "dino" else f"`{method}.*`"
        rows.append((name, *dataclasses.astuple(tally)))
        print(method, *wrong, sep="\n", file=sys.stderr, flush=True)
    return [*rows, _sum(rows)]


def images_tried(examples: int, seed: int) -> list[Row]:
    """A table: what became of so many mutated files of each format, and how many different reasons
    were named."""
    rows: list[Row] = [("images", "mutated", "decoded", "named unreadable", "crashes", "reasons")]
    reader = damaged.Reader()
    for name in sorted({what.split()[0] for what in damaged.files()}):
        reasons = damaged.many(reader, name, examples, seed)
        rows.append((name, *dataclasses.astuple(damaged.tally), len(reasons)))
        print(name, file=sys.stderr, flush=True)
    reader.close()
    return [*rows, (*_sum(rows)[:-1], "")]


def _sum(rows: list[Row]) -> Row:
    return ("all", *(sum(column) for column in list(zip(*rows[1:]))[1:]))


if __name__ == "__main__":
    sys.exit(main())
