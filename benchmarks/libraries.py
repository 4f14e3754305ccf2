"""What a user would take instead of an op.

Each function takes NumPy's arrays and returns a call that does the work once; forms of PyTorch are
in with_torch.py. The libraries are imported inside: none is required, and the benchmark names those
that are missing. A call returns what is to be compared with the naive form, or None where it solves
another problem (an exact matching is no entropic plan).
"""

import ctypes
import importlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from experiments import tables

_CONDITIONS = {
    "faiss": "IndexFlatIP on unit vectors, building it not timed",
    "torch": "on JAX's arrays, eager unless stated",
}
_THREADS = {"faiss": "omp_set_num_threads", "torch": "set_num_threads"}


def setup(*modules: str, installed: bool = False) -> str:
    """Gives the libraries as many threads as this process has cores, and says how they are set up:
    a line; "" if none is installed. To be called before they are imported.

    installed: leave all else as it is. False: faiss multiplies matrices from 20 queries on, and
    torch's MKL uses AVX-512 on AMD's processors too.
    """
    cores = tables.cores()
    found = [module for module in modules if importlib.util.find_spec(module)]
    parts = [f"{module}: {_CONDITIONS[module]}" for module in found]
    if "torch" in found and not installed and _mkl_takes_all_processors():
        parts.append("MKL's AVX-512 on any processor")
    for module in found:
        library = importlib.import_module(module)
        getattr(library, _THREADS[module])(cores)
    if "faiss" in found and not installed:
        importlib.import_module("faiss").cvar.distance_compute_blas_threshold = 20
        parts.append("distance_compute_blas_threshold=20")
    kernel = os.environ.get("OPENBLAS_CORETYPE", "its own choice")
    return "; ".join([*parts, f"threads: {cores}, OPENBLAS_CORETYPE: {kernel}"]) if found else ""


def _mkl_takes_all_processors() -> bool:
    """Has MKL choose its kernels by what the processor can do, not by who made it: a function of
    MKL's is defined before torch brings it. False without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or sys.platform != "linux":
        return False
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, "mkl.c"), pathlib.Path(folder, "mkl.so")
        source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return True


def hungarian(cost):
    from scipy.optimize import linear_sum_assignment

    return lambda: [linear_sum_assignment(one) for one in cost] and None


def hungarian_of_tokens(source, target):
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    return lambda: [linear_sum_assignment(cdist(s, t)) for s, t in zip(source, target)] and None


def pot_loop(cost, epsilon, num_iters):
    """Of the transposed problem: POT ends on rows, the op on columns."""
    import ot

    rows, columns = (np.full(n, 1 / n, cost.dtype) for n in cost.shape[1:])
    options = dict(reg=epsilon, numItermax=num_iters, stopThr=0, warn=False)

    def one(cost):
        return ot.sinkhorn(columns, rows, np.ascontiguousarray(cost.T), **options).T

    return lambda: np.stack(list(map(one, cost)))


def ott(cost, epsilon, num_iters):
    """A fixed number of iterations, of the transposed problem: ott-jax ends on rows, the op on
    columns."""
    import jax
    import jax.numpy as jnp
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    fixed = dict.fromkeys(("min_iterations", "max_iterations", "inner_iterations"), num_iters)
    solver = sinkhorn.Sinkhorn(lse_mode=True, threshold=0.0, **fixed)

    @jax.jit
    @jax.vmap
    def plan(one):
        problem = geometry.Geometry(cost_matrix=one.T, epsilon=epsilon)
        return solver(linear_problem.LinearProblem(problem)).matrix.T

    cost = jnp.asarray(cost)
    return lambda: jax.block_until_ready(plan(cost))


def faiss_flat(queries, bank, k):
    """Exact inner products of unit rows; building the index is not timed."""
    import faiss

    index = faiss.IndexFlatIP(bank.shape[1])
    index.add(np.ascontiguousarray(bank / np.linalg.norm(bank, axis=1, keepdims=True)))
    queries = np.ascontiguousarray(queries / np.linalg.norm(queries, axis=1, keepdims=True))
    return lambda: index.search(queries, k)


def faiss_sops(memory, anchors, num_members):
    """Supports of every anchor among the other rows, as `ops.build_sops`."""
    import faiss

    others, vectors = np.delete(memory, anchors, axis=0), memory[anchors]
    index = faiss.IndexFlatIP(memory.shape[1])
    index.add(others)

    def search():
        values, neighbours = index.search(vectors, num_members - 1)
        own = np.sum(vectors * vectors, axis=1, keepdims=True)
        members = np.concatenate([others[neighbours], vectors[:, None]], axis=1)
        return members, np.concatenate([values, own], axis=1)

    return search
