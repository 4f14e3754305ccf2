"""Pictures as data; `pictures.render` draws them.

What a method alone can show is a module per method here with `draw(encoder, images)`; methods
outside the package call `register`. `neighbours`, `segmentation` and `attention` are the pictures
of evaluations and of every network with a class token.
"""

from ssl_jax.evals.pictures import cribo, flsl, ibot, mae, sop, stellar  # noqa: F401, each registers its own
from ssl_jax.evals.pictures.base import (
    Animation,
    Chart,
    Curve,
    Panel,
    Picture,
    Scatter,
    class_name,
    draw,
    register,
    wanted,
)

__all__ = [
    "Animation",
    "Chart",
    "Curve",
    "Panel",
    "Picture",
    "Scatter",
    "class_name",
    "draw",
    "register",
    "wanted",
]
