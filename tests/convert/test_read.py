"""File formats: with and without torch, wrapped and damaged."""

import argparse
import builtins
import re

import numpy as np
import pytest
import safetensors.numpy

import ssl_jax
from ssl_jax.config import InputError
from ssl_jax.convert import read

TENSORS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((), np.float16)}


def assert_same(got, wanted=TENSORS):
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


def test_safetensors(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / "x.safetensors")
    assert_same(read.tensors(read.weight_file(tmp_path / "x.safetensors")))


def test_npz(tmp_path):
    np.savez(
        tmp_path / "x.npz", **{name.replace(".", "/"): array for name, array in TENSORS.items()}
    )
    assert_same(read.tensors(read.weight_file(tmp_path / "x.npz")))


def test_neither_needs_torch(tmp_path, monkeypatch):
    """Nor does anything else of the import."""
    import_module = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "torch":
            raise ImportError("no torch")
        return import_module(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    test_safetensors(tmp_path)
    test_npz(tmp_path)
    (tmp_path / "x.pth").touch()
    with pytest.raises(
        InputError,
        match=(
            r"x\.pth is in PyTorch's format: install torch \(pip install 'ssl-jax\[convert\]'\), or"
            r" save it"
        ),
    ):
        read.tensors(tmp_path / "x.pth")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_hugging_face_folder(tmp_path, name):
    (tmp_path / name).touch()
    assert read.weight_file(tmp_path) == tmp_path / name


def test_a_folder_without_weights(tmp_path):
    assert read.weight_file(tmp_path) is None


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="no such weight file: .*x.pth"):
        read.weight_file(tmp_path / "x.pth")


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "x.onnx").touch()
    with pytest.raises(
        InputError,
        match=r"x\.onnx is no weight file by its name; known are \.safetensors, \.npz, \.pth",
    ):
        read.weight_file(tmp_path / "x.onnx")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", bytes(range(256))],
)
def test_damaged_files(tmp_path, suffix, content):
    (tmp_path / f"x{suffix}").write_bytes(content)
    with pytest.raises(InputError, match=f"x{suffix} cannot be read as {suffix}: ") as error:
        read.tensors(tmp_path / f"x{suffix}")
    assert "\n" not in str(error.value)


def test_a_truncated_file(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / "x.safetensors")
    content = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(content[:-4])
    with pytest.raises(InputError, match="cannot be read"):
        read.tensors(tmp_path / "x.safetensors")


def test_pickled_arrays_in_an_npz_are_not_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{}], object))
    with pytest.raises(InputError, match="cannot be read as .npz"):
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


def test_a_pickle_never_runs(torch, tmp_path):
    torch.save({"model": {"a": torch.ones(2)}, "extra": Anything()}, tmp_path / "x.pt")
    with pytest.raises(
        InputError,
        match=(
            r"x\.pt is damaged, or holds more than tensors and plain values.*save its state dict"
            r" alone"
        ),
    ):
        read.tensors(tmp_path / "x.pt")


def test_a_damaged_pytorch_file(torch, tmp_path):
    torch.save({"a": torch.ones(1000)}, tmp_path / "x.pth")
    content = (tmp_path / "x.pth").read_bytes()
    for damaged in (
        b"",
        content[: len(content) // 2],
        b"version https://git-lfs.github.com/spec/v1\n",
    ):
        (tmp_path / "x.pth").write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.pth"):
            read.tensors(tmp_path / "x.pth")


REMOTE = {
    "facebook/dino-vits16": "hf download facebook/dino-vits16 --local-dir dino-vits16, and give",
    "hf-hub:timm/vit_small_patch16_224.dino": (
        "hf download timm/vit_small_patch16_224.dino --local-dir vit_small_patch16_224.dino,"
    ),
    "hf-hub:me/net@v2": "hf download me/net --revision v2 --local-dir net,",
    "https://huggingface.co/facebook/dinov2-base": "hf download facebook/dinov2-base --local-dir",
    "https://dl.example.org/dino/a.pth": "curl -L -O https://dl.example.org/dino/a.pth",
}


@pytest.mark.parametrize(("name", "command"), REMOTE.items())
def test_a_remote_name_is_refused_with_the_command_that_fetches_it(
    name, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for load in (read.weight_file, ssl_jax.load):
        with pytest.raises(InputError, match=re.escape(command)):
            load(name)


def test_a_name_of_this_machine_is_no_remote_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("runs/a", "other/weights.pth", "a", "./a/b"):
        with pytest.raises(InputError) as error:
            read.weight_file(name)
        assert "hf download" not in str(error.value)
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "net").mkdir()
    read.check_local("me/net")
