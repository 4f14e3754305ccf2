"""Reading weight files into {name: NumPy array}: safetensors and npz by themselves, PyTorch's own
formats where torch is installed.
"""

import argparse
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from ssl_jax.config import InputError

TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
SUFFIXES = (".safetensors", ".npz", *TORCH_SUFFIXES)
# What a Hugging Face folder calls its weights.
IN_FOLDER = ("model.safetensors", "pytorch_model.bin")


_HUB = re.compile(r"(?:hf[-_]hub:|https?://(?:www\.)?huggingface\.co/)(.+)")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME, and a relative path


def check_local(path: str | Path) -> None:
    """Refuses what can only be the name of weights on the network. Nothing is ever downloaded.

    Raises:
      InputError: `path` is not there, and is an address or the name of a repository; says how to
        fetch it.
    """
    text = str(path)
    if Path(text).expanduser().exists():
        return
    if match := _HUB.fullmatch(text):
        raise InputError(f"{text} is on the Hugging Face hub; fetch it first: {_fetch(match[1])}")
    if re.match("https?:/", text):
        raise InputError(f"{text} is an address; fetch the file first: curl -L -O {text}")
    owner = text.partition("/")[0]
    if _NAME.fullmatch(text) and Path(text).suffix not in SUFFIXES and not Path(owner).exists():
        raise InputError(
            f"there is no {text} here; if it is a repository on the Hugging Face hub, fetch it"
            f" first: {_fetch(text)}"
        )


def _fetch(repository: str) -> str:
    """The command that fetches OWNER/NAME or OWNER/NAME@REVISION, and what to give then."""
    name, _, revision = repository.strip("/").partition("@")
    folder = name.split("/")[-1]
    chosen = f" --revision {revision}" if revision else ""
    return f"hf download {name}{chosen} --local-dir {folder}, and give {folder}"


def weight_file(path: str | Path) -> Path | None:
    """The weight file that `path` is, or that a Hugging Face folder `path` holds; None for a folder
    without one.

    Raises:
      InputError: nothing there, or a file of no known kind.
    """
    check_local(path)
    path = Path(path).expanduser()
    if path.is_dir():
        return next((path / name for name in IN_FOLDER if (path / name).is_file()), None)
    if not path.is_file():
        raise InputError(f"no such weight file: {path}")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is no weight file by its name; known are {', '.join(SUFFIXES)}")
    return path


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
    try:
        if file.suffix == ".safetensors":
            return safetensors.numpy.load_file(file)
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                return {name.replace("/", "."): archive[name] for name in archive.files}
        return _torch_tensors(file)
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        zipfile.BadZipFile,
        safetensors.SafetensorError,
    ) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{file} cannot be read as {file.suffix}: {reason}") from error


def _torch_tensors(file: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"{file} is in PyTorch's format: install torch (pip install 'ssl-jax[convert]'), or"
            " save it as .safetensors or .npz where it is"
        ) from error
    try:
        # The full checkpoints of the DINO family and of MAE hold their command line as a Namespace:
        # plain values under names.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file} is damaged, or holds more than tensors and plain values: Python objects from a"
            " file are never run here. In PyTorch, save its state dict alone,"
            ' torch.save({"student": ..., "teacher": ...}, ...), and take that file'
        ) from error

    def array(tensor):
        tensor = tensor.detach()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()

    return {name: array(leaf) for name, leaf in _leaves(content) if isinstance(leaf, torch.Tensor)}


def _leaves(content, prefix: str = ""):
    """(dotted name, value) of everything in nested dictionaries."""
    if not isinstance(content, Mapping):
        yield prefix, content
        return
    for key, value in content.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
