"""Makes JSON of the ground truth of the revisited Oxford and Paris benchmark, for the key
`ground_truth` of the evaluation `retrieval`.

    python -m launch.revisited_json gnd_roxford5k.pkl  # writes gnd_roxford5k.json beside it

A pickle can name any function of any module, which runs when it is read. This script reads
builtins and NumPy arrays alone and refuses a file that names anything else; the package itself
never reads a pickle.
"""

import argparse
import io
import json
import pickle
from pathlib import Path

from ssl_jax.config import InputError, reason, refusal
from ssl_jax.runtime import writing

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
    """Writes the JSON beside the pickle and returns its path. Raises InputError where it is there
    already, and for a pickle that is damaged or holds more than arrays."""
    new, content = path.with_suffix(".json"), io.BytesIO(path.read_bytes())
    if new.exists():
        raise InputError(f"{new} exists; move it away, or use it")
    try:
        arrays = _Arrays(content, encoding="latin1").load()  # also of Python 2
        text = json.dumps(arrays, default=lambda array: array.tolist())
    except Exception as error:  # a damaged pickle may raise any
        raise InputError(f"{path} is no ground truth: {reason(error)}") from error
    writing.replace({new: text.encode()})
    return new


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pickles", nargs="+", type=Path, metavar="PICKLE")
    for path in parser.parse_args(argv).pickles:
        try:
            print(f"wrote {convert(path)}")
        except (InputError, OSError) as error:
            parser.exit(2, f"{parser.prog}: {refusal(error)}\n")


if __name__ == "__main__":
    main()
