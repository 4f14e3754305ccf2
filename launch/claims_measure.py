"""What claims are measured in: scores and meters that a run has written, and probes of its network
that are computed here, on pictures that it was not trained on, and kept in FOLDER/probes.json.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ssl_jax
from ssl_jax import evals, methods, ops
from ssl_jax.data.source import make_source
from ssl_jax.evals import dense, psnr
from ssl_jax.evals.features import extract, images_of
from ssl_jax.models import decoder, factorise, tokenizer
from ssl_jax.train import state

SCORES = ("knn", "linear", "dense", "psnr")
_PICTURES = 300  # that a probe looks at
_CROP = (0.36, 1.0)  # STELLAR's large crops, share of the area
_SHARPNESS = 0.1 * 384**0.5  # FLSL's self-attention: tau x D, on cosines
_DECODER = dict(images=2048, batch=64, steps=600, lr=1e-3)


class Measure(NamedTuple):
    """heading: with the unit. of(run, folder, network) -> number, NaN where there is none."""

    heading: str
    of: Callable


def score(run: dict, folder: Path, network: str, name: str) -> float:
    """Of results.json."""
    return run.get(network, {}).get(name, float("nan"))


def information(run: dict, folder: Path, network: str) -> float:
    """How much a target says about its image at the end, in nats: the entropy of the mean target of
    a batch minus the mean entropy of a target. 0 = all targets are alike, or uniform."""
    return run["end"]["cls_marginal_entropy"] - run["end"]["cls_teacher_entropy"]


def bootstrapping(run: dict, folder: Path, network: str) -> float:
    """Share of CrIBo's objects whose neighbour leads back to them, at the end."""
    return 100 * run["end"]["bootstrapping_ratio"]


def probe(run: dict, folder: Path, network: str, function: Callable, name: str) -> float:
    """The number of that name among those of a probe, function(encoder) -> {name: number}, of the
    trained or the untrained network."""
    path = folder / "probes.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if name not in known.get(network, {}):
        encoder = ssl_jax.load(folder)
        if network == "untrained":
            seed = encoder.config.seed
            weights = state.initial_weights(methods.make(encoder.config), seed)
            encoder = encoder.with_params(weights)
        known[network] = known.get(network, {}) | function(encoder)
        path.write_text(json.dumps(known, indent=2) + "\n")
    return known[network][name]


def pictures(config, split: str = "test", *, beyond: int = 0):
    """Objects in scenes, of the evaluation `dense`, at the network's size and `beyond` pixels
    larger."""
    data = config.evals.dense.data.to_dict() | {"size": config.model.image_size + beyond}
    return make_source(data, split=split)


# --- STELLAR: what and where


