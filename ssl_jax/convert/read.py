"""Reading weight files into {name: NumPy array}: safetensors and npz by themselves, PyTorch's own
formats where torch is installed.
"""

import argparse
import contextlib
import hashlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from ssl_jax import extras
from ssl_jax.config import InputError, local, read_json, reading

TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
SUFFIXES = (".safetensors", ".npz", *TORCH_SUFFIXES)
_INDEX = ".index.json"  # which tensor is in which of several files
# What a Hugging Face folder calls its weights, or the index of them.
IN_FOLDER = tuple(
    name + end for name in ("model.safetensors", "pytorch_model.bin") for end in ("", _INDEX)
)


CHECKSUM = "ssl_jax.sha256"  # in the metadata of what this package writes, see `checksum`
_HUB = re.compile(r"(?:hf[-_]hub:|https?://(?:www\.)?huggingface\.co/)(.+)")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME, and a relative path


def check_local(path: str | Path) -> None:
    """Refuses URLs and repository names. Nothing is ever downloaded.

    Raises:
      InputError: `path` does not exist and is a URL or the name of a repository; the error gives
        the command that downloads it.
    """
    text = str(path)
    if local(text).exists():
        return
    if match := _HUB.fullmatch(text):
        raise InputError(f"{text} is on Hugging Face; download it first: {_fetch(match[1])}")
    if re.match("https?:/", text):
        raise InputError(f"{text} is a URL; download the file first: curl -L -O {text}")
    owner = text.partition("/")[0]
    if _NAME.fullmatch(text) and Path(text).suffix not in SUFFIXES and not Path(owner).exists():
        raise InputError(
            f"no file or folder {text}; if it is a repository on the Hugging Face hub, download"
            f" it first: {_fetch(text)}"
        )


def _fetch(repository: str) -> str:
    """The command that fetches OWNER/NAME or OWNER/NAME@REVISION, and what to give then."""
    name, _, revision = repository.strip("/").partition("@")
    folder = name.split("/")[-1]
    chosen = f" --revision {revision}" if revision else ""
    return f"hf download {name}{chosen} --local-dir {folder}, then use {folder}"


def weight_file(path: str | Path) -> Path | None:
    """The weight file (or index of several) at `path`, or in the folder `path`, with Hugging Face's
    name or as the only one; None for a folder without one, and for a run directory.

    Raises:
      InputError: `path` does not exist, is a file of an unknown kind, or a folder of several.
    """
    check_local(path)
    path = local(path)
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file():
        raise InputError(f"no such weight file: {path}")
    if path.suffix not in SUFFIXES and not path.name.endswith(_INDEX):
        raise InputError(f"{path} is not a weight file; the name must end in {', '.join(SUFFIXES)}")
    return path


def _in_folder(folder: Path) -> Path | None:
    candidates = (folder / name for name in IN_FOLDER)
    if file := next((file for file in candidates if file.is_file()), None):
        return file
    if (folder / "checkpoints").is_dir():  # of a run, in which exports may lie too
        return None
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(f"{folder} holds {len(files)} weight files ({names}); give one of them")
    return files[0] if files else None


def tensors(file: Path) -> dict[str, np.ndarray]:
    """{name: array} of every tensor in a weight file; names of nested dictionaries are joined by
    dots.

    Args:
      file: what `weight_file` returned.

    Returns:
      Arrays as stored (PyTorch's bfloat16 as float32). Everything that is no tensor (arguments,
      epochs) is left out.

    Raises:
      InputError: the file cannot be read, or holds Python objects, which are never run; torch is
      needed and not installed.
    """
    with readable(file):
        if file.name.endswith(_INDEX):
            return _in_shards(file)
        if file.suffix == ".safetensors":
            return _safetensors(file)
        if file.suffix == ".npz":
            with reading.open_npz(file) as archive:
                arrays = {name.replace("/", "."): archive[name] for name in archive.files}
            return {name: array for name, array in arrays.items() if _is_numeric(array)}
        return _torch_tensors(file)


