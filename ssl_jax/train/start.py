"""`init_from`: starts a new run from the weights of a file or of another run.

See `train.resume` for resuming a run.
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
from ssl_jax.convert import described, fill, own, places, torch_in, vit_in
from ssl_jax.convert.weights import Report, Source, Weights, brief
from ssl_jax.methods import frozen
from ssl_jax.models import lora, zoo
from ssl_jax.runtime import sharding
from ssl_jax.train import checkpoint
from ssl_jax.train.state import TrainState

# Fields of ViTConfig that a run may choose freely with any initial weights.
_CHOSEN = described.FREE | {"queries", "dtype"}

CHANNELS = key(
    "mean",
    "how a patch embedding for 3 channels in init_from becomes one for C = model.in_channels: each"
    ' channel gets 3 / C times the "mean" of the three, or times one of the three in turn'
    ' ("repeat")',
    choices=("mean", "repeat"),
)
# The layers that read channels: [side^2 * channels, d], with the channel as the fastest index.
_FIRST = ("backbone/patch/kernel", "backbone/patch/convs/0/kernel")

_RESHAPED = {*_FIRST, "backbone/position"}  # for another network
# The hidden layer of a classifier (methods.finetune), and the first layers of projection heads.
_HIDDEN = "hidden/linear/"
_FIRST_LAYERS = ("head/mlp/0/", "head/trunk/mlp/0/", "token_head/projection/mlp/0/")


def shaped(config: ConfigDict, recorded: Mapping[str, Any] | None = None) -> ConfigDict:
    """With `init_model`, the config with the `model` section of the weights in `init_from`;
    otherwise the config itself.

    The config's values stay for keys that only change training, for query tokens that the weights
    lack, for attention heads of a published network that does not state them, and for channels
    (with mean and std) if their number differs. A config without a class token (FLSL) keeps none.

    recorded: section `model` of a run being resumed, whose initial weights may be gone; else None.

    Raises InputError if `init_from` is missing, otherwise as `start_from`.
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
        fields = _fields(config.init_from, config.model)
    else:
        fields = vars(zoo.vit_config(recorded))
    model = {name: value for name, value in fields.items() if name not in _CHOSEN}
    model |= {"size": "custom", "cls": fields["cls"] and config.model.cls}
    if fields["queries"]:
        model["queries"] = fields["queries"]
    if config.model.in_channels != fields.get("in_channels", 3):  # the patch embedding is adapted
        model |= {name: config.model[name] for name in ("in_channels", "mean", "std")}
    changed = ConfigDict(config.to_dict())
    changed.model.update(model)
    return changed


def _fields(path: str, model: ConfigDict) -> dict[str, Any]:
    """{field of ViTConfig: value} of the network in a file or folder, as far as they are known, see
    `vit_in.known_fields`."""
    place = places.find(path)
    if place.is_run:
        text = checkpoint.newest(place.path, lambda saved, step: saved.meta(step)["config"])
    elif network := place.saved():
        text = network.config
    else:
        return {"queries": 0} | vit_in.known_fields(place.path, model)
    config = _config(text)
    return dict(vars(zoo.vit_config(config.model)))


def start_from(config: ConfigDict, fresh: TrainState, *, evaluated: bool = False) -> TrainState:
    """The state before step 0 with the weights of `config.init_from`; prints a report of them.

    Only parameters, teacher and constants are replaced; optimizer, memories, centers, keys and step
    are those of a new run. Constants come with the student's weights.

    A patch embedding of 3 channels is adapted to `config.model.in_channels` by
    `config.init_channels`, so that an image of equal channels gives the same features as a gray
    one before.

    If the source has a student and a teacher, each fills its counterpart; if it has only one, both
    start from it. A run without a teacher starts from the source's teacher, the network that its
    authors evaluate; but from its student if both runs have the same method (STELLAR's second stage
    drops the teacher of the first).

    Args:
      config: resolved. `init_from`: a weight file (see `read`), a network saved by `api.save`, a
        folder of timm or transformers, one of our run directories or a checkpoint in it; "":
        returns `fresh`. `init_only`: take only weights below this path, for example "backbone".
      fresh: from `train.state.create`, on its devices.
      evaluated: whether student and teacher both start from the network that the source's authors
        evaluate (its teacher, if it has one).

    Returns:
      A TrainState with the shapes and shardings of `fresh`.

    Raises:
      InputError: see `load_torch`; `fresh` is unchanged.
    """
    if not config.init_from:
        return fresh
    adapted = bool(config.model.get("lora", 0))
    evaluated = evaluated or adapted  # student and teacher share the frozen weights
    source = _source(config.init_from, jax.tree.leaves(fresh.params)[0].sharding.mesh)

    def filled(tree, part):
        weights = source.tree("teacher" if evaluated else part)
        weights = _for_channels(tree, weights, config)
        if not config.init_only:
            weights = _with_first_layer(tree, weights)
        return fill.fill(tree, weights, only=config.init_only, model=config.model)

    continues = fresh.teacher is not None or source.method == config.method
    student = {**fresh.params, **_constants(fresh.constants)}
    params, report = filled(student, "student" if continues else "teacher")
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
        separate = len(source.trees) > 1 and not evaluated
        reports |= {"init_from, teacher": report} if separate else {}
    if jax.process_index() == 0:
        for name, text in reports.items():
            print(f"{name}: {text}", flush=True)
    return fresh._replace(
        params=_placed(params, fresh.params),
        teacher=_placed(teacher, fresh.teacher),
        constants=_placed(constants, fresh.constants),
    )


