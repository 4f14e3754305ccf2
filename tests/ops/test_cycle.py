"""Cycle consistency against loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.ops.cycle import cycle_consistent

cycle = jax.jit(cycle_consistent, static_argnames="group_size")


def cosine(a, b):
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    return a @ b / norm if norm > 0 else 0.0


def by_loops(first, second, first_bank, second_bank, where=None, bank_where=None, group=None):
    """CrIBo eq. 4 for flat [n, d] objects and [m, d] banks: one object at a time."""
    first, second, first_bank, second_bank = (
        np.asarray(x, np.float64) for x in (first, second, first_bank, second_bank)
    )
    n, m = len(first), len(first_bank)
    where = np.ones(n, bool) if where is None else where
    bank_where = np.ones(m, bool) if bank_where is None else bank_where
    consistent, index = np.zeros(n, bool), np.zeros(n, int)
    for o in range(n):
        rows = [j for j in range(m) if bank_where[j]]
        if not rows:
            continue
        index[o] = max(rows, key=lambda j: (cosine(first[o], first_bank[j]), -j))
        inside = [p for p in range(n) if where[p] and (group is None or p // group == o // group)]
        if where[o]:
            consistent[o] = o == max(
                inside, key=lambda p: (cosine(second_bank[index[o]], second[p]), -p)
            )
    return consistent, index


@pytest.mark.parametrize("group", [None, 1, 4, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_loops(group, masked):
    rng = np.random.default_rng(1)
    base = rng.normal(size=(20, 6))
    first, second = (base + 0.4 * rng.normal(size=(20, 6)) for _ in range(2))
    bank = np.concatenate([rng.permutation(base), rng.permutation(base), rng.normal(size=(10, 6))])
    first_bank, second_bank = (bank + 0.4 * rng.normal(size=(50, 6)) for _ in range(2))
    where, bank_where = (rng.uniform(size=n) < 0.6 if masked else None for n in (20, 50))
    want, index = by_loops(first, second, first_bank, second_bank, where, bank_where, group)
    options = dict(where=where, bank_where=bank_where, group_size=group)
    got = cycle(first, second, first_bank, second_bank, **options)
    np.testing.assert_array_equal(got.consistent, want)
    np.testing.assert_array_equal(got.index, index)
    assert got.index.dtype == jnp.int32 and 0 < want.sum()
    assert group == 1 or want.sum() < (20 if where is None else where.sum())


def test_images_and_clusters_as_axes():
    """[B, K, d] objects, [S, K, d] banks: groups count images."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(2, 6, 4, 5))
    first_bank, second_bank = rng.normal(size=(2, 9, 4, 5))
    where, bank_where = rng.uniform(size=(6, 4)) < 0.7, rng.uniform(size=(9, 4)) < 0.7
    arrays = (first, second, first_bank, second_bank, where, bank_where)
    flat = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    options = dict(where=where, bank_where=bank_where)
    options |= dict(inverse_norms=1 / np.linalg.norm(first_bank, axis=-1))
    for images, group in ((2, 8), (100, None)):
        want, index = by_loops(*flat, group=group)
        got = cycle(*arrays[:4], **options, group_size=images)
        np.testing.assert_array_equal(got.consistent, want.reshape(6, 4))
        np.testing.assert_array_equal(got.index, index.reshape(6, 4))


def test_a_bank_of_the_batch_itself_closes_every_cycle():
    """O is true and nn_1 = c_1 in both directions; with pairs that are not aligned it is never."""
    first, second = np.random.default_rng(3).normal(size=(2, 30, 6)).astype(np.float32)
    for group in (None, 6):
        for one, two in ((first, second), (second, first)):
            got = cycle(one, two, one, two, group_size=group)
            assert got.consistent.all() and got.index.tolist() == list(range(30))
        assert not cycle(first, second, first, np.roll(second, 1, axis=0)).consistent.any()


def test_an_empty_bank_or_batch_gives_false():
    rng = np.random.default_rng(4)
    first, second, bank = rng.normal(size=(3, 6, 4)).astype(np.float32)
    none = cycle(first, second, first, second, bank_where=np.zeros(6, bool))
    assert not none.consistent.any() and ((0 <= none.index) & (none.index < 6)).all()
    assert not cycle(first, second, bank[:0], bank[:0]).consistent.any()
    assert not cycle(first, second, first, second, where=np.zeros(6, bool)).consistent.any()
    assert cycle(first[:0], second[:0], bank, bank).consistent.shape == (0,)
    one = cycle(first, second, first, second, bank_where=np.arange(6) == 2)
    assert one.consistent.tolist() == [i == 2 for i in range(6)] and one.index.tolist() == [2] * 6
