"""One entry for every public loss: tiny inputs, the call, and its float64 reference."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ssl_jax import losses, ops
from ssl_jax.losses import detection
from tests.losses import reference

TAUS = {"student_temperature": 0.1, "teacher_temperature": 0.07}


@dataclasses.dataclass(frozen=True)
class Case:
    """
    make: (seed, scale, **sizes) -> {name: array}; float32 arrays, of which those of outputs of
      networks have the size `scale`.
    loss: (**arrays, **settings) -> terms; "loss" is what has a gradient.
    reference: (float64 arrays, **settings) -> terms, or terms and gradients of the loss by name.
    student: names of the arrays that the loss has a gradient for; free: of those that may have one.
    settings: of the plain call; floats are traced, others static.
    variants: {name: (changes of make's sizes, changes of the settings)}.
    axes: {name: its axis of images}, arrays that are cut over devices.
    wide: names of arrays that are always float32.
    empty: makes inputs of which nothing counts.
    values: the absolute tolerance of terms for inputs of scales up to 1 and above; None: finite.
    relative: the relative tolerance for such inputs.
    gathers: devices exchange rows, not only sums.
    """

    make: Callable
    loss: Callable
    reference: Callable
    student: tuple = ()
    free: tuple = ()
    settings: dict = dataclasses.field(default_factory=dict)
    variants: dict = dataclasses.field(default_factory=dict)
    axes: dict = dataclasses.field(default_factory=dict)
    wide: tuple = ()
    empty: Callable | None = None
    values: tuple = (1e-5, 0.25)  # twice the step of a score of 4e4 / 0.02
    relative: float = 1e-5
    gathers: bool = False


def make(name, seed=0, scale=1.0, **sizes):
    return CASES[name].make(seed, scale, **sizes)


def run(name, arrays, **settings):
    """Terms of a loss, and the gradient of its "loss" by the student's arrays."""
    case = CASES[name]
    traced, static = split(case.settings | settings)
    student = {key: value for key, value in arrays.items() if key in case.student}
    return compiled(name, static)(student, arrays, traced)


def split(settings):
    """Settings that are traced, and those that are not, as a tuple."""

    def traced(value):
        return all(isinstance(leaf, float | np.ndarray) for leaf in jax.tree.leaves(value))

    names = [name for name, value in settings.items() if value is not None and traced(value)]
    static = tuple((key, value) for key, value in settings.items() if key not in names)
    return {name: settings[name] for name in names}, static


@functools.cache
def compiled(name, static=()):
    def terms_and_gradients(student, arrays, settings):
        def loss(student):
            terms = CASES[name].loss(**arrays | student, **settings, **dict(static))
            return terms.get("loss", jnp.zeros(())), terms

        gradients, terms = jax.grad(loss, has_aux=True)(student)
        return terms, gradients

    return jax.jit(terms_and_gradients)


def wanted(name, arrays, **settings):
    """What `run` must give, in float64; gradients by differences where the reference has none."""
    case = CASES[name]
    settings = case.settings | settings
    wide = {k: np.float64(x) if is_float(x) else np.asarray(x) for k, x in arrays.items()}
    result = case.reference(**wide, **settings)
    if isinstance(result, tuple):
        return result
    constants = {"constants": wide} if name == "stellar" else {}

    def slope(key):
        def loss(x):
            return case.reference(**wide | {key: x}, **settings, **constants)["loss"]

        return reference.slopes(loss, wide[key])

    return result, lambda: {key: slope(key) for key in case.student if key in arrays}


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def drawer(seed, scale=1.0):
    rng = np.random.default_rng(seed)

    def draw(*shape, scale=scale):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    return rng, draw


# Inputs, and the calls that are not the loss itself


def dino(seed, scale, views=(5, 2), batch=3, prototypes=7):
    _, draw = drawer(seed, scale)
    student, teacher = (draw(n, batch, prototypes) for n in views)
    return {"student_logits": student, "teacher_logits": teacher, "center": draw(prototypes)}


def ibot_patch(seed, scale, views=2, batch=3, patches=5, prototypes=7, share=0.5):
    rng, draw = drawer(seed, scale)
    x = {f"{who}_logits": draw(views, batch, patches, prototypes) for who in WHO}
    x["masks"] = rng.random((views, batch, patches)) < share
    x["masks"][0, -1] = False  # an image without a masked patch counts as 0
    return x | {"center": draw(prototypes)}


def ibot_patch_fused(seed, scale, views=2, batch=3, patches=5, prototypes=7, share=0.5):
    x = ibot_patch(seed, scale, views, batch, patches, prototypes, share)
    rng, draw = drawer(seed + 3, scale)
    for who, width in zip(WHO, (6, 4)):
        x.pop(f"{who}_logits")
        x[who] = draw(views, batch, patches, width)
        # As long as the rows of a head: the scores have the size of the embeddings.
        x[f"{who}_prototypes"] = reference.unit(rng, prototypes, width).T
    return x


def ibot(seed, scale, batch=3, prototypes=7):
    cls = dino(seed, scale, (4, 2), batch, max(1, prototypes - 1))
    patch = ibot_patch(seed + 1, scale, batch=batch, prototypes=prototypes)
    cls = {name.replace("logits", "cls"): value for name, value in cls.items()}
    cls["cls_center"] = cls.pop("center")
    return cls | {name.replace("logits", "patch"): value for name, value in patch.items()}


def ibot_loss(cls_center, center, **options):
    return losses.ibot(**options, centers=(cls_center, center))


def dinov2(seed, scale, batch=4, prototypes=7):
    x = ibot(seed, scale, batch, prototypes)
    tokens = drawer(seed + 2, scale)[1](2, batch, 8)
    return {name: x[name] for name in x if "center" not in name} | {"tokens": tokens}


def cribo_images(seed, scale, batch=4, prototypes=6, width=None):
    rng, draw = drawer(seed, scale)
    x = {who: draw(2, batch, width or prototypes) for who in WHO}
    return x | prototypes_of(rng, prototypes, width) | {"center": draw(prototypes)}


def cribo_objects(seed, scale, batch=4, objects=3, prototypes=6, width=None, retrieved=True):
    rng, draw = drawer(seed, scale)
    names = [*WHO, "neighbours"] if retrieved else WHO
    x = {name: draw(2, batch, objects, width or prototypes) for name in names}
    x["valid"] = rng.random((batch, objects)) < 0.7
    if retrieved:
        x["cycle"] = rng.random((2, batch, objects)) < 0.6
    return x | prototypes_of(rng, prototypes, width) | {"center": draw(prototypes)}


def prototypes_of(rng, prototypes, width):
    draws = rng.normal(size=(2, width or 1, prototypes)).astype(np.float32)
    return {f"{who}_prototypes": rows for who, rows in zip(WHO, draws) if width}


def cribo_loss(function, tau_s, tau_t, weights=(0, 0), **x):
    center, own, others = (
        x.pop(name, None) for name in ("center", "student_prototypes", "teacher_prototypes")
    )

    def log_target(center, others, rows):
        rows = rows if others is None else rows.astype(others.dtype) @ others
        return ops.centered_softmax(rows, center, temperature=tau_t, log=True)

    def log_prediction(own, rows):
        rows = rows if own is None else rows.astype(own.dtype) @ own
        return jax.nn.log_softmax(rows.astype(jnp.float32) / tau_s)

    target, prediction = Partial(log_target, center, others), Partial(log_prediction, own)
    terms = function(**x, log_target=target, log_prediction=prediction)
    if "loss" not in terms:
        other = terms.get("cross_image_loss", 0)
        terms["loss"] = weights[0] * terms["cross_view_loss"] + weights[1] * other
    return terms


def flsl(seed, scale, lead=(2, 3), prototypes=5, prior=False):
    _, draw = drawer(seed, scale)
    x = {name: draw(*lead, 4) for name in ("tokens", "modes")}
    x["student_logits"] = draw(*lead, prototypes)
    x["log_targets"] = reference.log_softmax(draw(*lead, prototypes) / 0.3).astype(np.float32)
    return x | ({"prior": np.array([0.1, 0.3, 0.2, 0.35, 0.05], np.float32)} if prior else {})


def batch_softmax(seed, scale, batch=3, prototypes=5):
    return {"teacher_logits": drawer(seed, scale)[1](batch, 2, prototypes)}


def gram(seed, scale, batch=2, patches=4, width=5):
    _, draw = drawer(seed, scale)
    return {who: draw(batch, 2, patches, width) for who in WHO}


def distillation(seed, scale, batch=3):
    _, draw = drawer(seed, scale)
    return {who: draw(batch, 2, 6) for who in WHO}


def mae(seed, scale, batch=3, share=0.7):
    rng, draw = drawer(seed, scale)
    x = {"predicted": draw(batch, 6, 12), "pixels": draw(batch, 6, 12)}
    x["pixels"][0, 1] = 0.25  # a flat patch
    return x | {"mask": rng.random((batch, 6)) < share}


def sop(seed, scale, views=4, batch=3, tasks=2, prototypes=5, slots=3, rule="similarity",
        patches=0):  # fmt: skip
    rng = np.random.default_rng(seed)
    lead = (batch, patches) if patches else (batch,)
    x = {f"{w}_embeddings": reference.unit(rng, v, *lead, 6) for w, v in zip(WHO, (views, 2))}
    x["members"] = reference.unit(rng, tasks, prototypes, slots, 6)
    x = {name: scale * value for name, value in x.items()}
    draws = rng.uniform(0.1, 1, (tasks, prototypes, slots))
    x["weights"] = np.float32([reference.shares(task, rule) for task in draws])
    if patches:
        x["masks"] = rng.random((2, *lead)) < 0.5
        x["masks"][0, -1], x["masks"][1, 0] = False, True
    return x


def sop_reference(student_embeddings, teacher_embeddings, members, weights, masks=None, **taus):
    student, teacher, tau_s, tau_t = student_embeddings, teacher_embeddings, *taus.values()
    arguments = members, weights, *([] if masks is None else [masks]), tau_s, tau_t
    if masks is not None:
        loss, gradient, kl = reference.sop_patch(student, teacher, *arguments)
        terms = {"loss": loss, "kl": kl, "masked": masks.mean()}
    else:
        loss, gradient, entropy, _ = reference.sop(student, teacher, *arguments)
        terms = {"loss": loss, "kl": loss - entropy}
        terms["global_loss"] = reference.sop(student[:2], teacher, *arguments)[0]
        local = len(student) - 2
        if local:  # 2 pairs of global views, 2 of every local one
            total = (2 + 2 * local) * loss - 2 * terms["global_loss"]
            terms["local_loss"] = total / (2 * local)
    votes = [np.exp(reference.vote(teacher, m, w, tau_t)) for m, w in zip(members, weights)]
    tasks = [reference.meters(q) for q in votes]
    terms |= {name: np.mean([task[name] for task in tasks]) for name in tasks[0]}
    return terms, {"student_embeddings": gradient}


R, MASKED_R, TEACHER_R, VIEWS, K, KC, E, N = 4, 3, 5, 2, 7, 6, 5, 4


def stellar(seed, scale, batch=3, parts=()):
    """All parts of the objective, except those that the words of `parts` take out."""
    rng, draw = drawer(seed, scale)
    wide, wide_cls = (E, E) if "embeddings" in parts else (K, KC)
    goals = TEACHER_R if "teacher" in parts else R
    x = {
        "token_logits": draw(batch, R, wide),
        "masked_token_logits": draw(batch, VIEWS, MASKED_R, wide),
        "cls_logits": draw(batch, wide_cls),
        "masked_cls_logits": draw(batch, VIEWS, wide_cls),
        "local_cls_logits": draw(batch, VIEWS, wide_cls),
        "tokens": draw(batch, R, 6),
        "masked_tokens": draw(batch, VIEWS, MASKED_R, 6),
        "matches": rng.integers(goals, size=(batch, VIEWS, MASKED_R)),
        "reconstruction": draw(batch, N, K),
        "target": rng.integers(K, size=(batch, N)) if "codes" in parts else draw(batch, N, K),
    }
    x["matches"][0, 0] = 1  # many to one
    if "embeddings" in parts:
        x["token_prototypes"], x["cls_prototypes"] = draw(K, E, scale=1), draw(KC, E, scale=1)
    if "teacher" in parts:
        x["teacher_token_logits"] = draw(batch, TEACHER_R, K)
        x["teacher_cls_logits"] = draw(batch, KC)
        x["token_matches"] = rng.integers(TEACHER_R, size=(batch, R))
    left = {
        "no cls": lambda name: "cls" in name,
        "no masked": lambda name: "masked" in name or name == "matches",
        "no local": lambda name: name == "local_cls_logits",
        "no rebuild": lambda name: name in ("reconstruction", "target"),
        "no main": lambda name: name in ("token_logits", "cls_logits", "token_matches"),
        "no clustering": lambda name: any(w in name for w in ("logits", "prototypes", "match")),
    }
    return {k: v for k, v in x.items() if not any(left[w](k) for w in set(parts) & left.keys())}


def stellar_loss(weights, student_temperature, teacher_temperature, **x):
    """`losses.stellar` of these flat inputs."""
    get = x.get
    found = {
        kind: any(get(f"{view}{kind}_logits") is not None for view in ("", "teacher_", "masked_"))
        for kind in ("token", "cls")
    }

    def parts(kind):
        return [get(f"{kind}_logits"), get(f"{kind}_prototypes"), get(f"teacher_{kind}_logits")]

    masked = get("masked_token_logits")
    views = {} if masked is None else {"align": (masked, get("matches"))}
    small = {"align": get("masked_cls_logits"), "local": get("local_cls_logits")}
    small = {name: value for name, value in small.items() if value is not None}
    return losses.stellar(
        losses.Tokens(*parts("token"), get("token_matches"), views) if found["token"] else None,
        losses.class_tokens(*parts("cls"), small) if found["cls"] else None,
        embeddings=[x[name] for name in ("tokens", "masked_tokens") if name in x],
        rebuilt=(x["reconstruction"], get("target")) if "reconstruction" in x else None,
        weights=weights,
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature,
    )


def boxes(seed, scale, batch=3, queries=6, targets=4, prototypes=4):
    """Of three images the second has one object, the third none."""
    rng, draw = drawer(seed, scale)
    size = rng.uniform(0.1, 0.4, (batch, queries + targets, 2))
    rows = np.concatenate([rng.uniform(0.2, 0.8, size.shape), size], axis=-1).astype(np.float32)
    return {
        "logits": draw(batch, queries, prototypes),
        "boxes": rows[:, :queries],
        "labels": rng.integers(0, max(1, prototypes - 1), (batch, targets)),
        "targets": rows[:, queries:],
        "present": np.arange(targets) < np.resize([3, 1, 0], batch)[:, None],
    }


def detr(seed, scale, batch=3, **sizes):
    x, rng = boxes(seed, scale, batch, **sizes), np.random.default_rng(seed)
    orders = [rng.permutation(x["logits"].shape[1])[:4] for _ in range(batch)]
    return x | {"matched": np.stack(orders)}


def pixels(seed, scale, batch=2, prototypes=4):
    rng, draw = drawer(seed, scale)
    labels = rng.integers(0, max(1, prototypes - 1), (batch, 3, 4))  # the last class is not there
    labels[rng.random(labels.shape) < 0.3] = 255
    return {"logits": draw(batch, 3, 4, prototypes), "labels": labels}


def nothing(x):
    """Masks that are empty."""
    return {name: np.zeros_like(a) if a.dtype == bool else a for name, a in x.items()}


def unlabelled(x):
    return x | {"labels": np.full_like(x["labels"], 255)}


def named(function, name="loss"):
    return lambda **options: {name: function(**options)}


def plain(**variants):
    """Variants of the sizes alone."""
    return {"": ({}, {})} | {name: (sizes, {}) for name, sizes in variants.items()}


WHO = ("student", "teacher")
ONE = {"prototypes": 1, "batch": 1}
LOGITS = {"student_logits": 1, "teacher_logits": 1}
HALVES = {f"{who}_{what}": 1 for who in WHO for what in ("cls", "patch")} | {"masks": 1}
IBOT = {"student_temperature": 0.1, "teacher_temperature": 0.04, "weights": (2.0, 0.5)}
IBOT |= {"patch_teacher_temperature": 0.07}
HEAT = {"weights": {"reconstruction": 0.7, "cluster": 1.3, "align": 0.9, "koleo": 0.2}}
HEAT |= {"teacher_temperature": 0.3, "student_temperature": 0.5}
SOP = TAUS | {"teacher_temperature": 0.04}
RULES = {rule: ({"rule": rule}, {}) for rule in ("similarity", "smoothed", "onehot")}
EMBEDDINGS = {"student_embeddings": 1, "teacher_embeddings": 1}
BOXES = dict.fromkeys(("logits", "boxes", "labels", "targets", "present"), 0)
CRIBO = {"tau_s": 0.1, "tau_t": 0.07}
PUBLISHED = {"weights": None}
STUDENT = ("token_logits", "masked_token_logits", "cls_logits", "masked_cls_logits", "tokens",
           "local_cls_logits", "masked_tokens", "reconstruction", "token_prototypes",
           "cls_prototypes")  # fmt: skip

# fmt: off
CASES = {
    "dino": Case(
        dino, losses.dino, reference.dino, student=("student_logits",), settings=TAUS,
        variants=plain(two={"views": (2, 2)}, one_teacher={"views": (3, 1)}, one=ONE),
        axes=LOGITS, wide=("center",)),
    "ibot_patch": Case(
        ibot_patch, losses.ibot_patch, reference.ibot_patch, student=("student_logits",),
        settings=TAUS, axes=LOGITS | {"masks": 1}, wide=("center",), empty=nothing,
        variants=plain(none={"share": 0.0}, all={"share": 1.0}, one=ONE | {"patches": 1})),
    "ibot_patch_fused": Case(
        ibot_patch_fused, losses.ibot_patch_fused, reference.ibot_patch_fused,
        student=("student", "student_prototypes"), settings=TAUS | {"chunk": None},
        axes={"student": 1, "teacher": 1, "masks": 1}, wide=("center",), empty=nothing,
        variants=plain(none={"share": 0.0}, all={"share": 1.0}, one=ONE | {"patches": 1})
        | {"pass by pass": ({}, {"chunk": 10}), "4 does not divide 30": ({}, {"chunk": 4})}),
    "ibot": Case(
        ibot, ibot_loss, reference.ibot, student=("student_cls", "student_patch"), settings=IBOT,
        variants=plain(one=ONE), axes=HALVES, wide=("cls_center", "center"), empty=nothing),
    "dinov2": Case(
        dinov2, losses.dinov2, reference.dinov2, student=("student_cls", "student_patch", "tokens"),
        settings=TAUS | {"weights": (1.5, 0.5, 0.2)},
        variants=plain(one=ONE), axes=HALVES | {"tokens": 1}, empty=nothing, values=(None, None),
        gathers=True),
    "batch_koleo": Case(
        lambda seed, scale, batch=4: {"tokens": drawer(seed, scale)[1](2, batch, 8)},
        named(losses.batch_koleo), reference.batch_koleo, student=("tokens",),
        variants=plain(one={"batch": 1}), axes={"tokens": 1}, values=(None, None), gathers=True),
    "cribo_images": Case(
        cribo_images, functools.partial(cribo_loss, losses.cribo_images),
        functools.partial(reference.cribo, reference.cribo_images),
        student=("student", "student_prototypes"), settings=CRIBO | {"chunk": None},
        variants=plain(prototypes={"width": 5}, one=ONE)
        | {"image by image": ({"batch": 6}, {"chunk": 1}), "both": ({"width": 5}, {"chunk": 1})},
        axes=dict.fromkeys(WHO, 1), wide=("center",), values=(2e-5, 0.0625)),
    "cribo_objects": Case(
        cribo_objects, functools.partial(cribo_loss, losses.cribo_objects),
        functools.partial(reference.cribo, reference.cribo_objects),
        student=("student", "student_prototypes"),
        settings=CRIBO | {"weights": (1.0, 1.0), "chunk": 8},
        variants=plain(prototypes={"width": 5}, one=ONE | {"objects": 1},
                       not_retrieved={"retrieved": False})
        | {"image by image": ({"batch": 6}, {"chunk": 1}), "both": ({"width": 5}, {"chunk": 1}),
           "three images": ({"batch": 6}, {"chunk": 3}), "first": ({}, {"counts": "first"}),
           "2 does not divide 5": ({"batch": 5}, {"chunk": 2}),
           "gate": ({}, {"weights": (2.0, 0.25)}), "gate closed": ({}, {"weights": (1.0, 0.0)})},
        axes={"student": 1, "teacher": 1, "neighbours": 1, "valid": 0, "cycle": 1},
        wide=("center",), empty=nothing, values=(2e-5, 0.0625)),
    "flsl": Case(
        flsl, losses.flsl, reference.flsl, student=("tokens", "modes", "student_logits"),
        free=("prior",), settings={"weights": (0.3, 0.7, 2.0), "student_temperature": 0.5},
        variants=plain(prior={"prior": True}, flat={"lead": (7,)},
                       one={"lead": (1,), "prototypes": 1}),
        axes=dict.fromkeys(("tokens", "modes", "student_logits", "log_targets"), 0),
        wide=("log_targets", "prior"), values=(1e-5, 8e-3)),
    "batch_softmax": Case(
        batch_softmax, named(losses.batch_softmax, "log_targets"), reference.batch_softmax,
        settings={"temperature": 0.3}, variants=plain(one=ONE), axes={"teacher_logits": 0}),
    "gram": Case(
        gram, named(losses.gram), reference.gram, student=("student",), axes=dict.fromkeys(WHO, 0),
        variants=plain(more_patches={"width": 3}, one={"batch": 1, "patches": 1})
        | {f"{over} {negatives}": ({}, {"over": over, "negatives": negatives})
           for over in ("image", "batch") for negatives in ("keep", "remove", "remove_teacher")},
        values=(2e-6, 2e-6)),
    "distillation": Case(
        distillation, losses.distillation, reference.distillation, student=("student",),
        settings={"cosine": 0.9, "smooth_l1": 0.3}, axes=dict.fromkeys(WHO, 0),
        variants=plain(one={"batch": 1})),
    "mae": Case(
        mae, losses.mae, reference.mae, student=("predicted",), relative=1e-4,
        settings={"normalize_pixels": True}, axes=dict.fromkeys(("predicted", "pixels", "mask"), 0),
        variants=plain(all={"share": 1.0}, none={"share": 0.0})
        | {f"raw {s}": ({"share": s}, {"normalize_pixels": False}) for s in (0.7, 1.0, 0.0)},
        empty=nothing),
    "normalize_patches": Case(
        lambda seed, scale, batch=3: {"pixels": drawer(seed, scale)[1](batch, 6, 12)},
        lambda pixels: dict(zip(reference.PATCH, losses.normalize_patches(pixels))),
        reference.normalize_patches, free=("pixels",), variants=plain(), axes={"pixels": 0},
        wide=("pixels",), values=(None, None)),
    "sop": Case(
        sop, losses.sop, sop_reference, student=("student_embeddings",), settings=SOP,
        variants=RULES | {"two": ({"views": 2, "tasks": 1, "slots": 1},
                                  {"student_temperature": 0.2, "teacher_temperature": 0.05}),
                          "one": (ONE | {"slots": 1}, {})},
        axes=EMBEDDINGS, wide=("weights",), values=(1e-5, None)),
    "sop_patch": Case(
        functools.partial(sop, views=2, patches=4), losses.sop_patch, sop_reference,
        student=("student_embeddings",), settings=SOP,
        variants=RULES | {"one": (ONE | {"slots": 1}, {})}, axes=EMBEDDINGS | {"masks": 1},
        wide=("weights",), empty=nothing, values=(1e-5, None)),
    "stellar": Case(
        stellar, stellar_loss, reference.stellar, student=STUDENT, settings=HEAT,
        variants={", ".join(words) or "all": ({"parts": words}, {}) for words in (
            ("teacher", "embeddings"), (), ("teacher", "embeddings", "codes"),
            ("embeddings", "no cls", "no masked", "no local", "codes"),
            ("teacher", "no cls", "no rebuild"), ("no clustering", "no masked"),
            ("teacher", "no main", "no local", "no rebuild"))}
        | {"published weights": ({}, PUBLISHED),
           "of codes": ({"parts": ("codes", "no clustering", "no masked")}, PUBLISHED)},
        axes=dict.fromkeys(stellar(0, 1.0, parts=("teacher",)), 0),
        wide=("token_prototypes", "cls_prototypes"), values=(None, None)),
    "matching_costs": Case(
        boxes, named(detection.matching_costs, "costs"), reference.matching_costs,
        free=("logits", "boxes", "targets"), variants=plain(one=ONE), axes=BOXES,
        empty=nothing, values=(None, None)),
    "detr": Case(
        detr, detection.detr, reference.detr, student=("logits", "boxes"), free=("targets",),
        variants=plain(one={"batch": 1, "queries": 4}), axes=BOXES | {"matched": 0},
        empty=nothing, values=(1e-5, None)),
    "pixel_cross_entropy": Case(
        pixels, named(losses.pixel_cross_entropy), reference.pixel_cross_entropy,
        student=("logits",), settings={"average": "labelled"},
        variants=plain(one=ONE) | {"all": ({}, {"average": "all"})},
        axes={"logits": 0, "labels": 0}, empty=unlabelled),
    "dice": Case(
        pixels, named(losses.dice), reference.dice, student=("logits",), variants=plain(one=ONE),
        axes={"logits": 0, "labels": 0}, empty=unlabelled),
}
# fmt: on
