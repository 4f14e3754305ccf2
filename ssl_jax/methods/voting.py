"""What SOP, SOVE and MaSSL share: networks and memories around embeddings that are compared with
rows of a memory.

A student and its EMA teacher embed views with a backbone and a projection head; the teacher's
embeddings enter ring memories, and rows of a memory vote where a learned prototype layer would
stand. Each method draws its voters and writes its loss in its own module. Their sections of the
config have the same keys (MaSSL's lacks the patch task), so everything here reads
`section(config)`."""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, multicrop
from ssl_jax.models import heads, vit, zoo
from ssl_jax.views import recipe

_ANCHORS, _NEAREST = 6, 6  # rows and columns of a picture of neighbours, at most


def section(config):
    """The method's own section of the config."""
    return config[config.method]


def tasks(config) -> tuple[str, ...]:
    """Names of the objectives in use: "cls", and "patch" where there is one with a weight
    above 0.
    """
    c = section(config)
    return ("cls", "patch") if "patch" in c and c.patch.weight > 0 else ("cls",)


def check(config) -> None:
    """Refuses what no method of this family can work with, by name. Raises InputError."""
    c, method = section(config), config.method
    check_choice(f"{method}.global_token", c.global_token, ("cls", "mean"))
    for key in ("student_temperature", "teacher_temperature", "final_teacher_temperature"):
        if not c[key] > 0:
            raise InputError(f"{method}.{key} is {c[key]}; a temperature must be above 0")
    for name in ("cls", "patch"):
        task = c.get(name)
        if task is None:
            continue
        counts = [key for key in ("anchors", "members", "tasks", "memory") if key in task]
        if min(task[key] for key in counts) < 1:
            raise InputError(
                f"{method}.{name}: {', '.join(counts[:-1])} and memory must be at least 1, got"
                f" {task.to_dict()}"
            )
        if task.anchors < 2:
            raise InputError(
                f"{method}.{name}.anchors is {task.anchors}; a distribution over anchors needs at"
                " least 2"
            )
    if c.global_token == "cls" and not config.model.cls:
        raise InputError(
            f'{method}.global_token is "cls" but model.cls is False; set model.cls=True or'
            f' {method}.global_token="mean"'
        )
    if "patch" in c:
        multicrop.check_weights(config)
    if config.views.global_count != 2:
        raise InputError(
            f"views.global_count is {config.views.global_count}; {method.upper()} needs exactly 2"
            " global views"
        )


def views(config) -> recipe.ViewRecipe:
    return recipe.recipe_multicrop(config.views, config.model.patch)


def networks(config, teacher: bool):
    """(backbone, head). Only the student sees masks, so only it owns a mask vector; the teacher has
    no drop-path.
    """
    c, m = section(config), config.model
    masked = "patch" in tasks(config) and not teacher
    backbone = vit.vit(
        zoo.vit_config(m, mask_token=masked, drop_path=0.0 if teacher else m.drop_path)
    )
    return backbone, heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_out, init_std=m.init_std, dtype=m.dtype
    )


def init(key, config):
    """Parameters of student encoder and head; carry: a memory of random unit rows for every
    task.
    """
    keys = jax.random.split(key, 6)
    backbone, head = networks(config, teacher=False)
    params = {"backbone": backbone.init(keys[0]), "head": head.init(keys[1])}
    c, spec = section(config), {"embedding": ((section(config).head_out,), jnp.float32)}
    carry = {
        name: {"memory": ops.memory_init(spec, c[name].memory, filled=keys[2 + i])}
        for i, name in enumerate(tasks(config))
    }
    return params, carry


