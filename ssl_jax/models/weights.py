"""Reads files of published weights."""

from pathlib import Path

import numpy as np

from ssl_jax.config import InputError, MissingFile, reading


def read(path: str | Path, what: str, fetch: str) -> dict[str, np.ndarray]:
    """The arrays of a .safetensors or .npz file by name.

    what: whose weights they are, for messages; fetch: a phrase that says where to get them.

    Raises:
      MissingFile: there is no such file.
      InputError: it has another kind, or is damaged.
    """
    file = Path(path)
    if not str(path) or not file.is_file():
        raise MissingFile(f'there are no {what} weights at "{path}"; {fetch}')
    if file.suffix not in (".safetensors", ".npz"):
        raise InputError(f"{what} weights must be .safetensors or .npz, not {file.name}; {fetch}")
    try:
        if file.suffix == ".npz":
            with reading.open_npz(file) as found:
                return dict(found)
        from safetensors import numpy as safetensors

        return safetensors.load_file(file)
    except Exception as error:  # each reader has its own for a broken file
        raise InputError(f"cannot read the {what} weights {file}: {error}; {fetch}") from error
