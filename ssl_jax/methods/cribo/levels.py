"""CrIBo's distributions over prototypes, which differ for images and objects."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ssl_jax import ops
from ssl_jax.ops import numerics


class Level(NamedTuple):
    """Last layers and center of images, or of objects.

    Logits are computed only on demand, since those of all objects would not fit into memory.
    """

    student: jax.Array  # [e, P]
    teacher: jax.Array  # [e, P]
    center: jax.Array  # [P]
    student_temperature: float
    teacher_temperature: jax.Array

    def log_target(self, embeddings: jax.Array) -> jax.Array:
        """Logarithms of the teacher's predictions [..., P] for embeddings [..., e] (eq. 5, 7 and 9,
        with DINO's center).
        """
        logits = _logits(embeddings, self.teacher)
        return ops.centered_softmax(
            logits, self.center, temperature=self.teacher_temperature, log=True
        )

    def log_prediction(self, embeddings: jax.Array) -> jax.Array:
        """Logarithms of the student's predictions [..., P] for embeddings [..., e]."""
        return jax.nn.log_softmax(_logits(embeddings, self.student) / self.student_temperature)

    def moved_center(self, embeddings: jax.Array, valid: jax.Array, momentum: float) -> jax.Array:
        """The center updated by the teacher's embeddings [2, B, K, e] of the valid [B, K] objects;
        unchanged if there are none.
        """
        count = 2 * valid.sum()
        total = jnp.where(valid[..., None], embeddings, 0).sum(axis=(0, 1, 2))
        # Logits are linear in the embeddings: their mean is the logits of the mean embedding.
        mean = _logits(total / jnp.maximum(1, count), self.teacher.astype(jnp.float32))
        return jnp.where(
            count > 0, ops.ema_center(self.center, mean, momentum=momentum), self.center
        )


def _logits(embeddings, prototypes):
    """Logits, multiplied in the type of the prototypes and accumulated in float32."""
    embeddings = embeddings.astype(prototypes.dtype)
    return numerics.product("...d,dp->...p", embeddings, prototypes, out=jnp.float32)
