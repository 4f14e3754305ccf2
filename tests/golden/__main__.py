"""Writes golden.json, the numbers that a change of the package must not change.

    python -m tests.golden --write [NAME ...]

For every method and variant of tests/tiny.py: losses and gradient norms of ten steps of its tiny
config from random weights, and by how much each moved at most in eight runs with the last bit of
the weights changed. A number may differ by 1e-6 of its size, or by six times that: what a
reordering of sums does. tests/contract/test_golden.py compares, with the steps that the contract
compiles. Write again only for a change of the numbers that is meant; others must be the same
afterwards.
"""

import argparse
import importlib.metadata
import json
import pathlib
import subprocess

import jax
import numpy as np

from tests import tiny
from tests.contract import steps

PATH = pathlib.Path(__file__).with_name("golden.json")
KEYS = ("loss", "grad_norm")
TRIALS = 8


def measure(name: str) -> dict:
    """{"loss", "loss_noise", "grad_norm", "grad_norm_noise": ten numbers}."""
    case, rng = steps.Case(name), np.random.default_rng(0)

    def moved(x):
        """Each weight one float32 up, down or as it is."""
        value = np.array(x)
        towards = rng.choice(np.array([-np.inf, 0, np.inf], value.dtype), value.shape)
        return jax.device_put(
            np.where(towards == 0, value, np.nextafter(value, towards)), x.sharding
        )

    def other():
        params, teacher = (jax.tree.map(moved, x) for x in (case.fresh.params, case.fresh.teacher))
        return case.follow(case.start(case.fresh._replace(params=params, teacher=teacher)))[0]

    rows, trials = case.one[0], [other() for _ in range(TRIALS)]
    measured = {}
    for key in KEYS:
        values = np.array([row[key] for row in rows])
        gaps = np.abs([[row[key] for row in trial] for trial in trials] - values).max(axis=0)
        measured[key] = [float(f"{x:.9g}") for x in values]  # all there is of a float32
        measured[f"{key}_noise"] = [float(f"{x:.2g}") for x in np.maximum.accumulate(gaps)]
    return measured


def write(names) -> None:
    golden = json.loads(PATH.read_text()) if PATH.exists() else {}
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    golden["written"] = {"commit": commit, **versions}
    for name in names:
        golden[name] = measure(name)
        jax.clear_caches()
        print(name, flush=True)
    lines = [f'"{name}": {json.dumps(value)}' for name, value in sorted(golden.items())]
    text = ",\n".join(lines).replace('], "', '],\n "').replace(": {", ": {\n ")
    PATH.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", nargs="*", metavar="NAME", required=True)
    write(parser.parse_args().write or [*steps.NAMES, *tiny.VARIANTS])
