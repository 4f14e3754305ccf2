"""Losses of a classifier of places, of its logits and a mask of labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from ssl_jax.ops.arguments import require_inside
from ssl_jax.ops.checked import checked
from ssl_jax.ops.numerics import wide

IGNORE = 255
AVERAGES = ("labelled", "all")
_SMOOTH = 1.0  # of the authors' code; a class that is neither there nor predicted counts as found


@checked
def pixel_cross_entropy(
    logits: Float[Array, "*b c"],
    labels: Integer[Array, "*b"],
    *,
    ignore: int = IGNORE,
    average: str = "labelled",
) -> Float[Array, ""]:
    """Mean cross-entropy of the places whose label is not `ignore`.

    Args:
      logits: [..., c], computed in float32.
      labels: [...] int, in [0, c) or `ignore`.
      ignore: the label of places that do not count.
      average: over what the sum is divided: "labelled" places, or "all" of them, as mmsegmentation
        does by default (places to ignore then weaken a batch).

    Returns:
      Scalar, at least 0; 0 if nothing is labelled.

    Raises:
      ValueError: shapes that do not fit, another `average`, or a label that is no class (where it
        is known).

    Reference: the loss of CrIBo's tables 2 and 3, SOP's table 2 and FLSL's table 10.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, labels = jnp.array([[0.0, 2.0], [1.0, 0.0]]), jnp.array([1, 255])
      >>> print(f"{pixel_cross_entropy(logits, labels):.4f}")
      0.1269
    """
    if average not in AVERAGES:
        raise ValueError(f'average is "{average}"; choose one of {", ".join(AVERAGES)}')
    valid = labels != ignore
    log_probs = jax.nn.log_softmax(wide(logits), axis=-1)
    classes = _classes(labels, valid, logits.shape[-1])
    taken = jnp.take_along_axis(log_probs, classes[..., None], axis=-1)[..., 0]
    count = valid.sum() if average == "labelled" else valid.size
    return -jnp.where(valid, taken, 0.0).sum() / jnp.maximum(count, 1).astype(taken.dtype)


@checked
def dice(
    logits: Float[Array, "*b c"], labels: Integer[Array, "*b"], *, ignore: int = IGNORE
) -> Float[Array, ""]:
    """Dice loss of the softmax p against labels y: 1 - (2 sum p y + 1) / (sum p + sum y + 1).

    Sums are over all labelled places of the batch; the loss is the mean over all classes, those
    that are not in its labels included.

    Args:
      logits: [..., c], computed in float32.
      labels: [...] int, in [0, c) or `ignore`.
      ignore: the label of places that do not count.

    Returns:
      Scalar in [0, 1]; 0 if nothing is labelled.

    Raises:
      ValueError: shapes that do not fit, or a label that is no class (where it is known).

    Reference: STELLAR's code (segmentation, tables 2 and 12); Milletari et al. 2016, "V-Net",
    section 3, has squares and no 1.

    Example:
      >>> import jax.numpy as jnp
      >>> logits, labels = jnp.array([[0.0, 2.0], [1.0, 0.0]]), jnp.array([1, 0])
      >>> print(f"{dice(logits, labels):.4f}")
      0.1297
    """
    probs = jax.nn.softmax(wide(logits), axis=-1)
    valid = (labels != ignore)[..., None].astype(probs.dtype)
    classes = _classes(labels, labels != ignore, probs.shape[-1])
    truth = jax.nn.one_hot(classes, probs.shape[-1], dtype=probs.dtype) * valid
    axes = tuple(range(labels.ndim))
    hit = (probs * truth).sum(axis=axes)
    present = truth.sum(axis=axes)
    total = (probs * valid).sum(axis=axes) + present
    score = (2 * hit + _SMOOTH) / (total + _SMOOTH)
    return jnp.where(valid.any(), 1 - score.mean(), 0.0)


def _classes(labels, valid, count):
    """The labels, with class 0 at places that do not count."""
    classes = jnp.where(valid, labels, 0)
    require_inside("a label", classes, "classes", count)
    return classes
