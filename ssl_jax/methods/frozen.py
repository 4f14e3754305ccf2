"""A frozen teacher among the constants, which only training needs."""

from collections.abc import Mapping
from typing import Any

NAME = "teacher"  # its entry in the constants


def of_network(constants: Any) -> Any:
    """The constants without a frozen teacher; None if there are no others."""
    if not isinstance(constants, Mapping) or NAME not in constants:
        return constants
    return {name: tree for name, tree in constants.items() if name != NAME} or None
