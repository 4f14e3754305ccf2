"""The profile of a few steps: which operations take the time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.ops import sinkhorn_knopp
from ssl_jax.train import profile, program


def test_steps_of_the_flag():
    assert profile.parse("20:5") == (20, 5)
    for text in ("20", "0:5", "20:0", "a:b", ""):
        with pytest.raises(InputError, match="--profile"):
            profile.parse(text)


def test_a_trace_of_some_steps(tmp_path):
    step = jax.jit(lambda x: jnp.sort(sinkhorn_knopp(x @ x.T, temperature=1.0), axis=0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 32)), jnp.float32)
    compiled = step.lower(x).compile()
    profiler = profile.Profiler(profile.Steps(3, 2), tmp_path)
    texts = []
    for at in range(1, 7):
        profiler.before(at)
        texts.append(profiler.after(at, step(x), compiled.as_text))
    assert [text is not None for text in texts] == [False, False, False, True, False, False]
    assert texts[3].startswith(f"profile of 2 steps in {tmp_path}")
    (trace,) = tmp_path.rglob("*.xplane.pb")
    found = profile.costs(trace, program.where(compiled.as_text()))
    seconds = [cost.seconds for cost in found]
    assert seconds == sorted(seconds, reverse=True)
    sort = next(cost for cost in found if cost.name.startswith("sort"))
    assert sort.times == 2  # once a step
    assert any(cost.where.startswith("ops/") for cost in found), "lines of this package"
    assert len({cost.where for cost in found}) == len(found), "one row for each line"


def test_a_run_that_is_past_the_first_step_traces_the_next_ones(tmp_path):
    step, x = jax.jit(lambda x: jnp.sort(x @ x.T, axis=0)), jnp.ones((8, 8))
    profiler = profile.Profiler(profile.Steps(1, 2), tmp_path)
    for at in (11, 12):
        profiler.before(at)
        text = profiler.after(at, step(x), step.lower(x).compile().as_text)
    assert "2 steps" in text


def test_a_run_that_ends_first_ends_the_trace(tmp_path):
    profiler = profile.Profiler(profile.Steps(1, 5), tmp_path)
    profiler.before(1)
    assert profiler.after(1, jnp.zeros(1), str) is None
    profiler.close()
    assert list(tmp_path.rglob("*.xplane.pb"))
    jax.profiler.start_trace(str(tmp_path))  # which it refuses while one is running
    jax.profiler.stop_trace()


def test_time_belongs_to_what_began_last():
    """A loop and its body; kernels that run side by side; a pause."""
    inner = [(0, 10, "loop"), (1, 3, "body"), (4, 2, "body"), (12, 4, "alone")]
    times = profile.exclusive_times(inner)
    assert times == [("loop", 5e-9), ("body", 3e-9), ("body", 2e-9), ("alone", 4e-9)]
    beside = [(0, 10, "a"), (2, 10, "b"), (3, 1, "c"), (3, 6, "d"), (20, 5, "e")]
    times = dict(profile.exclusive_times(beside))
    assert times == {"a": 2e-9, "b": 1e-9 + 3e-9, "c": 1e-9, "d": 5e-9, "e": 5e-9}
