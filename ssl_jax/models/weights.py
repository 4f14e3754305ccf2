"""Reads files of published weights."""

from pathlib import Path

import numpy as np

from ssl_jax.config import InputError, MissingFile, reading


def read(path: str | Path, what: str, fetch: str) -> dict[str, np.ndarray]:
    """The arrays of a .safetensors or .npz file by name.

    what: name of the network for messages; fetch: instruction for messages where to get the file.

    Raises:
      MissingFile: there is no such file.
      InputError: the file has another format or is damaged.
    """
    file = Path(path)
    if not str(path) or not file.is_file():
        raise MissingFile(f'there are no {what} weights at "{path}"; {fetch}')
    if file.suffix not in (".safetensors", ".npz"):
        raise InputError(f"{what} weights must be .safetensors or .npz, not {file.name}; {fetch}")
    try:
        if file.suffix == ".npz":
            with reading.open_npz(file) as arrays:
                return dict(arrays)
        from safetensors import numpy as safetensors

        return safetensors.load_file(file)
    except Exception as error:  # readers raise different errors for a broken file
        raise InputError(f"cannot read the {what} weights {file}: {error}; {fetch}") from error
