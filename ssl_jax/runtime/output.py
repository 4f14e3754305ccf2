"""Keeps a run alive when nobody reads its output any more."""

import contextlib
import io
import os
import sys


def ensure() -> None:
    """Gives a process that was started without stdout or stderr one that discards everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def outlive_reader() -> None:
    """From here on, writing to stdout cannot fail: when the pipe, the terminal or the disk at its
    other end is gone, one line on stderr says so, and further output is discarded."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper) or _number(stdout) != 1:
        return  # somebody has replaced it, as notebooks do
    stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Lasting(1, "w", closefd=False)),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
    )


class _Lasting(io.FileIO):
    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            discard_stdout()
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"ssl-jax: output cannot be written ({error.strerror}); the run continues, and"
                    " its numbers are in the run directory",
                    file=sys.stderr,
                )
            return len(data)


def discard_stdout() -> None:
    """Points the file descriptor of stdout at the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _number(stream):
    """Its file descriptor; None if it has none."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
