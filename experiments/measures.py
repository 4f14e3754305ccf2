"""What claims are measured in: scores and meters that a run has written, and probes of its network
that are computed here, on pictures that it was not trained on, and kept in its record.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax

import ssl_jax
from ssl_jax import evals, methods
from ssl_jax.data.source import make_source
from ssl_jax.features import latents as latents_lib
from ssl_jax.features.extract import extract
from ssl_jax.features.network import adopt
from ssl_jax.features.windows import images_of
from ssl_jax.models import tokenizer
from ssl_jax.scores import clusters, rebuild, segmentation, stability
from ssl_jax.train import state

SCORES = ("knn", "linear", "dense", "psnr")
_PICTURES = 300  # that a probe looks at
_CROP = (0.36, 1.0)  # STELLAR's large crops, share of the area
_DECODER = dict(images=2048, batch=64, epochs=19, lr=1e-3)


class Measure(NamedTuple):
    """heading: with the unit. of(record, folder, network) -> number, NaN where there is none;
    record: of the run, see experiments/store.py."""

    heading: str
    of: Callable


def score(record: dict, folder: Path, network: str, name: str) -> float:
    """Of results.json."""
    return record.get(network, {}).get(name, float("nan"))


def information(record: dict, folder: Path, network: str) -> float:
    """How much a target says about its image at the end, in nats: the entropy of the mean target of
    a batch minus the mean entropy of a target. 0 = all targets are alike, or uniform."""
    return record["end"]["cls_marginal_entropy"] - record["end"]["cls_teacher_entropy"]


def bootstrapping(record: dict, folder: Path, network: str) -> float:
    """Share of CrIBo's objects whose neighbour leads back to them, at the end."""
    return 100 * record["end"]["bootstrapping_ratio"]


def probe(record: dict, folder: Path, network: str, function: Callable, name: str) -> float:
    """The number of that name among those of a probe, function(encoder) -> {name: number}, of the
    trained or the untrained network; kept in the record."""
    known = record.setdefault("probes", {}).setdefault(network, {})
    if name not in known:
        encoder = ssl_jax.load(folder)
        if network == "untrained":
            seed = encoder.config.seed
            weights = state.initial_weights(
                methods.make(encoder.config), seed, encoder.config.model
            )
            encoder = encoder.with_params(weights)
        known.update(function(encoder))
    return known[name]


def pictures(config, split: str = "test", *, beyond: int = 0):
    """Objects in scenes, of the evaluation `dense`, at the network's size and `beyond` pixels
    larger."""
    data = config.evals.dense.data.to_dict() | {"size": config.model.image_size + beyond}
    return make_source(data, split=split)


def scenes(config):
    """The same at the size of that evaluation, at which networks of different sizes compare."""
    return make_source(config.evals.dense.data, split="test")


def on_record(name: str, record: dict, network: str) -> bool:
    """Whether a measure of that name needs no more computing."""
    return name not in PROBES or name in record.get("probes", {}).get(network, {})


# --- STELLAR: what and where


