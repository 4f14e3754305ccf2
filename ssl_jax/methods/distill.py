"""Distillation: a student learns the features of a frozen, published network.

Follows AM-RADIO (Ranzinger et al. 2024, arXiv 2312.06709), with one teacher. Student and teacher
see the same view, the teacher at its own size and patch. Linear maps project the student's image
vector and patches to the teacher's width, where cosine and smooth L1 compare them
(`losses.distillation`). The student may also be trained by the loss of a method in `OWN`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import losses
from ssl_jax.config import InputError, MissingFile, check_multiple, key
from ssl_jax.convert import FAMILIES, backbones
from ssl_jax.methods import base, cribo, flsl, frozen, multicrop, sop, sove, stellar
from ssl_jax.models import heads, vit, zoo
from ssl_jax.models.functional import Model
from ssl_jax.ops import numerics
from ssl_jax.ops.vectors import unit
from ssl_jax.views import configured
from ssl_jax.views.recipe import ViewRecipe

OWN = {"cribo": cribo, "flsl": flsl, "sop": sop, "sove": sove, "stellar": stellar}
RANDOM = "random"
_STREAM = 0x74656163  # "teac", folded into keys: a random teacher differs from the student


def defaults() -> dict:
    """The section `distill` of the config; default weights are ours."""
    return dict(
        teacher=key(
            "",
            "frozen teacher network: a weight file, a folder of timm's or transformers', a saved"
            ' network, or a run; "random" = untrained, in the student\'s shape (a control)',
            path=True,
            acts="",
        ),
        family=key("", 'naming scheme of the weights; "" = detected', choices=("", *FAMILIES)),
        assumed=key("b", "size assumed for a missing teacher (show, plan)", choices=tuple("sblh")),
        size=key(0, "side of the teacher's images; 0 = native", "pixels", least=0, most=16384),
        weight=key(1.0, "weight of the distillation loss; 0 = method alone, no teacher", least=0),
        image_weight=key(1.0, "weight of the image vectors in the distillation loss", least=0),
        patch_weight=key(1.0, "weight of the patches in the distillation loss", least=0),
        cosine=key(0.9, "weight of 1 - cosine in the distillation loss", least=0),
        smooth_l1=key(0.1, "weight of smooth L1 in the distillation loss", least=0),
        method=key("sop", "method whose loss the student also has", choices=tuple(OWN)),
        own_weight=key(1.0, "weight of the method's loss; 0 = distillation of one view", least=0),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other, and for a teacher that cannot be
    read or does not match the student."""
    c, m = config.distill, config.model
    for names in (
        ("weight", "own_weight"),
        ("image_weight", "patch_weight"),
        ("cosine", "smooth_l1"),
    ):
        if not any(c[name] for name in names) and (c.weight or names[0] == "weight"):
            raise InputError(
                f"distill.{names[0]} and distill.{names[1]} are both 0; set one of them above 0"
            )
    if c.own_weight:
        OWN[c.method].check(_of_method(config))
    if not c.weight:
        return
    shape = _shape(config) if c.teacher == RANDOM else _file(c).shape
    if shape.in_channels != m.in_channels:
        raise InputError(
            f"distill.teacher={c.teacher} expects images of {shape.in_channels} channels, the"
            f" student {m.in_channels} (model.in_channels); choose a teacher with the same number"
        )
    check_multiple("distill.size", c.size, shape.patch, "patch of distill.teacher")


class Outputs(NamedTuple):
    """Inputs of both losses.

    own: outputs of the student's own method, None without one. student, teacher: {"image": [B, D],
    "patches": [B, h, w, D]} at the teacher's width and the student's grid, without entries of
    weight 0; the student's are projected, the teacher's carry no gradient.
    """

    own: Any
    student: dict[str, jax.Array]
    teacher: dict[str, jax.Array]


