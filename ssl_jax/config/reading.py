"""The one place that opens files of others: only regular ones, which neither wait for ever, as a
pipe does, nor never end, as a device does; and no more of them than memory holds.

OSError and ValueError say what is wrong with a file. This module imports nothing of the
package.
"""

import errno
import json
import os
import stat
import zipfile
from typing import Any, BinaryIO


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """A regular file, opened for its bytes. Raises OSError for all else, and for what no file can
    be called."""
    try:
        # Without waiting for somebody who writes into a pipe.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file (a pipe, socket or device)", str(path))
    return file


_AT_ONCE = getattr(os, "O_NONBLOCK", 0)


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError as `open_regular` does, for libraries that open files themselves."""
    open_regular(path).close()


def read_bytes(path: str | os.PathLike, most: int | None = None) -> bytes:
    """The content of a regular file. Raises OSError, also for one with more than `most` bytes; None
    = half of the memory that is free."""
    with open_regular(path) as file:
        check_size(os.fstat(file.fileno()).st_size, most)
        return file.read()


def open_npz(path: str | os.PathLike) -> Any:
    """The arrays of an .npz file, each read on access (NumPy's NpzFile); never a pickle.
    Raises what NumPy does, and ValueError as `check_unpacked` does."""
    import numpy as np

    check_zip(path)
    return np.load(path, allow_pickle=False)


def check_zip(path: str | os.PathLike) -> None:
    """`check_unpacked` of all that a zip file holds."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        check_unpacked(path, sum(member.file_size for member in archive.infolist()))


def check_unpacked(path: str | os.PathLike, size: int) -> None:
    """Raises ValueError where a file becomes so many bytes of weights and is far smaller, as none
    is: weights hardly compress."""
    packed = os.path.getsize(path)
    if size > max(_UNPACKED, _RATIO * packed):
        raise ValueError(f"its {packed:,} bytes unpack to {size / 2**20:,.0f} MiB")


_UNPACKED, _RATIO = 2**26, 20  # bytes that any file may unpack to, and how many times its own


def check_size(size: int, most: int | None = None) -> None:
    """Raises OSError for so many bytes, see `read_bytes`."""
    limit = free_memory() // 2 if most is None else most
    if size > limit:
        sizes = [f"{number / 2**20:,.0f} MiB" for number in (size, limit)]
        raise OSError(errno.EFBIG, f"it has {sizes[0]}, and at most {sizes[1]} are read")


def read_text(path: str | os.PathLike, encoding: str = "utf-8") -> str:
    """The content of a regular text file. Raises OSError, and ValueError for other bytes."""
    return read_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error


def free_memory() -> int:
    """Bytes that are free, or would be at once; without limit where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return 1024 * next(int(line.split()[1]) for line in file if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 2**62
