"""Import of published weights, by one table of names per family.

`tables` lists the names of each family; `load_vit` returns an encoder, `load_torch` fills the
parameters of a method. `ssl-jax train --config.init_from=PATH` uses train.start.
"""

from ssl_jax.convert.read import check_local, weight_file
from ssl_jax.convert.tables import FAMILIES
from ssl_jax.convert.torch_in import load_torch
from ssl_jax.convert.vit_in import load_vit
from ssl_jax.convert.weights import Report

__all__ = ["FAMILIES", "Report", "check_local", "load_torch", "load_vit", "weight_file"]
