"""`ssl-jax stats`: mean and standard deviation of each channel of images, as settings of a run."""

import argparse
import os
from collections.abc import Iterable

from ssl_jax import config as config_lib
from ssl_jax.cli import arguments
from ssl_jax.config import InputError
from ssl_jax.data import source as source_lib
from ssl_jax.views import section as views


def run(options: argparse.Namespace) -> int:
    from ssl_jax.report.statistics import statistics

    declared = source_lib.defaults()
    section = config_lib.build({"data": declared})
    section.data.update(source_lib.at(options.folder))
    c = arguments.changed(section, options.changes).data
    for name, entry in declared.items():
        entry.check(f"data.{name}", c[name])
    source_lib.check("data", c, c.dir)
    # Without a range, values are read as stored, and a range is derived from them.
    source = source_lib.make_source({**c.to_dict(), "raw": not c.range}, truth=False)
    result = statistics(source, options.count or 0)
    print(f"{source}: {result.images} of {len(source)} images, {', '.join(sorted(result.types))}")
    print(f"channel {'mean':>12} {'std':>12} {'smallest':>12} {'largest':>12}")
    for i, row in enumerate(zip(result.mean, result.std, result.low, result.high)):
        print(f"{i:7}" + "".join(f" {x:12.6g}" for x in row))
    low, high = 0.0, 1.0 if c.range else 255.0
    value_range = tuple(c.range)
    if not value_range and result.types != {"uint8"}:
        value_range = low, high = float(result.low.min()), float(result.high.max())
    if low == high:
        raise InputError(f"{source}: all pixels are {low:g}; use images that vary")
    flags = [f"data.channels={c.channels}"] if c.channels else []
    flags += [f"data.range={_listed(value_range, digits=9)}"] if value_range else []
    if source.channels != 3:
        flags += [f"model.in_channels={source.channels}"]
    flags += [f"model.mean={_listed((result.mean - low) / (high - low))}"]
    flags += [f"model.std={_listed(result.std / (high - low))}"]
    if source.channels != 3:
        jitter = (*views.KEYS["jitter"].default[:2], 0.0, 0.0)
        flags += [f"views.jitter={_listed(jitter)}", "views.gray_prob=0.0"]
    print("settings:\n  " + " \\\n  ".join(f"--config.{flag}" for flag in flags))
    if constant := [i for i, x in enumerate(result.std) if not x]:
        print(f"constant, so that model.std is 0 and must be changed: channels {constant}")
    return os.EX_OK


def _listed(numbers: Iterable[float], digits: int = 6) -> str:
    """A tuple written as in --config.KEY=VALUE."""
    return ",".join(f"{x:.{digits}g}" for x in numbers)
