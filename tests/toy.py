"""A method that only has a section of the config, for tests of the config's machinery."""

from ssl_jax import methods
from ssl_jax.config import key


def defaults() -> dict:
    return dict(
        temperature=key(0.1, "of the softmax", above=0),
        head=dict(width=key(64, "of the head", above=0, most=1024)),
        names=key(("a", "b"), "of its parts", choices=("a", "b", "c")),
    )


METHOD = methods.Definition(make=None, defaults=defaults, check=lambda config: None)
