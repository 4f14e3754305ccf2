"""Makes JSON of the ground truth of the revisited Oxford and Paris benchmark, for the key
`ground_truth` of the evaluation `retrieval`.

    python launch/revisited_json.py gnd_roxford5k.pkl  # writes gnd_roxford5k.json beside it

A pickle can run anything when it is read, and here it is read: do this only with a file of a source
that you trust. The package never calls this script.
"""

import argparse
import json
import pickle
from pathlib import Path


def convert(path: Path) -> Path:
    """Writes the JSON beside the pickle and returns its path. Raises FileExistsError where it is
    there already."""
    content = pickle.loads(path.read_bytes(), encoding="latin1")  # also of Python 2
    text = json.dumps(content, default=lambda array: array.tolist())
    with open(path.with_suffix(".json"), "x", encoding="utf-8") as file:
        file.write(text)
    return path.with_suffix(".json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pickles", nargs="+", type=Path, metavar="PICKLE")
    for path in parser.parse_args().pickles:
        print(f"running what is in {path} to read it")
        print(f"wrote {convert(path)}")


if __name__ == "__main__":
    main()
