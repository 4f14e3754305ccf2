"""Prepares the parts of a run before anything is allocated or written."""

import dataclasses
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from ssl_jax import methods
from ssl_jax.data.base import Source, check_channels
from ssl_jax.ops import numerics
from ssl_jax.runtime import sharding
from ssl_jax.train import checkpoint, optim, profile, start, state
from ssl_jax.views import loader

# Keys that set the classes of masks: they change training for methods that learn from masks.
_CLASSES = ("data.class_map", "data.ignore", "data.raw_labels", "data.reduce_zero_label")


class Run(NamedTuple):
    """The parts of a run."""

    config: ConfigDict  # resolved
    method: methods.Method
    source: Source
    mesh: jax.sharding.Mesh
    optimizer: optim.Optimizer
    constants: Any  # the method's, as read from files
    keys: dict  # {dotted key: config.Key}, the declarations
    abstract: state.TrainState  # ShapeDtypeStructs with shardings
    traced: profile.Steps | None = None  # steps to profile


def plan(config: ConfigDict, source: Source, keys: dict, masked: Source | None = None) -> Run:
    """Derives shapes and shardings from a resolved config; no array of the state is allocated.

    source: the training images (see data.source). keys: the declarations, see settings.keys.
    masked: the same records with their masks, if `source` omits them.

    Raises InputError for a source without the labels or masks that the method learns from.
    """
    method = methods.make(config)
    if method.views.patch_labels:
        source = source if masked is None else masked
        classes = {name: dataclasses.replace(keys[name], free=False) for name in _CLASSES}
        keys = {**keys, **classes}
    loader.check_labels(source, method.views)
    check_channels(source, config.model.in_channels)
    loader.check_masks(source, method.views)
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp)
    optimizer, abstract = on_mesh(method, config, mesh)
    return Run(config, method, source, mesh, optimizer, method.constants(), keys, abstract)


def on_mesh(
    method: methods.Method, config: ConfigDict, mesh: jax.sharding.Mesh
) -> tuple[optim.Optimizer, state.TrainState]:
    """The optimizer, and the state as ShapeDtypeStructs with shardings on a mesh, whose devices may
    be absent. No file is read."""
    params = jax.eval_shape(lambda: method.init(numerics.key(0))[0])
    optimizer = optim.make(config.optim, method.rules, params)
    constants = methods.shapes_of_constants(method)
    shapes = jax.eval_shape(lambda c: state.create(method, optimizer, 0, c), constants)
    places = sharding.state_shardings(mesh, shapes, method.placement)
    return optimizer, checkpoint.abstract(shapes, places)


def fresh_state(run: Run) -> state.TrainState:
    """A new state, created in its shardings (with the same bits on any mesh), with the weights of
    `init_from` and the Gram teacher if the config has them."""
    create = jax.jit(
        lambda constants: state.create(run.method, run.optimizer, run.config.seed, constants),
        out_shardings=shardings(run),
    )
    begun = start.start_from(
        run.config, create(run.constants), evaluated=run.method.starts_evaluated
    )
    return start.anchored(run.config, begun)


def shardings(run: Run) -> state.TrainState:
    """The shardings of the state."""
    return jax.tree.map(lambda x: x.sharding, run.abstract)


def open_loader(run: Run, record: int = 0, source: Source | None = None) -> loader.Loader:
    """Batches of the run from record `record` on. source: replaces the run's, with equal
    records."""
    c = run.config
    return loader.Loader(
        run.source if source is None else source,
        run.method.views,
        batch_size=c.optim.batch_size,
        seed=c.seed,
        workers=c.data.workers,
        crop_on=c.data.crop_on,
        area_crops=c.data.area_crops,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        start_record=record,
        total_records=c.run.total_steps * c.optim.batch_size,
        max_unreadable=c.data.max_unreadable,
    )
