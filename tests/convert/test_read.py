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


def saved(suffix, tensors=TENSORS) -> bytes:
    if suffix == ".safetensors":
        return safetensors.numpy.save(tensors)
    np.savez(file := io.BytesIO(), **{n.replace(".", "/"): x for n, x in tensors.items()})
    return file.getvalue()


def test_only_pytorchs_files_need_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for suffix in (".safetensors", ".npz"):
        (tmp_path / f"x{suffix}").write_bytes(saved(suffix))
        assert_same(read.tensors(read.weight_file(tmp_path / f"x{suffix}")))
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


def npy(shape: tuple, size: int) -> bytes:
    described = dict(descr="|u1", fortran_order=False, shape=shape)
    np.lib.format.write_array_header_1_0(file := io.BytesIO(), described)
    return file.getvalue() + bytes(size)


def npz(content: bytes) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


def safetensors_of(dtype: str, shape: list) -> bytes:
    header = json.dumps({"x": dict(dtype=dtype, shape=shape, data_offsets=[0, 4])}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


OBJECTS = {"a": np.array([{}], object)}  # a pickle, which is not loaded
HOSTILE = {".safetensors": [b"", LFS, bytes(range(256)), saved(".safetensors")[:-4]]}
HOSTILE[".npz"] = [*HOSTILE[".safetensors"][:3], saved(".npz")[:-4], saved(".npz", OBJECTS)]
# Unpacks to much, lies of its size, is no archive; numbers of 8 bits, too many axes and elements.
HOSTILE[".npz"] += [lambda: npz(npy((2**27,), 2**27)), npz(npy((2**60,), 4)), npy((4,), 4)]
_HEADERS = ("F8_E4M3", [4]), ("F32", [1] * 70), ("F32", [2**62, 2**62])
HOSTILE[".safetensors"] += [safetensors_of(*header) for header in _HEADERS]


# Named by number: an archive holds the time, so that the workers of a test run would differ.
@pytest.mark.parametrize(
    "suffix, content",
    [pytest.param(s, x, id=f"{s[1:]} {i}") for s in HOSTILE for i, x in enumerate(HOSTILE[s])],
)
def test_hostile_files_cost_neither_memory_nor_a_traceback(tmp_path, suffix, content):
    (tmp_path / f"x{suffix}").write_bytes(content() if callable(content) else content)
    tracemalloc.start()
    with pytest.raises(InputError, match=f"x{suffix}"):
        read.tensors(tmp_path / f"x{suffix}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not 2**23 < peak < 2**50  # of what lies NumPy asks for in vain


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
        "best": np.float64(71.5),
        "args": argparse.Namespace(lr=0.1),
        "optimizer": {"state": {0: {"step": torch.tensor(1)}}},
    }
    torch.save(content, tmp_path / "x.pth")
    wanted = {f"teacher.{name}": np.asarray(array, np.float32) for name, array in TENSORS.items()}
    assert_same(read.tensors(tmp_path / "x.pth"), wanted | {"optimizer.state.0.step": np.array(1)})


def nested(value, depth=40):
    """A dictionary of 2^depth values that are one."""
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


def deflated(torch):
    torch.save({"a": torch.zeros(2**24 + 1)}, plain := io.BytesIO())
    archive, packed = zipfile.ZipFile(plain), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in archive.namelist():
            new.writestr(name, archive.read(name))
    return packed.getvalue()


def whole(torch):
    torch.save({"a": torch.ones(1000)}, file := io.BytesIO())
    return file.getvalue()


CRAFTED = {
    "an object": lambda torch: {"model": {"a": torch.ones(2)}, "extra": Anything()},
    "an old pickle": lambda torch: b"cbuiltins\neval\n(S'1/0'\ntR.",
    "empty": lambda torch: b"",
    "a pointer": lambda torch: LFS,
    "cut short": lambda torch: whole(torch)[:1000],
    "unpacks": deflated,
    "repeats itself": lambda torch: {"a": torch.ones(1).expand(2**20, 2**20)},
    "holds itself": lambda torch: nested(torch.ones(1)),
    "holds itself, without a tensor": lambda torch: nested(1),
    "sparse": lambda torch: {"a": torch.eye(2).to_sparse()},
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_pytorch_files_run_nothing_and_cost_no_memory(torch, tmp_path, name):
    content, path = CRAFTED[name](torch), tmp_path / "x.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
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
