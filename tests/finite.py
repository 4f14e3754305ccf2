"""A check that ops and losses share."""

import jax
import jax.numpy as jnp
import numpy as np


def assert_finite(*trees) -> None:
    """Fails unless every floating-point number in some pytrees of arrays is finite."""
    leaves = [x for x in jax.tree.leaves(trees) if jnp.issubdtype(x.dtype, jnp.inexact)]
    wrong = {x.shape: int((~np.isfinite(np.asarray(x))).sum()) for x in leaves}
    assert not any(wrong.values()), f"not finite, by shape: {wrong}"
