"""Keeps a command alive when nobody reads its output any more."""

import errno
import io
import os
import sys


def ensure() -> None:
    """Gives a process that was started without stdin, stdout or stderr one that is empty or
    discards everything; otherwise the next file that is opened would be written to as stderr. Call
    it before anything is opened."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def outlive_reader(disk: bool) -> None:
    """From here on, writing to stdout and stderr does not fail if the pipe or the terminal at the
    other end is gone, nor (with `disk`) if a disk is full: output is discarded; of stdout, one line
    on stderr says so."""
    for number, name in ((2, "stderr"), (1, "stdout")):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or _number(stream) != number:
            continue  # somebody has replaced it, as notebooks do
        stream.flush()
        lasting = io.TextIOWrapper(
            io.BufferedWriter(_Lasting(number, disk)),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering or stream.write_through,
        )
        setattr(sys, name, lasting)


class _Lasting(io.FileIO):
    def __init__(self, number, disk):
        super().__init__(number, "w", closefd=False)
        self._disk = disk

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            if not self._disk and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            discard(self.fileno())
            if self.fileno() == 1:
                print(
                    f"ssl-jax: output cannot be written ({error.strerror}); the command continues",
                    file=sys.stderr,
                )
            return len(data)


def reader_left() -> bool:
    """Whether the reader of stdout, for example `head`, is gone; the rest is then discarded."""
    try:
        print(flush=True)
    except BrokenPipeError:
        discard(1)  # Python flushes the rest at exit
        return True
    return False


def discard(number: int) -> None:
    """Points a file descriptor at the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def _number(stream):
    """Its file descriptor; None if it has none."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
