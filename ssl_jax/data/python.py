"""The result of a user's function as a source: `data.kind="python:module.function"`."""

import importlib
import importlib.util
import inspect
from typing import Any

from ssl_jax.config import InputError, did_you_mean, full_reason
from ssl_jax.data import base, kinds

PREFIX = "python:"


class Called(base.Wrapper):
    """The records that a function returns: an object with a length and records by index, see
    `base.adopt`. A label that is no class is an error.

    The function is called with `dir` and `split` if it has these arguments; without `split` the set
    has one part, "train", which can be sliced. Without a number of classes, records have no label.

    The object is read from several threads, and pickled for worker processes.
    """

    def __init__(self, kind: str, dir: str = "", split: str = "train", channels: int = 3):
        """Raises InputError for a module or function that is not there, one that fails, or returns
        something else."""
        self._kind = kind
        function = _function(kind)
        parameters = inspect.signature(function).parameters
        every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        given = dict(dir=dir, split=split)
        given = {name: value for name, value in given.items() if every or name in parameters}
        if "split" not in given and split != "train":
            raise InputError(
                f"data.split: {kind} takes no argument `split`, so it has only the part train and"
                f" slices of it, not {split!r}"
            )
        try:
            records: Any = function(**given)
        except InputError:
            raise
        except Exception as error:
            why = f"{kind} called with {given} raised {full_reason(error)}"
            raise InputError(f"data.kind: {why}") from error
        try:
            adopted = base.Adopted(records, kind, channels, strict=True)
        except InputError as error:
            raise InputError(f"data.kind: {error}") from error
        if not len(adopted):
            raise InputError(f"data.kind: {kind} called with {given} returned no record")
        super().__init__(adopted)
        self._given = given

    def __getitem__(self, i: int) -> dict[str, Any]:
        record = self._source[i]
        labelled = self.num_classes is not None
        return {key: value for key, value in record.items() if labelled or key != "label"}

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of the image that this source makes of record i."""
        return base.Source.shape(self, i)

    def list_names(self) -> None:
        """None: `data.list` is for files."""

    def __repr__(self):
        given = "".join(f", {name}={value!r}" for name, value in self._given.items())
        return f"Called({self._kind!r}{given}, images={len(self)}, classes={self.num_classes})"


def _function(kind):
    """The function that a kind names. Raises InputError."""
    path = kind.removeprefix(PREFIX)
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise InputError(f'data.kind: write "{PREFIX}module.function", not {kind!r}')
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise InputError(
            f"data.kind: no module {module!r} for {kind}; it must be installed, or its folder in"
            " PYTHONPATH"
        )
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"data.kind: {module} cannot be imported: {error}") from error
    function = getattr(loaded, name, None)
    if not callable(function):
        there = [other for other in dir(loaded) if callable(getattr(loaded, other))]
        raise InputError(f"data.kind: {module} has no function {name!r}{did_you_mean(name, there)}")
    return function


def _opened(c, split):
    return Called(c["kind"], c["dir"], split, c["channels"] or 3)


kinds.register(PREFIX, _opened, keys=("dir", "channels"))