def encode(params, teacher, batch, keys, config):
    """Projects student and teacher tokens of every view.

    Args:
      keys: [B] PRNG keys, one per image, so that the result does not depend on how the batch is
        cut.

    Returns:
      student [B, V, d], teacher [B, 2, d], and with patches: student_patch, teacher_patch [B, 2, m,
      d] and their mask [B, 2, m] (True = masked; m is the largest number of masked patches),
      memory_patch [B, d].
    """
    backbone, head = networks(config, teacher=False)
    frozen_backbone, frozen_head = networks(config, teacher=True)
    token = section(config).global_token
    with_patches = "patch" in tasks(config)
    image_keys = jax.vmap(lambda k: jax.random.split(k, 3))(keys)

    clean = multicrop.encode(
        frozen_backbone, teacher["backbone"], batch["global"], masked=False, keys=None
    )
    out = {"teacher": frozen_head.apply(teacher["head"], multicrop.global_token(clean, token))}

    seen = multicrop.encode(
        backbone, params["backbone"], batch["global"], masked=with_patches, keys=image_keys[:, 0]
    )
    student = [head.apply(params["head"], multicrop.global_token(seen, token))]
    if "local" in batch:
        local = multicrop.encode(
            backbone, params["backbone"], batch["local"], masked=False, keys=image_keys[:, 1]
        )
        student.append(head.apply(params["head"], multicrop.global_token(local, token)))
    out["student"] = jnp.concatenate(student, axis=1)

    if with_patches:
        # The loss reads masked patches only: project just those; exact, because the rest is
        # multiplied by 0.
        masks = batch["global"].masks
        index, out["mask"] = multicrop.masked_first(
            masks, recipe.max_masked(views(config), "global")
        )
        out["student_patch"] = head.apply(params["head"], multicrop.take(seen.patches, index))
        out["teacher_patch"] = frozen_head.apply(
            teacher["head"], multicrop.take(clean.patches, index)
        )
        # One random patch of global view 2 per image enters the patch memory (SOP, appendix A).
        pick = jax.vmap(lambda k: jax.random.randint(k, (1,), 0, masks.shape[-1]))(image_keys[:, 2])
        out["memory_patch"] = frozen_head.apply(
            teacher["head"], multicrop.take(clean.patches[:, 1], pick)
        )[:, 0]
    return out


def views_first(outputs) -> dict:
    """The outputs of `encode` that have an axis of views, as [V, B, ...]."""
    return {
        name: jnp.moveaxis(value, 1, 0) for name, value in outputs.items() if name != "memory_patch"
    }


def remember(carry, outputs):
    """The carry with this batch's teacher embeddings in its memories: global view 2, and one patch
    of it per image.

    For the end of `objective`: the losses read the memories as they were BEFORE this step.
    """
    rows = {"cls": outputs["teacher"][:, 1]} | (
        {"patch": outputs["memory_patch"]} if "patch" in carry else {}
    )
    return {
        name: {
            **held,
            "memory": ops.memory_push(
                held["memory"], {"embedding": jax.lax.stop_gradient(rows[name])}
            ),
        }
        for name, held in carry.items()
    }


def temperatures(progress, config) -> dict:
    """tau_s, and tau_t with its linear warm-up per iteration (not per epoch, as in DINO); keyword
    arguments of the losses.
    """
    c = section(config)
    warm = ops.linear_warmup(
        progress.step,
        start=c.teacher_temperature,
        end=c.final_teacher_temperature,
        warmup=c.teacher_temperature_epochs * progress.steps_per_epoch,
    )
    return dict(student_temperature=c.student_temperature, teacher_temperature=warm)


