"""Weights from elsewhere: published PyTorch checkpoints and runs of our own.

`tables` is the list of who calls what how; `load_vit` gives an encoder, `load_torch` fills the
parameters of a method, and `start_from` is what `ssl-jax train --config.init_from=PATH` does.
"""

from ssl_jax.convert.fill import Report
from ssl_jax.convert.start import start_from
from ssl_jax.convert.tables import FAMILIES
from ssl_jax.convert.torch_in import load_torch, load_vit

__all__ = ["FAMILIES", "Report", "load_torch", "load_vit", "start_from"]
