"""What a user would take instead of an op.

Each function takes arrays (those of torch JAX's on the CPU, the others NumPy's) and returns a call
that does the work once. The libraries are imported inside: none is required, and the benchmark
names those that are missing. A call returns what is to be compared with the naive form, or None
where it solves another problem (an exact matching is no entropic plan).
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
    "faiss": "IndexFlatIP, given unit rows, its making not timed",
    "torch": "on JAX's arrays, eager unless it says so",
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
    return lambda: np.stack(
        [ot.sinkhorn(columns, rows, np.ascontiguousarray(one.T), **options).T for one in cost]
    )


def ott(cost, epsilon, num_iters):
    """A fixed number of iterations, of the transposed problem: ott-jax ends on rows, the op on
    columns.
    """
    import jax
    import jax.numpy as jnp
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    fixed = dict(
        threshold=0.0,
        min_iterations=num_iters,
        max_iterations=num_iters,
        inner_iterations=num_iters,
    )
    solver = sinkhorn.Sinkhorn(lse_mode=True, **fixed)

    @jax.jit
    @jax.vmap
    def plan(one):
        problem = linear_problem.LinearProblem(
            geometry.Geometry(cost_matrix=one.T, epsilon=epsilon)
        )
        return solver(problem).matrix.T

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

    others = np.delete(memory, anchors, axis=0)
    vectors = memory[anchors]
    index = faiss.IndexFlatIP(memory.shape[1])
    index.add(others)

    def search():
        values, neighbours = index.search(vectors, num_members - 1)
        members = np.concatenate([others[neighbours], vectors[:, None]], axis=1)
        return members, np.concatenate(
            [values, np.sum(vectors * vectors, axis=1, keepdims=True)], axis=1
        )

    return search


def _torch_call(loss, differentiate, weights, gradient: bool):
    """Calls `loss()`, or returns the gradient of its weighted sum by the tensor `differentiate`."""
    import torch

    if not gradient:
        with torch.no_grad():
            return loss().numpy()
    differentiate.grad = None
    torch.sum(loss() * weights).backward()
    return differentiate.grad.numpy()


def _shares_of_members(queries, members, temperature):
    """softmax(u D^T / tau) over all members, [N, K*M]."""
    import torch

    return torch.softmax(queries @ members.reshape(-1, members.shape[-1]).T / temperature, dim=-1)


def _published_vote(queries, members, weights, temperature):
    """SOP appendix A.1: the product of the softmax with the smoothed one-hot labels as a matrix."""
    import torch

    count, slots = weights.shape
    labels = ((1 - weights) / (count - 1)).reshape(-1, 1).repeat(1, count)
    labels[torch.arange(count * slots), torch.arange(count).repeat_interleave(slots)] = (
        weights.reshape(-1)
    )
    return _shares_of_members(queries, members, temperature) @ labels


def _vote_by_block(queries, members, weights, temperature):
    """The same without the matrix: sums over the members of every SOP, and what all of them
    share.
    """
    import torch

    p = _shares_of_members(queries, members, temperature).reshape(-1, *weights.shape)
    others = (1 - weights) / (weights.shape[0] - 1)
    return torch.sum(p * (weights - others), dim=-1) + torch.sum(p * others, dim=(1, 2))[:, None]


def torch_sop_vote(
    queries, members, weights, target, temperature, cotangent, gradient, published=True
):
    """Cross-entropy of the vote, `published` or with the algebra of the op but without its
    streaming.
    """
    import torch

    queries, members, weights, target, cotangent = map(
        torch.from_dlpack, (queries, members, weights, target, cotangent)
    )
    queries.requires_grad_(gradient)
    vote = _published_vote if published else _vote_by_block

    def loss():
        return -torch.sum(target * torch.log(vote(queries, members, weights, temperature)), dim=-1)

    return lambda: _torch_call(loss, queries, cotangent, gradient)


def torch_sop_step(
    queries, memory, anchors, target, num_members, share, temperature, cotangent, gradient
):
    """Supports by all similarities and top-k, then the published vote with equal shares."""
    import torch

    queries, memory, anchors, target, cotangent = map(
        torch.from_dlpack, (queries, memory, anchors, target, cotangent)
    )
    anchors = anchors.long()
    queries.requires_grad_(gradient)

    def loss():
        vectors = memory[anchors]
        similarity = vectors @ memory.T
        similarity[:, anchors] = -torch.inf
        supports = memory[similarity.topk(num_members - 1, dim=-1).indices]
        members = torch.cat([supports, vectors[:, None]], dim=1)
        weights = torch.full(members.shape[:2], share)
        return -torch.sum(
            target * torch.log(_published_vote(queries, members, weights, temperature)), dim=-1
        )

    return lambda: _torch_call(loss, queries, cotangent, gradient)


def torch_joint_view_clustering(
    tokens, positions, seeds, position_weight, temperature, num_iters, sinkhorn_iters
):
    """CrIBo section 3.2.1 and eq. 17 operation by operation, with the [B, 2N, 2N, K] array of
    distances to members.
    """
    import torch

    tokens, positions, seeds = map(torch.from_dlpack, (tokens, positions, seeds))
    seeds = seeds.long()
    images, count, _ = tokens.shape
    clusters = seeds.shape[1]

    def cluster():
        unit = torch.nn.functional.normalize(tokens, dim=-1)
        distance = torch.linalg.vector_norm(positions[:, :, None] - positions[:, None], dim=-1)
        members = torch.nn.functional.one_hot(seeds, count).mT.to(tokens.dtype)
        centroids = torch.take_along_dim(unit, seeds[..., None], dim=1)
        columns = torch.full((images, 1, clusters), 1 / clusters)
        for _ in range(num_iters):
            # 0: not a member, or the token itself.
            to_members = distance[..., None] * members[:, None]
            nearest = torch.where(to_members > 0, to_members, torch.inf).amin(dim=2)
            exists = torch.isfinite(nearest)
            finite = torch.where(exists, nearest, 0)
            near = torch.where(exists, nearest, finite.mean(dim=(1, 2), keepdim=True))
            near = near / near.amax(dim=(1, 2), keepdim=True)
            cost = position_weight * near - unit @ centroids.mT
            low, high = cost.amin(dim=(1, 2), keepdim=True), cost.amax(dim=(1, 2), keepdim=True)
            plan = torch.exp(-(cost - low) / (high - low) / temperature)
            for _ in range(sinkhorn_iters):
                plan = plan / plan.sum(dim=2, keepdim=True) / count
                plan = plan / plan.sum(dim=1, keepdim=True) * columns
            members = torch.nn.functional.one_hot(plan.argmax(dim=-1), clusters).to(tokens.dtype)
            columns = members.sum(dim=1, keepdim=True) + 0.01
            columns = columns / columns.sum(dim=-1, keepdim=True)
            centroids = torch.nn.functional.normalize(members.mT @ unit, dim=-1)
        return members.numpy()

    return cluster


def torch_sinkhorn_cross_entropy(
    scores, logits, target_temperature, temperature, num_iters, cotangent, gradient
):
    """Targets of SwAV's listing, stored, then the cross-entropy."""
    import torch

    scores, logits, cotangent = map(torch.from_dlpack, (scores, logits, cotangent))
    logits.requires_grad_(gradient)

    def loss():
        with torch.no_grad():
            q = torch.exp(scores / target_temperature)
            for _ in range(num_iters):
                q /= q.sum(0, keepdim=True)
                q /= q.sum(1, keepdim=True)
        return -torch.sum(q * torch.log_softmax(logits / temperature, dim=-1), dim=-1)

    return lambda: _torch_call(loss, logits, cotangent, gradient)


def torch_nearest(queries, bank, k):
    """As CrIBo's code does it: the whole bank normalised at every call."""
    import torch

    queries, bank = map(torch.from_dlpack, (queries, bank))

    def search():
        first, second = (torch.nn.functional.normalize(x, dim=-1) for x in (queries, bank))
        values, index = (first @ second.T).topk(k, dim=-1)
        return values.numpy(), index.numpy()

    return search


def torch_attention(queries, keys, inverse_temperature, cotangent, gradient):
    import torch

    queries, keys, cotangent = map(torch.from_dlpack, (queries, keys, cotangent))
    queries.requires_grad_(gradient)
    attend = torch.nn.functional.scaled_dot_product_attention

    def modes():
        return attend(queries, keys, keys, scale=inverse_temperature)

    return lambda: _torch_call(modes, queries, cotangent, gradient)
