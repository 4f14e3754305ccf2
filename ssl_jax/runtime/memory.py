"""Memory: the most that this process had, and XLA's error of a device that has too little."""

import resource
import sys

_FULL = "RESOURCE_EXHAUSTED: "


def exhausted(error: Exception) -> str | None:
    """XLA's reason, in one line, if an error says that memory is too small; else None."""
    _, full, reason = str(error).partition(_FULL)
    return reason.partition("\n")[0] if full else None


def peak() -> int:
    """The most memory that this process has had so far, bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
