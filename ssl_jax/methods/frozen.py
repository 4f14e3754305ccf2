"""Constants that training alone needs: a frozen network from a file."""

from collections.abc import Mapping
from typing import Any

NAME = "teacher"  # of it among the constants


def of_network(constants: Any) -> Any:
    """The constants without a frozen teacher, which training alone needs; None if there are no
    others."""
    if not isinstance(constants, Mapping) or NAME not in constants:
        return constants
    return {name: tree for name, tree in constants.items() if name != NAME} or None
