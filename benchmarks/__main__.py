"""python -m benchmarks NAME ...; each has --help."""

from experiments import runs

NAMES: tuple[str, ...] = ("ops", "steps", "parts", "loader", "cache", "evals", "costs", "gpu")
NAMES += ("plans", "programs", "equality")

if __name__ == "__main__":
    runs.dispatch("benchmarks", NAMES)
