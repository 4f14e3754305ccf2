"""Our own checkpoints as a source of weights: a run folder or one step of it."""

from pathlib import Path

import jax

from ssl_jax import config as config_lib
from ssl_jax import methods
from ssl_jax.config import InputError
from ssl_jax.convert.fill import Source, Weights
from ssl_jax.models.functional import flat_paths
from ssl_jax.train import checkpoint, optim, sharding, state

_MODEL = (
    "gelu",
    "position_resize",
    "resize_kernel",
)  # what the same weights may be read by in two ways


def load(path: str | Path, mesh: jax.sharding.Mesh) -> Source:
    """Reads the newest complete checkpoint of a run, or the step that `path` names, onto a mesh.

    Returns:
      A Source with the tree "student", and "teacher" where the run had one; arrays of JAX, sharded
      as parameters are.

    Raises:
      InputError: no checkpoint there, or a damaged one.
    """
    folder, at = checkpoint.locate(path)
    saved = checkpoint.Checkpoints(folder, create=False)
    try:
        at = saved.latest() if at is None else at
        if at is None:
            raise InputError(f"{folder} holds no complete checkpoint")
        config = config_lib.from_json(saved.meta(at)["config"])
        current = saved.restore(at, _abstract(config, mesh))
    finally:
        saved.close()
    title = f"{config.method} of ssl_jax, step {at}"
    model = {key: config.model[key] for key in _MODEL if key in config.model}
    trees = {}
    for part, tree in (("student", current.params), ("teacher", current.teacher)):
        if tree is not None:
            arrays = flat_paths(tree)
            trees[part] = Weights(
                str(path), title, arrays, {name: name for name in arrays}, (), model
            )
    return Source("", config.method, trees)


def _abstract(config, mesh: jax.sharding.Mesh) -> state.TrainState:
    """Shapes and shardings of what a run with this config saves."""
    method = methods.get(config.method)
    shapes = jax.eval_shape(lambda: method.init(jax.random.key(0), config)[0])
    optimizer = optim.make(config.optim, method.rules(config), shapes)
    abstract = jax.eval_shape(lambda: state.create(method, optimizer, config))
    return checkpoint.abstract(abstract, sharding.state_shardings(mesh, abstract))
