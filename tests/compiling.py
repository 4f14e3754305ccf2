"""How the tests compile: quickly, for compiling is most of what tests of tiny shapes cost.

LLVM's optimisations, which make a program faster, are left out. So are XLA's fusion emitters: they
write the loops of a program, and writing them takes longer than running them. The passes that
decide what is computed, and in which order, are those of every run.

Processes that a test starts inherit JAX_DISABLE_MOST_OPTIMIZATIONS from conftest.py.
"""

import importlib.metadata
import os

from packaging.version import Version

# From jaxlib 0.11.1 on, every program uses fusion emitters; giving this flag ends the process.
EMITTERS_ARE_OPTIONAL = Version(importlib.metadata.version("jaxlib")) < Version("0.11.1")
_FLAGS = (
    *(("--xla_cpu_use_fusion_emitters=false",) if EMITTERS_ARE_OPTIONAL else ()),
    # for tests that compute longer than they compile, see the fixture `optimized`
    "--xla_backend_optimization_level=1",
    "--xla_llvm_disable_expensive_passes=true",
    # A program is otherwise compiled in 32 pieces, for as many threads: a fifth more work.
    "--xla_cpu_parallel_codegen_split_count=1",
)
# Simulated devices wait for each other; on a busy machine for longer than the 40 s after which XLA
# ends the process.
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
# NPROC: threads in which they do. With one for each core all can wait, and none is left to go on.
THREADS = "64"


def flags(devices=1, others=""):
    """XLA_FLAGS of a process with so many simulated devices; `others` keep their values."""
    wanted = (f"--xla_force_host_platform_device_count={devices}", PATIENT, *_FLAGS)
    missing = [flag for flag in wanted if flag.partition("=")[0] not in others]
    return " ".join([*others.split(), *missing])


def environment(devices=1, **variables):
    """Of a process of its own with so many devices; it shares the tests' compilation cache."""
    known = {**os.environ, "XLA_FLAGS": flags(devices), "JAX_PLATFORMS": "cpu", "NPROC": THREADS}
    return {**known, **variables}
