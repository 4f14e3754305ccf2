"""What networks are measured in: scores and meters that a run has written, and probes of a network
on pictures that it was not trained on, which are computed here and kept in its record.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import ssl_jax
from ssl_jax import evals, methods
from ssl_jax.data.source import make_source
from ssl_jax.features.extract import extract
from ssl_jax.features.windows import images_of
from ssl_jax.scores import clusters, segmentation, stability
from ssl_jax.train import state

SCORES = ("knn", "linear", "dense", "psnr")
COST = "cost"  # of a step, in percent of the last variant's: python -m benchmarks costs
_PICTURES = 300  # that a probe looks at
_DECODED = 2048  # that a new decoder is trained on
_CROP = (0.36, 1.0)  # STELLAR's large crops, share of the area


def number(name: str, record: dict, folder: Path, network: str) -> float:
    """One measure of the "trained" or "untrained" network of a run, NaN where it has none; probes
    are added to its record. Raises InputError or KeyError where it cannot be computed."""
    if name in SCORES:
        return record.get(network, {}).get(name, float("nan"))
    if name == "information":
        # The entropy of the mean target of a batch minus the mean entropy of a target. 0 = all
        # targets are alike, or uniform.
        return record["end"]["cls_marginal_entropy"] - record["end"]["cls_teacher_entropy"]
    if name == "bootstrapping":
        return 100 * record["end"]["bootstrapping_ratio"]
    known = record.setdefault("probes", {}).setdefault(network, {})
    if name not in known:
        encoder = ssl_jax.load(folder)
        if network == "untrained":
            method, config = methods.make(encoder.config), encoder.config
            encoder = encoder.with_params(state.initial_weights(method, config.seed, config.model))
        known.update(_PROBES[name](encoder))
    return known[name]


def on_record(name: str, record: dict, network: str) -> bool:
    """Whether a measure of that name needs no more computing."""
    return name not in _PROBES or name in record.get("probes", {}).get(network, {})


def _pictures(config, split: str = "test", *, beyond: int = 0):
    """Objects in scenes, of the evaluation `dense`, at the network's size and `beyond` pixels
    larger."""
    data = config.evals.dense.data.to_dict() | {"size": config.model.image_size + beyond}
    return make_source(data, split=split)


def _shifts(encoder) -> dict[str, float]:
    """The same pictures moved by a quarter of their side, up, then to the left, in whole patches.

    what: see `stability.invariance`. where: correlation of the localization maps of matched tokens
    where the picture went, minus that at the same place of the grid. Both in percent.
    """
    config = encoder.config
    side, patch = config.model.image_size, config.model.patch
    step = max(1, side // patch // 4)
    large = images_of(_pictures(config, beyond=step * patch), range(_PICTURES))
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


def _crops(encoder) -> dict[str, float]:
    """Two random crops of each picture: how alike their tokens are, in percent of `invariance`."""
    size = encoder.config.model.image_size
    large = images_of(_pictures(encoder.config, beyond=size), range(_PICTURES))
    rng = np.random.Generator(np.random.Philox(key=encoder.config.seed))

    def tokens():
        crops = [stability.random_crop(rng, image, (size, size), _CROP) for image in large]
        return _extras(encoder, np.stack(crops))["tokens"]

    return {"crops": 100 * stability.invariance(tokens(), tokens())}


def _extras(encoder, images) -> dict[str, np.ndarray]:
    extras = encoder(images, extras=True).extras
    return {name: np.asarray(x) for name, x in extras.items() if name in ("tokens", "localization")}


def evaluated(encoder, section) -> dict[str, float]:
    """Scores of a network, also of published weights, by one evaluation, a section of
    `evals.new`."""
    data, seed = section.data, encoder.config.get("seed", 0)
    train, test = (make_source(data, split=split) for split in (data.split, data.test_split))
    case = evals.Case(encoder, section, train, test, seed=seed, patch=encoder.shape.patch)
    return evals.TYPES[section.type].run(case)


def _decoded(encoder, source: dict, **changes) -> dict[str, float]:
    """The evaluation `decode`: a new decoder of compare:stellar's shape on frozen features."""
    return evaluated(
        encoder, evals.new("decode", width=64, depth=2, heads=4, data=source, **changes)
    )


def _decode(encoder) -> dict[str, float]:
    """On photographs of the network's size; from the low-rank map of sparse tokens, or from every
    patch token. SSIM in percent."""
    photographs = dict(kind="photos", size=encoder.config.views.global_size)
    scores = _decoded(encoder, photographs, train_examples=_DECODED, test_examples=500)
    return {"decode": scores["decode"], "decode_ssim": 100 * scores["decode_ssim"]}


def _decoders(encoder) -> dict[str, float]:
    """On scenes, as STELLAR's table 3 compares them. psnr_dense: from the dense map, in dB.
    dense_gain: over one from the low-rank map L S."""
    config = encoder.config
    scenes = config.evals.dense.data.to_dict() | {"size": config.model.image_size}
    counts = dict(train_examples=_DECODED, test_examples=_PICTURES)
    sparse, dense = (
        _decoded(encoder, scenes, tokens=kind, **counts)["decode"] for kind in ("sparse", "dense")
    )
    return {"psnr_dense": dense, "dense_gain": dense - sparse}


def _modes(encoder) -> dict[str, float]:
    """purity: `clusters.modes` of the last block's tokens; purity_gain: over those of the first."""

    class First(NamedTuple):
        patches: jax.Array

    def first(images):
        seen = encoder(images, layers=(0,))
        return First(seen.layers[0].patches.reshape(seen.patches.shape))

    last, early = (_purity_of(function, encoder.config) for function in (encoder, first))
    return {"purity": last, "purity_gain": last - early}


def _purity_of(function, config) -> float:
    """On scenes at the size of the evaluation `dense`, at which networks of all sizes compare."""
    scenes = make_source(config.evals.dense.data, split="test")
    size = dict(batch_size=config.evals.batch_size, indices=range(_PICTURES))
    found = extract(function, scenes, image=False, patches=True, **size)
    classes = len(make_source(config.evals.dense.data).mask_names or ())
    labels = segmentation.patch_labels(found.masks, found.patches.shape[1:3], num_classes=classes)
    tokens = found.patches.reshape(len(labels), -1, found.patches.shape[-1])
    return 100 * clusters.modes(tokens, labels.reshape(len(labels), -1))


_PROBES = dict(what=_shifts, where=_shifts, crops=_crops, purity=_modes, purity_gain=_modes)
_PROBES |= dict(psnr_dense=_decoders, dense_gain=_decoders, decode=_decode, decode_ssim=_decode)
HEADINGS = {name: evals.TYPES[name].heading for name in SCORES} | {
    "information": "information of a target, nats",
    "bootstrapping": "neighbours that lead back, %",
    "what": "tokens kept, %",
    "where": "maps that move, %",
    "crops": "tokens kept, %",
    "psnr_dense": "PSNR from the dense map",
    "dense_gain": "PSNR gain of the dense map",
    "purity": "purity of modes, %",
    "purity_gain": "purity gain over block 1, %",
    COST: "cost of a step, %",
}
