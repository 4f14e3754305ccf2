"""python -m benchmarks NAME ...; each has --help."""

from experiments import runs

NAMES = ("ops", "steps", "parts", "loader", "cache", "evals", "costs", "gpu", "plans", "programs")
NAMES += ("equality",)

if __name__ == "__main__":
    runs.dispatch("benchmarks", NAMES)
