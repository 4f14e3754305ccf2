"""Self-supervised learning for vision in JAX.

`from ssl_jax import ops, losses` gives pure functions on arrays and imports nothing but JAX and
NumPy. The public modules are imported on first use, so that asking for one does not pay for the
others.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl_jax import convert, evals, losses, methods, models, ops
    from ssl_jax.api import load, save
    from ssl_jax.methods import register

__version__ = "0.2.0"
_FUNCTIONS = {"load": "api", "register": "methods", "save": "api"}
__all__ = [
    "__version__",
    "convert",
    "evals",
    "load",
    "losses",
    "methods",
    "models",
    "ops",
    "register",
    "save",
]


def __getattr__(name: str):
    """The public module or function of that name, imported on first use. Raises AttributeError for
    any other name."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    public = ", ".join(__all__[1:])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public are {public}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
