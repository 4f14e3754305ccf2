"""Makes JSON of the ground truth of the revisited Oxford and Paris benchmark, for the key
`ground_truth` of the evaluation `retrieval`.

    python launch/revisited_json.py gnd_roxford5k.pkl  # writes gnd_roxford5k.json beside it

A pickle can name any function of any module, which runs when it is read. This script reads
builtins and NumPy arrays alone and refuses a file that names anything else; the package itself
never reads a pickle.
"""

import argparse
import io
import json
import pickle
from pathlib import Path

_ADMITTED = {
    ("_codecs", "encode"),
    ("__builtin__", "bytes"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
for _core in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _ADMITTED |= {(_core, "_reconstruct"), (_core, "scalar")}


class _Arrays(pickle.Unpickler):
    """Reads builtins and NumPy arrays."""

    def find_class(self, module: str, name: str):
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"the pickle names {module}.{name}, which is no array")
        return super().find_class(module, name)


def convert(path: Path) -> Path:
    """Writes the JSON beside the pickle and returns its path. Raises FileExistsError where it is
    there already, pickle.UnpicklingError for one that names more than arrays."""
    content = _Arrays(io.BytesIO(path.read_bytes()), encoding="latin1").load()  # also of Python 2
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
        print(f"wrote {convert(path)}")


if __name__ == "__main__":
    main()
