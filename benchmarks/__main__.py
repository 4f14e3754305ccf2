"""python -m benchmarks NAME ...; each has --help."""

import sys

from benchmarks import bench
from experiments import runs

OTHERS = ("costs", "gpu", "plans", "programs")
NAMES = ("ops", "steps", "evals", "parts", "loader", "cache", *OTHERS)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        runs.dispatch("benchmarks", OTHERS)
    runs.start(bench.main)
