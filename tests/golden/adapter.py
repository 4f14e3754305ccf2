"""All that the golden numbers know of the package: when its API changes, this file does too.

A tree is a flat dict {"params/backbone/cls": array}; a path begins with "params", "teacher" or
"carry". Everybody outside this file knows only such trees, under the paths they are stored with.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import api
from ssl_jax import config as config_lib
from ssl_jax import trees as names
from ssl_jax.train import loop, state, step
from ssl_jax.views import photometric, recipe
from tests import tiny

FIELDS = ("params", "teacher", "carry", "constants")
# What was there when the numbers were written; a method added later has none.
METHODS = ("cribo", "dino", "flsl", "ibot", "mae", "massl", "sop", "sove", "stellar")
VARIANTS = (
    "cribo_batch",
    "cribo_kmeans",
    "flsl_centered",
    "ibot_mlp",
    "sop_fixed",
    "stellar_teacher",
)
# (regular expression of a whole stored path, its path in the package of today), applied in turn;
# names of metrics count as "metrics/NAME". A path that becomes "" is no longer part of the package.
# What leaves "params" (for "constants", say) is compared there, and has no gradient any more.
RENAMED: tuple[tuple[str, str], ...] = (
    ("params/frozen/has_teacher", ""),  # stood for a key of the config
    ("params/frozen/(.*)", r"constants/\1"),
)


def current_path(path: str) -> str:
    """The path in the package of today of what is stored under `path`; "" if it is gone."""
    for pattern, replacement in RENAMED:
        path = re.sub(f"^(?:{pattern})$", replacement, path)
    return path


def flatten(tree, prefix: str) -> dict:
    """{"prefix/a/b": leaf} of any pytree; names of fields count like keys of a dict."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    keystr = jax.tree_util.keystr
    flat = {f"{prefix}/{keystr(p, simple=True, separator='/')}": leaf for p, leaf in leaves}
    return names.per_block(flat)  # as they were stored


def prepare(name: str):
    """The run of a method's or variant's tiny config, on one device."""
    return api.prepare(tiny.config(name))


def facts(run) -> dict:
    """What must be equal for the same batches to give the same numbers (sizes, schedules, seed)."""
    return {"seed": run.config.seed, **run.config.run.to_dict()}


def config_text(run) -> str:
    """The whole resolved config, to be read by people."""
    return json.dumps(json.loads(config_lib.to_json(run.config)))


def batches(run, first: int, count: int) -> list:
    """Host batches of the steps first, first + 1, ..."""
    return tiny.batches(run, first + count)[first:]


def batch_from(flat: dict) -> dict:
    """A batch from its leaves {"global/boxes": array}."""
    groups = {path.split("/")[0] for path in flat if "/" in path}
    fields = recipe.Group._fields
    batch = {path: value for path, value in flat.items() if "/" not in path}
    for name in groups:
        batch[name] = recipe.Group(*(flat.get(f"{name}/{field}") for field in fields))
    return batch


def fresh_state(run):
    """A new state, random weights."""
    return loop.fresh_state(run)


def state_from(run, at: int, flat: dict, key):
    """A state before step `at` with these trees (paths of today), key data, and a new optimizer."""
    left = dict(flat)
    # STELLAR's teacher had no decoder then, and reads none in a step.
    if any(path.startswith("teacher/") for path in flat):
        left |= {
            path.replace("params/", "teacher/", 1): value
            for path, value in flat.items()
            if path.startswith("params/decoder/") and run.config.method == "stellar"
        }

    left = names.stacked(left)

    def filled(field):
        def leaf(path, like):
            value = left.pop(f"{field}/{jax.tree_util.keystr(path, simple=True, separator='/')}")
            return jnp.asarray(value, like.dtype).reshape(like.shape)

        return jax.tree_util.tree_map_with_path(leaf, getattr(run.abstract, field))

    params, teacher, carry, constants = map(filled, FIELDS)
    if left:
        raise KeyError(f"the package has no place for {sorted(left)}")
    zero = jnp.zeros((), jnp.int32)
    return state.TrainState(
        step=jnp.int32(at),
        params=params,
        teacher=teacher,
        opt_state=run.optimizer.init(params),
        carry=carry,
        constants=constants,
        key=jax.random.wrap_key_data(jnp.asarray(key)),
        counters={"nonfinite": zero, "replaced": zero},
    )


def trees(current) -> dict:
    """{"params/...", "teacher/...", "carry/...", "constants/..."} of a state."""
    return {k: v for field in FIELDS for k, v in flatten(getattr(current, field), field).items()}


def key_data(current) -> np.ndarray:
    return np.asarray(jax.random.key_data(current.key))


def make_step(run):
    """step(state, batch) -> (state, metrics, norms), jitted.

    norms: {path of a parameter: L2 norm of the gradient that the step hands to its optimizer}.
    """

    def with_gradient_norms(current, batch):
        norms = {}

        def update(grads, *args, **kwargs):
            leaves = flatten(grads, "params").items()
            norms.update({path: jnp.sqrt(jnp.square(g).sum()) for path, g in leaves})
            return run.optimizer.update(grads, *args, **kwargs)

        optimizer = run.optimizer._replace(update=update)
        return *step.make_step(run.method, optimizer, run.config)(current, batch), norms

    return jax.jit(with_gradient_norms)


def make_features(run):
    """features(state, images) -> {"image", "cls", "patches", "extras/...": array or None}, jitted.

    Of the weights that a run ships: the teacher's where there is one.
    """

    @jax.jit
    def features(current, images):
        found = run.method.features(
            state.weights(current), images, extras=True, constants=current.constants
        )
        named = {"image": found.image, "cls": found.cls, "patches": found.patches}
        return named | flatten(found.extras, "extras")

    return features


def views(run, *, seed: int, epoch: int, images: list, crop_on: str, prepare: bool) -> dict:
    """Draws for records 0, 1, ...: {"global/boxes", "flips", "masks", "keep", "crops", "prepared"}.

    "crops" (host only) are the uint8 views. With `prepare`: "prepared", the float32 views that the
    networks get, and "uniforms", the numbers that decide the photometric draws of all views.
    """
    views = run.method.views
    drawn = [
        recipe.draw(views, seed=seed, epoch=epoch, index=i, source_size=image.shape[:2])
        for i, image in enumerate(images)
    ]
    crops = [recipe.crop_host(views, *pair) for pair in zip(images, drawn, strict=True)]
    batch = {
        "index": np.arange(len(images), dtype=np.int32),
        "epoch": np.full(len(images), epoch, np.int32),
    }
    found = {}
    for name, _ in views.groups:
        fields = {
            field: np.stack([getattr(row[name], field) for row in drawn])
            for field in ("boxes", "flips", "masks", "keep")
            if getattr(drawn[0][name], field) is not None
        }
        cut = np.stack([row[name] for row in crops]) if crop_on == "host" else None
        batch[name] = recipe.Group(cut, **fields)
        found |= {f"{name}/{field}": value for field, value in fields.items()}
        found |= {f"{name}/crops": cut} if crop_on == "host" else {}
    if crop_on == "device":
        batch["source"] = np.stack(images)
    if not prepare:
        return found

    @jax.jit
    def prepared(batch):
        keys = recipe._keys(views, batch["epoch"], batch["index"], seed)
        out = recipe.prepare(views, batch, seed)
        rendered = {f"{name}/prepared": out[name].images for name, _ in views.groups}
        return rendered | {"uniforms": photometric.uniforms(keys)}

    return found | {path: np.asarray(value) for path, value in prepared(batch).items()}
