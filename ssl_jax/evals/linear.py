"""Linear probes on frozen features: a grid of learning rates and batch sizes in one run, every
classifier on the same minibatches.

By default as STELLAR trains them: affine LayerNorm and a linear layer, AdamW, no schedule, 10 % of
the training set held out to choose among the grid; one batch size, and features of the evaluation
crop, which are computed once. `PROTOCOLS` has the papers' own: STELLAR's full grid and iBOT's (SGD,
cosine, several layers, the best on the test set), both on random crops.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, key
from ssl_jax.data.source import make_source
from ssl_jax.evals import crops, tokens
from ssl_jax.evals.case import Case
from ssl_jax.evals.features import on_all_devices
from ssl_jax.evals.registry import Protocol, register

# STELLAR's grid: {1, 2, 5} x {1e-5, 1e-4, 1e-3} and 1e-2.
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
OPTIMIZERS = ("adamw", "sgd", "lars")
_SCALED_TO = 256  # features, of learning rates that grow with the batch
_MOMENTUM = 0.9
_NORM_EPS = 1e-5
_CHUNK = 4096  # rows per call where accuracies are counted

_IMAGENET = dict(kind="folder", split="train", test_split="val", size=256)
_STELLAR = dict(
    data=_IMAGENET, crop=224, epochs=30, batch=64, batch_factors=tuple(2**i for i in range(8))
)
_IBOT = dict(
    data=_IMAGENET,
    crop=224,
    crop_scale=(0.08, 1.0),
    epochs=100,
    batch=1024,
    norm=False,
    optimizer="sgd",
    schedule="cosine",
    weight_decay=0.0,
    scale_lr=True,
    held_out=0.0,
    lrs=(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
)
_IBOT_GRID = tuple(round(n * 10.0**e, 10) for e in range(-4, 1) for n in range(1, 10))
PROTOCOLS = {
    "stellar": Protocol(
        "STELLAR tables 1, 2, 4 to 6, 9 and 10, ImageNet and Places365",
        _STELLAR | dict(crop_scale=(0.2, 1.0)),
    ),
    "stellar_transfer": Protocol(
        "STELLAR table 4, Pets, Food-101, GlaS", _STELLAR | dict(crop_scale=(0.5, 1.0))
    ),
    "sop_small": Protocol(
        "SOP and SOVE table 1, ViT-S and Swin", _IBOT | dict(tokens="cls", layers=4)
    ),
    "sop_base": Protocol("SOP and SOVE table 1, ViT-B and L", _IBOT | dict(tokens="cls_mean")),
    "ibot_small": Protocol(
        "iBOT table 2, ViT-S", _IBOT | dict(tokens="cls", layers=4, lrs=_IBOT_GRID)
    ),
    "ibot_base": Protocol(
        "iBOT table 2, ViT-B and L", _IBOT | dict(tokens="cls_mean", lrs=_IBOT_GRID)
    ),
}


def defaults() -> dict:
    """The keys of this type of evaluation."""
    return dict(
        **tokens.keys(),
        epochs=key(30, "of training the probe", "epochs", above=0),
        batch=key(256, "features per step", "features", above=0),
        batch_factors=key(
            (1,),
            "multiples of the batch that are tried, each with every learning rate",
            above=0,
            most=2**16,
        ),
        lrs=key(
            LEARNING_RATES,
            "learning rates tried in one run; the best on the held-out part counts",
            above=0,
            most=1000,
        ),
        scale_lr=key(False, "learning rates are for 256 features and grow with the batch"),
        schedule=key(
            "constant",
            'of the learning rate: "constant", or "cosine" to 0, one value for each epoch',
            choices=("constant", "cosine"),
        ),
        optimizer=key("adamw", '"sgd" and "lars" have momentum .9', choices=OPTIMIZERS),
        weight_decay=key(1e-4, "of the optimizer", least=0, most=1000),
        norm=key(True, "affine LayerNorm before the linear layer"),
        held_out=key(
            0.1,
            "share of the training images that chooses among the grid; 0 = the test images choose,"
            " as iBOT and SOP report it",
            least=0,
            below=1,
        ),
        crop_scale=key(
            (),
            "(least, largest) share of the area of random crops to train on, which are encoded"
            " anew in every epoch; () = the evaluation crop, encoded once",
            element=0.5,
            above=0,
            most=1,
        ),
    )


class Probe(NamedTuple):
    """Result of the grid; arrays have one entry per classifier: all learning rates with the first
    batch size, then with the second, ..."""

    accuracy: float  # share of right test predictions of the selected classifier, 0..1
    learning_rate: float  # of the selected one
    batch_size: int  # of the selected one
    held_out: np.ndarray  # [g] accuracy on the held-out part of the training set
    test: np.ndarray  # [g] accuracy on the test set, to look at only: the selection does not see it
    # of the selected classifier: {"kernel": [d, c], "bias": [c]} and, with the norm, {"scale": [d],
    # "shift": [d]}
    params: Any


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
    norm: bool = True,
    stream: Stream | None = None,
) -> Probe:
    """Trains one classifier per learning rate and batch size, all on the same minibatches, and
    tests the best on held-out data.

    The highest held-out accuracy wins; a tie goes to the lower held-out cross-entropy. Everything
    follows from `key`. A classifier with a multiple of the batch size adds up the gradients of as
    many minibatches.

    Args:
      train: [n, d] features, labels: [n] int; test: [m, d], test_labels: [m]. Computed in float32.
      learning_rates: of the optimizer; batch_factors: each with batches of `batch_size` times that.
      epochs: passes over the training part; the last partial batch of each is dropped.
      weight_decay: on all parameters. held_out: share of `train` kept for the selection, in [0, 1);
        0: the best on the test set is selected.
      optimizer: of OPTIMIZERS. schedule: "constant" or "cosine". norm: affine LayerNorm first.
      stream: rows [k] of `train` to learn from -> `epochs` passes over them as batches of
        (features [batch_size, d], which of these rows they are [batch_size]); None: the features of
        `train`, shuffled.

    Raises:
      ValueError: fewer than 2 training rows, labels out of range, or a share outside of [0, 1).
    """
    labels, test_labels = np.asarray(labels, np.int32), np.asarray(test_labels, np.int32)
    if len(train) < 2 or not 0 <= held_out < 1:
        raise ValueError(
            f"the probe needs at least 2 training rows and 0 <= held_out < 1, got {len(train)} and"
            f" {held_out}"
        )
    if (
        min(labels.min(), test_labels.min()) < 0
        or max(labels.max(), test_labels.max()) >= num_classes
    ):
        raise ValueError(f"labels must lie in [0, {num_classes})")
    key_split, key_init, key_order = jax.random.split(key, 3)
    order = np.asarray(jax.random.permutation(key_split, len(train)))
    count = min(max(1, round(held_out * len(train))), len(train) - 1) if held_out else 0
    choose, learn = order[:count], order[count:]
    batch_size = min(batch_size, len(learn))
    grid = Grid(
        rates=jnp.tile(jnp.asarray(learning_rates, jnp.float32), len(batch_factors)),
        factors=jnp.repeat(jnp.asarray(batch_factors, jnp.int32), len(learning_rates)),
    )
    trainer = Trainer(
        optimizer=optimizer,
        weight_decay=weight_decay,
        accumulate=tuple(batch_factors) != (1,),
        schedule=schedule,
        epochs=epochs,
        steps=len(learn) // batch_size,
    )
    prepare = whiten if norm else _plain
    inputs = prepare(train)
    start = _start(key_init, inputs.shape[1], num_classes, norm)
    targets = jnp.asarray(labels[learn])
    if stream is None:
        params = _train(
            inputs[learn], targets, grid, start, key_order, trainer=trainer, batch_size=batch_size
        )
    else:
        state = trainer.init(start, grid)
        for features, rows in stream(learn):
            state = _step(state, prepare(features), targets[rows], grid, trainer=trainer)
        params = state[0]
    test_accuracy, test_loss = _score(params, prepare(test), test_labels)
    chosen_accuracy, chosen_loss = test_accuracy, test_loss
    if count:
        chosen_accuracy, chosen_loss = _score(params, inputs[choose], labels[choose])
    best = int(np.lexsort((chosen_loss, -chosen_accuracy))[0])
    return Probe(
        accuracy=float(test_accuracy[best]),
        learning_rate=float(learning_rates[best % len(learning_rates)]),
        batch_size=batch_size * int(batch_factors[best // len(learning_rates)]),
        held_out=chosen_accuracy,
        test=test_accuracy,
        params=jax.tree.map(lambda x: np.asarray(x[best]), params),
    )


class Grid(NamedTuple):
    """The classifiers: learning rate [g] float32 and multiple of the batch size [g] int32."""

    rates: jax.Array
    factors: jax.Array


class Trainer(NamedTuple):
    """How each classifier of a grid is trained; hashable, so static under jit.

    steps: minibatches of an epoch. accumulate: whether factors other than 1 occur.
    """

    optimizer: str
    weight_decay: float
    accumulate: bool
    schedule: str
    epochs: int
    steps: int

    def of(self, rate: jax.Array, factor: jax.Array) -> optax.GradientTransformation:
        """The optimizer of one classifier."""

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
        if not self.accumulate:
            return result
        return optax.MultiSteps(result, every_k_schedule=lambda _: factor).gradient_transformation()

    def init(self, start: Any, grid: Grid) -> Any:
        """(parameters, optimizer states) of all classifiers, stacked on axis 0."""
        return jax.vmap(lambda *one: (start, self.of(*one).init(start)))(*grid)

    def step(self, state: Any, grid: Grid, inputs: jax.Array, labels: jax.Array) -> Any:
        """The state after one minibatch."""

        def loss(params):
            losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, inputs), labels)
            return losses.mean()

        def one(state, rate, factor):
            params, opt_state = state
            updates, opt_state = self.of(rate, factor).update(
                jax.grad(loss)(params), opt_state, params
            )
            return optax.apply_updates(params, updates), opt_state

        return jax.vmap(one)(state, *grid)


def _start(key, dim, num_classes, norm):
    """Parameters before training."""
    start = {
        "kernel": 0.01 * jax.random.normal(key, (dim, num_classes)),
        "bias": jnp.zeros(num_classes),
    }
    return start | ({"scale": jnp.ones(dim), "shift": jnp.zeros(dim)} if norm else {})


@jax.jit
def whiten(x: jax.typing.ArrayLike) -> jax.Array:
    """The part of LayerNorm without parameters: rows of [n, d] at mean 0 and variance 1,
    float32.
    """
    x = jnp.asarray(x, jnp.float32)
    x -= x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + _NORM_EPS)


def _plain(x):
    return jnp.asarray(x, jnp.float32)


def logits(params: Mapping[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """[n, c] class scores of rows [n, d]: (inputs * scale + shift) @ kernel + bias, of whitened
    rows; inputs @ kernel + bias without the norm.

    The affine part is folded into the kernel, so that the whole grid is one matrix product with the
    shared inputs."""
    if "scale" not in params:
        return inputs @ params["kernel"] + params["bias"]
    kernel = params["scale"][:, None] * params["kernel"]
    return inputs @ kernel + (params["shift"] @ params["kernel"] + params["bias"])


@functools.partial(jax.jit, static_argnames=("trainer", "batch_size"))
def _train(inputs, labels, grid, start, key_order, *, trainer, batch_size):
    """Parameters of all classifiers after training, stacked on axis 0."""

    def step(state, rows):
        return trainer.step(state, grid, inputs[rows], labels[rows]), None

    def epoch(state, index):
        order = jax.random.permutation(jax.random.fold_in(key_order, index), len(inputs))
        rows = order[: trainer.steps * batch_size].reshape(trainer.steps, batch_size)
        return jax.lax.scan(step, state, rows)

    (params, _), _ = jax.lax.scan(epoch, trainer.init(start, grid), jnp.arange(trainer.epochs))
    return params


@functools.partial(jax.jit, static_argnames="trainer", donate_argnums=0)
def _step(state, inputs, labels, grid, *, trainer):
    return trainer.step(state, grid, inputs, labels)


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


def probe(case: Case, num_classes: int = 0) -> Probe:
    """The probe that an evaluation with the keys of `linear` trains and tests.

    num_classes: 0: as many as the labels say.

    Raises InputError for a set without labels or with more classes, and for a crop_scale that is no
    range.
    """
    c = case.config
    if len(c.crop_scale) not in (0, 2) or tuple(sorted(c.crop_scale)) != tuple(c.crop_scale):
        raise InputError(
            f"crop_scale of the linear probe is {c.crop_scale}; use (least, largest) or ()"
        )
    train, test = case.features(c.tokens, c.layers)
    if train.labels is None or test.labels is None:
        raise InputError(
            "the linear probe needs labels; point the evaluation's data at a labelled set, or leave"
            " it out of evals.tasks"
        )
    assert train.image is not None and test.image is not None
    found = 1 + int(max(train.labels.max(), test.labels.max()))
    if num_classes and found > num_classes:
        raise InputError(f"the images have {found} classes, {num_classes} are asked for")
    factor = _factor(c)
    return fit(
        train.image,
        train.labels,
        test.image,
        test.labels,
        num_classes=num_classes or found,
        key=jax.random.key(case.seed),
        learning_rates=tuple(factor * lr for lr in c.lrs),
        batch_factors=tuple(c.batch_factors),
        epochs=c.epochs,
        batch_size=c.batch,
        weight_decay=c.weight_decay,
        held_out=c.held_out,
        optimizer=c.optimizer,
        schedule=c.schedule,
        norm=c.norm,
        stream=_crops(case, train.index) if c.crop_scale else None,
    )


def _factor(c) -> float:
    """By which learning rates grow with the batch."""
    return c.batch / _SCALED_TO if c.scale_lr else 1.0


def run(case: Case) -> dict[str, float]:
    """`linear`: test accuracy in percent; `linear_lr`, `linear_batch`: the selected ones;
    `linear_held_out`: its accuracy on the held-out part; `linear_best`: the best of the grid on the
    test images, which have then been looked at.

    Raises InputError for a set without labels, and for a crop_scale that is no range.
    """
    c, found = case.config, probe(case)
    scores = {"linear": 100.0 * found.accuracy, "linear_lr": found.learning_rate / _factor(c)}
    if len(c.batch_factors) > 1:
        scores["linear_batch"] = found.batch_size
    if c.held_out:
        scores["linear_held_out"] = 100.0 * float(found.held_out.max())
        scores["linear_best"] = 100.0 * float(found.test.max())
    return scores


def _crops(case: Case, records: np.ndarray) -> Stream:
    """Features of random crops of the training images, which are at their stored size."""
    c = case.config
    size = c.crop or c.data.size or (case.train.size or (0,))[0]
    if not size:
        raise InputError("crop_scale needs the size of a crop: set crop or data.size")
    source = make_source(dict(c.data.to_dict(), size=0))
    read = tokens.reader(on_all_devices(case.encoder), c.tokens, c.layers)

    def stream(rows):
        found = crops.batches(
            source,
            records[rows],
            size=size // case.patch * case.patch,
            scale=tuple(c.crop_scale),
            batch_size=c.batch,
            epochs=c.epochs,
            seed=case.seed,
        )
        for images, which in found:
            yield read(images), which

    return stream


register("linear", run, defaults, heading="linear", needs="labels", protocols=PROTOCOLS)
