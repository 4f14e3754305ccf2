"""Checks before any allocation that the devices' memory can hold the state of a run."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from ssl_jax.config import InputError
from ssl_jax.train.state import TrainState

_CGROUP = Path("/sys/fs/cgroup/memory.max")  # memory limit of a container
_NAMED = 3  # arrays named in the error


def check(abstract: TrainState, devices: Sequence[jax.Device], images: int = 0) -> None:
    """Refuses a training state that the devices cannot hold.

    Intermediate results of a step are not counted: a state that passes may still need too much.

    Args:
      abstract: ShapeDtypeStructs with shardings. devices: those of this process. images: bytes of
        the images cached on each device.

    Raises:
      InputError: gives the needed and available memory, and names the largest arrays.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(abstract._asdict())
    sizes = {jax.tree_util.keystr(p, simple=True, separator="/"): _bytes(x) for p, x in leaves}
    needed, limit = sum(sizes.values()), capacity(devices)
    if limit is None or needed + images <= limit:
        return
    if images and needed <= limit:
        raise InputError(
            f"data.cache=device: the images take {images / 2**30:,.1f} GiB on each device, which"
            f" has {limit / 2**30:,.1f} GiB, {needed / 2**30:,.1f} of them for the training state;"
            " use data.cache=none, or a smaller data.size"
        )
    shapes = {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in leaves}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_NAMED]
    named = ", ".join(f"{name} {list(shapes[name])}" for name in largest)
    raise InputError(
        f"the training state takes {needed / 2**30:,.1f} GiB on each device, which has"
        f" {limit / 2**30:,.1f} GiB; its largest arrays are {named}: make them smaller, or shard"
        " them over more devices (mesh.fsdp)"
    )


def capacity(devices: Sequence[jax.Device]) -> float | None:
    """Memory of each device in bytes; None if unknown. Simulated devices share the machine's."""
    reported = (devices[0].memory_stats() or {}).get("bytes_limit")
    if devices[0].platform != "cpu":
        return reported
    host = _host()
    return None if host is None else host / len(devices)


def _host():
    """Memory of this machine, or the limit of its container, in bytes."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(total, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # "max": no limit
        return total


def _bytes(x: Any) -> int:
    """Bytes of an array's part on one device."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return 0  # negligible
    return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
