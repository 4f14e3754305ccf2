"""Networks in float64 NumPy, one image and one head at a time, and parameters for them."""

import jax
import numpy as np
from scipy.special import erf


def randomised(model, seed=0, scale=0.3):
    """Parameters large enough that every bias, scale and code matters."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda s: np.float32(rng.normal(size=s.shape) * scale), shapes)


def float64(params):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), params)


def linear(x, w):
    return x @ w["kernel"] + w["bias"]


def norm(x, w, eps=1e-6):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * w["scale"] + w["bias"]


def gelu(x, kind="erf"):
    inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + (inner if kind == "tanh" else erf(x / np.sqrt(2))))


def silu(x):
    return x / (1 + np.exp(-x))


def turned(x, angles):
    """Queries or keys [N, w] of one head, pair by pair, by angles [N, w / 2]."""
    pairs = x[:, : x.shape[1] // 2] + 1j * x[:, x.shape[1] // 2 :]
    pairs = pairs * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=1)


def blocks(params, x, heads, kind="erf", eps=1e-6, scales=None, angles=None):
    """Tokens [N, d] after all blocks, and the attention [h, N, N] of the last one.

    scales: [depth, 2], of the two branches of a block (drop-path). angles: [N, d / heads / 2], of
    rotary position embeddings.
    """
    d = x.shape[1] // heads
    for i in range(len(params["norm1"]["scale"])):
        p = jax.tree.map(lambda a: a[i], params)  # noqa: B023
        qkv = p["attn"]["qkv"]
        joint = norm(x, p["norm1"], eps) @ qkv["kernel"] + qkv.get("bias", 0)
        q, k, v = np.split(joint, 3, axis=1)
        q, v = q + p["attn"].get("q_bias", 0), v + p["attn"].get("v_bias", 0)
        mixed, maps = [], []
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            query, key = q[:, part], k[:, part]
            if angles is not None:
                query, key = turned(query, angles), turned(key, angles)
            scores = np.exp(query @ key.T / np.sqrt(d))
            maps.append(scores / scores.sum(1, keepdims=True))
            mixed.append(maps[-1] @ v[:, part])
        first, second = (1, 1) if scales is None else scales[i]
        if "ls1" in p:
            first, second = first * p["ls1"]["gamma"], second * p["ls2"]["gamma"]
        x = x + first * linear(np.concatenate(mixed, 1), p["attn"]["proj"])
        hidden = linear(norm(x, p["norm2"], eps), p["mlp"]["fc1"])
        if kind == "swiglu":
            gate, value = np.split(hidden, 2, axis=1)
            hidden = silu(gate) * value
        else:
            hidden = gelu(hidden, kind)
        x = x + second * linear(hidden, p["mlp"]["fc2"])
    return x, maps


def mlp(params, x):
    """Linear layers with GELU between them."""
    for i in range(len(params)):
        x = linear(gelu(x) if i else x, params[str(i)])
    return x
