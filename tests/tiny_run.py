"""Config file of a tiny run for command-line tests: tests/tiny_run.py:METHOD, or METHOD_whole for
one with local crops, cut on the devices.
"""

import os

from ssl_jax import evals
from ssl_jax.runtime import sharding
from tests import tiny

# Of a process of its own: so that mesh.fsdp cuts the tiny networks.
sharding._MIN_SIZE = int(os.environ.get("TINY_RUN_CUTS_FROM", sharding._MIN_SIZE))


def get_config(method: str):
    name = method.removesuffix("_whole")
    config = tiny.config(name, small=name == method)
    config.checkpoint.every_steps = 2
    images = dict(kind="photos", size=24)
    evals.add(config, "knn", "rank", data=images, train_examples=40, test_examples=20)
    config.evals.update(dict(tasks=("knn",), every_steps=4))
    return config
