"""Checks of arguments, read from the annotations of a function: shapes, types, ranges, choices.

    @checked
    def cross_entropy(
        target_probs: Float[Array, "*#b K"], logits: Float[Array, "*#b K"], *, temperature: Positive
    ) -> Float[Array, "*b"]:

An axis of one name has one size in all arguments, and at least 1; `*b` stands for any number of
leading axes, equal everywhere, `*#b` for leading axes that broadcast. Annotated arrays reach the
body as JAX arrays. Shapes are known under `jit` and always checked; values only where they are
known, so that a schedule may feed a traced temperature. Under Explicit sharding an axis of a result
is cut as the arguments' axis of that name is.
"""

import dataclasses
import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Callable
from typing import Annotated, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import AbstractArray, Array, Float

from ssl_jax.ops import devices
from ssl_jax.ops.arguments import is_concrete, require


@dataclasses.dataclass(frozen=True)
class Must:
    """What a value must be, in words and as a test."""

    be: str
    test: Callable = dataclasses.field(repr=False)


Number = float | Float[Array, ""]  # a Python number or a scalar array, also a traced one
Positive = Annotated[Number, Must("a finite number above 0", lambda x: 0 < x < math.inf)]
NotNegative = Annotated[Number, Must("a finite number, 0 or above", lambda x: 0 <= x < math.inf)]
Share = Annotated[Number, Must("between 0 and 1", lambda x: 0 <= x <= 1)]
Count = Annotated[int, Must("at least 1", lambda x: x >= 1)]

Function = TypeVar("Function", bound=Callable)

_KINDS = {
    "Float": "float",
    "Integer": "integer",
    "Bool": "bool",
    "Key": "a key of jax.random.key",
    "Shaped": "any",
}


