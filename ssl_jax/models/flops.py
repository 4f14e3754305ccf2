"""Counts a network's FLOPs by tracing it.

from ssl_jax.models import flops, heads
head = heads.dino_head(384, 65536)
params = jax.eval_shape(head.init, jax.random.key(0))
flops.matmul_flops(head.apply, params, jax.ShapeDtypeStruct((1, 384), jnp.float32))
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def matmul_flops(function: Callable, *inputs: Any) -> float:
    """Floating-point operations of all matrix products and convolutions in function(*inputs),
    counted without running it; a multiply-add counts as 2.

    The count includes every step of a scan and, in a gradient, the backward pass with any
    rematerialisation. The body of a while loop counts once; of several branches, the most
    expensive one counts.

    Args:
      inputs: trees of arrays or jax.ShapeDtypeStructs.
    """
    return float(_flops(jax.make_jaxpr(function)(*inputs).jaxpr))


def _flops(jaxpr) -> int:
    return sum(_flops_of_equation(equation) for equation in jaxpr.eqns)


def _flops_of_equation(equation) -> int:
    name, params = equation.primitive.name, equation.params
    if name in ("dot_general", "conv_general_dilated"):
        left, right = (variable.aval.shape for variable in equation.invars[:2])
        if name == "dot_general":
            products = math.prod(left[axis] for axis in params["dimension_numbers"][0][0])
        else:
            products = math.prod(right) // right[params["dimension_numbers"].rhs_spec[0]]
        return 2 * products * math.prod(equation.outvars[0].aval.shape)
    inner = [_flops(body) for body in _bodies(params)]
    if name == "cond":
        return max(inner)
    return sum(inner) * (params["length"] if name == "scan" else 1)


def _bodies(params: dict) -> list[Jaxpr]:
    """The jaxprs among an equation's parameters: bodies of loops, calls, branches."""

    def is_program(value):
        return isinstance(value, ClosedJaxpr | Jaxpr)

    leaves = jax.tree.leaves(list(params.values()), is_leaf=is_program)
    programs = [leaf for leaf in leaves if is_program(leaf)]
    return [leaf.jaxpr if isinstance(leaf, ClosedJaxpr) else leaf for leaf in programs]
