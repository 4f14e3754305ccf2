"""The only registry of methods."""

from ssl_jax import config as config_lib
from ssl_jax.methods import cribo, dino, flsl, ibot, mae, massl, sop, sove, stellar
from ssl_jax.methods.base import Features, Method, Output, Progress, Rule

METHODS: dict[str, Method] = {
    m.METHOD.name: m.METHOD for m in (cribo, dino, flsl, ibot, mae, massl, sop, sove, stellar)
}


def get(name: str) -> Method:
    """The method of that name. Raises InputError naming the nearest one."""
    if name not in METHODS:
        raise config_lib.InputError(config_lib.unknown("method", name, METHODS))
    return METHODS[name]


__all__ = ["METHODS", "Features", "Method", "Output", "Progress", "Rule", "get"]
