"""`ssl-jax embed`: embeds a data set and writes its vectors to one file."""

import argparse
import os
import time
from collections.abc import Mapping

from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.cli import arguments, notes
from ssl_jax.data import source as source_lib
from ssl_jax.runtime import progress
from ssl_jax.views import loader

_EXIT_STOPPED = 75
_EVERY = 10.0  # seconds between two lines of progress


def run(options: argparse.Namespace) -> int:
    from ssl_jax import api
    from ssl_jax.cli import cache
    from ssl_jax.features import embedding

    embedding.writable(options.out)
    encoder = api.load(
        options.network, family=options.family, heads=options.heads, trust=options.trust
    )
    notes.tell(encoder)
    section = ConfigDict({"data": _data(encoder.config.get("data"), options.folder)})
    config = arguments.changed(section, options.changes)
    given = arguments.given(options.changes, config)
    if not options.trust:
        settings.check_stored(config, ("data.",), given)
    for name, declared in _keys().items():
        if name in config.data:
            declared.check(f"data.{name}", config.data[name])
    source_lib.check("data", config.data, config.data.dir)
    data = config.data.to_dict()
    if "data.split" not in given and (options.folder or "data" not in encoder.config):
        del data["split"]  # the user has not chosen a part
    source = embedding.opened(data, options.size, encoder)
    plan = embedding.plan(
        encoder,
        source,
        tokens=options.tokens,
        layers=options.layers,
        batch_size=options.batch,
        dtype=options.dtype,
    )
    cache.keep_programs()
    print(f"network: {encoder}; data: {source}, {len(source)} images", flush=True)
    printer = _Progress()
    try:
        out = embedding.to_file(plan, options.out, progress=printer)
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", flush=True)
        return _EXIT_STOPPED
    skipped = f", skipped {printer.skipped} that cannot be read" if printer.skipped else ""
    written = len(source) - printer.skipped
    print(f"{out}: {written} images{skipped}, {out.stat().st_size / 2**20:.1f} MiB")
    return os.EX_OK


def _data(of_run: Mapping | None, folder: str = "") -> ConfigDict:
    """The section `data` of a folder, or of the training set of a run, without `size`."""
    section = config_lib.build(_keys()).unlock()
    if folder or of_run is None:
        section.update(source_lib.at(folder, of_run))
    else:
        section.update({name: of_run[name] for name in section if name in of_run})
    del section["size"]  # set by --size instead
    return section.lock()


def _keys() -> dict:
    """The keys of the section `data` that determine which images are read."""
    return source_lib.defaults() | {"max_unreadable": loader.defaults()["max_unreadable"]}


class _Progress:
    """Prints a line every few seconds. skipped: number of unreadable images."""

    def __init__(self):
        self._shown, self._began, self._from = -_EVERY, time.monotonic(), None
        self.skipped = 0

    def __call__(self, done: int, count: int, skipped: int) -> None:
        self.skipped += skipped
        now = time.monotonic()
        if self._from is None:
            self._from, self._began = done, now  # the first part includes compilation
        if now - self._shown < _EVERY and done < count:
            return
        rate = (done - self._from) / max(now - self._began, 1e-9)
        speed = f", {progress.speed(rate)} images/s" if done > self._from else ""
        print(f"{done} of {count} images{speed}", flush=True)
        self._shown = now
