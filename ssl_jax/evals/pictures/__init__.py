"""Pictures as data, which `report.render` draws.

The modules here make the pictures of evaluations; `methods.pictures` has the types of pictures, and
those of any network. Pictures of one method are in a module next to the method, with
`draw(encoder, images)`; methods outside of the package call `register`.
"""

from ssl_jax.methods import ibot_pictures, mae_pictures  # noqa: F401, each registers its own
from ssl_jax.methods.cribo import pictures as _cribo  # noqa: F401
from ssl_jax.methods.flsl import pictures as _flsl  # noqa: F401
from ssl_jax.methods.pictures.base import Memory, draw, register, wanted
from ssl_jax.methods.sop import pictures as _sop  # noqa: F401
from ssl_jax.methods.stellar import pictures as _stellar  # noqa: F401

__all__ = ["Memory", "draw", "register", "wanted"]
