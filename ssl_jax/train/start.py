"""`init_from`: a new run starts from weights of a file or of another run instead of random ones.
Resuming is something else.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import trees
from ssl_jax.config import InputError, local
from ssl_jax.convert import fill, own, read, torch_in
from ssl_jax.convert.weights import Source, Weights
from ssl_jax.methods import frozen
from ssl_jax.runtime import sharding
from ssl_jax.train import checkpoint
from ssl_jax.train.state import TrainState

# What the same weights may be read by in two ways: keys of the config's section `model`.
_MODEL = ("heads", "stem", "gelu", "position_resize", "resize_kernel", "norm_eps", "mean", "std")


# The first layer of a projection head, and where a classifier has it (methods.finetune).
_FIRST_LAYER = {"hidden/linear/": "head/mlp/0/"}


def start_from(config: ConfigDict, fresh: TrainState, *, evaluated: bool = False) -> TrainState:
    """The state before step 0 with the weights that `config.init_from` names; what was taken is
    printed.

    Only parameters, teacher and constants are replaced: optimizer, memories, centers, keys and the
    step are those of a new run. Constants go with the student, for which they were made.

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
    source = _source(config.init_from, jax.tree.leaves(fresh.params)[0].sharding.mesh)

    def filled(tree, part):
        weights = source.tree("teacher" if evaluated else part)
        if not config.init_only:
            weights = _with_first_layer(tree, weights)
        return fill.fill(tree, weights, only=config.init_only, model=config.model)

    goes_on = fresh.teacher is not None or source.method == config.method
    student = {**fresh.params, **_constants(fresh.constants)}
    params, report = filled(student, "student" if goes_on else "teacher")
    constants = params.pop("constants", None)
    constants = {**fresh.constants, **constants} if constants else fresh.constants
    reports, teacher = {"init_from": report}, None
    if fresh.teacher is not None:
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


def _source(path: str, mesh) -> Source:
    read.check_local(path)
    place = local(path)
    file = read.weight_file(place) if place.exists() else None
    if file is None and place.is_dir():
        return _run_folder(place, mesh)
    if file and (network := own.read(file)) is not None:
        return _saved(file, network)
    return torch_in.load(path)


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
    parts = {"student": fields["params"] | _constants(fields["constants"])}
    if fields["teacher"] is not None:
        parts["teacher"] = fields["teacher"]
    title = f"{config.method} of ssl_jax, step {step}"
    return _source_of(path, title, config, parts)


def _saved(path: Path, network: own.Saved) -> Source:
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


def _source_of(path: Path, title: str, config, parts: dict) -> Source:
    model = {name: config.model[name] for name in _MODEL if config.model.get(name)}

    def weights(tree):
        arrays = trees.per_block(tree)
        return Weights(str(path), title, arrays, {name: name for name in arrays}, (), model)

    return Source("", config.method, {part: weights(tree) for part, tree in parts.items()})


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