def anchored(config: ConfigDict, state: TrainState) -> TrainState:
    """The state before step 0 with its initial Gram teacher (`methods.gram`): the run's teacher
    encoder, or that of `config.gram.file`, of which a report is printed.

    Raises InputError as `start_from`, and for a file without a complete encoder.
    """
    if not config.gram.weight or frozen.NAME not in (state.constants or {}):
        return state
    network = lora.network(state.params, state.teacher, config.model)
    encoder, old = {"backbone": network["backbone"]}, state.constants[frozen.NAME]
    if path := config.gram.file:
        weights = _source(path, jax.tree.leaves(old)[0].sharding.mesh).tree("teacher")
        weights = _for_channels(encoder, weights, config)
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
    """Raises InputError if frozen weights would keep their random initial values."""
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
    if network := place.saved():
        return _saved(path, network)
    return torch_in.load(place.path)


def _run_folder(path: Path, mesh) -> Source:
    """Reads a run directory or one of its checkpoints: the trees "student" (with any constants) and
    "teacher", sharded but for arrays that each process may have to reshape."""
    whole = jax.jit(lambda array: array, out_shardings=sharding.replicated(mesh))

    def reshapeable(tree):
        return trees.map_with_path(lambda path, x: whole(x) if path in _RESHAPED else x, tree)

    def read_step(saved, step):
        config = _config(saved.meta(step)["config"])
        fields = saved.read(
            step,
            ("params", "teacher", "constants"),
            lambda shape: sharding.param_sharding(mesh, shape),
        )
        return step, config, fields

    step, config, fields = checkpoint.newest(path, read_step)
    params, teacher = fields["params"], fields["teacher"]
    student = lora.network(params, None, config.model)
    parts = {"student": reshapeable(student) | _constants(fields["constants"])}
    if teacher is not None:
        parts["teacher"] = reshapeable(lora.network(params, teacher, config.model))
    title = f"{config.method} of ssl_jax, step {step}"
    return _source_of(path, title, config, parts)


def _saved(path: str, network: own.Saved) -> Source:
    """A network that `api.save` wrote: one tree, of a student or a teacher."""
    config = _config(network.config)
    tree = jax.tree.map(np.asarray, own.wide(network.params | _constants(network.constants)))
    return _source_of(path, f"{config.method} of ssl_jax, saved", config, {"": tree})


def _config(text: str):
    """Parses the config stored with weights. Raises InputError if it lacks method or model."""
    config = config_lib.from_json(text)
    if not config.get("method") or not config.get("model"):
        raise InputError("the stored config lacks method or model")
    return config


def _constants(tree) -> dict:
    """{"constants": tree} of the network, without a frozen teacher, which the config chooses."""
    tree = frozen.of_network(tree)
    return {"constants": tree} if tree else {}


def _source_of(path: str | Path, title: str, config, parts: dict) -> Source:
    rotates = config.model.get("position") == "rope"  # arrays show other position embeddings
    keys = (*described.FUNCTION, "norm_eps", *(("position",) if rotates else ()))
    model = {name: config.model[name] for name in keys if name in config.model}

    def weights(tree):
        arrays = trees.per_block(tree)
        return Weights(str(path), title, arrays, {name: name for name in arrays}, (), model)

    return Source("", config.method, {part: weights(tree) for part, tree in parts.items()})


def _for_channels(tree, weights: Weights, config) -> Weights:
    """The weights with a 3-channel patch embedding adapted to the network's channels; mean and std
    of the images then come from the config."""
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
        remark = f"patch embedding of 3 channels made one of {channels} ({config.init_channels})"
        note = f"{note}; {remark}" if note else remark
    return weights._replace(arrays=arrays, model=model, note=note)


def _with_first_layer(tree, weights: Weights) -> Weights:
    """The weights with the first layer of their projection head as the classifier's hidden layer,
    if `tree` has one. Raises InputError if they have neither."""
    arrays, names = dict(weights.arrays), dict(weights.names)
    for path in trees.flatten(tree):
        if not path.startswith(_HIDDEN) or path in arrays:
            continue
        others = (path.replace(_HIDDEN, theirs, 1) for theirs in _FIRST_LAYERS)
        other = next((one for one in others if one in arrays), None)
        if other is None:
            raise InputError(
                f"{weights.source} ({weights.title}) has no projection head whose first layer"
                " could start the classifier; set finetune.hidden=0"
            )
        arrays[path], names[path] = arrays[other], names[other]
    return weights._replace(arrays=arrays, names=names)


def _placed(tree, like):
    """Copies the arrays of `tree` to the shardings of `like`; the step donates its state, so they
    must not share buffers.
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
