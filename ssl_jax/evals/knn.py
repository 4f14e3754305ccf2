"""Weighted k-nearest-neighbour classification on frozen features (Wu et al. 2018, as in DINO and
iBOT; SOP table 1).
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import field
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import confusion, neighbours
from ssl_jax.evals.pictures.base import Classes, Picture
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import tokens
from ssl_jax.scores import metrics
from ssl_jax.scores.streamed import nearest_streamed, padded

KS = (20, 10, 100, 200)
TEMPERATURE = 0.07
_IMAGENET = dict(kind="folder", split="train", test_split="val", size=256)
_PAPER = dict(data=_IMAGENET, crop=224, k=KS, temperature=TEMPERATURE)
PROTOCOLS = {
    "sop": Protocol("SOP and SOVE table 1; with data.list table B.2", _PAPER | dict(tokens="cls")),
    "stellar": Protocol("STELLAR tables 1 and 3", _PAPER | dict(tokens="sparse")),
    "stellar_dense": Protocol("STELLAR table 1, dense", _PAPER | dict(tokens="mean")),
    "cribo": Protocol("CrIBo table 5", _PAPER | dict(tokens="cls")),
}
_QUERIES, _SHOWN = 6, 8  # of the picture: test images, neighbours of each


def temperature_field() -> Any:
    """Declares the temperature of cosines. Below, float32 has no other weights than 1 and 0."""
    return field(TEMPERATURE, "votes weigh exp(cosine / temperature)", least=1e-6)


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    """The keys of this type of evaluation."""

    k: tuple[int, ...] = field(
        KS,
        "numbers of neighbours; each is reported, and the first is the score",
        "neighbours",
        above=0,
    )
    temperature: float = temperature_field()


class Neighbours(NamedTuple):
    """Predictions of every k, and what they were made from (nearest first)."""

    predictions: dict[int, np.ndarray]  # k -> [q] int32
    similarity: np.ndarray  # [q, max k] float32, cosine
    # [q, max k] int32, rows of the bank
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index


def classify(
    bank: ArrayLike,
    labels: ArrayLike,
    queries: ArrayLike,
    *,
    num_classes: int,
    ks: Collection[int] = KS,
    temperature: float = TEMPERATURE,
    chunk: int = 1024,
) -> Neighbours:
    """Predicts the class that wins the weighted vote of the k nearest bank rows, for several k.

    score(c) = sum over the k nearest rows i of exp(<q, b_i> / temperature) [label_i = c], q and b
    L2-normalised; over the nearest row's weight, so that none is infinite.

    Args:
      bank: [n, d], labels: [n] int in [0, num_classes), queries: [q, d]; computed in float32.
      ks: numbers of neighbours; each is limited to the size of the bank.
      temperature: > 0.
      chunk: queries per device call at most; memory grows with it, results do not depend on it.

    Returns:
      Neighbours. Equal scores go to the lowest class.

    Raises:
      ValueError: shapes do not fit or a label is out of range.
    """
    bank, labels, queries = np.asarray(bank), np.asarray(labels, np.int32), np.asarray(queries)
    if (
        bank.ndim != 2
        or queries.ndim != 2
        or bank.shape[1] != queries.shape[1]
        or labels.shape != bank.shape[:1]
    ):
        raise ValueError(
            f"bank {bank.shape}, labels {labels.shape} and queries {queries.shape} do not fit [n,"
            " d], [n], [q, d]"
        )
    if not len(bank) or labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"k-NN needs a bank that is not empty, with labels in [0, {num_classes})")
    ks = tuple(sorted({min(k, len(bank)) for k in ks}))
    similarity, index = nearest_streamed(
        queries, bank, k=ks[-1], query_chunk=chunk, bank_chunk=len(bank)
    )
    how: dict[str, Any] = dict(num_classes=num_classes, ks=ks, temperature=temperature)
    return Neighbours(winners(labels[index], similarity, chunk=chunk, **how), similarity, index)


def winners(
    labels: np.ndarray, similarity: np.ndarray, *, chunk: int, ks: Collection[int], **how: Any
) -> dict[int, np.ndarray]:
    """{k: [q] int32}, the winners of the votes of neighbours [q, n], nearest first, `chunk` queries
    at a time. how: num_classes and temperature of `classify`."""
    chunk = min(chunk, len(labels))
    parts = [
        np.asarray(_winners(*(padded(x, start, chunk) for x in (labels, similarity)), ks=ks, **how))
        for start in range(0, len(labels), chunk)
    ]
    return dict(zip(ks, np.concatenate(parts, axis=1)[:, : len(labels)]))


@functools.partial(jax.jit, static_argnames=("num_classes", "ks", "temperature"))
def _winners(labels, similarity, *, num_classes, ks, temperature):
    weights = jnp.exp((similarity - similarity[:, :1]) / temperature)  # over that of the nearest
    return vote(labels, weights, num_classes=num_classes, ks=ks)


def vote(
    labels: jax.Array, weights: jax.Array, *, num_classes: int, ks: Collection[int]
) -> jax.Array:
    """Winners after the first k weighted votes, for each k.

    Args:
      labels: [q, n] int, weights: [q, n] float32, nearest first. ks: ascending, each at most n.

    Returns:
      [len(ks), q] int32. Equal scores go to the lowest class. One vote per query is added at a
      time, so memory is [q, num_classes] and no two additions meet in one place: every run gives
      the same, on accelerators too.
    """
    rows = jnp.arange(labels.shape[0])

    def add(j, scores):
        return scores.at[rows, labels[:, j]].add(weights[:, j], unique_indices=True)

    scores, done, winners = jnp.zeros((labels.shape[0], num_classes), jnp.float32), 0, []
    for k in ks:
        scores = jax.lax.fori_loop(done, k, add, scores)
        done = k
        winners.append(jnp.argmax(scores, axis=1).astype(jnp.int32))
    return jnp.stack(winners)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Top-1 accuracy in percent: `knn`, with the first k; `knn_k10`, ... for each k; `knn_best`,
    the best of several on the test set, as papers report it.

    Raises InputError for a set without labels.
    """
    c = case.config
    train, test = case.labelled(c.tokens, c.layers)
    result = classify(
        train.image,
        train.labels,
        test.image,
        num_classes=1 + int(max(train.labels.max(), test.labels.max())),
        ks=tuple(c.k),
        temperature=c.temperature,
    )
    accuracy = {
        f"knn_k{k}": 100.0 * float((p == test.labels).mean()) for k, p in result.predictions.items()
    }
    first = accuracy[f"knn_k{min(c.k[0], len(train.image))}"]
    best = {"knn_best": max(accuracy.values())} if len(accuracy) > 1 else {}
    return {"knn": first, **best, **accuracy}


