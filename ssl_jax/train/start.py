"""`init_from`: a new run starts from weights of a file or of another run instead of random ones.
Resuming is something else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import trees
from ssl_jax.config import InputError, key
from ssl_jax.convert import fill, own, places, torch_in, vit_in
from ssl_jax.convert.weights import Report, Source, Weights, brief
from ssl_jax.methods import frozen
from ssl_jax.models import lora, zoo
from ssl_jax.runtime import sharding
from ssl_jax.train import checkpoint
from ssl_jax.train.state import TrainState

# What the same weights may be read by in two ways: keys of the config's section `model`.
_MODEL = (
    *("heads", "stem", "gelu", "mlp", "qkv_bias", "position_resize", "resize_kernel"),
    *("norm_eps", "mean", "std"),
)
_ROPE = ("position", "rope_base", "rope_rounded")  # the same, of networks with rotary codes


# Fields of a network's shape that a run may choose, whatever weights it starts from.
_CHOSEN = {"drop_path", "init_std", "position_std", "cls_std", "mask_token", "queries"}
_CHOSEN |= {"scan", "attention", "remat", "dtype", "rope_shift", "rope_jitter", "rope_rescale"}

CHANNELS = key(
    "mean",
    "how a patch embedding of 3 channels in init_from starts one of model.in_channels = C: the"
    ' weights of each are 3 / C times the "mean" of the three, or times the three in turn'
    ' ("repeat")',
    choices=("mean", "repeat"),
)
# The layers that see channels: [side^2 * channels, d], the channel last in a row.
_FIRST = ("backbone/patch/kernel", "backbone/patch/convs/0/kernel")

# The first layer of a projection head, and where a classifier has it (methods.finetune).
_FIRST_LAYER = {"hidden/linear/": "head/mlp/0/"}


def shaped(config: ConfigDict, recorded: Mapping[str, Any] | None = None) -> ConfigDict:
    """With `init_model`, a config whose section `model` is that of the weights in `init_from`; of
    any other config, itself.

    What changes training alone stays, as do query tokens that the weights lack, and channels beyond
    theirs; there is no class token where the config has none (FLSL).

    recorded: the section `model` of the run that is continued, whose weights need not be there any
      more; None: of a new one.

    Raises InputError without `init_from`, and as `start_from`.
    """
    if not config.init_model:
        return config
    if recorded is None and not config.init_from:
        raise InputError(
            f"init_model is True, so {config.method} starts from weights: give"
            " --config.init_from=PATH, a run, a saved network, or a file or folder of published"
            " weights"
        )
    if recorded is None:
        fields = _fields(config.init_from)
    else:
        fields = vars(zoo.vit_config(recorded))
    model = {name: value for name, value in fields.items() if name not in _CHOSEN}
    model |= {"size": "custom", "cls": fields["cls"] and config.model.cls}
    if fields["queries"]:
        model["queries"] = fields["queries"]
    if config.model.in_channels != fields.get("in_channels", 3):  # they are widened
        model |= {name: config.model[name] for name in ("in_channels", "mean", "std")}
    changed = ConfigDict(config.to_dict())
    changed.model.update(model)
    return changed


def _fields(path: str) -> dict[str, Any]:
    """{field of ViTConfig: value} of the network in a file or folder, as far as they are known."""
    place = places.find(path)
    if place.is_run:
        text = checkpoint.newest(place.path, lambda saved, step: saved.meta(step)["config"])
    elif place.saved:
        text = place.saved.config
    else:
        return {"queries": 0} | vit_in.known_fields(place.path)
    config = _config(text)
    return dict(vars(zoo.vit_config(config.model)))


def start_from(config: ConfigDict, fresh: TrainState, *, evaluated: bool = False) -> TrainState:
    """The state before step 0 with the weights that `config.init_from` names; what was taken is
    printed.

    Only parameters, teacher and constants are replaced: optimizer, memories, centers, keys and the
    step are those of a new run. Constants go with the student, for which they were made.

    A patch embedding of 3 channels becomes one of `config.model.in_channels`, as
    `config.init_channels` says, so that an image of equal channels gives what a gray one did.

    Where the source has a student and a teacher, each goes to its own. If it has one of them, both
    start from it. If this run has no teacher, it starts from the source's teacher, the network that
    its authors evaluate, except within one method, where its student is continued (STELLAR's second
    stage drops the teacher of the first).

    Args:
      config: resolved. `init_from`: a weight file (see `read`), a network that `api.save` wrote, a
        folder of timm's or transformers', a run directory of ours or one checkpoint of it; "":
        nothing happens. `init_only`: take nothing but what lies below this path, for example
        "backbone".
      fresh: as `train.state.create` made it, on its devices.
      evaluated: student and teacher both start from the network that the source's authors
        evaluate, its teacher if it has one.

    Returns:
      A TrainState with the shapes and shardings of `fresh`.

    Raises:
      InputError: see `load_torch`; nothing was changed.
    """
    if not config.init_from:
        return fresh
    adapted = bool(config.model.get("lora", 0))
    evaluated = evaluated or adapted  # student and teacher share what is frozen
    source = _source(config.init_from, jax.tree.leaves(fresh.params)[0].sharding.mesh)

    def filled(tree, part):
        weights = source.tree("teacher" if evaluated else part)
        weights = _for_channels(tree, weights, config)
        if not config.init_only:
            weights = _with_first_layer(tree, weights)
        return fill.fill(tree, weights, only=config.init_only, model=config.model)

    goes_on = fresh.teacher is not None or source.method == config.method
    student = {**fresh.params, **_constants(fresh.constants)}
    params, report = filled(student, "student" if goes_on else "teacher")
    constants = params.pop("constants", None)
    constants = {**fresh.constants, **constants} if constants else fresh.constants
    reports, teacher = {"init_from": report}, None
    if adapted:
        _check_frozen(fresh.params, report)
    if adapted and fresh.teacher is not None:
        flat = trees.flatten(params)
        teacher = trees.nest({path: flat[path] for path in trees.flatten(fresh.teacher)})
    elif fresh.teacher is not None:
        teacher, report = filled(fresh.teacher, "teacher")
        apart = len(source.trees) > 1 and not evaluated
        reports |= {"init_from, teacher": report} if apart else {}
    if jax.process_index() == 0:
        for name, text in reports.items():
            print(f"{name}: {text}", flush=True)
    return fresh._replace(
        params=_placed(params, fresh.params),
        teacher=_placed(teacher, fresh.teacher),
        constants=_placed(constants, fresh.constants),
    )


def anchored(config: ConfigDict, state: TrainState) -> TrainState:
    """The state before step 0 with the Gram teacher (`methods.gram`) that the run starts with: its
    teacher's encoder, or the one of `config.gram.file`, which is printed.

    Raises InputError as `start_from`, and for a file that lacks a part of the encoder.
    """
    if not config.gram.weight or frozen.NAME not in (state.constants or {}):
        return state
    encoder, old = {"backbone": state.teacher["backbone"]}, state.constants[frozen.NAME]
    if path := config.gram.file:
        weights = _source(path, jax.tree.leaves(old)[0].sharding.mesh).tree("teacher")
        encoder, report = fill.fill(encoder, weights, only="backbone", model=config.model)
        if report.missing:
            raise InputError(
                f"gram.file: {path} has no {brief(report.missing)}; use a whole encoder"
            )
        if jax.process_index() == 0:
            print(f"gram.file: {report}", flush=True)
    constants = {**state.constants, frozen.NAME: _placed(encoder["backbone"], old)}
    return state._replace(constants=constants)


def _check_frozen(params, report: Report) -> None:
    """Refuses to freeze random numbers. Raises InputError."""
    frozen = trees.shapes(trees.nest(trees.split(params, lora.FROZEN)[0]))
    if missing := frozen.keys() - report.matched:
        raise InputError(
            f"model.lora freezes the encoder, but {report.source} gives no"
            f" {brief(sorted(missing))}; make the model that of the weights, or model.lora=0"
        )


def _source(path: str, mesh) -> Source:
    place = places.find(path)
    if place.is_run:
        return _run_folder(place.path, mesh)
    if place.saved:
        return _saved(path, place.saved)
    return torch_in.load(place.path)


def _run_folder(path: Path, mesh) -> Source:
    """A run directory of ours or one step of it: the trees "student" (with constants, as far as
    there are any) and "teacher"."""

    def taken(saved, step):
        config = _config(saved.meta(step)["config"])
        fields = saved.read(
            step,
            ("params", "teacher", "constants"),
            lambda shape: sharding.param_sharding(mesh, shape),
        )
        return step, config, fields

    step, config, fields = checkpoint.newest(path, taken)
    params, teacher = fields["params"], fields["teacher"]
    student = lora.network(params, None, config.model)
    parts = {"student": student | _constants(fields["constants"])}
    if teacher is not None:
        parts["teacher"] = lora.network(params, teacher, config.model)
    title = f"{config.method} of ssl_jax, step {step}"
    return _source_of(path, title, config, parts)


def _saved(path: str, network: own.Saved) -> Source:
    """A network that `api.save` wrote: one tree, of a student or a teacher."""
    config = _config(network.config)
    tree = jax.tree.map(np.asarray, own.wide(network.params | _constants(network.constants)))
    return _source_of(path, f"{config.method} of ssl_jax, saved", config, {"": tree})


def _config(text: str):
    """A stored config that says what the weights are of. Raises InputError."""
    config = config_lib.from_json(text)
    if not config.get("method") or not config.get("model"):
        raise InputError("the stored config lacks method or model")
    return config


def _constants(tree) -> dict:
    """Those that are a part of the network: a frozen teacher stays what the run's config says."""
    tree = frozen.of_network(tree)
    return {"constants": tree} if tree else {}


