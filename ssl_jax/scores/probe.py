"""A grid of linear classifiers on features, trained together on the same minibatches."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from ssl_jax.ops.numerics import product
from ssl_jax.runtime import fit as fit_lib
from ssl_jax.runtime import sharding
from ssl_jax.scores import checked, classification

# STELLAR's grid: {1, 2, 5} x {1e-5, 1e-4, 1e-3} and 1e-2.
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
OPTIMIZERS = ("adamw", "sgd", "lars")
_MOMENTUM = 0.9
_NORM_EPS = 1e-5
_CHUNK = 4096  # rows per call at most when accuracies are counted
_LOGITS = 2**26  # logits of all classifiers per call at most


class Probe(NamedTuple):
    """Result of the grid. Arrays have one entry per classifier: all learning rates with the first
    batch size, then with the second, ..."""

    accuracy: float  # accuracy of the selected classifier on the test set, 0..1
    learning_rate: float  # of the selected classifier
    batch_size: int  # of the selected classifier
    held_out: np.ndarray  # [g] accuracy on the held-out part of the training set
    test: np.ndarray  # [g] accuracy on the test set; the selection uses `held_out`
    # of the selected classifier: {"kernel": [d, c], "bias": [c]} and, with the norm, {"scale": [d],
    # "shift": [d]}
    params: Any
    diverged: np.ndarray  # [g] bool, whether the loss on the test set is not finite
    by_epoch: np.ndarray | None = None  # [epochs, g] accuracy on the test set after each epoch


Stream = Callable[[np.ndarray], Iterator[tuple[ArrayLike, np.ndarray]]]


def fit(
    train: np.ndarray,
    labels: ArrayLike,
    test: np.ndarray,
    test_labels: ArrayLike,
    *,
    num_classes: int,
    key: jax.Array,
    learning_rates: Sequence[float] = LEARNING_RATES,
    batch_factors: Sequence[int] = (1,),
    epochs: int = 30,
    batch_size: int = 256,
    weight_decay: float = 1e-4,
    held_out: float = 0.1,
    optimizer: str = "adamw",
    schedule: str = "constant",
    clip: float = 0.0,
    norm: bool = True,
    every_epoch: bool = False,
    stream: Stream | None = None,
) -> Probe:
    """Trains one classifier per learning rate and batch size on the same minibatches, and selects
    one on held-out training data.

    The highest held-out accuracy wins; a tie goes to the lower held-out cross-entropy. Results are
    determined by `key`. A classifier with a multiple of the batch size accumulates the gradients of
    that many minibatches.

    Args:
      train: [n, d] features, labels: [n] int; test: [m, d], test_labels: [m]. Computed in float32.
      learning_rates: of the optimizer. batch_factors: multiples of `batch_size`; each is combined
        with each learning rate.
      epochs: passes over the training part; the last partial batch of each is dropped.
      weight_decay: on all parameters. held_out: share of `train` held out for the selection, in
        [0, 1); 0 = select on the test set.
      optimizer: of OPTIMIZERS. schedule: "constant" or "cosine". clip: largest L2 norm of the
        gradient of a classifier; 0 = no clipping. norm: affine LayerNorm first. every_epoch:
        whether to compute `by_epoch`.
      stream: function from the training rows [k] of `train` to `epochs` passes over them in batches
        (features [batch_size, d], indices [batch_size] into the k rows); None = the features of
        `train`, shuffled.

    Raises:
      ValueError: fewer than 2 training rows, labels out of range, features that are not finite, or
        held_out outside of [0, 1).
    """
    if len(train) < 2 or not 0 <= held_out < 1:
        raise ValueError(
            f"the probe needs 2 training rows and 0 <= held_out < 1: {len(train)}, {held_out}"
        )
    labels, test_labels = (checked.classes(x, num_classes) for x in (labels, test_labels))
    train, test = (checked.finite(x, "features") for x in (train, test))
    key_split, key_init, key_order = jax.random.split(key, 3)
    order = np.asarray(jax.random.permutation(key_split, len(train)))
    learn, choose = classification.split(order, held_out)
    batch_size = min(batch_size, len(learn))
    grid = _grid(learning_rates, batch_factors)
    trainer = Trainer(
        optimizer=optimizer,
        weight_decay=weight_decay,
        accumulate=tuple(batch_factors) != (1,),
        schedule=schedule,
        clip=clip,
        epochs=epochs,
        steps=len(learn) // batch_size,
    )
    prepare = whiten if norm else _plain
    inputs = prepare(train)
    start = _start(key_init, inputs.shape[1], num_classes, norm)
    targets, tested, curve = jnp.asarray(labels[learn]), prepare(test), []

    def watch(step, params):
        if step % trainer.steps == 0:
            curve.append(_score(jax.tree.map(np.asarray, params), tested, test_labels)[0])

    how = dict(trainer=trainer, batch_size=batch_size, watch=watch if every_epoch else None)
    if stream is None:
        params = _train(inputs[learn], targets, grid, start, key_order, **how)
    else:
        batches = ((features, targets[rows]) for features, rows in stream(learn))
        params = _train_on(batches, grid, start, prepare, **how)
    tests = _score(params, tested, test_labels)
    chosen = _score(params, inputs[choose], labels[choose]) if len(choose) else tests
    sizes = [batch_size * int(factor) for factor in batch_factors]
    return _selected(params, tests, chosen, learning_rates, sizes, curve)


def _selected(params, tests, chosen, learning_rates, batch_sizes, curve) -> Probe:
    """The Probe of the best classifier; tests, chosen: (accuracy, cross-entropy), [g] each, on the
    test set and on what selects; curve: test accuracies after each epoch."""
    (test_accuracy, test_loss), (accuracy, loss) = tests, chosen
    best = int(np.lexsort((loss, -accuracy))[0])
    return Probe(
        accuracy=float(test_accuracy[best]),
        learning_rate=float(learning_rates[best % len(learning_rates)]),
        batch_size=batch_sizes[best // len(learning_rates)],
        held_out=accuracy,
        test=test_accuracy,
        params=jax.tree.map(lambda x: np.asarray(x[best]), params),
        diverged=~np.isfinite(test_loss),
        by_epoch=np.stack(curve) if curve else None,
    )


class Grid(NamedTuple):
    """The g classifiers: learning rates [g] float32 and multiples of the batch size [g] int32."""

    rates: jax.Array
    factors: jax.Array


def _grid(rates: Sequence[float], factors: Sequence[int]) -> Grid:
    """Every learning rate with the first factor, then with the second, ..."""
    return Grid(
        rates=jnp.tile(jnp.asarray(rates, jnp.float32), len(factors)),
        factors=jnp.repeat(jnp.asarray(factors, jnp.int32), len(rates)),
    )


class Trainer(NamedTuple):
    """Training settings shared by the classifiers of a grid; hashable, so static under jit."""

    optimizer: str
    weight_decay: float
    accumulate: bool  # whether a batch factor differs from 1
    schedule: str
    clip: float
    epochs: int
    steps: int  # minibatches per epoch

    def transformation(
        self, step: Any, rate: jax.Array, factor: jax.Array
    ) -> optax.GradientTransformation:
        """The optimizer of one classifier. It counts its own steps, so `step` is not used."""
        del step

        def cosine(count):
            epoch = count * factor // self.steps
            return rate * 0.5 * (1 + jnp.cos(jnp.pi * epoch / self.epochs))

        rate_of = rate if self.schedule == "constant" else cosine
        decay, result = self.weight_decay, None
        if self.optimizer == "adamw":
            result = optax.adamw(rate_of, weight_decay=decay)
        elif self.optimizer == "lars":
            result = optax.lars(rate_of, weight_decay=decay, momentum=_MOMENTUM)
        else:
            result = optax.chain(
                optax.add_decayed_weights(decay), optax.sgd(rate_of, momentum=_MOMENTUM)
            )
        if self.clip:
            result = optax.chain(optax.clip_by_global_norm(self.clip), result)
        if not self.accumulate:
            return result
        return optax.MultiSteps(result, every_k_schedule=lambda _: factor).gradient_transformation()


def _loss(params, carry, inputs):
    """Mean cross-entropy of (features, labels)."""
    features, labels = inputs
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, features), labels)
    return {"loss": losses.mean()}, carry


def _start(key, dim, num_classes, norm):
    """Parameters before training."""
    start = {
        "kernel": 0.01 * jax.random.normal(key, (dim, num_classes), jnp.float32),
        "bias": jnp.zeros(num_classes),
    }
    return start | ({"scale": jnp.ones(dim), "shift": jnp.zeros(dim)} if norm else {})


@jax.jit
def whiten(x: jax.typing.ArrayLike) -> jax.Array:
    """LayerNorm without parameters: rows of [n, d] with mean 0 and variance 1, float32."""
    x = jnp.asarray(x, jnp.float32)
    x -= x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + _NORM_EPS)


def _plain(x):
    return jnp.asarray(x, jnp.float32)


def logits(params: Mapping[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """Logits [n, c] of rows [n, d]: (inputs * scale + shift) @ kernel + bias for whitened rows, or
    inputs @ kernel + bias without the norm.

    Scale and shift are folded into the kernel, so that the grid is one matrix product with the
    shared inputs."""
    if "scale" not in params:
        return product("nd,dc->nc", inputs, params["kernel"]) + params["bias"]
    kernel, shift = params["scale"][:, None] * params["kernel"], params["shift"]
    bias = product("d,dc->c", shift, params["kernel"]) + params["bias"]
    return product("nd,dc->nc", inputs, kernel) + bias


def predict(params: Mapping[str, np.ndarray], inputs: ArrayLike) -> np.ndarray:
    """Class [n] int of each row [n, d], predicted by a classifier with the arrays of
    `Probe.params`."""
    rows = whiten(inputs) if "scale" in params else _plain(inputs)
    scores = logits({name: jnp.asarray(value) for name, value in params.items()}, rows)
    return np.asarray(scores.argmax(axis=-1))


def _train(*data, trainer, batch_size, watch):
    """Trains on shuffled rows; returns the parameters of all classifiers, stacked on axis 0."""
    state: Any = None
    epochs = np.arange(trainer.epochs)
    for part in epochs[:, None] if watch else [epochs]:
        state = _run(state, part, *data, trainer=trainer, batch_size=batch_size)
        if watch:
            watch(trainer.steps, state.params)
    return state.params


@functools.partial(jax.jit, static_argnames=("trainer", "batch_size"))
def _run(state, epochs, inputs, labels, grid, start, key_order, *, trainer, batch_size):
    """The state after some epochs [n]; state None = before the first."""

    def step(state, rows):
        batch = inputs[rows], labels[rows]
        return fit_lib.step(_loss, trainer.transformation, state, batch, 0, grid)[0], None

    def epoch(state, index):
        order = jax.random.permutation(jax.random.fold_in(key_order, index), len(inputs))
        rows = order[: trainer.steps * batch_size].reshape(trainer.steps, batch_size)
        return jax.lax.scan(step, state, rows)

    if state is None:
        state = fit_lib.begin(trainer.transformation, start, None, grid)
    return jax.lax.scan(epoch, state, epochs)[0]


def _train_on(batches, grid, start, prepare, *, trainer, batch_size, watch):
    """Like `_train`, on given batches of (features, labels)."""
    fitted = fit_lib.fit(
        _loss,
        trainer.transformation,
        batches,
        sharding.mesh_for(batch_size),
        trainer.steps * trainer.epochs,
        params=start,
        points=grid,
        prepare=lambda _, batch, index: (prepare(batch[0]), batch[1]),
        watch=watch,
        name="linear",
        finite=False,
    )
    return jax.tree.map(jnp.asarray, fitted.params)


def _score(params, inputs, labels):
    """Accuracy (0..1) and mean cross-entropy of every classifier: two arrays [g], float64. Rows
    whose cross-entropy is not finite count as wrong."""
    right, loss = np.zeros(()), np.zeros(())
    size = max(1, min(_CHUNK, _LOGITS // params["bias"].size))
    for start in range(0, len(inputs), size):
        part = _score_chunk(
            params, inputs[start : start + size], jnp.asarray(labels[start : start + size])
        )
        right, loss = (total + np.asarray(x, np.float64) for total, x in zip((right, loss), part))
    return right / len(inputs), loss / len(inputs)


@jax.jit
def _score_chunk(params, inputs, labels):
    scores = jax.vmap(logits, in_axes=(0, None))(params, inputs)  # [g, n, c]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        scores, jnp.broadcast_to(labels, scores.shape[:2])
    )
    right = (scores.argmax(axis=-1) == labels) & jnp.isfinite(losses)
    return right.sum(axis=1), losses.sum(axis=1)
