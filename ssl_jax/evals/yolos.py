"""Object detection with YOLOS (Fang et al. 2021): the pretrained encoder gets detection tokens, is
trained further on boxes with DETR's loss, and is scored by COCO's average precision (CrIBo tables 5
and 6).

Differs from the authors' code in: the images of a batch share a canvas, and boxes are shares of the
canvas instead of the image without its margin; position codes are learned on a square grid of the
same area; the margin has the mean colour. Crowd regions are neither trained on nor left out of the
score.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from ssl_jax.config import InputError, flatten, key
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import detection, yolos_views
from ssl_jax.evals.case import Case
from ssl_jax.evals.detection import Boxes
from ssl_jax.evals.features import subset
from ssl_jax.evals.pictures import boxes as boxes_picture
from ssl_jax.evals.pictures.base import Picture
from ssl_jax.evals.registry import BASELINES, Protocol, register
from ssl_jax.losses import detection as losses
from ssl_jax.models import detection as models
from ssl_jax.models import zoo
from ssl_jax.train import distributed, sharding

_LEAST_LR = 1e-7  # at the end of the cosine
_AHEAD = 2  # batches prepared while the device works
_THREADS = 8  # that decode and resize
_SHOWN, _LEAST_SCORE = 8, 0.5  # images in the picture, and what is drawn in them
_REPORTS = 10  # lines on the console


def defaults() -> dict:
    """The keys of this type of evaluation: a short training on small images."""
    return dict(
        queries=key(100, "detection tokens, the most objects in an image", "tokens", above=0),
        epochs=key(50, "of training", "epochs", above=0),
        batch=key(8, "images per step", "images", above=0),
        lr=key(1e-4, "of AdamW; a cosine to 1e-7, one value an epoch", above=0),
        weight_decay=key(
            1e-4, "of AdamW; not on the encoder's biases, norms, tokens and position codes", least=0
        ),
        clip=key(0.1, "largest norm of the gradient", above=0),
        class_weight=key(1.0, "of the class, in matching and loss", least=0),
        l1_weight=key(5.0, "of the distance of boxes, in matching and loss", least=0),
        giou_weight=key(2.0, "of the generalised IoU, in matching and loss", least=0),
        no_object_weight=key(0.1, "of a token without an object, in the loss", least=0),
        sizes=key((256, 288, 320), "shorter side, drawn for each image", "pixels", above=0),
        longest=key(512, "longer side at most", "pixels", above=0),
        test_size=key(320, "shorter side of test images", "pixels", above=0),
        flip=key(0.5, "share of training images that are mirrored", least=0, most=1),
        crop_prob=key(0.5, "share of training images that are cropped", least=0, most=1),
        crop_from=key((256, 320, 384), "shorter side before the crop", "pixels", above=0),
        crop_sides=key(
            (192, 320), "sides of the crop, from and to", "pixels", above=0, length=2, ordered=True
        ),
        canvas=key(
            64,
            "sides of a batch's canvas are multiples of this and of the patch; a larger one means"
            " fewer shapes to compile",
            "pixels",
            above=0,
        ),
        position_size=key(
            0,
            "square grid on which learned position codes are trained; 0 = as pretrained",
            "pixels",
            least=0,
        ),
        middle_size=key(
            0,
            "square grid of the learned codes added after every block but the last; 0 = none",
            "pixels",
            least=0,
        ),
    )


_COCO = dict(
    data=dict(kind="tfds", name="coco/2017", split="train", test_split="validation"),
    queries=100,
    epochs=150,
    batch=32,
    lr=2.5e-5,
    weight_decay=1e-4,
    clip=0.1,
    class_weight=1.0,
    l1_weight=5.0,
    giou_weight=2.0,
    no_object_weight=0.1,
    sizes=tuple(range(480, 801, 16)),
    longest=1333,
    test_size=800,
    flip=0.5,
    crop_prob=0.5,
    crop_from=(400, 500, 600),
    crop_sides=(384, 600),
    canvas=256,
    # the paper's grid is 512 x 864; this square has as many codes
    position_size=672,
    middle_size=672,
)
PROTOCOLS = {
    "coco": Protocol("CrIBo tables 5 and 6", _COCO),
    "coco_yolos": Protocol("YOLOS (Fang et al. 2021), its batch of 8", {**_COCO, "batch": 8}),
}


class Detector(NamedTuple):
    """A trained detector. apply: (params, images [B, H, W, 3]) -> (logits, boxes), see
    `models.detection.yolos`."""

    apply: Callable
    params: Any
    classes: int
    patch: int
    fill: tuple[float, ...]  # colour of a canvas


def make(encoder: Any, config: ConfigDict, classes: int, rng: jax.Array) -> Detector:
    """An untrained detector on the weights of an encoder.

    encoder: a `methods.encoder.Encoder` of a vision transformer. config: the evaluation's section.

    Raises InputError for a function without weights, or a grid that the patch does not divide.
    """
    params = getattr(encoder, "params", None)
    if not isinstance(params, dict) or "backbone" not in params:
        raise InputError(
            "yolos trains a vision transformer further, and this network is none; leave it out of"
            " evals.tasks"
        )
    section = encoder.config.model
    native = zoo.vit_config(section if "size" in section else {"size": "custom", **section})
    for name in ("position_size", "middle_size"):
        if config[name] % native.patch:
            raise InputError(
                f"{name} is {config[name]}, not a multiple of {native.patch} (model.patch)"
            )
    learned = native.position == "learned"
    shape = dataclasses.replace(
        native,
        queries=config.queries,
        drop_path=0.0,
        mask_token=False,
        image_size=(learned and config.position_size) or native.image_size,
    )
    model = models.yolos(shape, classes, config.middle_size)
    weights = models.pretrained(model.init(rng), shape, params["backbone"], native.image_size)
    return Detector(model.apply, weights, classes, shape.patch, tuple(shape.mean))


# --- training


def optimizer(config: ConfigDict, params: Any, steps: int) -> optax.GradientTransformation:
    """AdamW behind a clipped gradient; `steps` an epoch."""

    def rate(step):
        share = jnp.minimum(step // steps / config.epochs, 1.0)
        return _LEAST_LR + (config.lr - _LEAST_LR) * 0.5 * (1 + jnp.cos(jnp.pi * share))

    def decays(path, leaf):
        names = [entry.key for entry in path]
        tokens = {"cls", "position", "queries", "registers"}
        return names[0] != "encoder" or (leaf.ndim > 1 and names[1] not in tokens)

    mask = jax.tree_util.tree_map_with_path(decays, params)
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(rate, weight_decay=config.weight_decay, mask=mask),
    )


def loss_of(apply: Callable, config: ConfigDict) -> Callable:
    """(params, Batch) -> (loss, terms): DETR's loss with its matching, which is made on the device
    and has no gradient. Each device of the mesh in context sees its own images."""
    weights = {name: config[name] for name in ("class_weight", "l1_weight", "giou_weight")}

    def of_images(trees, batch):
        logits, boxes = apply(trees["params"], batch.image)
        return logits, boxes, match(logits, boxes, batch, weights)

    def loss(params, batch):
        batch = yolos_views.Batch(*batch)
        logits, boxes, matched = sharding.by_image(of_images)({"params": params}, batch)
        terms = losses.detr(
            logits,
            boxes,
            batch.labels,
            batch.boxes,
            batch.present,
            matched,
            no_object_weight=config.no_object_weight,
            **weights,
        )
        return terms["loss"], terms

    return loss


def match(logits: jax.Array, boxes: jax.Array, batch: yolos_views.Batch, weights: dict) -> Any:
    """The query [B, t] of each object in the cheapest assignment; t is at most the queries."""
    costs = losses.matching_costs(
        logits, boxes, batch.labels, batch.boxes, batch.present, **weights
    )

    def of_one(costs):
        rows, columns = optax.assignment.hungarian_algorithm(costs)
        return jnp.zeros(costs.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))

    # A network that has come to NaN must not keep the search from ending.
    return jax.vmap(of_one)(jnp.nan_to_num(jax.lax.stop_gradient(costs)))


def train(
    encoder: Any, source: Any, indices: np.ndarray, config: ConfigDict, seed: int
) -> Detector:
    """A detector trained on these records of `source`; draws follow from seed, epoch and record.

    Raises InputError for a source without boxes, or a loss that is not finite.
    """
    classes = classes_of(source)
    detector = make(encoder, config, classes, jax.random.key(seed))
    size = min(config.batch, len(indices))
    steps = len(indices) // size
    transformation = optimizer(config, detector.params, steps)
    loss = loss_of(detector.apply, config)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, batch):
        (_, terms), gradient = jax.value_and_grad(loss, has_aux=True)(params, batch)
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, terms

    devices = jax.local_devices()
    devices = devices[: math.gcd(size, len(devices))]
    mesh = sharding.make_mesh(len(devices), devices=devices)
    with jax.set_mesh(mesh):
        place = sharding.replicated(mesh)
        params = jax.device_put(jax.tree.map(jnp.copy, detector.params), place)
        state = jax.device_put(transformation.init(params), place)
        sums: collections.Counter = collections.Counter()
        for done, batch in enumerate(_batches(source, indices, size, config, detector, seed), 1):
            params, state, terms = step(
                params, state, jax.device_put(tuple(batch), sharding.batch_sharding(mesh))
            )
            if done % steps == 0:
                epoch = done // steps
                terms = {name: float(value) for name, value in terms.items()}
                if not math.isfinite(terms["loss"]):
                    raise InputError(
                        f"yolos: the loss of epoch {epoch} is {terms['loss']}; lower its lr or clip"
                    )
                sums.update(terms)
                if epoch % max(1, config.epochs // _REPORTS) == 0 and distributed.is_first():
                    text = ", ".join(f"{name} {value:.3f}" for name, value in terms.items())
                    print(f"  yolos epoch {epoch}/{config.epochs}: {text}", flush=True)
    params = jax.device_put(params, jax.local_devices()[0])
    return detector._replace(params=params)


def classes_of(source: Any) -> int:
    """Number of classes of a source's boxes; 1 where they have none. Raises InputError for a source
    without boxes."""
    if not getattr(source, "has_boxes", False):
        raise InputError(
            f"yolos needs boxes, and {source!r} has none; point the evaluation's data at a set with"
            " boxes, or leave it out of evals.tasks"
        )
    return getattr(source, "num_box_classes", None) or 1


def _batches(source, indices, size: int, config, detector, seed: int) -> Iterator:
    """The batches of all epochs, each epoch in an order of its own without its last partial one;
    some are prepared ahead by threads."""

    def view(epoch, record):
        rng = np.random.default_rng((seed, epoch, int(record)))
        return yolos_views.drawn(_readable(source, record), rng, config)

    def rows():
        for epoch in range(config.epochs):
            order = np.random.default_rng((seed, epoch)).permutation(indices)
            for start in range(0, len(order) - size + 1, size):
                yield epoch, order[start : start + size]

    multiple = math.lcm(config.canvas, detector.patch)
    pending: collections.deque = collections.deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for epoch, records in rows():
            pending.append([pool.submit(view, epoch, record) for record in records])
            if len(pending) > _AHEAD:
                yield _batch(pending.popleft(), config, multiple, detector)
        while pending:
            yield _batch(pending.popleft(), config, multiple, detector)


def _batch(futures, config, multiple, detector):
    views = [future.result() for future in futures]
    return yolos_views.batch(views, most=config.queries, multiple=multiple, fill=detector.fill)


def _readable(source, index) -> dict:
    """The record, or the next that can be read."""
    for i in range(len(source)):
        try:
            return source[(int(index) + i) % len(source)]
        except Unreadable:
            continue
    raise InputError(f"no record of {source!r} can be read")


# --- prediction


def predict(
    detector: Detector, source: Any, indices: np.ndarray, config: ConfigDict, batch_size: int
) -> tuple[list[Boxes], list[Boxes], list[int]]:
    """(predicted, true, record) of each readable record: boxes in its pixels, one prediction a
    query, of the class with the highest score."""
    multiple = math.lcm(config.canvas, detector.patch)

    @jax.jit
    def apply(params, images):
        logits, boxes = detector.apply(params, images)
        scores = jax.nn.softmax(logits)[..., :-1]
        return losses.corners(boxes), scores.max(axis=-1), scores.argmax(axis=-1)

    def viewed(index):
        try:
            record = source[int(index)]
        except Unreadable:
            return None
        return record, yolos_views.plain(record, config.test_size, config.longest)

    predicted, true, kept = [], [], []
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(indices), batch_size):
            rows = indices[start : start + batch_size]
            read = [(i, *pair) for i, pair in zip(rows, pool.map(viewed, rows)) if pair]
            if not read:
                continue
            views = [view for _, _, view in read]
            # one batch shape for each canvas
            filled = views + views[-1:] * (batch_size - len(views))
            images = yolos_views.batch(
                filled, most=config.queries, multiple=multiple, fill=detector.fill
            ).image
            found = map(np.asarray, apply(detector.params, images))
            for (index, record, view), corners, scores, labels in zip(read, *found):
                height, width = np.asarray(record["image"]).shape[:2]
                scale = np.array(images.shape[1:3]) * (height, width) / view.image.shape[:2]
                low = np.clip(corners[:, :2] * scale, 0, (height, width))
                high = np.clip(corners[:, 2:] * scale, 0, (height, width))
                inside = np.concatenate([low, high - low], axis=1)
                predicted.append(Boxes(inside, labels, scores))
                boxes = np.asarray(record["boxes"]).reshape(-1, 4)
                true.append(
                    Boxes(boxes, np.asarray(record.get("box_labels", np.zeros(len(boxes)))))
                )
                kept.append(int(index))
    return predicted, true, kept


def run(case: Case) -> dict[str, float]:
    """`yolos`: AP of the test images in percent; `yolos_ap50`, `yolos_ap75`, and by size `_small`,
    `_medium`, `_large` where there are boxes of that size.

    Raises InputError for a network without weights, data without boxes, or a crop.
    """
    check("evals.yolos", case.config)
    train_indices, test_indices = (
        subset(len(source), count, case.seed)
        for source, count in (
            (case.train, case.config.train_examples),
            (case.test, case.config.test_examples),
        )
    )
    classes = max(classes_of(case.train), classes_of(case.test))
    detector = train(case.encoder, case.train, train_indices, case.config, case.seed)
    found = predict(detector, case.test, test_indices, case.config, case.config.batch)
    case.extracted[_known(case)] = found
    predicted, true, _ = found
    if not any(len(image.boxes) for image in true):
        raise InputError(f"no test image of {case.test!r} has a box, so there is nothing to score")
    scores = detection.average_precision(predicted, true, classes=classes)
    return {"yolos": scores.pop("ap")} | {
        f"yolos_{name.removeprefix('ap_')}": value for name, value in scores.items()
    }


def check(name: str, section: ConfigDict) -> None:
    """Refuses a crop, and a machine that could train but not score. Raises InputError."""
    if section.crop:
        raise InputError(f"{name}.crop is {section.crop}, but yolos sees whole images; set it to 0")
    detection.check_installed()


def _known(case: Case) -> tuple:
    """Where the predictions of an evaluation are kept."""
    return ("yolos", *sorted(flatten(case.config).items()))


def figures(case: Case) -> dict[str, Picture]:
    """{"boxes": some test images with their true and predicted boxes}; nothing where this process
    has not trained the detector on images of this size."""
    if _known(case) not in case.extracted:
        return {}
    predicted, true, kept = (part[:_SHOWN] for part in case.extracted[_known(case)])
    return {
        "boxes": boxes_picture.picture(
            [np.asarray(case.test[i]["image"]) for i in kept],
            true,
            predicted,
            least_score=_LEAST_SCORE,
            class_names=getattr(case.test, "box_names", None),
        )
    }


register(
    "yolos",
    run,
    defaults,
    heading="YOLOS AP",
    needs="boxes",
    figures=figures,
    baselines=BASELINES[:1],
    protocols=PROTOCOLS,
    check=check,
)
