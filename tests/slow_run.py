"""Config file of a tiny run whose evaluations and pictures take long, for signals that come
meanwhile: tests/slow_run.py:METHOD."""

import dataclasses
import time

import numpy as np

from ssl_jax import evals
from ssl_jax.config import field
from ssl_jax.methods.pictures.base import Chart, Curve
from ssl_jax.runtime import progress
from tests import tiny_run

PARTS = 12


@dataclasses.dataclass(frozen=True)
class Settings:
    seconds: float = field(0.25, "what each of the 12 parts takes", "seconds", least=0)


def wait(case):
    with progress.counter(PARTS, "parts") as add:
        for _ in range(PARTS):
            time.sleep(case.config.seconds)
            add(1)


def score(case, settings):
    """A score that tells any two networks apart."""
    wait(case)
    return {"slow": float(np.float64(case.features("test").image).sum())}


def figures(case, settings):
    wait(case)
    return {"slow": Chart("slow", (Curve("slow", [0, 1], [0, 1]),))}


def get_config(method: str):
    # Here and not where the file is read: the collection of tests reads every file.
    evals.register("slow", score, Settings, heading="slow", draw=figures, baselines=())
    config = tiny_run.get_config(method)
    evals.add(config, "slow", data=dict(kind="photos", size=24), test_examples=20)
    config.evals.tasks, config.log.every_seconds = ("slow",), 0.5
    config.model.cls = True
    return config
