"""`ssl-jax embed`: a data set as vectors, in one file."""

import itertools
import os
import time
from collections.abc import Mapping

from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.cli import arguments
from ssl_jax.config import InputError
from ssl_jax.data import source as source_lib
from ssl_jax.runtime import progress
from ssl_jax.views import loader

HELP = """ssl-jax embed NETWORK [FOLDER] --out=FILE [--tokens=NAME,...] [--layers=N] [--size=N]
             [--batch=N] [--dtype=float16] [--config.data.KEY=VALUE ...] [--family=NAME] [--trust]

Computes the features of images and writes them to one file, with names, sizes and labels. Run the
same command again to resume after a stop or a kill.

  NETWORK                a run directory, one of its checkpoints, a file of ssl_jax.save,
                         zoo/NAME, or published weights (a file or a Hugging Face folder)
  FOLDER                 images, or one part (train, val) of a data set; default: the images that
                         the run was trained on
  --config.data.KEY=VALUE
                         other data: --config.data.kind=tfds --config.data.name=cifar10
  --out=FILE             x.npz (NumPy) or x.parquet (pandas, polars, DuckDB)
  --tokens=NAME,...      image (default: the vector that the method uses for an image), cls, mean
                         (of the patch tokens), patches (one per patch), sparse (STELLAR)
  --layers=N             concatenate the last N blocks; default: 1
  --size=N               resize the shorter side to N pixels and crop the centre square; default:
                         as in training; 0: keep the native size
  --batch=N              batch size; default: 64, on a CPU 16
  --dtype=float16        store half the bytes; default: float32
  --family=NAME          layout of published weights, where several fit
  --import=MODULE, --trust
                         import a module that registers the method of the network; or allow
                         whatever its config asks for, if you trust its author (SECURITY.md)

Examples:
  ssl-jax embed runs/a /my/images --out=vectors.npz
  ssl-jax embed runs/a --out=vectors.parquet --config.data.split=test
  ssl-jax embed zoo/sop_quickstart /my/images --out=x.npz --tokens=image,patches --size=64

Exit codes: 0 done; 2 bad input; 75 stopped by Ctrl-C, start again to resume; 1 unexpected error.
"""

_EXIT_STOPPED = 75
_EVERY = 10.0  # seconds between two lines of progress


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    from ssl_jax import api
    from ssl_jax.cli import cache
    from ssl_jax.features import embedding

    places = list(itertools.takewhile(lambda argument: not argument.startswith("-"), argv[1:3]))
    arguments.check_network(argv, "/my/images", "--out=vectors.npz")
    trust, rest = arguments.trusted(argv[1 + len(places) :])
    given, rest = arguments.early(rest, "family")
    encoder = api.load(places[0], family=given.get("family") or None, trust=trust)
    section = _data(encoder.config.get("data"), *places[1:])
    options = dict(out="", tokens="image", layers="1", size=None, batch=None, dtype="float32")
    values, config = arguments.parse(argv[:1] + rest, ConfigDict({"data": section}), **options)
    if not values.out:
        raise InputError("embed needs --out=FILE, for example --out=vectors.npz")
    given_keys = arguments.given(argv[:1] + rest, config)
    if not trust:
        settings.check_stored(config, ("data.",), given_keys)
    for name, declared in _keys().items():
        if name in config.data:
            declared.check(f"data.{name}", config.data[name])
    source_lib.check("data", config.data, config.data.dir)
    size = arguments.number(values["size"].value, "size")
    layers = arguments.number(values.layers, "layers")
    batch_size = arguments.number(values["batch"].value, "batch")
    data = config.data.to_dict()
    if "data.split" not in given_keys and (len(places) > 1 or "data" not in encoder.config):
        del data["split"]  # nobody named a part
    source = embedding.opened(data, size, encoder)
    plan = embedding.plan(
        encoder,
        source,
        tokens=values.tokens.split(","),
        layers=layers,
        batch_size=batch_size,
        dtype=values.dtype,
    )
    cache.keep_programs()
    print(f"network: {encoder}; data: {source}, {len(source)} images", flush=True)
    shown = _Progress()
    try:
        out = embedding.to_file(plan, values.out, progress=shown)
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", flush=True)
        return _EXIT_STOPPED
    skipped = f", skipped {shown.skipped} that cannot be read" if shown.skipped else ""
    written = len(source) - shown.skipped
    print(f"{out}: {written} images{skipped}, {out.stat().st_size / 2**20:.1f} MiB")
    return os.EX_OK


def _data(of_run: Mapping | None, folder: str = "") -> ConfigDict:
    """The section `data`, without `size`: of a folder, or the one that a run was trained on."""
    section = config_lib.build(_keys()).unlock()
    if folder or of_run is None:
        section.update(kind=source_lib.kind_at(folder), dir=folder)
    else:
        section.update({name: of_run[name] for name in section if name in of_run})
    del section["size"]  # that is --size here
    return section.lock()


def _keys() -> dict:
    """Those of the section `data` that say which images are read."""
    return source_lib.defaults() | {"max_unreadable": loader.defaults()["max_unreadable"]}


class _Progress:
    """A line every few seconds; skipped: how many images could not be read."""

    def __init__(self):
        self._shown, self._began, self._from = -_EVERY, time.monotonic(), None
        self.skipped = 0

    def __call__(self, done: int, count: int, skipped: int) -> None:
        self.skipped += skipped
        now = time.monotonic()
        if self._from is None:
            self._from, self._began = done, now  # the first part holds the compilation
        if now - self._shown < _EVERY and done < count:
            return
        rate = (done - self._from) / max(now - self._began, 1e-9)
        speed = f", {progress.speed(rate)} images/s" if done > self._from else ""
        print(f"{done} of {count} images{speed}", flush=True)
        self._shown = now
