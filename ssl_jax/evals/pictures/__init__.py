"""What a method alone can show: a module per method, with `draw(encoder, images)` that it
registers itself."""

from ssl_jax.evals.pictures import cribo, flsl, ibot, mae, sop, stellar
from ssl_jax.evals.pictures.picture import Panel, Picture, draw, register

__all__ = ["Panel", "Picture", "cribo", "draw", "flsl", "ibot", "mae", "register", "sop", "stellar"]
