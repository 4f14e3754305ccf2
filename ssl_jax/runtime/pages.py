"""Huge pages for the memory of a program on a CPU."""

import os
import platform
import sys
from pathlib import Path

_TUNABLE = "glibc.malloc.hugetlb"
_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Starts the program anew, as the same process, with memory in pages of 2 MB, where Linux gives
    them on request and GLIBC_TUNABLES does not say otherwise.

    XLA takes the memory of a step's results anew in each step. In pages of 4 KB that alone is 10 to
    30 % of a small network's step. glibc reads its tunables when a process starts.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    try:
        on_request = "[madvise]" in _MODE.read_text()
    except OSError:
        return
    if on_request and platform.libc_ver()[0] == "glibc" and _TUNABLE not in tunables:
        # The variable is also the sign that this was done, and for processes that this one starts.
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
