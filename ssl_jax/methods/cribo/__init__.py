"""CrIBo: self-supervised learning via cross-image object-level bootstrapping (Lebailly, Stegmüller
et al. 2024).

The patch tokens of two views of an image are clustered together into objects. A student matches its
EMA teacher on images, on the two views of an object, and on an object and its nearest neighbour
among the objects of earlier images, if the way back leads to it again.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import Partial
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.methods import base, gram, multicrop
from ssl_jax.methods.cribo import objects, oracle
from ssl_jax.methods.cribo.levels import Level
from ssl_jax.methods.cribo.settings import check, defaults, learns_from_masks, position_weight
from ssl_jax.models import heads
from ssl_jax.ops import devices
from ssl_jax.views import boxes, configured

__all__ = ["Outputs", "check", "defaults", "make"]


class Outputs(NamedTuple):
    """Outputs for both views of an image. All but the first two are None without object losses."""

    student: jax.Array  # [B, 2, e], class tokens after the hidden layers of the head
    teacher: jax.Array  # [B, 2, e]
    student_tokens: jax.Array | None = None  # [B, 2N, d], of view 1, then of view 2
    teacher_tokens: jax.Array | None = None  # [B, 2N, d]
    positions: jax.Array | None = None  # [B, 2N, 2], (y, x) in source pixels
    seeds: jax.Array | None = None  # [B] keys of the initial centroids
    labels: jax.Array | None = None  # [B, 2N] uint8, classes from masks (table 11), else None


def make(config: ConfigDict) -> base.Method:
    """CrIBo with the networks and settings of a resolved config."""
    c, m = config.cribo, config.model
    views = configured.recipe_multicrop(config.views, m.patch)
    views = dataclasses.replace(views, patch_labels=learns_from_masks(c))
    backbone = multicrop.encoders(m)
    trunk = heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_bottleneck, init_std=m.init_std, dtype=m.dtype
    )
    last = heads.prototypes(c.head_bottleneck, c.prototypes, dtype=m.dtype)
    retrieves = c.cross_image_weight > 0
    levels = ("images", "objects") if retrieves or c.cross_view_weight > 0 else ("images",)
    assign = objects.clustering(c, c.clusters)

    def init(key):
        """Encoder, and a head with a trunk and a last layer per level; carry: zero centers per
        level and an empty memory of objects.
        """
        keys = jax.random.split(key, 4)
        head = {"trunk": trunk.init(keys[1])}
        head |= {level: last.init(k) for level, k in zip(levels, keys[2:], strict=False)}
        carry: dict[str, Any] = {
            "center": {level: jnp.zeros(c.prototypes, jnp.float32) for level in levels}
        }
        if retrieves:
            size = c.memory * c.clusters
            carry["memory"] = objects.empty_memory(size, m.width, class_sets=c.same_classes)
        return {"backbone": backbone.student.init(keys[0]), "head": head}, carry

    def embed(params, tokens):
        return trunk.apply(params["head"]["trunk"], tokens)

    def encode(params, teacher, constants, views, keys, progress):
        group, keys = views["global"], multicrop.split_keys(keys, 2)
        student = multicrop.encode(backbone.student, params["backbone"], group, keys=keys[:, 0])
        clean = multicrop.encode(backbone.teacher, teacher["backbone"], group)
        images = Outputs(embed(params, student.cls), embed(teacher, clean.cls))
        if "objects" not in levels:
            return gram.seen(config, images, student.patches, clean.patches)
        side = group.images.shape[2] // m.patch
        # Clustering follows in the objective, as its costs may be normalised over the batch.
        outputs = images._replace(
            student_tokens=joint(student.patches),
            teacher_tokens=joint(clean.patches),
            positions=joint(boxes.patch_positions(group.boxes, group.flips, (side, side))),
            seeds=keys[:, 1],
            labels=None if group.labels is None else joint(group.labels[..., None])[..., 0],
        )
        return gram.seen(config, outputs, student.patches, clean.patches)

    def objective(params, teacher, outputs, carry, key, progress):
        """L = L_g + L_cv + L_ci (eq. 11); then updates the centers and pushes this batch's objects
        into the memory.
        """
        tau = multicrop.teacher_temperature(c, progress.epoch, c.teacher_temperature_epochs)

        def level(name):
            student, target = (last.apply(tree["head"][name]) for tree in (params, teacher))
            return Level(student, target, carry["center"][name], c.student_temperature, tau)

        images = level("images")
        student, target = map(multicrop.views_first, outputs[:2])
        terms = losses.cribo_images(
            student,
            target,
            log_target=Partial(Level.log_target, images),
            log_prediction=Partial(Level.log_prediction, images),
            chunk=c.chunk or None,
        )
        loss = c.global_weight * terms["loss"]
        metrics = {"global_loss": terms.pop("loss"), "teacher_temperature": tau}
        metrics |= {f"image_{name}": value for name, value in terms.items()}
        metrics["embedding_spread"] = base.spread(target)
        valid = jnp.ones((target.shape[1], 1), bool)
        center = {"images": images.moved_center(target[:, :, None], valid, c.center_momentum)}
        carry = carry | {"center": carry["center"] | center}
        if "objects" not in levels:
            return loss, base.Output(carry, metrics)
        objects_loss, out = of_objects(params, teacher, outputs, carry, level("objects"), progress)
        return loss + objects_loss, base.Output(out.carry, metrics | out.metrics)

    def of_objects(params, teacher, outputs, carry, level, progress):
        """L_cv + L_ci from the objects of this batch and of the memory."""
        lam = position_weight(c, progress)
        if c.clustering == "masks":
            assigned = oracle.clusters(outputs.labels, c.clusters)
        else:
            assigned = assign(outputs.teacher_tokens, outputs.positions, outputs.seeds, lam)
        object_tokens, valid = jax.lax.stop_gradient(
            ops.object_tokens(outputs.teacher_tokens, assigned)
        )
        # The student's objects follow the TEACHER's assignment.
        student, _ = ops.object_tokens(outputs.student_tokens, assigned)
        student, target = (
            multicrop.views_first(embed(tree, x))
            for tree, x in ((params, student), (teacher, object_tokens))
        )
        metrics = {"position_weight": lam, "objects_per_image": valid.sum() / valid.shape[0]}
        center = level.moved_center(target, valid, c.center_momentum)
        new = carry | {"center": carry["center"] | {"objects": center}}
        retrieved = {}
        if retrieves:
            neighbours, counted, rows, meters = bootstrap(
                object_tokens, valid, outputs.labels, assigned, carry["memory"]
            )
            metrics |= meters
            # Images first: the head's work is sharded over them.
            embedded = multicrop.views_first(embed(teacher, neighbours))
            retrieved = dict(neighbours=embedded, cycle=counted, counts=c.counts)
            new["memory"] = rows
        terms = losses.cribo_objects(
            student,
            target,
            valid,
            log_target=Partial(Level.log_target, level),
            log_prediction=Partial(Level.log_prediction, level),
            chunk=c.chunk or None,
            **retrieved,
        )
        loss = c.cross_view_weight * terms["cross_view_loss"]
        metrics["cross_view_loss"] = terms.pop("cross_view_loss")
        if retrieves:
            gate = (progress.epoch >= c.start_epoch).astype(jnp.float32)
            metrics["cross_image_loss"] = gate * terms.pop("cross_image_loss")
            loss = loss + c.cross_image_weight * metrics["cross_image_loss"]
        metrics |= {f"object_{name}": value for name, value in terms.items()}
        return loss, base.Output(new, metrics)

    def bootstrap(object_tokens, valid, labels, assigned, memory):
        """Neighbours [B, 2, K, d] of the objects, whether each counts [2, B, K], rows for the
        memory, and metrics."""
        # Gather the objects once for both searches and the memory.
        all_objects, sets = devices.whole(object_tokens), None
        neighbours, index, counted, exists = objects.retrieve(
            all_objects, valid, memory, group=c.group
        )
        metrics = objects.bootstrapping(counted, valid)
        metrics["memory_fill"] = ops.memory_valid(memory).mean()
        if not c.cycle:
            counted = jnp.broadcast_to(valid & exists, counted.shape)
        if c.same_classes:
            sets = devices.whole(oracle.class_sets(labels, assigned))
            same = valid & oracle.same_classes(sets, memory, index)
            metrics["same_classes_ratio"] = same.sum() / (2 * jnp.maximum(1, valid.sum()))
            counted = counted & same
        return neighbours, counted, objects.remembered(all_objects, valid, sets), metrics

    def show(params, images, features, tokens, constants):
        """Extras "clusters", "objects" and "exist", see `objects.find`."""
        return objects.find(images.shape[1:3], features.patches, c, seed=config.seed)

    method = base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, "cls", show),
        teacher_of=lambda params: params,
        rules=multicrop.last_layer_rules(
            "head/(images|objects)",
            freeze_epochs=c.freeze_last_layer_epochs,
            fixed_gain=c.norm_last_layer,
        ),
        placement=(("carry/memory/(rows/.*|valid)", PartitionSpec(("data", "fsdp"))),),
        health=functools.partial(health, prototypes=c.prototypes),
        meanings=base.entropies(image=c.prototypes, object=c.prototypes),
    )
    return gram.added(config, method)


def joint(array: jax.Array) -> jax.Array:
    """[B, 2, N, ...] -> [B, 2N, ...]: view 1, then view 2."""
    return array.reshape(array.shape[0], -1, array.shape[-1])


def health(metrics: Mapping[str, float], prototypes: int) -> list[str]:
    """Warns of collapsed targets, of views that share no object, and of a full memory without
    cycle-consistent neighbours.
    """
    warnings = base.spread_warnings(metrics)
    warnings += base.assignment_warnings(metrics, image=prototypes, object=prototypes)
    if metrics.get("objects_per_image", 1.0) < 1:
        warnings.append(
            "hardly any objects: the views share no clusters; raise views.global_scale, or lower"
            " cribo.clusters"
        )
    if metrics.get("memory_fill", 0.0) == 1 and metrics["bootstrapping_ratio"] < 1e-3:
        warnings.append(
            "no bootstrapping: hardly any neighbour leads back to its object; after the first"
            " epochs, lower cribo.clusters"
        )
    return warnings
