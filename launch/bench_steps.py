"""Times the train step of several configs in turns, so that all of them meet the same state of the
machine.
"""

import time

import jax

from ssl_jax import api
from ssl_jax.train import loop, sharding, step


def measure(configs: dict, rounds: int, steps: int = 10) -> dict[str, list[float]]:
    """{name: seconds of every step} of {name: config}: `rounds` turns of `steps` steps on one
    batch, after one that does not count.
    """
    turns = {name: _turn(config) for name, config in configs.items()}
    taken = {name: [] for name in configs}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            seconds = [turn() for _ in range(steps)]
            taken[name] += seconds if number else []
    return taken


def _turn(config):
    """A function that makes one step on a batch that is on the device, and returns its seconds."""
    run = api.prepare(config)
    shardings = jax.tree.map(lambda x: x.sharding, run.abstract)
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, run.config), run.mesh, shardings
    )
    batches = loop.open_loader(run)
    batch = sharding.put_batch(next(batches), run.mesh)
    batches.close()
    current = loop.fresh_state(run)

    def turn():
        nonlocal current
        start = time.perf_counter()
        current, metrics = jax.block_until_ready(train_step(current, batch))
        return time.perf_counter() - start

    return turn
