"""What nobody should give, tried and counted: every key of every config with bad and edge values,
image files with changed bytes.

    python -m tests.fuzz --write docs/reliability.md

Exit code 1 where anything but a clear answer came.
"""

import argparse
import collections
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from ml_collections import ConfigDict

from experiments import tables
from ssl_jax import evals, methods, settings
from ssl_jax.config import InputError
from ssl_jax.runtime import sharding
from ssl_jax.train import setup
from tests import damaged, tiny

Row = tuple[str | int, ...]
OUTCOMES = ("keys", "values", "refused", "accepted", "other errors", "hangs")
PATIENCE = 2.0  # seconds of this process
NUMBERS = (-1, 0, 1, 2, 3, 0.5, -0.5, 1e-30, 1e30, -1e30, 10**9, -(10**9), 2**31, 2**63, 10**30)
NO_NUMBERS = (math.nan, math.inf, -math.inf, None, True, "", "a", "-1", "../..", "\0", "ü", {}, b"")
TUPLES = ((), (0,), (1, 0), (0, 1), (-1.0, 2.0), (math.nan, 1.0), ("a", "b"), (1e30, 1e30), ((),))
VALUES = (*NUMBERS, *NO_NUMBERS, *TUPLES)


def subjects(method: str) -> Iterator[tuple[ConfigDict, list[str]]]:
    """Configs and the keys of each that are tried: those of the method's own; for "dino" also the
    general ones, and those of every type of evaluation."""
    config = tiny.config(method)
    known = settings.keys(method)
    if method != "dino":
        yield config, [name for name in known if name.startswith(f"{method}.")]
        return
    # What they name is loaded.
    yield config, [name for name in known if name not in ("method", "imports")]
    for type in evals.TYPES:
        config = tiny.config(method)
        for name in evals.named(config):
            del config.evals[name]
        config.evals.tasks = ()
        config.evals[type] = evals.new(type)
        yield config, [name for name in evals.keys(config) if name.startswith(f"evals.{type}.")]


def changed(config: ConfigDict, name: str, value) -> ConfigDict:
    config = ConfigDict(config.to_dict())
    *path, last = name.split(".")
    section = config
    for part in path:
        section = section[part]
    with section.ignore_type():
        section[last] = value
    return config


def build(config) -> None:
    """Shapes of the training state; nothing is allocated."""
    resolved = settings.resolve(config, num_records=10**6, num_devices=1)
    method = methods.make(resolved)
    _, state = setup.on_mesh(method, resolved, sharding.make_mesh(1, 1))
    assert all(math.prod(x.shape) > 0 for x in jax.tree.leaves(state.params))


def try_all(method, values: int, built: float, chance) -> tuple[collections.Counter, list[str]]:
    """values: of each key, drawn from VALUES. built: share of the accepted ones whose network is
    built. Returns what is wrong too."""
    tally, wrong = collections.Counter(), []
    for config, names in subjects(method):
        for name in names:
            tally["keys"] += 1
            for value in chance.sample(VALUES, values):
                tally["values"] += 1
                if bad := attempt(config, name, value, tally, chance.random() < built):
                    wrong.append(f"{method}: {name} = {value!r}: {bad}")
    return tally, wrong


def attempt(config, name, value, tally, built) -> str:
    """What is wrong with what became of a value; counted in the tally."""
    began = time.process_time()
    try:
        other = changed(config, name, value)
        tiny.check(other)
        settings.resolve(other, num_records=10**6, num_devices=1)
        tally["accepted"] += 1
        taken = time.process_time() - began
        if built and name.startswith((f"{config.method}.", "model.", "optim.")):
            build(other)
    except InputError as error:
        tally["refused"] += 1
        taken = time.process_time() - began
        if len(str(error).splitlines()) != 1:
            return f"not one line: {error}"
    except Exception as error:
        tally["other errors"] += 1
        return f"{type(error).__name__}: {str(error)[:200]}"
    if taken > PATIENCE:
        tally["hangs"] += 1
        return f"{taken:.1f} s"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--values", type=int, default=len(VALUES), help="of each key, drawn anew")
    parser.add_argument("--images", type=int, default=20000, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="document whose <!-- fuzz --> gets the tables")
    given = parser.parse_args(arguments)
    keys, images = keys_tried(given.values, given.seed), images_tried(given.images, given.seed)
    text = "\n".join((tables.markdown(keys), tables.markdown(images)))
    print(text)
    if given.write:
        options = f"--values {given.values} --images {given.images} --seed {given.seed}"
        command = f"`python -m tests.fuzz {options}`"
        tables.fill(given.write, "fuzz", f"{text}\n{command}. {tables.provenance()}\n")
    wrong = sum(sum(row[-2:]) for row in keys[1:]) + sum(row[4] for row in images[1:])
    return int(wrong > 0)


def keys_tried(values: int, seed: int) -> list[Row]:
    """A table: what became of so many values of each key, for each method."""
    rows: list[Row] = [("keys", "tried", *OUTCOMES[1:])]
    for method in methods.METHODS:
        chance = random.Random(f"{seed}/{method}")
        tally, wrong = try_all(method, values, 0.02, chance)
        name = "all that belong to no method, and DINO's" if method == "dino" else f"`{method}.*`"
        rows.append((name, *(tally[name] for name in OUTCOMES)))
        print(method, *wrong, sep="\n", file=sys.stderr, flush=True)
    return [*rows, _sum(rows)]


def images_tried(examples: int, seed: int) -> list[Row]:
    """A table: what became of so many mutated files of each format; "reasons": different ones."""
    rows: list[Row] = [("images", "mutated", "decoded", "named unreadable", "crashes", "reasons")]
    reader = damaged.Reader()
    for name in sorted({what.split()[0] for what in damaged.files()}):
        found = damaged.many(reader, name, examples, seed)
        decoded, named = found.pop("decoded", 0), found.total()
        rows.append((name, decoded + named, decoded, named, 0, len(found)))
        print(name, file=sys.stderr, flush=True)
    reader.close()
    return [*rows, (*_sum(rows)[:-1], "")]


def _sum(rows: list[Row]) -> Row:
    return ("all", *(sum(column) for column in list(zip(*rows[1:]))[1:]))


if __name__ == "__main__":
    sys.exit(main())
