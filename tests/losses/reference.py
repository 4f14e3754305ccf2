"""Float64 NumPy references of the ops and losses, written from the papers' equations and not from
our code.

SOP is written with the dense contribution matrix Y [K*M, K] and its softmax over all K*M members;
gradients are worked out by the chain rule through that matrix. Everything loops over views, tasks
and images where the equation has a sum."""

import numpy as np


def log_sum_exp(x, axis):
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis=axis))


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - log_sum_exp(x, -1)[..., None]


def entropy(p):
    p = np.asarray(p, np.float64)
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)


def usage(scores):
    """Share of columns that are the largest of one row or more."""
    scores = np.asarray(scores)
    return len(set(scores.argmax(axis=-1).ravel())) / scores.shape[-1]


# SOP, section 2.2


def shares(similarity, rule, smoothing=0.1):
    """s_j [K, M], the similarity of a member to its anchor (section 2.2); the anchor is the last
    member.
    """
    k, m = similarity.shape
    if rule == "onehot" or k == 1:
        return np.ones((k, m))
    s = np.full((k, m), 1 - smoothing)
    if rule == "similarity":
        s[:, :-1] = similarity[:, :-1]
    return np.minimum(np.maximum(s, 1 / k), 1 - 1e-4)


def contributions(s):
    """Y [K*M, K] from shares [K, M]: row j gives s_j to its own SOP and (1 - s_j) / (K - 1) to each
    other one.
    """
    k, m = s.shape
    y = np.zeros((k * m, k))
    for i in range(k):
        for j in range(m):
            y[i * m + j, :] = (1 - s[i, j]) / max(k - 1, 1)
            y[i * m + j, i] = s[i, j]
    return y / y.sum(axis=1, keepdims=True)


def vote(u, members, s, tau):
    """log P [..., K] = log(softmax(u D^T / tau) Y), summed in the log domain so that tiny
    probabilities survive.
    """
    k, m, d = members.shape
    log_p = log_softmax(
        np.asarray(u, np.float64) @ members.astype(np.float64).reshape(k * m, d).T / tau
    )
    with np.errstate(divide="ignore"):
        return log_sum_exp(
            log_p[..., :, None] + np.log(contributions(np.asarray(s, np.float64))), -2
        )


def vote_gradient(u, members, s, tau, cotangent):
    """Gradient [..., d] of sum(cotangent * log P) with respect to u, through Y and the softmax over
    members.
    """
    k, m, d = members.shape
    flat = members.astype(np.float64).reshape(k * m, d)
    p = np.exp(log_softmax(np.asarray(u, np.float64) @ flat.T / tau))
    y = contributions(np.asarray(s, np.float64))
    by_prediction = cotangent / (p @ y)
    by_member = by_prediction @ y.T
    by_logit = p * (by_member - (p * by_member).sum(axis=-1, keepdims=True))
    return by_logit @ flat / tau


def sop(student, teacher, members, weights, tau_s, tau_t):
    """Loss, its gradient with respect to student [V, B, d], mean teacher entropy, entropy of the
    mean target.
    """
    num_views, batch, _ = student.shape
    tasks = members.shape[0]
    loss, gradient, each, marginal = 0.0, np.zeros(student.shape), 0.0, 0.0
    for task in range(tasks):
        q = np.exp(vote(teacher, members[task], weights[task], tau_t))
        each += entropy(q).mean() / tasks
        marginal += entropy(q.reshape(-1, q.shape[-1]).mean(axis=0)) / tasks
        for s in range(num_views):
            for t in range(2):
                if s != t:
                    scale = 1 / ((2 * num_views - 2) * batch * tasks)
                    log_p = vote(student[s], members[task], weights[task], tau_s)
                    loss -= scale * (q[t] * log_p).sum()
                    gradient[s] += vote_gradient(
                        student[s], members[task], weights[task], tau_s, -scale * q[t]
                    )
    return loss, gradient, each, marginal


def sop_patch(student, teacher, members, weights, masks, tau_s, tau_t):
    """Loss, its gradient with respect to student [2, B, n, d], and mean KL(teacher || student) over
    masked patches.
    """
    num_views, batch, num_patches, _ = student.shape
    tasks = members.shape[0]
    loss, gradient, kl = 0.0, np.zeros(student.shape), 0.0
    for task in range(tasks):
        for v in range(num_views):
            for b in range(batch):
                for patch in range(num_patches):
                    if not masks[v, b, patch]:
                        continue
                    scale = 1 / (num_views * batch * tasks * max(1, masks[v, b].sum()))
                    arguments = (members[task], weights[task])
                    q = np.exp(vote(teacher[v, b, patch], *arguments, tau_t))
                    h = -(q * vote(student[v, b, patch], *arguments, tau_s)).sum()
                    loss += scale * h
                    kl += (h - entropy(q)) / (masks.sum() * tasks)
                    gradient[v, b, patch] += vote_gradient(
                        student[v, b, patch], *arguments, tau_s, -scale * q
                    )
    return loss, gradient, kl


# DINO, eq. 2 to 4


def dino(student, teacher, center, tau_s, tau_t, momentum):
    """Loss, its gradient with respect to student logits [S, B, K], and the new center."""
    num_student, batch, _ = student.shape
    num_teacher = teacher.shape[0]
    pairs = [(s, t) for s in range(num_student) for t in range(num_teacher) if s != t]
    loss, gradient = 0.0, np.zeros(student.shape)
    for s, t in pairs:
        for b in range(batch):
            q = np.exp(log_softmax((teacher[t, b].astype(np.float64) - center) / tau_t))
            log_p = log_softmax(student[s, b].astype(np.float64) / tau_s)
            loss -= (q * log_p).sum() / (len(pairs) * batch)
            gradient[s, b] += (np.exp(log_p) - q) / tau_s / (len(pairs) * batch)
    mean = np.mean(
        [teacher[t, b] for t in range(num_teacher) for b in range(batch)], axis=0, dtype=np.float64
    )
    return loss, gradient, momentum * center + (1 - momentum) * mean


# Helpers of the tests


def unit(rng, *shape):
    """Random unit vectors, float32."""
    x = rng.normal(size=shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def close(got, want, relative=1e-5, absolute=1e-6):
    """Asserts |got - want| <= relative * max |want|, or <= absolute; nothing may be NaN or
    infinite.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert np.isfinite(got).all()
    bound = max(relative * np.abs(want).max(initial=0), absolute)
    worst = np.abs(got - want).max(initial=0)
    assert worst <= bound, f"off by {worst}, allowed {bound}"