def make(config: ConfigDict) -> base.Method:
    """Distillation with the networks and settings of a resolved config."""
    c, m = config.distill, config.model
    own = OWN[c.method].make(_of_method(config)) if c.own_weight else _alone(config)
    if not c.weight:
        return own
    weights = {"image": c.image_weight, "patches": c.patch_weight}
    weights = {name: c.weight * weight for name, weight in weights.items() if weight}

    @functools.cache
    def shape() -> vit.ViTConfig:  # only training reads the file
        return _shape(config)

    def mapping() -> Model:
        return heads.linear_head(m.width, shape().width, init_std=m.init_std, dtype=m.dtype)

    def init(key):
        """The method's parameters and carry; "distill" holds the linear maps."""
        params, carry = own.init(key)
        keys = jax.random.split(jax.random.fold_in(key, _STREAM), len(weights))
        maps = {name: mapping().init(one) for name, one in zip(weights, keys, strict=True)}
        return {**params, "distill": maps}, carry

    def joined(network, inner):
        return {frozen.NAME: network} | ({} if inner is None else {"own": inner})

    def constant_shapes():
        network = jax.eval_shape(vit.vit(shape()).init, numerics.key(0))
        return joined(network, base.shapes_of_constants(own))

    def encode(params, teacher, constants, views, keys, progress):
        images = views["global"].images[:, 0]
        student_features = own.features(_without_maps(params), images)
        of_student = {"image": student_features.image, "patches": student_features.patches}
        grid = student_features.patches.shape[1:3]
        of_teacher = _look(shape(), constants[frozen.NAME], images, c.size, grid, m)
        outputs = own.encode(
            _without_maps(params), teacher, constants.get("own"), views, keys, progress
        )
        return Outputs(
            outputs,
            {name: mapping().apply(params["distill"][name], of_student[name]) for name in weights},
            {name: of_teacher[name] for name in weights},
        )

    def objective(params, teacher, outputs, carry, key, progress):
        """own_weight L_method + weight (image_weight L_image + patch_weight L_patches)."""
        arguments = _without_maps(params), teacher, outputs.own, carry, key, progress
        loss, out = own.objective(*arguments)
        metrics = dict(out.metrics)
        if c.own_weight:
            metrics["own_loss"] = loss
        loss = c.own_weight * loss
        for name, weight in weights.items():
            pair = outputs.student[name], outputs.teacher[name]
            terms = losses.distillation(*pair, cosine=c.cosine, smooth_l1=c.smooth_l1)
            loss = loss + weight * terms["loss"]
            metrics |= {f"distill_{name}_{term}": value for term, value in terms.items()}
        rows = outputs.teacher[next(iter(weights))].astype(jnp.float32)
        metrics["distill_teacher_spread"] = base.spread(unit(rows.reshape(-1, rows.shape[-1])))
        return loss, base.Output(out.carry, metrics)

    def features(params, images, *, constants=None, **options):
        inner = None if constants is None else constants.get("own")
        return own.features(params, images, constants=inner, **options)

    return own._replace(
        init=init,
        encode=encode,
        objective=objective,
        features=features,
        constants=lambda: joined(_weights(config), own.constants()),
        constant_shapes=constant_shapes,
        teacher_of=lambda params: own.teacher_of(_without_maps(params)),
        health=lambda metrics: own.health(metrics) + _warnings(metrics),
    )


def _of_method(config: ConfigDict) -> FrozenConfigDict:
    """The config for the student's own method."""
    return FrozenConfigDict(config.to_dict() | {"method": config.distill.method})


def _without_maps(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tree for name, tree in params.items() if name != "distill"}


def _alone(config: ConfigDict) -> base.Method:
    """A student without its own loss: one view and no EMA teacher. The image vector is the class
    token, or the mean of the patches if there is none."""
    v, m = config.views, config.model
    backbone = multicrop.encoders(m)
    photometric = configured.photometric_of_one(v)
    group = configured.group_of(v, m.patch, count=1, photometric=photometric)
    return base.Method(
        views=ViewRecipe((("global", group),)),
        init=lambda key: ({"backbone": backbone.student.init(key)}, None),
        encode=lambda *_: None,
        objective=lambda params, teacher, outputs, carry, *_: (0.0, base.Output(carry, {})),
        features=multicrop.features_of(backbone.teacher, m, "cls" if m.cls else "mean"),
    )


def _file(c: ConfigDict) -> backbones.Backbone:
    """The teacher of a section `distill`. Raises InputError."""
    if not c.teacher:
        raise MissingFile(
            'distill.teacher is ""; give the weights to distil from, --config.distill.teacher=PATH,'
            f' or "{RANDOM}" for an untrained control'
        )
    try:
        return backbones.load(c.teacher, c.family)
    except InputError as error:
        raise type(error)(f"distill.teacher: {error}") from None


def _shape(config: ConfigDict) -> vit.ViTConfig:
    """Shape of the teacher, or the assumed one if its file is missing. Raises InputError."""
    c = config.distill
    if c.teacher == RANDOM:
        return zoo.vit_config(config.model, drop_path=0.0)
    try:
        return _file(c).shape
    except MissingFile:
        size = c.size or 224
        patch = math.gcd(size, 16) if size % 14 else 14
        return zoo.vit_config({"size": c.assumed, "patch": patch, "image_size": size})


def _weights(config: ConfigDict) -> dict[str, Any]:
    """Weights of the teacher, float32. Raises InputError."""
    if config.distill.teacher == RANDOM:
        random = jax.random.fold_in(numerics.key(config.seed), _STREAM)
        return jax.jit(vit.vit(_shape(config)).init)(random)
    return _file(config.distill).params


def _look(shape, params, images, size: int, grid: tuple[int, int], model: ConfigDict) -> dict:
    """The teacher's {"image": [B, D], "patches": [B, *grid, D]} for images [B, H, W, 3], without a
    gradient. size: of its input in pixels; 0 = its native size."""
    size = size or shape.image_size
    network = vit.vit(dataclasses.replace(shape, dtype=model.dtype, attention=model.attention))
    tokens = network.apply(params, _resized(images, (size, size)))
    side = size // shape.patch
    patches = tokens.patches.reshape(len(images), side, side, -1)
    image = multicrop.global_token(tokens, "cls" if shape.cls else "mean")
    return jax.lax.stop_gradient({"image": image, "patches": _resized(patches, grid)})


def _resized(maps: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Resizes [B, H, W, C]: bilinear, antialiased when shrinking."""
    shape = (maps.shape[0], *size, maps.shape[-1])
    return maps if maps.shape == shape else jax.image.resize(maps, shape, "linear")


def _warnings(metrics: Mapping[str, float]) -> list[str]:
    """Warns if the teacher's features are nearly constant."""
    spread = metrics.get("distill_teacher_spread", 1.0)
    if spread >= 0.05:
        return []
    return [
        f"constant teacher: its features hardly differ (spread {spread:.3f} of 1), so there is"
        " nothing to learn from; check distill.teacher, distill.family and distill.size"
    ]
