"""File formats: with and without torch, wrapped and damaged; names of what is elsewhere."""

import argparse
import io
import json
import sys
import tracemalloc
import zipfile

import chex
import numpy as np
import pytest
import safetensors.numpy

import ssl_jax
from ssl_jax.config import InputError
from ssl_jax.convert import read

TENSORS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((), np.float16)}


def assert_same(got, wanted=TENSORS):
    chex.assert_trees_all_equal(dict(got), wanted)


def write(path):
    if path.suffix == ".npz":
        np.savez(path, **{name.replace(".", "/"): array for name, array in TENSORS.items()})
    else:
        safetensors.numpy.save_file(TENSORS, path)
    return path


def test_only_pytorchs_files_need_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for suffix in (".safetensors", ".npz"):
        assert_same(read.tensors(read.weight_file(write(tmp_path / f"x{suffix}"))))
    (tmp_path / "x.pth").touch()
    with pytest.raises(InputError, match=r"x\.pth.*\.\[convert\]"):
        read.tensors(tmp_path / "x.pth")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_or_a_file_of_another_kind(tmp_path, name):
    assert read.weight_file(tmp_path) is None
    (tmp_path / name).touch()
    assert read.weight_file(tmp_path) == tmp_path / name
    (tmp_path / "x.onnx").touch()
    for wrong in ("x.pth", "x.onnx"):
        with pytest.raises(InputError, match=wrong):
            read.weight_file(tmp_path / wrong)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("content", [b"", LFS, bytes(range(256)), None])
def test_damaged_files(tmp_path, suffix, content):
    """None: cut short."""
    path = write(tmp_path / f"x{suffix}")
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    with pytest.raises(InputError, match=f"x{suffix}"):
        read.tensors(path)


def npz(content: bytes) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


def safetensors_of(dtype: str, shape: list, size: int) -> bytes:
    tensor = dict(dtype=dtype, shape=shape, data_offsets=[0, size])
    header = json.dumps({"x": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def npy(shape: tuple, size: int) -> bytes:
    described = dict(descr="|u1", fortran_order=False, shape=shape)
    np.lib.format.write_array_header_1_0(file := io.BytesIO(), described)
    return file.getvalue() + bytes(size)


HOSTILE = {
    "unpacks.npz": lambda: npz(npy((2**27,), 2**27)),
    "lies.npz": lambda: npz(npy((2**60,), 4)),
    "array.npz": lambda: npy((4,), 4),
    "float8.safetensors": lambda: safetensors_of("F8_E4M3", [4], 4),
    "axes.safetensors": lambda: safetensors_of("F32", [1] * 70, 4),
    "long.safetensors": lambda: safetensors_of("F32", [2**62, 2**62], 4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_crafted_files_cost_neither_memory_nor_a_traceback(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name]())
    tracemalloc.start()
    with pytest.raises(InputError, match=name):
        read.tensors(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23 or name == "lies.npz"  # whose memory NumPy asks for in vain


def test_pickled_arrays_in_an_npz_are_not_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{}], object))
    with pytest.raises(InputError, match="x.npz"):
        read.tensors(tmp_path / "x.npz")


# --- with torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="reads .pth files; part of the extra `convert`")


class Anything:
    """What must not come out of a file of weights."""


def test_pytorch_files_with_command_line_and_optimizer(torch, tmp_path):
    content = {
        "teacher": {
            "a.weight": torch.arange(6.0).reshape(2, 3),
            "b": torch.ones((), dtype=torch.bfloat16, requires_grad=True),
        },
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1),
        "optimizer": {"state": {0: {"step": torch.tensor(1)}}},
    }
    torch.save(content, tmp_path / "x.pth")
    wanted = {f"teacher.{name}": np.asarray(array, np.float32) for name, array in TENSORS.items()}
    assert_same(read.tensors(tmp_path / "x.pth"), wanted | {"optimizer.state.0.step": np.array(1)})


def test_a_pickle_never_runs_and_damaged_files_are_named(torch, tmp_path):
    path = tmp_path / "x.pth"
    torch.save({"model": {"a": torch.ones(2)}, "extra": Anything()}, path)
    pickle = path.read_bytes()
    torch.save({"a": torch.ones(1000)}, path)
    for damaged in (pickle, b"", path.read_bytes()[:1000], LFS):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.pth"):
            read.tensors(path)


# --- elsewhere

REMOTE = {
    "facebook/dino-vits16": "hf download facebook/dino-vits16 --local-dir dino-vits16",
    "hf-hub:timm/vit.dino": "hf download timm/vit.dino --local-dir vit.dino",
    "hf-hub:me/net@v2": "hf download me/net --revision v2 --local-dir net",
    "https://huggingface.co/facebook/dinov2-base": "hf download facebook/dinov2-base --local-dir",
    "https://dl.example.org/dino/a.pth": "curl -L -O https://dl.example.org/dino/a.pth",
}


def test_a_remote_name_is_refused_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, command in REMOTE.items():
        for load in (read.weight_file, ssl_jax.load):
            with pytest.raises(InputError, match=command):
                load(name)
    # A name of this machine is no remote one.
    (tmp_path / "runs").mkdir()
    for name in ("runs/a", "other/weights.pth", "a", "./a/b"):
        with pytest.raises(InputError) as error:
            read.weight_file(name)
        assert "hf download" not in str(error.value)
    (tmp_path / "me" / "net").mkdir(parents=True)
    read.check_local("me/net")
