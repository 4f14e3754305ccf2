"""python -m benchmarks NAME ...; each has --help."""

import sys

from benchmarks import bench
from experiments import runs

NAMES = ("ops", "steps", "evals", "parts", "loader", "cache", "gpu", "plans", "programs")
OTHERS = {name: f"benchmarks.{name}" for name in ("gpu", "plans", "programs")}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        runs.dispatch(OTHERS)
    runs.start(bench.main)