def figures(case: Case, settings: Settings) -> dict[str, Picture | Classes]:
    """{"neighbours": some test images with their nearest training images}: the first image of each
    class, then the second, ...; {"knn_classes": what each class is taken for}."""
    train, test = case.labelled(case.config.tokens, case.config.layers)
    labels = test.labels[:1000]
    turn = [np.sum(labels[:i] == label) for i, label in enumerate(labels)]
    queries = np.lexsort((labels, turn))[:_QUERIES]
    classes = 1 + int(max(train.labels.max(), test.labels.max()))
    nearest = classify(
        train.image, train.labels, test.image[queries], num_classes=classes, ks=(_SHOWN,)
    )
    c, names = case.config, getattr(case.test, "class_names", None)
    voted = classify(
        train.image,
        train.labels,
        test.image,
        num_classes=classes,
        ks=c.k[:1],
        temperature=c.temperature,
    )
    (predicted,) = voted.predictions.values()
    counts = metrics.confusion(test.labels, predicted, num_classes=classes, ignore=-1)
    return {
        "knn_classes": confusion.picture(counts, names=names),
        "neighbours": neighbours.picture(
            case.images(case.test, test.index[queries]),
            [case.images(case.train, train.index[row]) for row in nearest.index],
            nearest.similarity,
            test.labels[queries],
            train.labels[nearest.index],
            class_names=names,
        ),
    }


register_module(__name__, heading="k-NN", needs="labels", share=True)
