"""The distributions of CrIBo over its prototypes: images have some, objects have others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ssl_jax import ops


class Level(NamedTuple):
    """Last layers and center of images, or of objects.

    Logits are made where they are needed and not before: those of all objects would not fit into
    memory.
    """

    student: jax.Array  # [e, P]
    teacher: jax.Array  # [e, P]
    center: jax.Array  # [P]
    student_temperature: float
    teacher_temperature: jax.Array

    def log_target(self, embeddings: jax.Array) -> jax.Array:
        """Logarithms of the teacher's predictions [..., P] from its embeddings [..., e] (eq. 5, 7
        and 9, with DINO's center).
        """
        logits = _logits(embeddings, self.teacher)
        return ops.centered_softmax(
            logits, self.center, temperature=self.teacher_temperature, log=True
        )

    def log_prediction(self, embeddings: jax.Array) -> jax.Array:
        """Logarithms of the student's predictions [..., P] from its embeddings [..., e]."""
        return jax.nn.log_softmax(_logits(embeddings, self.student) / self.student_temperature)

    def moved_center(self, embeddings: jax.Array, valid: jax.Array, momentum: float) -> jax.Array:
        """The center after the teacher's embeddings [2, B, K, e], of which those of the objects
        valid [B, K] count; without any it stays.
        """
        count = 2 * valid.sum()
        total = jnp.where(valid[..., None], embeddings, 0).sum(axis=(0, 1, 2))
        # Logits are linear in the embeddings, so their mean is that of the mean embedding.
        mean = total / jnp.maximum(1, count) @ self.teacher.astype(jnp.float32)
        return jnp.where(
            count > 0, ops.ema_center(self.center, mean, momentum=momentum), self.center
        )


def _logits(embeddings, prototypes):
    """Their product in the type of the prototypes, float32."""
    embeddings = embeddings.astype(prototypes.dtype)
    return jnp.matmul(embeddings, prototypes, preferred_element_type=jnp.float32)
