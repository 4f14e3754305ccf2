"""Counts the classes of labels and refuses labels that cannot be scored."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, field
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores.metrics import ABSENT, num_classes


def absent_field() -> Any:
    """Declares the key `absent` of an evaluation."""
    return field(
        "zero",
        'how a class that is predicted but absent from the truth counts: "zero", with IoU 0'
        ' (mmsegmentation), or "skip", left out of the mean',
        choices=ABSENT,
    )


def check_classes(
    type: str, source: Any, labels: Iterable[ArrayLike], what: str, least: int = 2
) -> None:
    """Raises InputError for labels of fewer than two classes, on which all networks score the same.
    For masks with one class and 255 it names the class_map that makes 255 a class.

    type: of the evaluation. labels: read until enough classes have appeared. what: the labels' name
    in the message; of "masks" and "patches", 255 is not a class. least: number of classes; 1 is
    enough where a network was trained on others.
    """
    values: set[int] = set()
    masks = what in ("masks", "patches")
    for part in labels:
        values |= set(np.unique(part).tolist())
        if len(values - {IGNORE} if masks else values) >= least:
            return
    classes = sorted(values - {IGNORE} if masks else values)
    count = f"one class ({classes[0]})" if classes else "no class"
    hint = ""
    if masks and IGNORE in values:
        count += f" and {IGNORE}, which is ignored"
        rule = ",".join(f"{value}:{i}" for i, value in enumerate([*(classes or [0]), IGNORE]))
        hint = f"; if {IGNORE} is a class, set evals.{type}.data.class_map={{{rule}}}"
    raise InputError(
        f"{type}: the {what} of {source} have {count}; a score needs"
        f" {'two classes' if least > 1 else 'one'}{hint}"
    )


def classes_of(source: Any, *masks: Iterable[np.ndarray]) -> int:
    """Number of classes of masks. Raises InputError for a class that the source does not name."""
    classes, names = num_classes(*masks), source.mask_names
    if names and classes > len(names):
        raise InputError(
            f"a mask of {source} has class {classes - 1}, but the set names {len(names)} classes,"
            f" 0 to {len(names) - 1}; {IGNORE} means ignore"
        )
    return classes