def teacher_of(params):
    """The teacher copies encoder and head; the mask vector exists only in the student."""
    return {
        **params,
        "backbone": {k: v for k, v in params["backbone"].items() if k != "mask_token"},
    }


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features without the head; `params` may be the teacher's or the student's tree."""
    backbone, _ = networks(config, teacher=True)
    return multicrop.features(
        backbone,
        teacher_of(params)["backbone"],
        images,
        kind=section(config).global_token,
        patch=config.model.patch,
        layers=layers,
        attention=attention,
    )


def health(metrics, config):
    """Meters against log K: collapse (marginal entropy near 0), no signal (every target
    uniform).
    """
    warnings = []
    for name in tasks(config):
        warnings += base.assignment_warnings(metrics, name, section(config)[name].anchors)
    return warnings + base.spread_warnings(metrics)


def pictures(params, images, config) -> dict[str, base.Picture]:
    """Anchors among the given images (and among their patches, where patches are trained) with
    their nearest embeddings.

    What a row shows is what an anchor would bring together if the memory held these images:
    sensible neighbours are what the method lives on. Embeddings are the head's output, as in the
    memory, or the encoder's where the weights hold no head. The anchors are drawn from config.seed.

    Args:
      images: [n, H, W, 3] in [0, 1], n >= 2.

    Returns:
      {"neighbours": Picture}, and "patch_neighbours" with a patch objective; each panel says its
        cosine to the anchor.
    """
    _, head = networks(config, teacher=True)

    @jax.jit
    def embed(params, images):
        found = features(params, images, config)
        project = (lambda x: head.apply(params["head"], x)) if "head" in params else (lambda x: x)
        return project(found.image), project(found.patches)

    images, key = np.asarray(images), jax.random.key(config.seed)
    whole, patches = embed(params, images)
    b, h, w, d = patches.shape
    rows = _rows(images, *_neighbours(key, whole[:, None]))
    drawn = {"neighbours": base.Picture("Anchors (left) and the nearest images, with cosine", rows)}
    if "patch" in tasks(config):
        rows = _rows(
            images,
            *_neighbours(jax.random.fold_in(key, 1), patches.reshape(b, h * w, d)),
            grid=(h, w),
        )
        drawn["patch_neighbours"] = base.Picture(
            "Anchor patches (left) and the nearest patches of other images, with cosine", rows
        )
    return drawn


def _neighbours(key, embeddings):
    """Anchors among embeddings [n, m, d] of n images, at most one per image, and the nearest
    embedding of other images.

    No anchor is a neighbour of another, and a row shows no image twice.

    Returns:
      anchors [a] and neighbours [a, k], best first, as flat indices into n * m; cosine [a, k].
    """
    count, each, width = embeddings.shape
    num_anchors = min(_ANCHORS, count // 2)
    k = min(_NEAREST, count - num_anchors)
    key_image, key_within = jax.random.split(key)
    chosen = ops.sample_anchors(key_image, count, num_anchors)[0]
    anchors = chosen * each + jax.random.randint(key_within, (num_anchors,), 0, each)
    # The best embedding of every image that holds no anchor: groups of one query image and one
    # other image.
    flat = embeddings.reshape(count * each, width)
    cosine, within = jax.vmap(lambda bank: ops.nearest(flat[anchors], bank, k=1), out_axes=1)(
        embeddings
    )
    cosine = jnp.where(jnp.isin(jnp.arange(count), chosen), -jnp.inf, cosine[..., 0])
    best, image = jax.lax.top_k(cosine, k)
    index = image * each + jnp.take_along_axis(within[..., 0], image, axis=1)
    return np.asarray(anchors), np.asarray(index), np.asarray(best)


def _rows(images, anchors, index, cosine, grid=(1, 1)):
    """Panels: the anchor, then its neighbours with their cosine; with a grid of patches, a mark on
    the patch.
    """
    h, w = grid

    def panel(flat, title):
        image, patch = divmod(int(flat), h * w)
        y, x = divmod(patch, w)
        marks = (((y + 0.5) / h, (x + 0.5) / w),) if h * w > 1 else ()
        return base.Panel(images[image], marks=marks, title=title)

    return tuple(
        (panel(a, f"anchor {i + 1}"), *(panel(n, f"{s:.2f}") for n, s in zip(near, values)))
        for i, (a, near, values) in enumerate(zip(anchors, index, cosine))
    )
