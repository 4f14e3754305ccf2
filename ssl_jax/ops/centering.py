"""Targets of a teacher as DINO makes them: centred by a moving average, sharpened."""

import jax
import jax.numpy as jnp


def centered_softmax(logits, center, *, temperature, log: bool = False):
    """softmax((logits - center) / temperature) without gradient; its logarithm with `log`."""
    dtype = jnp.promote_types(jnp.result_type(logits), jnp.float32)
    logits, center, temperature = jax.lax.stop_gradient(
        (jnp.asarray(logits).astype(dtype), jnp.asarray(center).astype(dtype), temperature)
    )
    sharpness = 1 / jnp.asarray(temperature).astype(dtype)
    log_targets = jax.nn.log_softmax((logits - center) * sharpness, axis=-1)
    return log_targets if log else jnp.exp(log_targets)


def ema_center(center, logits, *, momentum):
    """momentum * center + (1 - momentum) * mean of logits [..., K] over all leading axes."""
    dtype = jnp.promote_types(jnp.result_type(logits), jnp.float32)
    mean = jax.lax.stop_gradient(jnp.asarray(logits)).astype(dtype)
    mean = mean.mean(axis=tuple(range(mean.ndim - 1)))
    return momentum * jnp.asarray(center).astype(dtype) + (1 - momentum) * mean