@contextlib.contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turns whatever a broken or crafted file makes a library raise into InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # libraries raise nearly anything, MemoryError too
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{file} cannot be read as {file.suffix}: {reason}") from error


def checksum(arrays: Mapping[str, np.ndarray], *texts: str) -> str:
    """A hash of arrays, their names, shapes and types, and texts that go with them."""
    digest = hashlib.sha256(json.dumps(texts).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def check_sum(file: Path, saved: str | None, arrays: Mapping[str, np.ndarray], *texts: str) -> None:
    """Refuses contents that differ from those saved; None: saved without a checksum. Raises
    InputError."""
    if saved not in (None, checksum(arrays, *texts)):
        raise InputError(f"{file} is damaged: its checksum does not match")


def stored_checksum(file: Path) -> str | None:
    """The checksum in a weight file; None: without one. Raises InputError for a broken file."""
    if file.suffix != ".safetensors":
        return None
    with readable(file), safetensors.safe_open(file, framework="numpy") as opened:
        return (opened.metadata() or {}).get(CHECKSUM)


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    arrays = safetensors.numpy.load_file(file)
    check_sum(file, stored_checksum(file), arrays)
    return arrays


def _is_numeric(array) -> bool:
    """Whether it can be weights; bfloat16 is void to NumPy."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "biufV"


def _in_shards(index: Path) -> dict[str, np.ndarray]:
    """The tensors of all files that an index names, which lie in its folder."""
    places: Any = read_json(index).get("weight_map")
    names: set[Any] = set(places.values()) if isinstance(places, dict) else {None}
    if not all(isinstance(n, str) and n == Path(n).name and n.endswith(SUFFIXES) for n in names):
        raise InputError(f"{index} has no weight_map from tensors to weight files")
    files = [index.with_name(name) for name in sorted(names)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise InputError(
            f"{index} names {missing[0]}, which is missing; download all {len(files)} files"
        )
    arrays = {name: tensor for file in files for name, tensor in tensors(file).items()}
    if lacking := sorted(places.keys() - arrays.keys()):
        raise InputError(f"{index} names {lacking[0]}, which {places[lacking[0]]} does not hold")
    return arrays


def _torch_tensors(file: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"{file} is in PyTorch's format, which needs torch; {extras.install('convert')}, or"
            " save the weights as .safetensors or .npz"
        ) from error
    if zipfile.is_zipfile(file):
        reading.check_zip(file)
    try:
        # The full checkpoints of the DINO family and of MAE hold their command line as a Namespace:
        # plain values under names. A score on the way is often a number of NumPy.
        with torch.serialization.safe_globals([argparse.Namespace, *_numpy_scalars()]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        if not isinstance(error, pickle.UnpicklingError) and "weights_only" not in str(error):
            raise
        raise InputError(
            f"{file} is damaged, or holds more than tensors and plain values: Python objects from a"
            " file are never run here. Save its state dict alone in PyTorch,"
            ' torch.save({"student": ..., "teacher": ...}, ...), and use that file'
        ) from error

    arrays, size = {}, 0
    for count, (name, leaf) in enumerate(_leaves(content), start=1):
        # What holds itself, or a view that repeats itself, is small in the file alone.
        tensor = leaf.detach() if isinstance(leaf, torch.Tensor) else torch.empty(0)
        size += 4 * tensor.numel()
        reading.check_unpacked(file, max(size, 1024 * count))
        if isinstance(leaf, torch.Tensor):
            arrays[name] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return {name: array for name, array in arrays.items() if _is_numeric(array)}


def _numpy_scalars():
    """What PyTorch must build for numbers of NumPy, under the names of NumPy 1 and 2."""
    scalar = np._core.multiarray.scalar  # type: ignore[attr-defined]
    types = [type(np.dtype(name)) for name in ("f2", "f4", "f8", "i4", "i8", "?")]
    return [np.dtype, scalar, (scalar, "numpy.core.multiarray.scalar"), *types]


def _leaves(content, prefix: str = ""):
    """(dotted name, value) of everything in nested dictionaries."""
    if not isinstance(content, Mapping):
        yield prefix, content
        return
    for key, value in content.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
