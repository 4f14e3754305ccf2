"""python -m experiments NAME ...; each has --help."""

from experiments import runs

NAMES = (
    "adapt",
    "compare",
    "claims",
    "reconstruct",
    "evaluate",
    "quickstart",
    "protocols",
    "zoo",
    "pictures",
)

if __name__ == "__main__":
    runs.dispatch("experiments", NAMES)
