"""Config file of a tiny run for command-line tests: tests/tiny_run.py:METHOD."""

from ssl_jax import evals
from ssl_jax.train import sharding
from tests import tiny

sharding._MIN_SIZE = 64  # so that mesh.fsdp cuts the tiny networks


def get_config(method: str):
    config = tiny.config(method)
    config.checkpoint.every_steps = 2
    images = dict(kind="photos", size=24)
    evals.add(config, "knn", "rank", data=images, train_examples=40, test_examples=20)
    config.evals.update(dict(tasks=("knn",), every_steps=4))
    return config
