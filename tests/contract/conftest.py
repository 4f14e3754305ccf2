import gc

import jax
import pytest

from ssl_jax.runtime import sharding
from tests.contract import steps


@pytest.fixture(scope="package")
def case(request):
    """A method's compiled steps, see steps.py; tests name it with `steps.cases()`."""
    yield steps.Case(request.param)
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def _small_parameters_are_cut(monkeypatch):
    monkeypatch.setattr(sharding, "_MIN_SIZE", 64)
