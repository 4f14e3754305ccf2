"""MaSSL: a softmax over the rows of disjoint blocks of the memory; SOP's special case k = 0."""

import jax
import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.methods import base, massl
from tests.losses import reference
from tests.methods import embeddings_case as case

BLOCKS = dict(section__cls__anchors=4, section__cls__tasks=3, section__cls__memory=12)


def start(**changes):
    config = case.config_of("massl", **{**BLOCKS, **changes})
    massl.check(config)
    method = massl.make(config)
    return config, method, case.carry_of(method), case.outputs_of(config)


def softmax_reference(outputs, blocks, tau_s, tau_t):
    """Mean over blocks [T, K, d] and pairs of views of the cross-entropy of two softmaxes; gradient
    for the student [B, V, d].
    """
    student, teacher = (np.asarray(x, np.float64) for x in (outputs.student, outputs.teacher))
    batch, num_views, _ = student.shape
    loss, gradient = 0.0, np.zeros(student.shape)
    for rows in blocks:
        q = np.exp(reference.log_softmax(teacher @ rows.T / tau_t))
        log_p = reference.log_softmax(student @ rows.T / tau_s)
        for s in range(num_views):
            for t in range(2):
                if s != t:
                    scale = 1 / (len(blocks) * (2 * num_views - 2) * batch)
                    loss -= scale * (q[:, t] * log_p[:, s]).sum()
                    gradient[:, s] += scale * (np.exp(log_p[:, s]) - q[:, t]) @ rows / tau_s
    return loss, gradient


@pytest.mark.parametrize(
    "changes",
    [{}, dict(section__cls__tasks=2), dict(section__cls__anchors=12, section__cls__tasks=1)],
)
def test_loss_and_gradient_equal_a_softmax_over_the_blocks(changes):
    config, method, carry, outputs = start(**changes)
    key, c = jax.random.key(2), config.massl.cls
    (loss, output), (by_output, by_carry) = case.evaluate(method, outputs, carry, key)
    rows = np.asarray(carry["cls"]["memory"]["rows"]["embedding"], np.float64)
    drawn = np.asarray(
        ops.sample_anchors(key, c.memory, c.anchors, num_tasks=c.tasks, strategy="partition")
    )
    assert len(set(drawn.ravel())) == c.anchors * c.tasks, "no row is in two blocks"
    want, gradient = softmax_reference(outputs, rows[drawn], *case.temperatures(config.massl))
    reference.close(loss, want)
    reference.close(by_output.student, gradient)
    reference.close(output.metrics["cls_loss"], want)
    assert not np.any(by_output.teacher) and not any(np.any(x) for x in jax.tree.leaves(by_carry))
    memory = base.settle(output.carry, carry)["cls"]["memory"]
    np.testing.assert_array_equal(memory["rows"]["embedding"][: case.BATCH], outputs.teacher[:, 1])
    assert int(memory["cursor"]) == case.BATCH