def shifts(encoder) -> dict[str, float]:
    """The same pictures moved by a quarter of their side, up, then to the left, in whole patches.

    what: see `stability.invariance`. where: correlation of the localization maps of matched tokens
    where the picture went, minus that at the same place of the grid. Both in percent.
    """
    config = encoder.config
    side, patch = config.model.image_size, config.model.patch
    step = max(1, side // patch // 4)
    large = images_of(pictures(config, beyond=step * patch), range(_PICTURES))
    before = _extras(encoder, large[:, :side, :side])
    what, where = [], []
    for axis in (1, 2):
        window = range(step * patch, step * patch + side)
        after = _extras(encoder, large.take(window, axis)[:, :side, :side])
        what.append(stability.invariance(before["tokens"], after["tokens"]))
        index = stability.matching(before["tokens"], after["tokens"])
        first = before["localization"]
        last = stability.matched(index, after["localization"], axis=3)
        cells = first.shape[axis]
        start = range(cells - step)  # where cells from `step` on have gone
        from_there, in_place = (
            stability.correlation(first.take(place, axis), last.take(start, axis))
            for place in (range(step, cells), start)
        )
        where.append(from_there - in_place)
    return {"what": 100 * float(np.mean(what)), "where": 100 * float(np.mean(where))}


def crops(encoder) -> dict[str, float]:
    """Two random crops of each picture: how alike their tokens are, in percent of `invariance`."""
    size = encoder.config.model.image_size
    large = images_of(pictures(encoder.config, beyond=size), range(_PICTURES))
    rng, crop = (
        np.random.Generator(np.random.Philox(key=encoder.config.seed)),
        stability.random_crop,
    )
    first, second = (
        _extras(encoder, np.stack([crop(rng, image, (size, size), _CROP) for image in large]))[
            "tokens"
        ]
        for _ in range(2)
    )
    return {"crops": 100 * stability.invariance(first, second)}


def _extras(encoder, images) -> dict[str, np.ndarray]:
    extras = encoder(images, extras=True).extras
    wanted = ("tokens", "localization")
    return {name: np.asarray(extras[name]) for name in wanted if name in extras}


# --- STELLAR: sparse and dense


def decoders(encoder) -> dict[str, float]:
    """PSNR of new decoders on frozen tokens, as STELLAR's table 3 compares them: psnr_dense on the
    dense map, and dense_gain, over one on the low-rank map L S. Same shape, training, pictures."""
    sparse, whole = (new_decoder(encoder, kind) for kind in ("sparse", "dense"))
    return {"psnr_dense": whole, "dense_gain": whole - sparse}


def new_decoder(encoder, kind: str) -> float:
    """PSNR in dB on unseen pictures of a decoder trained from scratch on frozen tokens, of the
    shape of the network's own."""
    c, m = encoder.config.stellar, encoder.config.model
    goal, grid = tokenizer.target("pixel", m.patch), (m.image_size // m.patch,) * 2
    (train, shown), (test, images) = (
        _latents(encoder, pictures(encoder.config, split), count, kind)
        for split, count in (("train", _DECODER["images"]), ("test", _PICTURES))
    )
    rng = np.random.Generator(np.random.Philox(key=encoder.config.seed))

    def batches():
        for _ in range(_DECODER["epochs"]):
            for rows in rng.permutation(len(train)).reshape(-1, _DECODER["batch"]):
                yield train[rows], shown[rows]

    steps = len(train) // _DECODER["batch"]
    trained = rebuild.fit_decoder(
        batches(),
        goal,
        grid=grid,
        dim=m.width,
        key=jax.random.key(encoder.config.seed),
        width=c.decoder_width,
        depth=c.decoder_depth,
        heads=c.decoder_heads,
        epochs=_DECODER["epochs"],
        steps=steps,
        lr=optax.cosine_decay_schedule(_DECODER["lr"], _DECODER["epochs"] * steps),
    )
    return float(
        np.mean(rebuild.psnr(images, goal.show(trained.apply(trained.params, test), grid)))
    )


def _latents(encoder, source, count: int, kind: str):
    """What a decoder gets of pictures, [N, n, d], and the pictures."""
    parts = []
    for start in range(0, count, 256):
        images = images_of(source, range(start, min(start + 256, count)))
        cells = np.asarray(latents_lib.latents(adopt(encoder), images, kind))
        parts.append((cells.reshape(len(images), -1, cells.shape[-1]), images))
    latents, images = (np.concatenate(x) for x in zip(*parts, strict=True))
    return latents, images


# --- FLSL


def modes(encoder) -> dict[str, float]:
    """purity: `clusters.modes` of the last block's tokens; purity_gain: over those of the first."""

    class First(NamedTuple):
        patches: jax.Array

    def first(images):
        seen = encoder(images, layers=(0,))
        return First(seen.layers[0].patches.reshape(seen.patches.shape))

    last, early = (_purity_of(function, encoder.config) for function in (encoder, first))
    return {"purity": last, "purity_gain": last - early}


def _purity_of(function, config) -> float:
    found = extract(
        function,
        scenes(config),
        batch_size=config.evals.batch_size,
        indices=range(_PICTURES),
        image=False,
        patches=True,
    )
    classes = len(make_source(config.evals.dense.data).mask_names)
    labels = segmentation.patch_labels(found.masks, found.patches.shape[1:3], num_classes=classes)
    tokens = found.patches.reshape(len(labels), -1, found.patches.shape[-1])
    return 100 * clusters.modes(tokens, labels.reshape(len(labels), -1))


# {name: (heading, probe)}
PROBES = {
    "what": ("tokens kept, %", shifts),
    "where": ("maps that move, %", shifts),
    "crops": ("tokens kept, %", crops),
    "psnr_dense": ("PSNR from the dense map", decoders),
    "dense_gain": ("PSNR from the dense map, more", decoders),
    "purity": ("purity of modes, %", modes),
    "purity_gain": ("purity, more than after block 1, %", modes),
}
MEASURES = {
    **{
        name: Measure(evals.TYPES[name].heading, functools.partial(score, name=name))
        for name in SCORES
    },
    "information": Measure("information of a target, nats", information),
    "bootstrapping": Measure("neighbours that lead back, %", bootstrapping),
    **{
        name: Measure(heading, functools.partial(probe, function=function, name=name))
        for name, (heading, function) in PROBES.items()
    },
}
COST = "cost"  # of a step, in percent of the last variant's; measured apart from training
