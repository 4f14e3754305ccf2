"""The step of each tiny config, compiled once for one device and once for a mesh of eight.

The fixture `case` (conftest.py) is one of these; pytest runs the tests of a method one after
another (with pytest-xdist: in one process), and what was compiled is dropped after them.
"""

import functools

import jax
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.methods import METHODS
from ssl_jax.runtime import sharding
from ssl_jax.train import log, loop, program, step
from ssl_jax.views import recipe
from tests import tiny

NAMES = sorted(METHODS)
QUICK = ("dino", "sop")  # which stand for all in the default run: compiling takes nearly all time
MESHES = ((1, 8), (8, 1), (2, 4))  # (data, fsdp)
COUNT = 10  # steps


def cases(names=NAMES, mark=pytest.mark.slow):
    """Parameters of the fixture `case`; `mark` is of those that the default run leaves out."""
    return [
        pytest.param(
            name, marks=(pytest.mark.xdist_group(name), *(() if name in QUICK else (mark,)))
        )
        for name in names
    ]


class Case:
    """A method or variant of tests/tiny.py: its runs, batches, compiled steps and their results.

    mesh: of the eight devices; of all methods together each mesh takes its turn.
    """

    def __init__(self, name: str):
        self.name = name
        self.mesh = MESHES[NAMES.index(name) % 3] if name in NAMES else (2, 4)
        self.eight_on = functools.cache(self._eight_on)

    def prepare(self, **changes) -> loop.Run:
        # A NaN can be put into float images; variants cut theirs on the host, which needs bytes.
        config = tiny.config(self.name, **changes)
        return api.prepare(config, tiny.float_source(config.data) if self.name in NAMES else None)

    @functools.cached_property
    def run(self) -> loop.Run:
        return self.prepare()

    @functools.cached_property
    def batches(self) -> list[dict]:
        """On the host."""
        return tiny.batches(self.run, COUNT)

    @functools.cached_property
    def traces(self) -> list:
        """One entry for each trace of `step`."""
        return []

    @functools.cached_property
    def step(self):
        """(state, batch) -> (state, metrics) on one device; metrics["gradient"] is the gradient."""
        run = self.run

        def update(gradient, *arguments, **named):
            params, state, metrics = run.optimizer.update(gradient, *arguments, **named)
            return params, state, metrics | {"gradient": gradient}

        train_step = step.make_step(run.method, run.optimizer._replace(update=update), run.config)

        @functools.wraps(train_step)
        def counted(state, batch):
            self.traces.append(1)
            return train_step(state, batch)

        return step.compile_step(
            counted, run.mesh, jax.tree.map(lambda x: x.sharding, run.abstract)
        )

    @functools.cached_property
    def fresh(self):
        """The first state, never donated."""
        return loop.fresh_state(self.run)

    def start(self, state=None):
        """A copy of a state (the first one) which a step may consume."""
        return copy(self.fresh if state is None else state)

    def put(self, batch):
        return sharding.put_batch(batch, self.run.mesh)

    @functools.cached_property
    def first(self):
        """(state, metrics) of the first step."""
        return self.step(self.start(), self.put(self.batches[0]))

    @functools.cached_property
    def one(self):
        """(rows, state) of ten steps on one device."""
        return self.follow(self.start())

    def follow(self, state):
        rows = []
        for batch in self.batches:
            state, metrics = self.step(state, self.put(batch))
            del metrics["gradient"]
            rows.append(log.scalars(metrics))
        return rows, state

    @functools.cached_property
    def chunked(self):
        """`gradient` in float32, in four pieces."""
        return gradient(self.run, chunks=4)

    @functools.cached_property
    def half(self):
        """`gradient` in bfloat16."""
        return gradient(self.prepare(model__dtype="bfloat16"), chunks=1)

    @property
    def eight(self):
        return self.eight_on(*self.mesh)

    def _eight_on(self, data, fsdp):
        """(first state, rows, last state, program of a device) of ten steps on eight devices."""
        run = self.prepare(mesh_data=data, mesh_fsdp=fsdp)
        train_step = step.make_step(run.method, run.optimizer, run.config)
        train_step = step.compile_step(train_step, run.mesh, shardings(run))
        batches = [sharding.put_batch(batch, run.mesh) for batch in self.batches]
        compiled, of_one = program.compile(train_step.lower(run.abstract, batches[0]))
        fresh = loop.fresh_state(run)
        state, rows = copy(fresh), []
        for batch in batches:
            state, metrics = compiled(state, batch)
            rows.append(log.scalars(metrics))
        return fresh, rows, state, of_one


def shardings(run):
    return jax.tree.map(lambda x: x.sharding, run.abstract)


def copy(state):
    """The same arrays in buffers of their own."""

    def one(x):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x)))
        return jax.device_put(np.array(x), x.sharding, may_alias=False)

    return jax.tree.map(one, state)


def gradient(run, chunks):
    """gradient(state, batch, scale) -> ((loss, Output), gradient) of the step's loss, with images
    `scale` times as bright as the networks expect."""
    loss_of = step.make_loss(run.method, chunks, dtype=run.config.model.dtype)

    @jax.jit
    def compute(state, batch, scale):
        views = {
            name: view._replace(images=view.images * scale)
            if isinstance(view, recipe.Group)
            else view
            for name, view in recipe.prepare(run.method.views, batch, run.config.seed).items()
        }
        key_encode, key_objective = jax.random.split(jax.random.fold_in(state.key, state.step))
        keys = jax.random.split(key_encode, batch["index"].shape[0]), key_objective
        progress = step.progress_at(state.step, run.config)
        return jax.value_and_grad(loss_of, has_aux=True)(state.params, state, views, keys, progress)

    return compute
