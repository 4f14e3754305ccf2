"""What every test shares. JAX reads the environment when it is imported, so it is set here, before tests are loaded."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEVICES = "--xla_force_host_platform_device_count=8"

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "Agg"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import pytest  # noqa: E402
from absl import flags  # noqa: E402

# grain reads an absl flag; where nobody has parsed flags (pytest's command line is not absl's) that raises
# UnparsedFlagAccessError.
flags.FLAGS.mark_as_parsed()


@pytest.fixture
def root() -> pathlib.Path:
    """The checkout: the folder that holds setup.py, configs/ and launch/."""
    return ROOT