def shifts(encoder) -> dict[str, float]:
    """The same pictures moved by a quarter of their side, up, then to the left, in whole patches.

    what: see `kept`. where: correlation of the localization maps of matched tokens where the
    picture went, minus that at the same place of the grid. Both in percent.
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
        what.append(kept(before["tokens"], after["tokens"]))
        match = _match(before["tokens"], after["tokens"])
        first, last = before["localization"], match(after["localization"], axis=-1)
        cells = first.shape[axis]
        start = range(cells - step)  # where cells from `step` on have gone
        from_there, in_place = (
            correlation(first.take(place, axis), last.take(start, axis))
            for place in (range(step, cells), start)
        )
        where.append(from_there - in_place)
    return {"what": 100 * float(np.mean(what)), "where": 100 * float(np.mean(where))}


def crops(encoder) -> dict[str, float]:
    """Two random crops of each picture: how alike their tokens are, see `kept`, in percent."""
    size = encoder.config.model.image_size
    large = images_of(pictures(encoder.config, beyond=size), range(_PICTURES))
    rng = np.random.Generator(np.random.Philox(key=encoder.config.seed))
    first, second = (
        _extras(encoder, np.stack([_crop(rng, image, size) for image in large]))["tokens"]
        for _ in range(2)
    )
    return {"crops": 100 * kept(first, second)}


def kept(first, second) -> float:
    """How much closer tokens [N, r, d] are to those of the other view of their picture than to
    those of the picture before it, by the cosine of matched tokens: 1 = the same, 0 = no closer."""

    def cosine(others):
        pairs = first, _match(first, others)(others)
        one, other = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in pairs)
        return float((one * other).sum(axis=-1).mean())

    foreign = cosine(np.roll(second, 1, axis=0))
    return (cosine(second) - foreign) / max(1 - foreign, 1e-6)


def correlation(first, second) -> float:
    """Of maps [N, h, w, r]: the mean over pictures of the correlation over cells; maps that vary
    more weigh more."""
    first, second = (x - x.mean(axis=(1, 2), keepdims=True) for x in (first, second))
    norms = np.sqrt(np.square(first).sum((1, 2, 3)) * np.square(second).sum((1, 2, 3)))
    return float(np.mean((first * second).sum((1, 2, 3)) / np.maximum(norms, 1e-12)))


def _match(first, second) -> Callable:
    """A function that brings the tokens of the second sets [N, r, ...] into the order of the
    first."""
    index = np.asarray(ops.align_sets(first, second, solver="hungarian").index)

    def take(array, axis=1):
        shape = [len(index)] + [1] * (array.ndim - 1)
        shape[axis] = index.shape[1]
        return np.take_along_axis(array, index.reshape(shape), axis=axis)

    return take


def _extras(encoder, images) -> dict[str, np.ndarray]:
    extras = encoder(images, extras=True).extras
    wanted = ("tokens", "localization")
    return {name: np.asarray(extras[name]) for name in wanted if name in extras}


def _crop(rng, image, size: int):
    """A random square of an image, resized."""
    full = image.shape[0]
    side = round(full * np.sqrt(rng.uniform(*_CROP)))
    y, x = rng.integers(0, full - side + 1, 2)
    return cv2.resize(image[y : y + side, x : x + side], (size, size))


# --- STELLAR: sparse and dense


def decoders(encoder) -> dict[str, float]:
    """PSNR of new decoders on frozen tokens, as STELLAR's table 3 compares them: psnr_dense on the
    dense map, and dense_gain, over one on the low-rank map L S. Same shape, training, pictures."""
    sparse, whole = (new_decoder(encoder, kind) for kind in ("sparse", "dense"))
    return {"psnr_dense": whole, "dense_gain": whole - sparse}


def new_decoder(encoder, kind: str) -> float:
    """PSNR in dB on unseen pictures of a decoder trained from scratch on frozen tokens."""
    c, m = encoder.config.stellar, encoder.config.model
    goal, grid = tokenizer.target("pixel", m.patch), (m.image_size // m.patch,) * 2
    model = decoder.decoder(
        m.width,
        goal.width,
        width=c.decoder_width,
        depth=c.decoder_depth,
        heads=c.decoder_heads,
        init_std=m.init_std,
    )
    codes = factorise.fourier_codes(encoder.constants["fourier"], grid)

    def loss(params, tokens, images):
        wanted = goal.encode({}, images)
        return jnp.mean(jnp.square(model.apply(params, tokens, codes) - wanted))

    optimizer = optax.adamw(optax.cosine_decay_schedule(_DECODER["lr"], _DECODER["steps"]))

    @jax.jit
    def step(params, moments, tokens, images):
        gradient = jax.grad(loss)(params, tokens, images)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments

    train, test = (
        _latents(encoder, pictures(encoder.config, split), count, kind)
        for split, count in (("train", _DECODER["images"]), ("test", _PICTURES))
    )
    params = model.init(jax.random.key(encoder.config.seed))
    moments = optimizer.init(params)
    rng = np.random.Generator(np.random.Philox(key=encoder.config.seed))
    for _ in range(_DECODER["steps"]):
        rows = rng.choice(_DECODER["images"], _DECODER["batch"])
        params, moments = step(params, moments, *(x[rows] for x in train))
    tokens, images = test
    rebuilt = goal.show(jax.jit(model.apply)(params, tokens, codes), grid)
    return float(np.mean(psnr.psnr(images, rebuilt)))


def _latents(encoder, source, count: int, kind: str):
    """What a decoder gets of pictures, [N, n, d], and the pictures."""
    parts = []
    for start in range(0, count, 256):
        images = images_of(source, range(start, min(start + 256, count)))
        seen = encoder(images, extras=kind == "sparse")
        shape = (len(images), -1, encoder.config.model.width)
        if kind == "dense":
            latent = seen.patches.reshape(shape)
        else:
            maps = seen.extras["localization"]
            maps = maps.reshape(len(images), -1, maps.shape[-1])
            latent = factorise.recompose(maps, seen.extras["tokens"])
        parts.append((np.asarray(latent), images))
    latents, images = (np.concatenate(x) for x in zip(*parts, strict=True))
    return latents, images


# --- FLSL


def modes(encoder) -> dict[str, float]:
    """purity: see `purity`, of the last block's tokens; purity_gain: over those of the first."""

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
        pictures(config),
        batch_size=config.evals.batch_size,
        indices=range(_PICTURES),
        image=False,
        patches=True,
    )
    classes = len(make_source(config.evals.dense.data).mask_names)
    labels = dense.patch_labels(found.masks, found.patches.shape[1:3], num_classes=classes)
    tokens = found.patches.reshape(len(labels), -1, found.patches.shape[-1])
    return 100 * purity(tokens, labels.reshape(len(labels), -1))


def purity(tokens, labels) -> float:
    """How far a token's mode comes from its own region: of the weights softmax_j(s cos(z_i, z_j)),
    j != i, of the mean shift (FLSL eq. 4, 8), the share on patches of the same label, minus the
    share that equal weights would have there, over 1 minus that share. 0 = the mode is the mean of
    the view, 1 = that of the region.

    tokens: [N, n, d]. labels: [N, n].
    """
    unit = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    weights = np.exp(_SHARPNESS * np.einsum("bid,bjd->bij", unit, unit))
    others = ~np.eye(labels.shape[1], dtype=bool)
    same = (labels[:, :, None] == labels[:, None]) & others
    share = (weights * same).sum(-1) / (weights * others).sum(-1)
    chance = same.sum(-1) / others.sum(-1)
    mixed = chance < 1  # a view that is one region says nothing
    return float(np.mean((share[mixed] - chance[mixed]) / (1 - chance[mixed])))


def _probe(heading: str, function: Callable, name: str) -> Measure:
    return Measure(heading, functools.partial(probe, function=function, name=name))


MEASURES = {
    **{
        name: Measure(evals.TYPES[name].heading, functools.partial(score, name=name))
        for name in SCORES
    },
    "information": Measure("information of a target, nats", information),
    "bootstrapping": Measure("neighbours that lead back, %", bootstrapping),
    "what": _probe("tokens kept, %", shifts, "what"),
    "where": _probe("maps that move, %", shifts, "where"),
    "crops": _probe("tokens kept, %", crops, "crops"),
    "psnr_dense": _probe("PSNR from the dense map", decoders, "psnr_dense"),
    "dense_gain": _probe("PSNR from the dense map, more", decoders, "dense_gain"),
    "purity": _probe("purity of modes, %", modes, "purity"),
    "purity_gain": _probe("purity, more than after block 1, %", modes, "purity_gain"),
}
COST = "cost"  # of a step, in percent of the last variant's; measured apart from training
