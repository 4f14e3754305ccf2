import gc

import jax
import pytest

from ssl_jax.train import sharding
from tests.contract import steps


@pytest.fixture(scope="package")
def case(request):
    """A method's compiled steps, see steps.py; tests name it with `steps.cases()`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sharding, "_MIN_SIZE", 64)  # with mesh.fsdp the tiny networks are cut
        yield steps.Case(request.param)
    jax.clear_caches()
    gc.collect()