@overload
def checked(function: Function) -> Function: ...
@overload
def checked(function: None = None, *, empty: str = "") -> Callable[[Function], Function]: ...
def checked(function: Callable | None = None, *, empty: str = "") -> Callable:
    """The function behind a check of its arguments.

    Args:
      function: annotated; None: returns the decorator.
      empty: names of axes that may have size 0.

    Raises:
      ValueError: from the function returned, naming the argument, what it is and what it must be.
    """
    if function is None:
        return functools.partial(checked, empty=empty)
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function, include_extras=True)
    returned = hints.pop("return", None)

    @functools.wraps(function)
    def checking(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        axes = Axes(empty.split())
        for name, value in bound.arguments.items():
            if name in hints:
                bound.arguments[name] = _check(name, value, hints[name], axes)
        results = functools.partial(_sharding, returned, axes)
        return devices.automatic(function, bound.args, bound.kwargs, results)

    return checking


def _check(name: str, value, hint, axes: "Axes"):
    """The value, as a JAX array if the hint says array."""
    options = _options(hint)
    if value is None and types.NoneType in options:
        return None
    arrays = [option for option in options if _is_array(option)]
    if arrays:
        return axes.check(name, value, arrays)
    for option in options:
        origin, parts = typing.get_origin(option), typing.get_args(option)
        if origin is typing.Literal:
            listed = " or ".join(f'"{choice}"' for choice in parts)
            require(value in parts, name, repr(value), listed)
        elif origin is tuple:
            ordered = isinstance(value, tuple | list) or np.ndim(value) > 0
            fits = ordered and len(value) == len(parts)
            require(fits, name, repr(value), f"{len(parts)} values")
            return tuple(
                _check(f"{name}[{i}]", value[i], parts[i], axes) for i in range(len(parts))
            )
        elif option is int:
            _require_number(name, value, integer=True)
        elif origin is Annotated:
            shape = np.shape(value)
            require(shape == (), name, f"an array of shape {shape}", "a scalar")
            _require_number(name, value, integer=parts[0] is int)
            for must in parts[1:]:
                fits = not is_concrete(value) or bool(must.test(np.asarray(value)))
                require(fits, name, value, must.be)
    return value


def _require_number(name: str, value, *, integer: bool) -> None:
    kind = getattr(value, "dtype", None) or np.asarray(value).dtype
    real = jnp.issubdtype(kind, jnp.integer) or (not integer and jnp.issubdtype(kind, jnp.floating))
    require(real, name, repr(value), "an integer" if integer else "a number")


def _options(hint) -> tuple:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _is_array(hint) -> bool:
    return inspect.isclass(hint) and issubclass(hint, AbstractArray)


def _sharding(hint, axes: "Axes", mesh):
    """How what a return annotation names is sharded over a mesh: arrays by their axes, others
    replicated."""
    if _is_array(hint):
        return NamedSharding(mesh, axes.spec(hint.dim_str.split()))
    if typing.get_origin(hint) is tuple:
        return tuple(_sharding(part, axes, mesh) for part in typing.get_args(hint))
    if inspect.isclass(hint) and issubclass(hint, tuple):  # a NamedTuple
        parts = typing.get_type_hints(hint, include_extras=True).values()
        return hint(*(_sharding(part, axes, mesh) for part in parts))
    return NamedSharding(mesh, PartitionSpec())


def _grouped(names: list[str], entries: tuple) -> tuple | None:
    """One entry for each name, a tuple for leading axes; None if there are too many or few."""
    extra = len(entries) - len(names) + 1
    place = next((i for i, name in enumerate(names) if name.startswith("*")), None)
    if place is not None and extra >= 0:
        end = place + extra
        entries = (*entries[:place], entries[place:end], *entries[end:])
    return entries if len(entries) == len(names) else None


class Axes:
    """The sizes of the named axes of one call, and which argument gave them."""

    def __init__(self, empty: list[str]):
        self.empty = empty
        self.sizes: dict[str, int | tuple[int, ...]] = {}
        self.owners: dict[str, str] = {}
        self.cuts: dict[str, tuple] = {}  # along which axes of a mesh, last axis last

    def check(self, name: str, value: ArrayLike, hints: list) -> jax.Array:
        """The value as a JAX array; it must fit one of the array types."""
        require(value is not None, name, None, "an array")
        with jax.ensure_compile_time_eval():  # numbers stay known under `jit`
            array = value if isinstance(value, jax.Array) else jnp.asarray(value)
        of_type = [hint for hint in hints if _has_type(array, hint)]
        kinds = dict.fromkeys(hint.__name__.partition("[")[0] for hint in hints)
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        require(bool(of_type), f"the type of {name}", array.dtype, expected)
        for hint in of_type:
            sizes = self._sizes(hint.dim_str.split(), array.shape)
            if sizes is not None:
                self._broadcast(name, sizes)
                self.owners |= {axis: name for axis in sizes if axis not in self.sizes}
                self.sizes |= sizes
                self._cut(hint.dim_str.split(), array)
                return array
        shapes = [self._written(hint.dim_str.split(), array.shape) for hint in of_type]
        expected = " or ".join(shapes)
        require(False, f"the shape of {name}", array.shape, expected)
        raise AssertionError  # not reached

    def _sizes(self, names: list[str], shape: tuple) -> dict | None:
        """The sizes of the named axes if the shape fits them, else None."""
        grouped = _grouped(names, shape)
        if grouped is None:
            return None
        sizes: dict[str, int | tuple[int, ...]] = {}
        for name, size in zip(names, grouped):
            expected = sizes.get(name, self.sizes.get(name, size))
            vacant = size == 0 and name not in self.empty
            if vacant or (size != expected and not name.startswith("*#")):
                return None
            sizes[name] = size
        return sizes

    def _broadcast(self, name: str, sizes: dict) -> None:
        """Joins leading axes that broadcast."""
        for axis in set(sizes) & set(self.sizes):
            if axis.startswith("*#"):
                mine, earlier = (typing.cast(tuple, x[axis]) for x in (sizes, self.sizes))
                try:
                    sizes[axis] = jnp.broadcast_shapes(mine, earlier)
                except ValueError:
                    expected = f"broadcastable against {earlier}, those of {self.owners[axis]}"
                    require(False, f"the leading axes of {name}", mine, expected)

    def _cut(self, names: list[str], array: jax.Array) -> None:
        """Notes how the axes of an array are sharded, as far as its type says so."""
        spec = (*jax.typeof(array).sharding.spec, *(None for _ in array.shape))[: array.ndim]
        for name, cut in zip(names, _grouped(names, spec) or ()):
            axes = cut if name.startswith("*") else (cut,)
            earlier = self.cuts.get(name.replace("#", ""), ())
            pairs = itertools.zip_longest(reversed(axes), reversed(earlier))
            self.cuts[name.replace("#", "")] = tuple(a or b for a, b in pairs)[::-1]

    def spec(self, names: list[str]) -> PartitionSpec:
        """How an array of these axes is sharded; no axis of the mesh shards two of them."""
        used: set = set()
        cuts = [cut for name in names for cut in self.cuts.get(name, (None,))]
        for place, cut in enumerate(cuts):
            over = set(cut if isinstance(cut, tuple) else (cut,)) - {None}
            cuts[place] = None if over & used else cut
            used |= over
        return PartitionSpec(*cuts)

    def _written(self, names: list[str], shape: tuple) -> str:
        """The expected shape in words: "[..., 3] as logits"."""
        fixed = [name for name in names if name in self.sizes and not name.startswith("*#")]
        parts: list[int | str] = []
        for name in names:
            size = self.sizes[name] if name in fixed else name
            if isinstance(size, tuple):
                parts += size
            else:
                parts.append("..." if name.startswith("*") else size)
        owners = dict.fromkeys(self.owners[name] for name in fixed)
        text = f"[{', '.join(map(str, parts))}]" + (f" as {' and '.join(owners)}" if owners else "")
        named = [name for name in names if name not in fixed and not name.startswith("*")]
        free = [name for name in named if name not in self.empty]
        return text + (f" with {', '.join(free)} >= 1" if 0 in shape and free else "")


def _has_type(array, hint) -> bool:
    """Whether the array is of the float, integer, ... kind of an array type."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return "prng_key" in hint.dtypes
    return not isinstance(hint.dtypes, tuple) or array.dtype.name in hint.dtypes  # else Shaped: any
