"""pages.py: when the program starts anew."""

import os
import subprocess
import sys

import pytest

from ssl_jax.runtime import pages


@pytest.mark.parametrize(
    "mode, before, after",
    [
        ("always [madvise] never", None, "glibc.malloc.hugetlb=1"),
        ("always [madvise] never", "glibc.malloc.check=1", "glibc.malloc.check=1:{}"),
        ("always [madvise] never", "glibc.malloc.hugetlb=0", None),  # who set it wants it so
        ("[always] madvise never", None, None),
        ("always madvise [never]", None, None),
        (None, None, None),  # no Linux
    ],
)
def test_the_program_starts_anew_once(mode, before, after, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(pages, "_MODE", tmp_path / "enabled")
    monkeypatch.setattr(pages.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(os, "execv", lambda *command: started.append(command))
    monkeypatch.setenv("GLIBC_TUNABLES", before or "")
    if mode:
        (tmp_path / "enabled").write_text(mode + "\n")
    for _ in range(2):
        pages.restart_with_huge_pages()
    if after is None:
        assert not started and os.environ["GLIBC_TUNABLES"] == (before or "")
    else:
        assert started == [(sys.executable, [sys.executable, *sys.orig_argv[1:]])]
        assert os.environ["GLIBC_TUNABLES"] == after.format("glibc.malloc.hugetlb=1")


def test_the_program_is_the_same_afterwards():
    """Its arguments, output, exit code."""
    environment = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    command = [sys.executable, "-m", "ssl_jax", "tran"]
    ended = [
        subprocess.run(command, env=env, capture_output=True, text=True)
        for env in (environment, os.environ)
    ]
    assert ended[0].returncode == ended[1].returncode == 2
    assert ended[0].stderr == ended[1].stderr != ""
