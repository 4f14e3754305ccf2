"""What every test shares. JAX reads the environment when it is imported, so it is set here, before
tests are loaded.
"""

import os
import pathlib

from tests import compiling

ROOT = pathlib.Path(__file__).resolve().parent.parent

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "Agg"
os.environ["NPROC"] = compiling.THREADS
os.environ["XLA_FLAGS"] = compiling.flags(8, os.environ.get("XLA_FLAGS", ""))
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import dataclasses  # noqa: E402
import functools  # noqa: E402
import gc  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

from tests import damaged, finite, values_of_keys  # noqa: E402

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
    """Programs use XLA's fusion emitters, as outside the tests: for a test that two programs which
    differ elsewhere round the same sums alike.
    """
    options = {"xla_cpu_use_fusion_emitters": True}
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=options))


# Every program that XLA compiles for a CPU keeps some ten memory maps, and Linux gives a process
# 65530 of them: beyond that the compiler crashes. So compiled programs are dropped in time, and
# with them what a test module keeps in functools caches.
MAPS = pathlib.Path("/proc/self/maps")
MOST_MAPS = 20000


def pytest_runtest_teardown(item):
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        for value in vars(item.module).values():
            getattr(value, "cache_clear", lambda: None)()
        jax.clear_caches()
        gc.collect()


# The corpus of the property tests: counted where a test runs, carried by its report (xdist's
# processes too), summed here.
CORPUS = ("tests/ops/", "tests/losses/")


def pytest_itemcollected(item):
    test = getattr(item, "obj", None)
    if item.nodeid.startswith(CORPUS) and getattr(test, "is_hypothesis_test", False):
        test.hypothesis.inner_test = finite.counted(test.hypothesis.inner_test)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    finite.tally, damaged.tally = finite.Tally(), damaged.Tally()
    try:
        return (yield)
    finally:
        if finite.tally.cases or finite.tally.others:
            item.user_properties.append(("property_cases", dataclasses.asdict(finite.tally)))
        if damaged.tally.mutated:
            item.user_properties.append(("damaged_images", dataclasses.asdict(damaged.tally)))


def pytest_runtest_logreport(report):
    """Tells of a failure as it happens: of a run that is cut off, nothing is told at the end."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid}\n{report.longreprtext}", flush=True)


def pytest_terminal_summary(terminalreporter):
    reports = [
        r
        for group in terminalreporter.stats.values()
        for r in group
        if getattr(r, "when", None) == "call"
    ]
    images = [value for _, value in _told(reports, "damaged_images")]
    if images:
        terminalreporter.write_line(damaged.counts(damaged.summed(images)))
    values = [value for _, value in _told(reports, "tried_values")]
    if values:
        terminalreporter.write_line(values_of_keys.counts(values))
    tallies = _told(reports, "property_cases")
    if not tallies:
        return
    total = {name: sum(tally[name] for _, tally in tallies) for name in ("cases", "values", "bad")}
    terminalreporter.write_line(
        f"property tests: {total['cases']:,} cases, {total['values']:,} values, {total['bad']:,} of"
        " them not finite"
    )
    for nodeid, tally in tallies:
        if tally["others"]:
            terminalreporter.write_line(
                f"  not in this count: {tally['others']:,} cases of {nodeid}, without assert_finite"
            )


def _told(reports, what):
    """[(node, value)] of what tests said under that name."""
    return [(r.nodeid, value) for r in reports for name, value in r.user_properties if name == what]
