"""A traced function as an ONNX graph, for the operations that the networks of `models` consist of.

What depends on weights alone is computed here: resized position embeddings, the weights of each
block, indices of windows. Layer norms and GELUs become ONNX's own operators, as inference
programs have fast kernels for those.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from ssl_jax.config import InputError

_OPSET, _IR = 20, 9  # onnxruntime 1.17 (January 2024) and later read these
# A constant, or the name of a tensor of the graph.
Value = np.ndarray | str
_SAME = dict(
    **dict(add="Add", sub="Sub", mul="Mul", div="Div", max="Max", neg="Neg", exp="Exp"),
    **dict(logistic="Sigmoid", copy="Identity", stop_gradient="Identity"),
)


def model(
    traced: core.ClosedJaxpr,
    names: Sequence[str],
    own: dict[str, dict[str, Any]],
    metadata: dict[str, str],
) -> bytes:
    """A file's content: an ONNX model of one input, "images", and outputs of these names.

    Args:
      traced: the ClosedJaxpr of a function of one float32 array, whose first axis is symbolic
        in it and in every output.
      own: {name of a function with its own derivative: attributes of the ONNX operator}, of
        "layer_norm" and "gelu" in `models.fused`.
      metadata: texts by name.

    Raises:
      InputError: an operation that has no translation here.
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    graph, jaxpr = _Graph(own), traced.jaxpr
    values = graph.run(jaxpr, traced.consts, ["images"])
    for value, name in zip(values, names, strict=True):
        graph.add("Identity", value, output=name)

    def described(name, x):
        sides = ["batch", *x.aval.shape[1:]]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sides)

    body = helper.make_graph(
        [helper.make_node(kind, *ends, **attributes) for kind, *ends, attributes in graph.nodes],
        "ssl_jax",
        [described("images", jaxpr.invars[0])],
        [described(name, x) for name, x in zip(names, jaxpr.outvars, strict=True)],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(body, opset_imports=opsets, ir_version=_IR, producer_name="ssl_jax")
    helper.set_model_props(made, metadata)
    checker.check_model(made)
    return made.SerializeToString()


class _Graph:
    """Nodes (kind, inputs, outputs, attributes) and constants of a graph while it is built."""

    def __init__(self, own: dict[str, dict[str, Any]]):
        self.own, self.count = own, 0
        self.nodes: list[tuple] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(self, kind: str, *inputs: Value, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        output = output or self._name()
        self.nodes.append((kind, names, [output], attributes))
        return output

    def _constant(self, array: np.ndarray) -> str:
        name = self._name()
        self.constants[name] = np.ascontiguousarray(array)
        return name

    def _name(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """Adds all operations of a jaxpr; returns its outputs."""
        known = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
        known |= dict(zip(jaxpr.invars, inputs, strict=True))

        def read(x):
            if not isinstance(x, core.Literal):
                return known[x]
            aval: Any = x.aval  # of an array
            return np.asarray(x.val, aval.dtype)

        for eqn in jaxpr.eqns:
            known |= dict(zip(eqn.outvars, self._outputs(eqn, [read(x) for x in eqn.invars])))
        return [read(x) for x in jaxpr.outvars]

    def _outputs(self, eqn: Any, values: list[Value]) -> Sequence[Value]:
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if inner is not None:
            function = inner.jaxpr.debug_info.func_name.partition(" ")[0]
            if function in self.own:
                kind = {"layer_norm": "LayerNormalization", "gelu": "Gelu"}[function]
                return [self.add(kind, *values, **self.own[function])]
            return self.run(inner.jaxpr, inner.consts, values)
        shapes = [x.aval.shape for x in eqn.outvars]
        if all(isinstance(n, int) for n in sum(shapes, ())) and not any(
            isinstance(value, str) for value in values
        ):
            outputs = eqn.primitive.bind(*values, **eqn.params)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
            return [np.asarray(output) for output in outputs]
        kind = eqn.primitive.name
        if kind in _SAME:
            return [self.add(_SAME[kind], *values)]
        if kind not in _TRANSLATIONS:
            raise InputError(f"the network computes {kind}, which export to ONNX does not know")
        outputs = _TRANSLATIONS[kind](self, eqn, *values)
        return [outputs] if isinstance(outputs, str) else outputs


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _shaped(graph, x, sides):
    # Of the new sides one at most depends on the batch: the one that is left over.
    return graph.add("Reshape", x, _ints(*(n if isinstance(n, int) else -1 for n in sides)))


def _reshape(graph, eqn, x):
    return _shaped(graph, x, eqn.outvars[0].aval.shape)


def _broadcast(graph, eqn, x):
    given, shape = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    places = eqn.params["broadcast_dimensions"]
    sides = [given[places.index(i)] if i in places else 1 for i in range(len(shape))]
    x = _shaped(graph, x, sides)
    if tuple(sides) == tuple(shape):
        return x
    new = _ints(*(n if isinstance(n, int) else 1 for n in shape))  # 1 keeps what is there
    if isinstance(shape[0], int) or not isinstance(sides[0], int):
        return graph.add("Expand", x, new)
    batch = graph.add("Shape", "images", start=0, end=1)
    return graph.add("Expand", x, graph.add("Concat", batch, new[1:], axis=0))


def _dot_general(graph, eqn, *factors):
    """As products of matrices [..., rows, sums] and [..., sums, columns]."""
    sums, batch = eqn.params["dimension_numbers"]
    matrices = []
    for i, x in enumerate(factors):
        shape = eqn.invars[i].aval.shape
        free = [axis for axis in range(len(shape)) if axis not in (*sums[i], *batch[i])]
        pair = (free, sums[i]) if i == 0 else (sums[i], free)
        x = _transposed(graph, x, [*batch[i], *pair[0], *pair[1]])
        sides = [shape[axis] for axis in batch[i]]
        sides += [math.prod(shape[axis] for axis in axes) for axes in pair]
        matrices.append(x if len(sides) == len(shape) else _shaped(graph, x, sides))
    product = graph.add("MatMul", *matrices)
    flat = len(batch[0]) + 2 == eqn.outvars[0].aval.ndim
    return product if flat else _reshape(graph, eqn, product)


def _transposed(graph, x, order):
    if isinstance(x, np.ndarray):
        return x.transpose(order)
    return x if order == sorted(order) else graph.add("Transpose", x, perm=order)


def _split(graph, eqn, x):
    axis, sizes = eqn.params["axis"], eqn.params["sizes"]
    ends = itertools.accumulate(sizes)
    return [
        graph.add("Slice", x, _ints(end - size), _ints(end), _ints(axis))
        for size, end in zip(sizes, ends, strict=True)
    ]


def _gather(graph, eqn, x, indices):
    """Constant indices: where a part starts, or one element of neighbouring axes for each."""
    p, whole = eqn.params, eqn.invars[0].aval.shape
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    axes = numbers.start_index_map
    if isinstance(indices, str):
        raise InputError("the network picks elements by computed indices, which ONNX export lacks")
    if indices.ndim == 1:
        ends = [index + sizes[axis] for index, axis in zip(indices, axes, strict=True)]
        starts = _ints(*indices)
        return _reshape(graph, eqn, graph.add("Slice", x, starts, _ints(*ends), _ints(*axes)))
    flat = np.ravel_multi_index(tuple(np.moveaxis(indices, -1, 0)), [whole[i] for i in axes])
    merged = [*whole[: axes[0]], -1, *whole[axes[-1] + 1 :]]
    merged = [n if isinstance(n, int) else 0 for n in merged]  # 0 keeps the side
    return graph.add("Gather", graph.add("Reshape", x, _ints(*merged)), flat, axis=axes[0])


def _pad(graph, eqn, x, value):
    low, high, _ = zip(*eqn.params["padding_config"])
    return graph.add("Pad", x, _ints(*low, *high), value)


def _reduced(kind):
    return lambda graph, eqn, x: graph.add(kind, x, _ints(*eqn.params["axes"]), keepdims=0)


_TRANSLATIONS = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot_general,
    "split": _split,
    "gather": _gather,
    "pad": _pad,
    "reduce_sum": _reduced("ReduceSum"),
    "reduce_max": _reduced("ReduceMax"),
    "transpose": lambda graph, eqn, x: _transposed(graph, x, list(eqn.params["permutation"])),
    "concatenate": lambda graph, eqn, *parts: graph.add(
        "Concat", *parts, axis=eqn.params["dimension"]
    ),
}