def _source_of(path: str | Path, title: str, config, parts: dict) -> Source:
    keys = _MODEL + (_ROPE if config.model.get("position") == "rope" else ())
    model = {name: config.model[name] for name in keys if name in config.model}

    def weights(tree):
        arrays = trees.per_block(tree)
        return Weights(str(path), title, arrays, {name: name for name in arrays}, (), model)

    return Source("", config.method, {part: weights(tree) for part, tree in parts.items()})


def _for_channels(tree, weights: Weights, config) -> Weights:
    """The weights with a patch embedding for the channels of the network, if theirs is of 3. Images
    are normalised as the config says."""
    channels, shapes = config.model.in_channels, trees.flatten(tree)
    arrays, model, note = dict(weights.arrays), dict(weights.model), weights.note
    for path in set(_FIRST) & shapes.keys() & arrays.keys():
        rows = shapes[path].shape[0] // channels
        if channels == 3 or len(arrays[path]) != 3 * rows:
            continue
        kernel = np.asarray(arrays[path], np.float32).reshape(rows, 3, -1)
        if config.init_channels == "mean":
            wide = np.repeat(kernel.mean(axis=1, keepdims=True), channels, axis=1)
        else:
            wide = kernel[:, np.arange(channels) % 3]
        arrays[path] = (wide * np.float32(3 / channels)).reshape(rows * channels, -1)
        model |= {name: config.model[name] for name in ("mean", "std")}
        how = f"patch embedding of 3 channels made one of {channels} ({config.init_channels})"
        note = f"{note}; {how}" if note else how
    return weights._replace(arrays=arrays, model=model, note=note)


def _with_first_layer(tree, weights: Weights) -> Weights:
    """The weights with the first layer of their projection head where `tree` has it. Raises
    InputError where they have neither."""
    arrays, names = dict(weights.arrays), dict(weights.names)
    for path in trees.flatten(tree):
        for ours, theirs in _FIRST_LAYER.items():
            if not path.startswith(ours) or path in arrays:
                continue
            other = path.replace(ours, theirs, 1)
            if other not in arrays:
                raise InputError(
                    f"{weights.source} ({weights.title}) has no projection head whose first layer"
                    " could start the classifier; set finetune.hidden=0"
                )
            arrays[path], names[path] = arrays[other], names[other]
    return weights._replace(arrays=arrays, names=names)


def _placed(tree, like):
    """The arrays of `tree` where those of `like` live, in buffers of their own (the step donates
    its state).
    """

    def place(array, old):
        if array is old:
            return old
        if isinstance(array, jax.Array):
            return jnp.copy(jax.device_put(array.astype(old.dtype), old.sharding))
        array = np.asarray(array, old.dtype)
        return jnp.copy(
            jax.make_array_from_callback(array.shape, old.sharding, lambda index: array[index])
        )

    return jax.tree.map(place, tree, like)
