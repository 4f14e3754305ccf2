"""Names full and read-only disks in errors."""

import contextlib
import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax

from ssl_jax.config import InputError
from ssl_jax.train import damage
from ssl_jax.train.state import TrainState

# Bytes of a checkpoint besides its arrays: names, shardings, config, partly filled disk blocks.
_OVERHEAD = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT = re.compile("No space left|quota exceeded|RESOURCE_EXHAUSTED")


def check_space(folder: Path, state: TrainState, copies: int) -> None:
    """Refuses a run whose checkpoints cannot fit on the disk of `folder`. Raises InputError."""
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(_raw_keys, state)))
    size += _OVERHEAD
    needed, free = size * copies, shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder} has {free / 2**20:.1f} MiB free; {copies} checkpoints of {size / 2**20:.1f}"
            f" MiB need {needed / 2**20:.1f} MiB; free some space, choose another --workdir or"
            " lower checkpoint.keep"
        )


def _raw_keys(state):
    def is_key(x):
        return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)

    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)


@contextlib.contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turns a write (for example of a log) that fails for lack of space into an InputError that
    names the folder.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise InputError(_no_space(folder)) from error
        raise


@contextlib.contextmanager
def readable_errors(folder: Path) -> Iterator[None]:
    """Turns errors of a full or unwritable disk, which may be wrapped or raised by a later call,
    into one InputError.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        chain = damage.chain(error)
        text = " ".join(map(str, chain))
        if _FULL_TEXT.search(text) or any(getattr(e, "errno", None) in _FULL for e in chain):
            raise InputError(_no_space(folder)) from error
        if "Permission denied" in text or "Read-only" in text:
            raise InputError(f"cannot write to {folder}: permission denied") from error
        raise


def _no_space(folder):
    return (
        f"no space left on the disk of {folder}; the last complete checkpoint is intact; free"
        " some space and start again"
    )
