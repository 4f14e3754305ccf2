"""Ops in PyTorch, functions of the tensors that the op gets."""

import torch
from torch.nn import functional as F


def call(function, tensors, argument: int | None, weights):
    """A call that does the work once and returns NumPy arrays: the function, or the gradient of its
    weighted sum by one argument."""

    def forward():
        with torch.no_grad():
            out = function(*tensors)
        return tuple(x.numpy() for x in out) if isinstance(out, tuple) else out.numpy()

    def gradient():
        leaf.grad = None
        torch.sum(function(*tensors) * weights).backward()
        return leaf.grad.numpy()

    tensors = list(map(torch.from_dlpack, tensors))
    if argument is None:
        return forward
    leaf, weights = tensors[argument].requires_grad_(), torch.from_dlpack(weights)
    return gradient


def published_vote(queries, members, weights, target):
    """SOP appendix A.1: the product of the softmax with the smoothed one-hot labels as a matrix."""
    count, slots = weights.shape
    labels = ((1 - weights) / (count - 1)).reshape(-1, 1).repeat(1, count)
    own = torch.arange(count).repeat_interleave(slots)
    labels[torch.arange(count * slots), own] = weights.reshape(-1)
    return -torch.sum(target * torch.log(_shares(queries, members) @ labels), dim=-1)


def vote_by_block(queries, members, weights, target):
    """The same with the algebra of the op, but without its streaming: sums over the members of
    every SOP, and what all of them share."""
    p = _shares(queries, members).reshape(-1, *weights.shape)
    others = (1 - weights) / (weights.shape[0] - 1)
    vote = torch.sum(p * (weights - others), dim=-1) + torch.sum(p * others, dim=(1, 2))[:, None]
    return -torch.sum(target * torch.log(vote), dim=-1)


def _shares(queries, members, temperature=0.1):
    """softmax(u D^T / tau) over all members, [N, K*M]."""
    return torch.softmax(queries @ members.reshape(-1, members.shape[-1]).T / temperature, dim=-1)


def sop_step(queries, memory, anchors, target, num_members, share):
    """Supports by all similarities and top-k, then the published vote with equal shares."""
    anchors = anchors.long()
    vectors = memory[anchors]
    similarity = vectors @ memory.T
    similarity[:, anchors] = -torch.inf
    supports = memory[similarity.topk(num_members - 1, dim=-1).indices]
    members = torch.cat([supports, vectors[:, None]], dim=1)
    return published_vote(queries, members, torch.full(members.shape[:2], share), target)


def joint_view_clustering(
    tokens, positions, seeds, position_weight, temperature, num_iters, sinkhorn_iters
):
    """CrIBo section 3.2.1 and eq. 17 operation by operation, with the [B, 2N, 2N, K] array of
    distances to members."""
    (images, count, _), clusters, seeds = tokens.shape, seeds.shape[1], seeds.long()
    unit = F.normalize(tokens, dim=-1)
    distance = torch.linalg.vector_norm(positions[:, :, None] - positions[:, None], dim=-1)
    members = F.one_hot(seeds, count).mT.to(tokens.dtype)
    centroids = torch.take_along_dim(unit, seeds[..., None], dim=1)
    columns = torch.full((images, 1, clusters), 1 / clusters)
    for _ in range(num_iters):
        to_members = distance[..., None] * members[:, None]  # 0: no member, or the token itself
        nearest = torch.where(to_members > 0, to_members, torch.inf).amin(dim=2)
        exists = torch.isfinite(nearest)
        mean = torch.where(exists, nearest, 0).mean(dim=(1, 2), keepdim=True)
        near = torch.where(exists, nearest, mean)
        near = near / near.amax(dim=(1, 2), keepdim=True)
        cost = position_weight * near - unit @ centroids.mT
        low, high = cost.amin(dim=(1, 2), keepdim=True), cost.amax(dim=(1, 2), keepdim=True)
        plan = torch.exp(-(cost - low) / (high - low) / temperature)
        for _ in range(sinkhorn_iters):
            plan = plan / plan.sum(dim=2, keepdim=True) / count
            plan = plan / plan.sum(dim=1, keepdim=True) * columns
        members = F.one_hot(plan.argmax(dim=-1), clusters).to(tokens.dtype)
        columns = members.sum(dim=1, keepdim=True) + 0.01
        columns = columns / columns.sum(dim=-1, keepdim=True)
        centroids = F.normalize(members.mT @ unit, dim=-1)
    return members


def sinkhorn_cross_entropy(scores, logits):
    """Targets of SwAV's listing, stored, then the cross-entropy."""
    with torch.no_grad():
        q = torch.exp(scores / 0.05)
        for _ in range(3):
            q /= q.sum(0, keepdim=True)
            q /= q.sum(1, keepdim=True)
    return -torch.sum(q * torch.log_softmax(logits / 0.1, dim=-1), dim=-1)


def nearest(queries, bank, norms):
    """As CrIBo's code does it: the whole bank normalised at every call."""
    values, index = (F.normalize(queries, dim=-1) @ F.normalize(bank, dim=-1).T).topk(1, dim=-1)
    return values, index


def attention(queries, keys, inverse_temperature):
    """FLSL eq. 4 as fused attention."""
    return F.scaled_dot_product_attention(queries, keys, keys, scale=inverse_temperature)
