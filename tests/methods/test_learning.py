"""The package's train step lowers the loss of one batch, with a reconstruction to be seen."""

import jax
import numpy as np
import pytest

from ssl_jax import methods
from ssl_jax.train import optim, state, step
from tests import tiny
from tests.methods import test_mae, test_stellar

MAE = test_mae.SETTINGS | tiny.values("""
    optim.epochs=10.0 optim.warmup_epochs=0.0 optim.lr=0.3 optim.clip_by=none optim.beta2=0.95
""")
STELLAR = test_stellar.SETTINGS | dict(stellar__targets="teacher", stellar__matching="hungarian")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, changes, count, share, decibels",
    [("mae", MAE, 30, 0.3, 5), ("stellar", STELLAR, 20, 0.8, 1)],
    ids=["mae", "stellar"],
)
def test_steps_lower_the_loss(name, changes, count, share, decibels):
    """share: of its first value that the loss falls below; decibels: by which the PSNR grows."""
    config = tiny.resolved(tiny.config(name, **changes), num_records=40)
    method = methods.make(config)
    params, _ = jax.eval_shape(method.init, jax.random.key(0))
    optimizer = optim.make(config.optim, method.rules, params)
    train_step = jax.jit(step.make_step(method, optimizer, config))
    create = jax.jit(lambda constants: state.create(method, optimizer, config.seed, constants))
    current = create(method.constants())
    batch = tiny.random_batch(method.views)
    if name == "mae":  # ramps can be continued, noise cannot
        ramp = np.linspace(0, 1, 24)[:, None, None]
        batch["source"][:] = ramp * batch["source"][:, :1, :1]
    rows = []
    for _ in range(count):
        current, metrics = train_step(current, batch)
        rows.append({key: float(metrics[key]) for key in ("loss", "psnr", "finite")})
    assert all(row["finite"] for row in rows)
    assert rows[-1]["loss"] < share * rows[0]["loss"]
    assert rows[-1]["psnr"] > rows[0]["psnr"] + decibels
