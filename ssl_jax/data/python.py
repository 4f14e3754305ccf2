"""The result of a user's function as a source: `data.kind="python:module.function"`."""

import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np

from ssl_jax.config import InputError, did_you_mean
from ssl_jax.data import base, decode, kinds
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked

PREFIX = "python:"


class Called(base.Wrapper):
    """The records that a function returns: an object with a length and records by index.

    The function is called with `dir` and `split` if it has these arguments; without `split` the set
    has one part, "train", which can be sliced.

    A record is a dict as in `data.source`, or a pair (image, label) as in torchvision's data sets;
    an image is a PIL image, or an array uint8 [H,W,C] or [H,W], C = `channels`. The object may have
    attributes of `data.source` (`num_classes`, `class_names`, ...), or `classes`: class names,
    {name: number}, or their count. Labels are used only with one of these; they are integers below
    the number of classes, and None or a negative number means that an image has no label. If there
    are such images, the labels must also be in an attribute `targets`, so that evaluations can
    leave them out.

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
            why = f"{kind} called with {given} raised {_described(error)}"
            raise InputError(f"data.kind: {why}") from error
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise InputError(
                f"data.kind: {kind} must return an object with len() and records by index, but"
                f" returned {type(records).__name__}"
            )
        if not len(records):
            raise InputError(f"data.kind: {kind} called with {given} returned no record")
        super().__init__(base.adopt(records, kind))
        self._given, self.channels = given, channels
        names = getattr(records, "classes", None)
        if isinstance(names, int) and self.num_classes is None:
            self.num_classes = names
        elif isinstance(names, Iterable) and self.class_names is None:
            self.class_names = base.names_of(names)
        if self.num_classes is None and self.class_names:
            self.num_classes = len(self.class_names)
        targets = getattr(records, "targets", None)
        if self.num_classes is not None and targets is not None and len(targets) == len(records):
            missing = [i for i, label in enumerate(targets) if _is_none(label)]
            self.unlabelled = self.unlabelled if len(self.unlabelled) else missing

    def __getitem__(self, i: int) -> dict[str, Any]:
        i = checked(i, len(self))
        try:
            record: Any = self._source[i]
            if not isinstance(record, dict):
                image, label = record
                record = {"image": image, "label": label}
            record = {**record, "image": _pixels(record["image"], self.channels)}
        except Unreadable:
            raise
        # Whatever their reader raises for a file that is broken or gone.
        except Exception as error:
            raise Unreadable(self.name(i), _described(error)) from error
        if self.num_classes is None:
            record.pop("label", None)
        elif "label" in record:
            record["label"] = self._label(record["label"], self.num_classes, i)
        return record

    def _label(self, label, classes, i):
        """A label as int; -1 for none. Raises InputError for what is no number of a class."""
        value = np.asarray(-1 if label is None else label)
        whole = value.ndim == 0 and value.dtype.kind in "iufb" and float(value).is_integer()
        if not whole or value >= classes:
            raise InputError(
                f"{self.name(i)} has the label {label!r}; it must be a whole number from 0 to"
                f" {classes - 1}, or None"
            )
        return max(-1, int(value))

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of the image that this source makes of record i."""
        return base.Source.shape(self, i)

    def list_names(self) -> None:
        """None: `data.list` is for files."""

    def __repr__(self):
        given = "".join(f", {name}={value!r}" for name, value in self._given.items())
        return f"Called({self._kind!r}{given}, images={len(self)}, classes={self.num_classes})"


def _is_none(label):
    """Whether this says that an image has no label; False for what is no number."""
    if label is None:
        return True
    value = np.asarray(label)
    return bool(value.ndim == 0 and value.dtype.kind in "if" and not value >= 0)


def _described(error):
    """What an error of the user's code says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


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


def _pixels(image, channels):
    """An image of any kind as [H,W,C], uint8 or float32."""
    is_pillow = hasattr(image, "convert") and channels == 3
    if is_pillow:
        # Wide numbers of the range of bytes are clipped to bytes; others have their own range.
        wide = image.mode in ("I", "F") and 1 < image.getextrema()[1] <= 255
        image = image.convert("RGB") if wide else image
    pixels = decode.rgb(image) if is_pillow else np.asarray(image)
    if pixels.ndim == 2 and channels in (1, 3):
        pixels = np.repeat(pixels[..., None], channels, axis=2)
    fits = pixels.ndim == 3 and pixels.shape[-1] == channels
    if not fits or pixels.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"an image must be uint8 [H,W,{channels}], or float32 in [0, 1], not {pixels.dtype}"
            f" {list(pixels.shape)}"
        )
    return pixels


def _opened(c, split):
    return Called(c["kind"], c["dir"], split, c["channels"] or 3)


kinds.register(PREFIX, _opened, keys=("dir", "channels"))
