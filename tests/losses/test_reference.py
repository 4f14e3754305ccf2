"""The references: their gradients against finite differences, and what can be worked by hand."""

import functools

import numpy as np
import pytest

from tests.losses import cases, reference

SOP = {"views": 2, "tasks": 1}
SIZES = [("sop", SOP | {"rule": rule}) for rule in ("similarity", "smoothed", "onehot")]
SIZES += [("sop_patch", {"tasks": 1, "batch": 2})]
SIZES += [(name, {}) for name in ("dino", "ibot_patch", "cribo_images", "cribo_objects", "mae")]
SIZES += [("cribo_objects", {"width": 2})]


@pytest.mark.parametrize(("name", "sizes"), SIZES)
def test_gradients_are_those_of_the_values(name, sizes):
    x = {k: v if v.dtype.kind != "f" else v.astype(np.float64)
         for k, v in cases.make(name, **sizes).items()}  # fmt: skip
    settings = cases.CASES[name].settings
    for key, gradient in cases.wanted(name, x, **settings)[1].items():

        def loss(value, key=key):
            return cases.wanted(name, x | {key: value}, **settings)[0]["loss"]

        want = reference.slopes(functools.partial(loss), x[key])
        np.testing.assert_allclose(gradient, want, atol=1e-7 * max(1, np.abs(want).max()))


def test_vote_by_hand():
    """Two SOPs of one member, logits log 3 and 0: softmax 3/4 and 1/4; shares 0.9: P = 3/4 * .9 +
    1/4 * .1 = 0.7.
    """
    members = np.eye(2)[:, None]
    log_p = reference.vote(np.array([np.log(3), 0.0]), members, np.full((2, 1), 0.9), 1.0)
    np.testing.assert_allclose(np.exp(log_p), [0.7, 0.3], rtol=1e-12)


def test_sinkhorn_balances():
    """Any number of rows: each sums to 1, and with iterations all columns to the same."""
    q = reference.sinkhorn(np.random.default_rng(0).normal(size=(6, 4)), 0.5, iterations=200)
    np.testing.assert_allclose(q.sum(axis=1), 1)
    np.testing.assert_allclose(q.sum(axis=0), 6 / 4)


def test_koleo_by_hand():
    """Two tokens at right angles, at a distance of the root of 2."""
    np.testing.assert_allclose(reference.koleo(np.eye(2)), np.log(2) / 2, atol=1e-7)
