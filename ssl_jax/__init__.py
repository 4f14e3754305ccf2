"""Self-supervised learning for vision in JAX.

`from ssl_jax import ops, losses` provides pure functions on arrays and needs only JAX, NumPy and
jaxtyping. Public modules are imported on first use, so that each costs only its own imports. All
others need the libraries of the extra `train`.
"""

import importlib
from typing import TYPE_CHECKING

from ssl_jax import extras

if TYPE_CHECKING:
    from ssl_jax import convert, evals, losses, methods, models, ops, scores
    from ssl_jax.api import embed, export, load, save
    from ssl_jax.methods import register

__version__ = "0.2.0"
_FUNCTIONS = dict.fromkeys(("embed", "export", "load", "save"), "api") | {"register": "methods"}
__all__ = [
    "__version__",
    "convert",
    "embed",
    "evals",
    "export",
    "load",
    "losses",
    "methods",
    "models",
    "ops",
    "register",
    "save",
    "scores",
]


def __getattr__(name: str):
    """Imports the public module or function of that name. Raises AttributeError for other names,
    and ModuleNotFoundError, which names the extra, if a library is missing."""
    if name in __all__:
        try:
            module = importlib.import_module(f"{__name__}.{_FUNCTIONS.get(name, name)}")
        except ModuleNotFoundError as error:
            line = extras.missing(error)
            if line is None:
                raise
            raise ModuleNotFoundError(f"ssl_jax.{name}: {line}", name=error.name) from error
        return getattr(module, name) if name in _FUNCTIONS else module
    public = ", ".join(__all__[1:])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public are {public}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
