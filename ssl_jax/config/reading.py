"""Reads files that may come from others. Only regular files are opened, because a pipe can block
and a device never ends, and only as much is read as fits in memory.

Faults of a file raise OSError or ValueError. This module imports nothing of the package.
"""

import errno
import json
import os
import stat
import zipfile
from typing import Any, BinaryIO


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """Opens a regular file in binary mode. Raises OSError for other files and invalid names."""
    try:
        # Does not wait for the writer of a pipe.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file (a pipe, socket or device)", str(path))
    return file


_AT_ONCE = getattr(os, "O_NONBLOCK", 0)


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError like `open_regular`, for files that a library opens."""
    open_regular(path).close()


def read_bytes(path: str | os.PathLike, most: int | None = None) -> bytes:
    """The content of a regular file. Raises OSError, also for more than `most` bytes; None = half
    of the free memory."""
    with open_regular(path) as file:
        check_size(os.fstat(file.fileno()).st_size, most)
        return file.read()


def open_npz(path: str | os.PathLike) -> Any:
    """The arrays of an .npz file, each read on access (NumPy's NpzFile); pickles are refused.
    Raises NumPy's errors, and ValueError like `check_unpacked`."""
    import numpy as np

    check_zip(path)
    return np.load(path, allow_pickle=False)


def check_zip(path: str | os.PathLike) -> None:
    """`check_unpacked` for the content of a zip file."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        check_unpacked(path, sum(member.file_size for member in archive.infolist()))


def check_unpacked(path: str | os.PathLike, size: int) -> None:
    """Raises ValueError if a file unpacks to `size` bytes and is far smaller, which weights never
    are, because they hardly compress."""
    packed = os.path.getsize(path)
    if size > max(_UNPACKED, _RATIO * packed):
        raise ValueError(f"its {packed:,} bytes unpack to {size / 2**20:,.0f} MiB")


_UNPACKED, _RATIO = 2**26, 20  # allowed for any file: unpacked bytes, and their ratio to the packed


def check_size(size: int, most: int | None = None) -> None:
    """Raises OSError if `size` bytes are too many, see `read_bytes`."""
    limit = free_memory() // 2 if most is None else most
    if size > limit:
        sizes = [f"{number / 2**20:,.0f} MiB" for number in (size, limit)]
        raise OSError(errno.EFBIG, f"it has {sizes[0]}, and at most {sizes[1]} are read")


def read_text(path: str | os.PathLike, encoding: str = "utf-8") -> str:
    """The content of a regular text file. Raises OSError, and ValueError for invalid bytes."""
    return read_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error


def free_memory() -> int:
    """Available memory in bytes; 2**62 if the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return 1024 * next(int(line.split()[1]) for line in file if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 2**62
