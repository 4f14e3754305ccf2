"""What a core does for an image: decoding, and the views of a method. "cores" is how many make 1000
images a second; seconds are the processor's, which other work on the machine does not change.
"""

import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from skimage import data as photographs

from benchmarks import measure, report
from ssl_jax import api
from ssl_jax import config as config_lib
from ssl_jax.data import decode
from ssl_jax.train import loop

# Height and width of files: the usual one of ImageNet, and a camera's.
SIZES = ((375, 500), (1536, 2048))
CONFIGS = ("mae:vitb16", "dino:vits16", "stellar:vitb16")
_NEEDED = 1000  # images a second
_FILES, _BATCHES = 16, 4


COLUMNS = {
    "case": ("case", ""),
    "form": ("form", ""),
    "images/s of a core": ("rate", ",.0f"),
    "x": ("x", ".2f"),
    "cores for 1000 images/s": ("cores", ".1f"),
}


def main(argv=None) -> int:
    chosen = report.options(__doc__, argv)
    configs, sizes = (CONFIGS, SIZES) if not chosen.small else (("quickstart",), ((48, 64),))
    rows = times(chosen.rounds, configs=configs, sizes=sizes)
    report.publish("loader", chosen, rows, report.cells(rows, COLUMNS))
    return 0


def times(rounds: int, *, configs=CONFIGS, sizes=SIZES, batch: int = 16) -> list[dict]:
    """A row per form of each case, keys as in COLUMNS."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            files = _files(Path(folder) / "x".join(map(str, size)), size)
            rows += _rows(f"JPEG of {size[0]} x {size[1]}", decoding(files), rounds, len(files))
        first = Path(folder) / "x".join(map(str, sizes[0]))
        for name in configs:
            ways = (dict(crop_on="host"), dict(area_crops=True), dict(crop_on="device"))
            calls = {_spelt(way): _views(name, first, batch, **way) for way in ways}
            rows += _rows(f"views of {name}", calls, rounds, _BATCHES * batch)
    return rows


def _files(folder: Path, size) -> list[Path]:
    """Photographs that come with scikit-image, as JPEG files of one size."""
    folder.mkdir()
    images = [photographs.astronaut(), photographs.chelsea(), photographs.coffee()]
    for i in range(_FILES):
        image = Image.fromarray(images[i % len(images)]).rotate(90 * (i % 4), expand=True)
        image.resize(size[::-1], Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", quality=90)
    return sorted(folder.iterdir())


def decoding(files: list[Path]) -> dict:
    """{form: decodes all files, from memory}."""
    encoded = [file.read_bytes() for file in files]

    def ours(short_side):
        return lambda: [decode.decode_image(data, short_side=short_side) for data in encoded]

    def opencv():
        return [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in encoded]

    return {"ours": ours(0), "ours, data.decode_size=256": ours(256), "OpenCV": opencv}


def _spelt(way: dict) -> str:
    return ", ".join(f"{name}={value}" for name, value in way.items())


def _views(name: str, folder: Path, batch: int, **way):
    """Makes some batches of a config's views of the files, in this process."""
    config = config_lib.load(name)
    size = 256 if way.get("crop_on") == "device" else 0
    way = dict(crop_on="host") | way
    config.data.update(dict(kind="folder", dir=str(folder), workers=0, size=size, **way))
    config.evals.tasks, config.optim.batch_size = (), batch
    if config.method == "stellar":
        config.stellar.target = "pixel"  # codes need a tokenizer's file
    config.optim.steps = _BATCHES  # so that no more are made ahead
    run = api.prepare(config)

    def call():
        batches = loop.open_loader(run)
        for _ in range(_BATCHES):
            next(batches)
        batches.close()

    return call


def _rows(case: str, calls: dict, rounds: int, images: int) -> list[dict]:
    rows = measure.compared(case, measure.medians(calls, rounds, skip=1, now=time.process_time))
    each = [row["seconds"] / images for row in rows]
    return [row | dict(rate=1 / s, cores=_NEEDED * s) for row, s in zip(rows, each)]
