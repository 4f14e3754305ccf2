"""data.cache="device": images that the devices keep, and several steps in one program."""

import jax
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.runtime import sharding
from ssl_jax.train import setup, span, step
from ssl_jax.views import resident
from tests import tiny


class Damaged(ArraySource):
    """Record 3 cannot be read."""

    def __getitem__(self, i):
        if i == 3:
            raise Unreadable(self.name(i), "torn")
        return super().__getitem__(i)


def pictures(data):
    return Damaged((255 * tiny.float_source(data)._images).astype(np.uint8))


def compiled(function, run, *arguments):
    jitted = step.compile_step(function, run.mesh, setup.shardings(run))
    return jitted.lower(*arguments).compile()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["dino", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("sop", "stellar"))],
)
def test_the_bits_of_single_steps_with_images_of_the_host(name, compiled_as_for_users):
    """Five steps: one by one, and in programs of up to three. The next image stands in for one that
    cannot be read."""
    config = tiny.config(name, small=True, data__max_unreadable=0.1, data__crop_on="device")
    run = api.prepare(config, pictures(config.data))
    function = step.make_step(run.method, run.optimizer, run.config)
    batches = tiny.batches(run, 5)
    assert any(batch["replaced"].any() for batch in batches)
    put = [sharding.put_batch(batch, run.mesh) for batch in batches]
    state, singles = setup.fresh_state(run), []
    single = compiled(function, run, state, put[0])
    for batch in put:
        state, metrics = single(state, batch)
        singles.append(metrics)

    source = resident.load(run.source, sharding.replicated(run.mesh))
    stream = setup.open_loader(run, 0, source)
    batches = [next(stream) for _ in range(5)]
    stream.close()
    other, spans = setup.fresh_state(run), []
    program = None
    for part in (batches[:2], batches[2:]):
        stacked = sharding.put_batch(span.stacked(part, 3), run.mesh, axis=1)
        arguments = stacked, np.int32(len(part)), source.images
        if program is None:
            program = compiled(span.spanned(function, 3), run, other, *arguments)
        other, metrics = program(other, *arguments)
        spans += [jax.tree.map(lambda x, i=i: x[i], metrics) for i in range(len(part))]
    assert tiny.identical(state, other)
    assert tiny.identical(singles, spans)


def test_a_span_ends_where_something_looks_and_after_a_second():
    length = span.Length(most=20, total=100, looked_at=[20, 30, 0])
    assert length.after(0) == 1  # how long a step takes is not known yet
    for now in range(8):
        length.ended(0.01 * now, 1)
    assert [length.after(at) for at in (0, 5, 20, 25, 30, 95)] == [20, 15, 10, 5, 10, 5]
    length.ended(1.07, 4)
    assert length.after(0) == 4


def test_a_span_stacks_few_batches_where_they_are_large():
    """Every span is padded to this number of steps."""
    batch = {"row": np.zeros(1024, np.int32), "boxes": np.zeros((1024, 63), np.float32)}
    assert [span.most_steps(batch, most) for most in (20, 100_000)] == [20, 256]
    assert span.most_steps({"images": np.zeros((2**27,), np.uint8)}, 20) == 1


def test_images_that_do_not_fit(monkeypatch):
    from ssl_jax.train import memory

    run = api.prepare(tiny.config("dino"))
    monkeypatch.setattr(memory, "capacity", lambda devices: 2**30)
    memory.check(run.abstract, jax.devices())
    with pytest.raises(InputError, match="data.cache"):
        memory.check(run.abstract, jax.devices(), images=2**30)


def test_images_of_another_kind_are_named():
    config = tiny.config("dino")
    run = api.prepare(config)
    several = ArraySource(np.zeros((5, 24, 24, 3), np.uint8))
    several.size = None
    with pytest.raises(InputError, match="data.size"):
        resident.needed(several)
    for images in (np.zeros((5, 24, 24, 3), np.float32), np.zeros((5, 20, 24, 3), np.uint8)):
        source = ArraySource(images)
        source.size = (24, 24)
        with pytest.raises(InputError, match="data.cache"):
            resident.load(source, sharding.replicated(run.mesh))
