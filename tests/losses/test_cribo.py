"""CrIBo's losses: cycles, objects that do not exist, and what teaches what."""

import chex
import numpy as np
import pytest

from tests.losses import cases
from tests.losses.reference import close

B, K = 4, 3


def run(given, **settings):
    """Terms, and the gradient by the student's objects."""
    terms, gradients = cases.run("cribo_objects", given, **settings)
    return terms, np.asarray(gradients["student"])


def inputs(seed=0):
    return cases.make("cribo_objects", seed)


@pytest.mark.parametrize("counts", ["own", "first"])
@pytest.mark.parametrize("closed", [(0, 0), (1, 0), (0, 1)])
def test_a_view_without_cycles_adds_nothing(counts, closed):
    """Z_i = 0: its half is 0. The official code then drops view 2 as well if it is Z_1 that
    is 0.
    """
    given = inputs(2)
    given["cycle"] &= np.array(closed, bool)[:, None, None]
    terms, gradient = run(given, counts=counts)
    want, slopes = cases.wanted("cribo_objects", given, counts=counts)
    close(terms["cross_image_loss"], want["cross_image_loss"])
    close(gradient, slopes["student"])
    gone = closed == (0, 0) or (counts == "first" and closed == (0, 1))
    assert (terms["cross_image_loss"] == 0) == gone
    without = run({name: x for name, x in given.items() if name not in ("neighbours", "cycle")})
    assert np.array_equal(gradient, without[1]) == gone


def test_counts_differ_only_in_what_divides_view_2():
    given = inputs(3)
    given["valid"][:] = True
    number = np.arange(B * K).reshape(B, K)
    given["cycle"] = np.stack([number < 2, number < 6])
    own, first = (run(given, counts=counts)[0]["cross_image_loss"] for counts in ("own", "first"))
    only = given | {"cycle": given["cycle"] & np.array([True, False])[:, None, None]}
    half = run(only)[0]["cross_image_loss"]
    close(first - half, 3 * (own - half))


def test_objects_that_do_not_exist_do_not_matter():
    given = inputs(4)
    base = run(given)
    gone = ~given["valid"]
    for name in ("student", "teacher", "neighbours"):
        given[name][:, gone] = np.nan
    given["neighbours"][~given["cycle"]] = np.inf
    given["cycle"][:, gone] = True
    got = run(given)
    chex.assert_trees_all_equal(got, base)
    chex.assert_tree_all_finite(got)
    assert gone.any() and not np.any(got[1][:, gone])


def test_a_row_that_does_not_exist_teaches_no_prototype():
    given = cases.make("cribo_objects", 10, width=5)
    slopes = cases.run("cribo_objects", given)[1]["student_prototypes"]
    given["student"][:, ~given["valid"]] = np.nan
    np.testing.assert_array_equal(
        cases.run("cribo_objects", given)[1]["student_prototypes"], slopes
    )
