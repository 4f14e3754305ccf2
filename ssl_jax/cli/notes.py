"""Tells what a published file holds besides the network that was loaded from it."""

import sys
from typing import Any


def tell(encoder: Any) -> None:
    """Prints the notes of an Encoder to stderr, one a line."""
    for note in encoder.notes:
        print(f"note: {note}", file=sys.stderr)
