"""Cycle consistency against loops in float64 and the worked examples of the method."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.ops.cycle import Cycle, cycle_consistent
from tests.finite import assert_finite
from tests.losses.reference import unit

cycle = jax.jit(cycle_consistent, static_argnames="group_size")


def angles(*degrees):
    """Unit vectors of the plane."""
    radians = np.deg2rad(np.array(degrees, np.float64))
    return np.stack([np.cos(radians), np.sin(radians)], axis=-1).astype(np.float32)


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


def test_worked_examples():
    first, second, bank, other = (
        angles(0, 90),
        angles(5, 95),
        angles(10, 40, 200),
        angles(12, 85, 190),
    )
    one = cycle(first, second, bank, other)
    assert (
        isinstance(one, Cycle)
        and one.index.tolist() == [0, 1]
        and one.consistent.tolist() == [True, True]
    )
    two = cycle(second, first, other, bank)
    assert two.index.tolist() == [0, 1] and two.consistent.tolist() == [True, False]
    again = cycle(angles(0, 20), angles(5, 25), angles(12, 200), angles(24, 190))
    assert again.index.tolist() == [0, 0] and again.consistent.tolist() == [False, True]


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
    got = cycle(
        first, second, first_bank, second_bank, where=where, bank_where=bank_where, group_size=group
    )
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
    norms = 1 / np.linalg.norm(first_bank, axis=-1)

    def flat(x):
        return x.reshape(-1, *x.shape[2:])

    want, index = by_loops(
        *map(flat, (first, second, first_bank, second_bank, where, bank_where)), group=8
    )
    options = dict(where=where, bank_where=bank_where, inverse_norms=norms, group_size=2)
    got = cycle(first, second, first_bank, second_bank, **options)
    np.testing.assert_array_equal(got.consistent, want.reshape(6, 4))
    np.testing.assert_array_equal(got.index, index.reshape(6, 4))
    whole = cycle(first, second, first_bank, second_bank, **options | {"group_size": 100})
    want, _ = by_loops(*map(flat, (first, second, first_bank, second_bank, where, bank_where)))
    np.testing.assert_array_equal(whole.consistent.reshape(-1), want)


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    scale=st.sampled_from((1e-4, 1.0, 1e4)),
    group=st.sampled_from((None, 6)),
    seed=st.integers(0, 1000),
)
def test_a_bank_of_the_batch_itself_closes_every_cycle(scale, group, seed):
    """O is true and nn_1 = c_1 in both directions; with pairs that are not
    aligned it is never.
    """
    rng = np.random.default_rng(seed)
    first, second = scale * rng.normal(size=(2, 30, 6))
    for one, two in ((first, second), (second, first)):
        got = cycle(one, two, one, two, group_size=group)
        assert got.consistent.all() and got.index.tolist() == list(range(30))
    assert not cycle(first, second, first, np.roll(second, 1, axis=0)).consistent.any()
    assert_finite(got)  # booleans and indices: nothing to count but the case


def test_an_empty_bank_or_batch_gives_false():
    rng = np.random.default_rng(4)
    first, second, bank = rng.normal(size=(3, 6, 4)).astype(np.float32)
    none = cycle(first, second, first, second, bank_where=np.zeros(6, bool))
    assert not none.consistent.any() and ((0 <= none.index) & (none.index < 6)).all()
    assert not cycle(first, second, bank[:0], bank[:0]).consistent.any()
    assert not cycle(first, second, first, second, where=np.zeros(6, bool)).consistent.any()
    assert cycle(first[:0], second[:0], bank, bank).consistent.shape == (0,)
    one = cycle(first, second, first, second, bank_where=np.arange(6) == 2)
    assert (
        one.consistent.tolist() == [False, False, True, False, False, False]
        and one.index.tolist() == [2] * 6
    )


def test_a_group_without_objects_gives_false():
    first = unit(np.random.default_rng(5), 6, 4)
    where = np.array([True, True, True, False, False, False])
    assert (
        cycle(first, first, first, first, where=where, group_size=3).consistent.tolist()
        == where.tolist()
    )


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(most=st.integers(1, 20), seed=st.integers(0, 1000))
def test_lengths_do_not_matter(most, seed):
    """For every row by its own factor: powers of two, so that nothing
    rounds.
    """
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, 6)).astype(np.float32) for n in (20, 20, 50, 50)]
    scaled = [x * 2.0 ** rng.integers(-most, most, (len(x), 1)).astype(np.float32) for x in arrays]
    got = cycle(*arrays)
    for one, two in zip(got, cycle(*scaled)):
        np.testing.assert_array_equal(one, two)
    assert_finite(got)  # booleans and indices: nothing to count but the case


def test_stored_norms_are_used():
    first = second = angles(0, 90)
    bank = angles(0, 90) * np.float32([[1], [100]])
    right = cycle(first, second, bank, bank, inverse_norms=np.array([1, 0.01]))
    assert right.index.tolist() == [0, 1] and right.consistent.all()
    assert cycle(angles(40), angles(40), bank, bank, inverse_norms=np.ones(2)).index.tolist() == [1]


def test_no_gradient_and_one_program_under_vmap():
    rng = np.random.default_rng(7)
    arrays = [jnp.asarray(rng.normal(size=(3, n, 4)), jnp.float32) for n in (5, 5, 8, 8)]
    one = [cycle(*(x[i] for x in arrays)) for i in range(3)]
    both = jax.vmap(cycle_consistent)(*arrays)
    np.testing.assert_array_equal(both.consistent, np.stack([c.consistent for c in one]))
    np.testing.assert_array_equal(both.index, np.stack([c.index for c in one]))

    def weighted(first, bank):
        got = cycle_consistent(first, arrays[1][0], bank, arrays[3][0])
        return jnp.sum(jnp.where(got.consistent[:, None], bank[got.index], 0) * 0 + first * 0)

    assert all(not g.any() for g in jax.grad(weighted, (0, 1))(arrays[0][0], arrays[2][0]))


def test_sharded_objects():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(8)
    first, second = rng.normal(size=(2, 16, 4, 5)).astype(np.float32)
    first_bank, second_bank = rng.normal(size=(2, 9, 4, 5)).astype(np.float32)
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    moved = jax.device_put((first, second), across) + jax.device_put(
        (first_bank, second_bank), everywhere
    )
    for group in (None, 2, 6):
        for got, want in zip(
            cycle(*moved, group_size=group),
            cycle(first, second, first_bank, second_bank, group_size=group),
        ):
            np.testing.assert_array_equal(got, want)


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    sizes=st.sampled_from(((7, 9), (1, 1))),
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    exist=st.sampled_from((0.0, 0.5, 1.0)),
    group=st.sampled_from((None, 3)),
    seed=st.integers(0, 1000),
)
def test_properties(sizes, dtype, scale, exist, group, seed):
    rng = np.random.default_rng(seed)
    n, m = sizes

    def make(rows):
        return jnp.asarray(
            rng.normal(size=(rows, 3)).round(1)[rng.integers(0, rows, rows)] * scale, dtype
        )

    where, bank_where = rng.uniform(size=n) < exist, rng.uniform(size=m) < exist
    got = cycle(
        make(n), make(n), make(m), make(m), where=where, bank_where=bank_where, group_size=group
    )
    assert got.consistent.shape == got.index.shape == (n,) and got.consistent.dtype == bool
    assert_finite(got)  # booleans and indices: nothing to count but the case
    assert not (got.consistent & ~where).any()
    assert ((0 <= got.index) & (got.index < m)).all()
    assert bank_where[got.index].all() if bank_where.any() else not got.consistent.any()
    for start in range(
        0, n, group or n
    ):  # an object of the batch ends at most as many ways as rows of the bank lead to it
        part = np.asarray(got.consistent)[start : start + (group or n)]
        assert part.sum() <= len(
            set(np.asarray(got.index)[start : start + (group or n)][part].tolist())
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(first=jnp.ones(3), second=jnp.ones(3)), r"shape of first is \(3,\)"),
        (
            dict(second=jnp.ones((4, 3))),
            r"shape of second is \(4, 3\); it must be \[5, 3\] as first",
        ),
        (
            dict(first_bank=jnp.ones((7, 4))),
            r"shape of first_bank is \(7, 4\); it must be \[..., 3\] as first",
        ),
        (
            dict(second_bank=jnp.ones((6, 3))),
            r"shape of second_bank is \(6, 3\); it must be \[7, 3\] as first_bank and first",
        ),
        (dict(where=jnp.ones(7, bool)), r"shape of where is \(7,\); it must be \[5\] as first"),
        (
            dict(bank_where=jnp.ones(5, bool)),
            r"shape of bank_where is \(5,\); it must be \[7\] as first_bank",
        ),
        (
            dict(inverse_norms=jnp.ones(5)),
            r"shape of inverse_norms is \(5,\); it must be \[7\] as first_bank",
        ),
        (dict(group_size=0), "group_size is 0; it must be at least 1"),
    ],
)
def test_errors(change, message):
    good = dict(
        first=jnp.ones((5, 3)),
        second=jnp.ones((5, 3)),
        first_bank=jnp.ones((7, 3)),
        second_bank=jnp.ones((7, 3)),
    )
    with pytest.raises(ValueError, match=message):
        functools.partial(cycle_consistent, **(good | change))()
