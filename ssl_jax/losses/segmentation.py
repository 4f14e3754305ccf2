"""Losses of a classifier of places, of its logits and a mask of labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

IGNORE = 255
AVERAGES = ("labelled", "all")
_SMOOTH = 1e-6  # keeps the quotient of a class that is neither there nor predicted finite


def pixel_cross_entropy(
    logits: Float[Array, "*b c"],
    labels: Int[Array, "*b"],
    *,
    ignore: int = IGNORE,
    average: str = "labelled",
) -> Float[Array, ""]:
    """Mean cross-entropy of the places whose label is not `ignore`.

    Args:
      logits: [..., c]. labels: [...] int, in [0, c) or `ignore`; computed in float32.
      average: over what the sum is divided: "labelled" places, or "all" of them, as mmsegmentation
        does by default (places to ignore then weaken a batch). 0 if nothing is labelled.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, labels = jnp.array([[0.0, 2.0], [1.0, 0.0]]), jnp.array([1, 255])
      >>> print(f"{pixel_cross_entropy(logits, labels):.4f}")
      0.1269
    """
    if average not in AVERAGES:
        raise ValueError(f'average is "{average}"; choose one of {", ".join(AVERAGES)}')
    valid = labels != ignore
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    classes = jnp.where(valid, labels, 0)
    taken = jnp.take_along_axis(log_probs, classes[..., None], axis=-1)[..., 0]
    count = valid.sum() if average == "labelled" else valid.size
    return -jnp.where(valid, taken, 0.0).sum() / jnp.maximum(count, 1)


def dice(
    logits: Float[Array, "*b c"], labels: Int[Array, "*b"], *, ignore: int = IGNORE
) -> Float[Array, ""]:
    """Dice loss of the softmax: 1 - 2 sum p y / (sum p + sum y), with sums over all labelled places
    of the batch, averaged over the classes that are in its labels.

    Args:
      logits: [..., c]. labels: [...] int, in [0, c) or `ignore`; computed in float32.

    Returns:
      Scalar in [0, 1]; 0 if nothing is labelled.

    Reference: Milletari et al. 2016, "V-Net", section 3, with a sum in place of squares.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, labels = jnp.array([[0.0, 2.0], [1.0, 0.0]]), jnp.array([1, 0])
      >>> print(f"{dice(logits, labels):.4f}")
      0.1952
    """
    valid = (labels != ignore)[..., None]
    probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    truth = jax.nn.one_hot(jnp.where(valid[..., 0], labels, 0), probs.shape[-1]) * valid
    axes = tuple(range(labels.ndim))
    hit = (probs * truth).sum(axis=axes)
    present = truth.sum(axis=axes)
    total = (probs * valid).sum(axis=axes) + present
    score = (2 * hit + _SMOOTH) / (total + _SMOOTH)
    there = present > 0
    return jnp.where(there, 1 - score, 0.0).sum() / jnp.maximum(there.sum(), 1)
