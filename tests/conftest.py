"""What every test shares. JAX reads the environment when it is imported, so it is set here, before
tests are loaded.
"""

import os
import pathlib

from tests import compiling

ROOT = pathlib.Path(__file__).resolve().parent.parent

os.environ["JAX_PLATFORMS"] = os.environ.get("SSL_JAX_TEST_PLATFORM", "cpu")
os.environ["MPLBACKEND"] = "Agg"
# Whoever calls the program's main() in here must not start pytest anew (ssl_jax/runtime/pages.py).
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"
os.environ["NPROC"] = compiling.THREADS
os.environ["XLA_FLAGS"] = compiling.flags(8, os.environ.get("XLA_FLAGS", ""))
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import functools  # noqa: E402
import gc  # noqa: E402
import resource  # noqa: E402
import time  # noqa: E402

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

# grain reads an absl flag; where nobody has parsed flags (pytest's command line is not absl's) that
# raises UnparsedFlagAccessError.
flags.FLAGS.mark_as_parsed()


@pytest.fixture
def root() -> pathlib.Path:
    """The checkout: the folder that holds setup.py, configs/ and launch/."""
    return ROOT


@pytest.fixture
def toy_method(monkeypatch):
    """A method that only has a section of the config; while the test runs, it is one of the methods
    as "toy".
    """
    from ssl_jax import methods
    from tests import toy

    monkeypatch.setitem(methods.METHODS, "toy", toy.METHOD)
    return toy.METHOD


@pytest.fixture
def optimized():
    """Programs are compiled to be fast: for a test that computes longer than it compiles."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def compiled_as_for_users(monkeypatch):
    """Programs are compiled as outside the tests where that decides how sums are rounded: for a
    test that two programs which differ elsewhere round the same sums alike.
    """
    options = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    if compiling.EMITTERS_ARE_OPTIONAL:
        options = {"xla_cpu_use_fusion_emitters": True}
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=options))


# Every program that XLA compiles for a CPU keeps some ten memory maps, and Linux gives a process
# 65530 of them: beyond that the compiler crashes. So compiled programs are dropped in time, and
# with them what a test module keeps in functools caches.
MAPS = pathlib.Path("/proc/self/maps")
MOST_MAPS = 20000


STARTED = pytest.StashKey[float]()

# Examples of a property test: few for a quick answer, the same ones each time; many and new ones at
# night. `launch/test.sh` chooses.
FAST = dict(deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))
hypothesis.settings.register_profile("quick", max_examples=5, derandomize=True, **FAST)
hypothesis.settings.register_profile("ci", max_examples=15, derandomize=True, **FAST)
hypothesis.settings.register_profile("nightly", max_examples=200, **FAST)
hypothesis.settings.load_profile(os.environ.get("SSL_JAX_TEST_PROFILE", "ci"))


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    item.stash[STARTED] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    started = cpu_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_call", f"{cpu_seconds() - started:.2f}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Tells the JUnit file what a test took, see tests/tiers.py; drops programs where they are
    many."""
    try:
        return (yield)
    finally:
        marked = any(item.get_closest_marker(name) for name in ("slow", "nightly"))
        item.user_properties.append(("cpu", f"{cpu_seconds() - item.stash[STARTED]:.2f}"))
        item.user_properties.append(("marked", str(marked)))
        if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
            for value in vars(item.module).values():
                getattr(value, "cache_clear", lambda: None)()
            jax.clear_caches()
            gc.collect()


def pytest_runtest_logreport(report):
    """Tells of a failure as it happens: of a run that is cut off, nothing is told at the end."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid}\n{report.longreprtext}", flush=True)
