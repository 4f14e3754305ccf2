"""Huge memory pages for programs on a CPU."""

import os
import platform
import sys
from pathlib import Path

_TUNABLE = "glibc.malloc.hugetlb"
_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Re-executes the program with memory in 2 MB pages, if Linux grants them on request (madvise)
    and GLIBC_TUNABLES does not set them.

    XLA allocates the results of each step anew. With 4 KB pages, that alone takes 10 to 30 % of a
    small network's step. glibc reads its tunables only when a process starts.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    try:
        on_request = "[madvise]" in _MODE.read_text()
    except OSError:
        return
    if on_request and platform.libc_ver()[0] == "glibc" and _TUNABLE not in tunables:
        # The variable also marks the restart as done, in this process and its children.
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
