"""FLSL's objective: terms by hand, its targets, and the range of the volume term."""

import numpy as np
import pytest

from tests.losses import cases, reference
from tests.losses.reference import close

PLAIN = {"weights": (1.0, 1.0, 1.0), "student_temperature": 0.1}
ARRAYS = ("tokens", "modes", "student_logits", "log_targets")


def run(*arrays, **settings):
    return cases.run("flsl", dict(zip(ARRAYS, arrays)), **PLAIN | settings)[0]


def inputs(seed=0, lead=(2, 3)):
    return list(cases.make("flsl", seed, lead=lead).values())


def test_by_hand():
    """Two queries at right angles to, and along, their modes: intra (2 + 0) / 2. Students (3/4,
    1/4) and (1/4, 3/4): their mean is uniform. Targets (1, 0) in the limit and (1/2, 1/2): inter
    (log 4/3 + (log 4 + log 4/3) / 2) / 2.
    """
    x, y = np.eye(2, dtype=np.float32)
    student = np.log(np.array([[3.0, 1.0], [1.0, 3.0]], np.float32))
    log_targets = reference.log_softmax([[100.0, 0.0], [1.0, 1.0]]).astype(np.float32)
    arrays = np.stack([x, x]), np.stack([y, 2 * x]), student, log_targets
    terms = run(*arrays, student_temperature=1.0)
    close(terms["intra_loss"], 1.0)
    close(terms["inter_loss"], (1.5 * np.log(4 / 3) + 0.5 * np.log(4)) / 2)
    close(terms["volume_loss"], 0.0)
    close(terms["marginal_entropy"], -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    close(terms["loss"], terms["intra_loss"] + terms["inter_loss"])


def test_batch_softmax_forgets_what_all_queries_share():
    teacher, shared = inputs()[3], np.linspace(-1, 1, 5, dtype=np.float32)

    def targets(logits):
        return cases.run("batch_softmax", {"teacher_logits": logits})[0]["log_targets"]

    close(targets(teacher + shared), targets(teacher), 2e-6)
    # One centroid for everything becomes all centroids for everything.
    close(np.exp(targets(0 * teacher + shared)), np.full(teacher.shape, 0.2))


@pytest.mark.parametrize("peaked", [0.0, 0.3, 3.0])
def test_volume_is_0_for_uniform_and_log_k_for_one_centroid(peaked):
    """The mean over queries counts: each may be sharp as long as together they use all
    centroids.
    """
    queries, modes, student, teacher = inputs(lead=(10,))

    def volume(student):
        return run(queries, modes, student, teacher)["volume_loss"]

    assert 0 <= volume(student * peaked) <= np.log(5) + 1e-6
    assert volume(student * peaked) > 1e-6 or peaked == 0
    sharp = 10 * np.tile(np.eye(5, dtype=np.float32), (2, 1))
    close(volume(sharp), 0)
    close(volume(sharp[[0] * 10]), np.log(5))
