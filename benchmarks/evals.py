"""What evaluations do: extraction of features beside the network's bare forward pass, and the
searches for neighbours beside faiss's exact index.

    python -m benchmarks evals --camvid /data/tfds    among CamVid's patches, else random vectors

"x" is relative to the first form of each case; "same" is the share of our neighbours that faiss
found too.
"""

import importlib.util

import jax
import numpy as np
from ml_collections import FrozenConfigDict

from benchmarks import libraries, measure, report
from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.data.source import make_source
from ssl_jax.features import extract, store, windows
from ssl_jax.methods.encoder import Encoder, bound
from ssl_jax.scores import neighbours, segmentation
from ssl_jax.train import state

WIDTH = 384
KNN = (10_000, 50_000)  # queries and bank of CIFAR-10
# Queries and bank of CamVid: the patches of its test images among those of its validation images,
# 15 x 20 of 16 pixels in each.
DENSE = (233 * 300, 101 * 300)
NETWORKS = ("dino:vits16", "quickstart")
_CAMVID_SPLITS = ("test", "validation")
_BATCH, _IMAGES = 64, 4  # images of a batch, batches of an extraction


COLUMNS = {
    "case": ("case", ""),
    "form": ("form", ""),
    "ms": ("ms", ".0f"),
    "x": ("x", ".2f"),
    "same": ("same", ".6f"),
}


def main(argv=None) -> int:
    camvid = dict(default="", help="folder of CamVid in TFDS's form")
    chosen = report.options(__doc__, argv, peers=True, camvid=camvid)
    peers = libraries.setup("faiss", installed=chosen.as_installed)
    rows = times(chosen.rounds, chosen.seed, small=chosen.small, camvid=chosen.camvid)
    report.publish("evals", chosen, rows, report.cells(rows, COLUMNS), peers)
    return 0


def times(rounds: int, seed: int, *, small: bool = False, camvid: str = "") -> list[dict]:
    """A row per form of each case, medians over interleaved rounds; in the searches the first form
    is ours, in extraction the bare forward pass.

    small: sizes for a moment. camvid: folder of CamVid in TFDS's form, whose patches are searched;
    "" = random vectors in their place.

    Keys of a row: case, form, ms (of all queries or images), x (relative to the first form), same
    (share of the neighbours that the first form has too; None for extraction).
    """
    rng = np.random.default_rng(seed)
    scale = 100 if small else 1
    queries, bank = (rng.standard_normal((n // scale, WIDTH), np.float32) for n in KNN)
    rows = search("k-NN", queries, bank, max(neighbours.KS), rounds, classified)
    if camvid:
        count = 2 if small else 0
        queries, bank = (patches(camvid, split, seed, count) for split in _CAMVID_SPLITS)
    else:
        queries, bank = (rng.standard_normal((n // scale, WIDTH), np.float32) for n in DENSE)
    ours, k = neighbours.nearest_streamed, segmentation.NEIGHBOURS
    rows += search("dense retrieval", queries, bank, k, rounds, ours)
    for name in NETWORKS[small:]:
        rows += extraction(name, rounds, seed, 8 if small else _BATCH)
    return rows


def classified(queries, bank, k):
    """k-NN with its vote: (similarity, index)."""
    found = neighbours.classify(bank, np.zeros(len(bank), int), queries, num_classes=2, ks=(k,))
    return found.similarity, found.index


def search(name: str, queries, bank, k: int, rounds: int, ours) -> list[dict]:
    """Rows of our search and of faiss's, if it is installed. Building its index is not timed."""
    k = min(k, len(bank))
    calls = {"ssl_jax": lambda: ours(queries, bank, k=k)}
    if importlib.util.find_spec("faiss"):
        calls["faiss flat"] = libraries.faiss_flat(queries, bank, k)
    index = {form: call()[1] for form, call in calls.items()}  # also warms up
    case = f"{name}: {len(queries)} in {len(bank)} x {bank.shape[1]}, k {k}"
    same = {form: measure.overlap(index["ssl_jax"], found) for form, found in index.items()}
    return _rows(case, measure.medians(calls, rounds), same)


def extraction(name: str, rounds: int, seed: int, batch: int) -> list[dict]:
    """Rows of an untrained network's bare forward pass over batches that are in memory, its
    features brought back to the host, and of `extract.extract` of the same images, which reads,
    cuts and stores too."""
    network, config = untrained(name, seed)
    size = config.model.image_size
    section = settings.base_config("dino").data  # any method's: the section is the same
    section.update(dict(kind="photos", size=size, length=batch * _IMAGES))
    source = make_source(section, split="test")
    images = windows.images_of(source, range(batch * _IMAGES)).reshape(-1, batch, size, size, 3)

    def bare():
        pending = None
        for part in images:  # the device works on one batch while the last one is copied
            found = network(part).image
            if pending is not None:
                np.asarray(pending)
            pending = found
        np.asarray(pending)

    calls = {
        "forward pass": bare,
        "features.extract": lambda: extract.extract(network, source, batch_size=batch),
    }
    for call in calls.values():
        call()
    case = f"extraction: {name}, {batch * _IMAGES} images of {size} px"
    return _rows(case, measure.medians(calls, rounds), {})


def untrained(name: str, seed: int) -> tuple[Encoder, FrozenConfigDict]:
    """The untrained network of a config, in float32, and the config."""
    config = config_lib.load(name)
    config.model.dtype = "float32"
    frozen = settings.resolve(config, num_records=1024, num_devices=jax.device_count())
    return Encoder(frozen, state.initial_weights(bound(frozen), seed, frozen.model)), frozen


def patches(folder: str, split: str, seed: int, count: int = 0) -> np.ndarray:
    """[n, d] patch features of CamVid's images at 240 x 320; count: of images, 0 = all."""
    network, config = untrained("dino:vits16", seed)
    section = settings.base_config("dino").data
    section.update(dict(kind="tfds", name="camvid", dir=folder, split=split, size=0))
    source = make_source(section, split=split)
    found = extract.extract(
        network,
        source,
        indices=range(count or len(source)),
        batch_size=16,
        image=False,
        patches=True,
        multiple=config.model.patch,
    )
    return store.Grids.of(found.patches).rows


def _rows(case: str, seconds: dict, same: dict) -> list[dict]:
    rows = measure.compared(case, seconds)
    return [row | dict(ms=1e3 * row["seconds"], same=same.get(row["form"])) for row in rows]
