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
from ssl_jax.convert import fill, read, torch_in
from ssl_jax.train import checkpoint, sharding
from ssl_jax.train.state import TrainState

# What the same weights may be read by in two ways: keys of the config's section `model`.
_MODEL = ("gelu", "position_resize", "resize_kernel", "norm_eps", "mean", "std")


def start_from(config: ConfigDict, fresh: TrainState) -> TrainState:
    """The state before step 0 with the weights that `config.init_from` names; what was taken is
    printed.

    Only parameters, teacher and constants are replaced: optimizer, memories, centers, keys and the
    step are those of a new run. Constants go with the student, for which they were made.

    Where the source has a student and a teacher, each goes to its own. If it has one of them, both
    start from it. If this run has no teacher, it starts from the source's teacher, the network that
    its authors evaluate, except within one method, where its student goes on (STELLAR's second
    stage drops the teacher of the first).

    Args:
      config: resolved. `init_from`: a weight file (see `read`), a Hugging Face folder, a run folder
        of ours or one checkpoint of it; "": nothing happens. `init_only`: take nothing but what
        lies below this path, for example "backbone".
      fresh: as `train.state.create` made it, on its devices.

    Returns:
      A TrainState with the shapes and shardings of `fresh`.

    Raises:
      InputError: see `load_torch`; nothing was changed.
    """
    if not config.init_from:
        return fresh
    source = _source(config.init_from, jax.tree.leaves(fresh.params)[0].sharding.mesh)

    def filled(tree, part):
        return fill.fill(tree, source.tree(part), only=config.init_only, model=config.model)

    goes_on = fresh.teacher is not None or source.method == config.method
    student = {**fresh.params, **({"constants": fresh.constants} if fresh.constants else {})}
    params, report = filled(student, "student" if goes_on else "teacher")
    constants = params.pop("constants", fresh.constants)
    reports, teacher = {"init_from": report}, None
    if fresh.teacher is not None:
        teacher, report = filled(fresh.teacher, "teacher")
        reports |= {"init_from, teacher": report} if len(source.trees) > 1 else {}
    if jax.process_index() == 0:
        for name, text in reports.items():
            print(f"{name}: {text}", flush=True)
    return fresh._replace(
        params=_placed(params, fresh.params),
        teacher=_placed(teacher, fresh.teacher),
        constants=_placed(constants, fresh.constants),
    )


def _source(path: str, mesh) -> fill.Source:
    folder = Path(path).expanduser()
    if folder.is_dir() and read.weight_file(folder) is None:
        return _own(folder, mesh)
    return torch_in.load(path)


def _own(path: Path, mesh) -> fill.Source:
    """A run folder of ours or one step of it: the trees "student" (with constants, as far as there
    are any) and "teacher"."""
    with checkpoint.opened(path) as (saved, step):
        config = config_lib.from_json(saved.meta(step)["config"])
        fields = saved.read(
            step,
            ("params", "teacher", "constants"),
            lambda shape: sharding.param_sharding(mesh, shape),
        )
    title = f"{config.method} of ssl_jax, step {step}"
    model = {name: config.model[name] for name in _MODEL if name in config.model}
    constants = fields["constants"]
    parts = {"student": fields["params"] | ({"constants": constants} if constants else {})}
    if fields["teacher"] is not None:
        parts["teacher"] = fields["teacher"]

    def weights(tree):
        arrays = trees.flatten(tree)
        return fill.Weights(str(path), title, arrays, {name: name for name in arrays}, (), model)

    return fill.Source("", config.method, {part: weights(tree) for part, tree in parts.items()})


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
