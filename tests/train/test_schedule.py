"""Schedules against float64 NumPy: np.linspace, then a cosine, as the published code does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from ssl_jax import ops, settings
from ssl_jax.train import schedule


def reference(base, end, total, warmup=0, start=0.0):
    """Every value of a run, in float64: linspace with both end points, then the cosine."""
    t = np.arange(total - warmup)
    cosine = end + 0.5 * (base - end) * (1 + np.cos(np.pi * t / (total - warmup)))
    return np.concatenate([np.linspace(start, base, warmup), cosine])


@pytest.mark.parametrize(
    ("base", "end", "total", "warmup", "start"),
    [
        (2e-3, 1e-6, 400, 40, 0.0),
        (0.04, 0.4, 333, 0, 0.0),
        (1.0, 0.0, 7, 7, 0.5),
        (3.0, 1.0, 5, 1, 0.25),
    ],
)
def test_warmup_cosine_equals_float64(base, end, total, warmup, start):
    ours = jax.jit(
        lambda t: ops.warmup_cosine(t, base=base, end=end, total=total, warmup=warmup, start=start)
    )
    values = ours(np.arange(total))
    assert values.dtype == jnp.float32
    exact = reference(base, end, total, warmup, start)
    np.testing.assert_allclose(np.asarray(values, np.float64), exact, rtol=2e-6, atol=0)


def test_relative_error_stays_small_at_the_end_of_a_long_run():
    """Near the end 1 + cos cancels, and even in float64 has few digits left."""
    total = 1_000_000
    last = np.arange(total - 2000, total)
    exact = np.sin(0.5 * np.pi * (total - last) / total) ** 2  # the same by the half-angle formula
    np.testing.assert_allclose(exact, reference(1.0, 0.0, total)[last], rtol=1e-5)
    got = np.asarray(ops.warmup_cosine(last, base=1.0, end=0.0, total=total), np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-6)


def test_end_points():
    def value(t):
        return float(ops.warmup_cosine(t, base=1.0, end=0.1, total=100, warmup=10))

    assert value(0) == 0.0
    assert value(9) == value(10) == 1.0  # the warm-up reaches the peak, and the cosine starts there
    assert 0.1 < value(99) < 0.101  # the end value is never hit in the run
    assert value(100) == value(137) == pytest.approx(0.1)  # and never left after it


@pytest.mark.parametrize(
    "warmup, expected",
    [
        (0, np.full(50, 0.07)),
        (1, np.r_[0.04, np.full(49, 0.07)]),
        (30, np.r_[np.linspace(0.04, 0.07, 30), np.full(20, 0.07)]),
    ],
)
def test_linear_warmup_is_linspace_then_constant(warmup, expected):
    """Also of a traced length: a method multiplies its epochs with progress.steps_per_epoch."""
    run = jax.jit(lambda t, w: ops.linear_warmup(t, start=0.04, end=0.07, warmup=w))
    got = np.asarray(run(np.arange(50), np.int32(warmup)), np.float64)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    same = ops.linear_warmup(np.arange(50), start=0.04, end=0.07, warmup=warmup)
    np.testing.assert_allclose(np.asarray(same, np.float64), expected, rtol=1e-6)


SECTIONS = {"lr": (1e-3 * 64 / 256, 1e-6), "weight_decay": (0.04, 0.4), "momentum": (0.996, 1.0)}


@pytest.fixture
def resolved():
    config = settings.base_config("dino")
    config.optim.update(dict(batch_size=64, epochs=10, warmup_epochs=2, lr=1e-3, base_batch=256))
    return settings.resolve(config, num_records=640, num_devices=1)


def test_schedules_of_a_config(resolved):
    plan = schedule.schedules(resolved)
    got = jax.jit(plan.at)(np.arange(100))
    assert set(got) == set(SECTIONS)
    for name, (first, last) in SECTIONS.items():
        exact = reference(first, last, 100, 20 if name == "lr" else 0)
        np.testing.assert_allclose(np.asarray(got[name], np.float64), exact, rtol=2e-6)
    table = schedule.table(resolved, points=11)
    assert table["step"][0] == 0 and table["step"][-1] == 99 and len(table["step"]) == 11
    np.testing.assert_array_equal(table["lr"], np.asarray(plan.lr(table["step"])))
    assert len(schedule.table(resolved)["step"]) == 100  # no more points than steps


def test_a_lengthened_run_takes_its_cosines_anew_at_each_end(resolved, compiled_as_for_users):
    values = ConfigDict(resolved.to_dict())
    values.optim.extended = (160, 170)
    longer = settings.resolve(values, num_records=640, num_devices=1)
    assert longer.run.total_steps == 170 and longer.run.warmup_steps == 20
    got = jax.jit(schedule.schedules(longer).at)(np.arange(180))
    before = jax.jit(schedule.schedules(resolved).at)(np.arange(100))
    for name, (first, last) in SECTIONS.items():
        # The plan so far stays to the bit: nothing done was done otherwise.
        np.testing.assert_array_equal(got[name][:100], before[name])
        later = (reference(first, last, 60), reference(first, last, 10), np.full(10, last))
        np.testing.assert_allclose(got[name][100:], np.concatenate(later), rtol=2e-6)
