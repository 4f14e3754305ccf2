"""XLA's error of a device whose memory is too small."""

_FULL = "RESOURCE_EXHAUSTED: "


def exhausted(error: Exception) -> str | None:
    """XLA's reason, in one line, if an error says that memory is too small; else None."""
    _, full, reason = str(error).partition(_FULL)
    return reason.partition("\n")[0] if full else None
