"""Linear probe on frozen features: trained affine LayerNorm and a linear layer, a grid of learning
rates in one run.

As STELLAR trains it: AdamW, no schedule, 10 % of the training set held out to
choose the learning rate. The batch size is fixed instead of searched, and features come from the
evaluation crop instead of random crops."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, key
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import register

# STELLAR's grid: {1, 2, 5} x {1e-5, 1e-4, 1e-3} and 1e-2.
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
_NORM_EPS = 1e-5
_CHUNK = 4096  # rows per call where accuracies are counted


def defaults() -> dict:
    """The keys of this type of evaluation."""
    return dict(
        epochs=key(30, "of training the probe", "epochs", above=0),
        batch=key(256, "features per step", "features", above=0),
        lrs=key(
            LEARNING_RATES,
            "learning rates tried in one run; the best on a held-out 10 % counts",
            above=0,
            most=1000,
        ),
        weight_decay=key(1e-4, "of AdamW", least=0, most=1000),
    )


class Probe(NamedTuple):
    """Result of the grid; arrays have one entry per learning rate."""

    accuracy: float  # share of right test predictions at the selected learning rate, 0..1
    learning_rate: float  # the selected one
    held_out: np.ndarray  # [g] accuracy on the held-out part of the training set
    test: np.ndarray  # [g] accuracy on the test set, to look at only: the selection does not see it
    # of the selected classifier: {"scale": [d], "shift": [d], "kernel": [d, c], "bias": [c]}
    params: Any


def fit(
    train: np.ndarray,
    labels: ArrayLike,
    test: np.ndarray,
    test_labels: ArrayLike,
    *,
    num_classes: int,
    key: jax.Array,
    learning_rates: Sequence[float] = LEARNING_RATES,
    epochs: int = 30,
    batch_size: int = 256,
    weight_decay: float = 1e-4,
    held_out: float = 0.1,
) -> Probe:
    """Trains one classifier per learning rate, all on the same minibatches, and tests the best on
    held-out data.

    The highest held-out accuracy wins; a tie goes to the lower held-out cross-entropy. Everything
    follows from `key`.

    Args:
      train: [n, d] features, labels: [n] int; test: [m, d], test_labels: [m]. Computed in float32.
      learning_rates: of AdamW, constant over the run. epochs: passes over the training part; the
        last partial batch of each is dropped.
      weight_decay: of AdamW, on all parameters. held_out: share of `train` kept for the selection,
        in (0, 1).

    Raises:
      ValueError: fewer than 2 training rows, labels out of range, or a share outside of (0, 1).
    """
    labels, test_labels = np.asarray(labels, np.int32), np.asarray(test_labels, np.int32)
    if len(train) < 2 or not 0 < held_out < 1:
        raise ValueError(
            f"the probe needs at least 2 training rows and 0 < held_out < 1, got {len(train)} and"
            f" {held_out}"
        )
    if (
        min(labels.min(), test_labels.min()) < 0
        or max(labels.max(), test_labels.max()) >= num_classes
    ):
        raise ValueError(f"labels must lie in [0, {num_classes})")
    key_split, key_init, key_order = jax.random.split(key, 3)
    order = np.asarray(jax.random.permutation(key_split, len(train)))
    count = min(max(1, round(held_out * len(train))), len(train) - 1)
    choose, learn = order[:count], order[count:]
    inputs = whiten(train)
    rates = jnp.asarray(learning_rates, jnp.float32)
    params = _train(
        inputs[learn],
        jnp.asarray(labels[learn]),
        rates,
        key_init,
        key_order,
        num_classes=num_classes,
        epochs=epochs,
        batch_size=min(batch_size, len(learn)),
        weight_decay=weight_decay,
    )
    chosen_accuracy, chosen_loss = _score(params, inputs[choose], labels[choose])
    test_accuracy, _ = _score(params, whiten(test), test_labels)
    best = int(np.lexsort((chosen_loss, -chosen_accuracy))[0])
    return Probe(
        accuracy=float(test_accuracy[best]),
        learning_rate=float(learning_rates[best]),
        held_out=chosen_accuracy,
        test=test_accuracy,
        params=jax.tree.map(lambda x: np.asarray(x[best]), params),
    )


@jax.jit
def whiten(x: jax.typing.ArrayLike) -> jax.Array:
    """The part of LayerNorm without parameters: rows of [n, d] at mean 0 and variance 1,
    float32.
    """
    x = jnp.asarray(x, jnp.float32)
    x -= x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + _NORM_EPS)


def logits(params: Mapping[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """[n, c] class scores of whitened rows [n, d]: (inputs * scale + shift) @ kernel + bias.

    The affine part is folded into the kernel, so that the whole grid is one matrix product with the
    shared inputs."""
    kernel = params["scale"][:, None] * params["kernel"]
    return inputs @ kernel + (params["shift"] @ params["kernel"] + params["bias"])


@functools.partial(jax.jit, static_argnames=("num_classes", "epochs", "batch_size", "weight_decay"))
def _train(
    inputs, labels, rates, key_init, key_order, *, num_classes, epochs, batch_size, weight_decay
):
    """Parameters of all classifiers after training, stacked on axis 0."""
    steps, dim = len(inputs) // batch_size, inputs.shape[1]
    start = {
        "scale": jnp.ones(dim),
        "shift": jnp.zeros(dim),
        "kernel": 0.01 * jax.random.normal(key_init, (dim, num_classes)),
        "bias": jnp.zeros(num_classes),
    }

    def train_one(rate):
        optimizer = optax.adamw(rate, weight_decay=weight_decay)

        def loss(params, rows):
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits(params, inputs[rows]), labels[rows]
            )
            return losses.mean()

        def step(state, rows):
            params, opt_state = state
            updates, opt_state = optimizer.update(jax.grad(loss)(params, rows), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        def epoch(state, index):
            order = jax.random.permutation(jax.random.fold_in(key_order, index), len(inputs))
            return jax.lax.scan(step, state, order[: steps * batch_size].reshape(steps, batch_size))

        (params, _), _ = jax.lax.scan(epoch, (start, optimizer.init(start)), jnp.arange(epochs))
        return params

    return jax.vmap(train_one)(rates)


def _score(params, inputs, labels):
    """Accuracy (0..1) and mean cross-entropy of every classifier: two arrays [g], float64."""
    right, loss = 0.0, 0.0
    for start in range(0, len(inputs), _CHUNK):
        part = _score_chunk(
            params, inputs[start : start + _CHUNK], jnp.asarray(labels[start : start + _CHUNK])
        )
        right, loss = (total + np.asarray(x, np.float64) for total, x in zip((right, loss), part))
    return right / len(inputs), loss / len(inputs)


@jax.jit
def _score_chunk(params, inputs, labels):
    scores = jax.vmap(logits, in_axes=(0, None))(params, inputs)  # [g, n, c]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        scores, jnp.broadcast_to(labels, scores.shape[:2])
    )
    return (scores.argmax(axis=-1) == labels).sum(axis=1), losses.sum(axis=1)


def run(case: Case) -> dict[str, float]:
    """`linear`: test accuracy in percent; `linear_lr`: the selected one; `linear_held_out`: its
    held-out accuracy.

    Raises InputError for a set without labels.
    """
    train, test = case.features("image")
    if train.labels is None or test.labels is None:
        raise InputError(
            "the linear probe needs labels; point the evaluation's data at a labelled set, or leave"
            " it out of evals.tasks"
        )
    assert train.image is not None and test.image is not None
    probe = fit(
        train.image,
        train.labels,
        test.image,
        test.labels,
        num_classes=1 + int(max(train.labels.max(), test.labels.max())),
        key=jax.random.key(case.seed),
        learning_rates=tuple(case.config.lrs),
        epochs=case.config.epochs,
        batch_size=case.config.batch,
        weight_decay=case.config.weight_decay,
    )
    return {
        "linear": 100.0 * probe.accuracy,
        "linear_lr": probe.learning_rate,
        "linear_held_out": 100.0 * float(probe.held_out.max()),
    }


register("linear", run, defaults, heading="linear", needs="labels")
