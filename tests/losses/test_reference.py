"""The references of the other tests: their gradients against finite differences, and a prediction
worked by hand.
"""

import numpy as np
import pytest

from tests.losses import reference


def numeric_gradient(f, x, step=1e-5):
    gradient = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (f(up) - f(down)) / (2 * step)
    return gradient


@pytest.mark.parametrize("rule", ["similarity", "smoothed", "onehot"])
def test_sop_gradients(rule):
    rng = np.random.default_rng(0)
    members = reference.unit(rng, 2, 4, 3, 5).astype(np.float64)
    weights = np.stack([reference.shares(rng.uniform(0, 1, (4, 3)), rule) for _ in range(2)])
    student, teacher = rng.normal(size=(3, 2, 5)), rng.normal(size=(2, 2, 5))
    got = reference.sop(student, teacher, members, weights, 0.3, 0.2)[1]
    want = numeric_gradient(
        lambda x: reference.sop(x, teacher, members, weights, 0.3, 0.2)[0], student
    )
    np.testing.assert_allclose(got, want, atol=1e-8)

    student, teacher = rng.normal(size=(2, 2, 3, 5)), rng.normal(size=(2, 2, 3, 5))
    masks = rng.uniform(size=(2, 2, 3)) < 0.6
    got = reference.sop_patch(student, teacher, members, weights, masks, 0.3, 0.2)[1]
    want = numeric_gradient(
        lambda x: reference.sop_patch(x, teacher, members, weights, masks, 0.3, 0.2)[0], student
    )
    np.testing.assert_allclose(got, want, atol=1e-8)


def test_dino_gradient():
    rng = np.random.default_rng(1)
    student, teacher, center = (
        rng.normal(size=(3, 2, 4)),
        rng.normal(size=(2, 2, 4)),
        rng.normal(size=4),
    )
    got = reference.dino(student, teacher, center, 0.5, 0.3, 0.9)[1]
    want = numeric_gradient(lambda x: reference.dino(x, teacher, center, 0.5, 0.3, 0.9)[0], student)
    np.testing.assert_allclose(got, want, atol=1e-8)


def test_vote_by_hand():
    """Two SOPs of one member, logits log 3 and 0: softmax 3/4 and 1/4; shares 0.9: P = 3/4 * .9 +
    1/4 * .1 = 0.7.
    """
    members = np.eye(2)[:, None]
    log_p = reference.vote(np.array([np.log(3), 0.0]), members, np.full((2, 1), 0.9), 1.0)
    np.testing.assert_allclose(np.exp(log_p), [0.7, 0.3], rtol=1e-12)
