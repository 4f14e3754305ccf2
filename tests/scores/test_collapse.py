"""Meters of collapse: closed forms and brute force, and that each sees its kind of collapse."""

import itertools

import numpy as np
import pytest

from ssl_jax.scores import collapse

_RNG = np.random.default_rng(0)
_SPREAD = _RNG.normal(size=(3000, 16))
_ALIKE = np.ones((50, 16)) * np.linspace(1, 3, 50)[:, None]


def test_pairs_by_brute_force_and_in_pieces(monkeypatch):
    rows = _RNG.normal(size=(37, 5)) + 0.7
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = list(itertools.combinations(unit, 2))
    assert collapse.mean_cosine(rows) == pytest.approx(np.mean([x @ y for x, y in pairs]))
    potential = np.mean([np.exp(-2 * np.square(x - y).sum()) for x, y in pairs])
    for size in (collapse._ROWS, 10):
        monkeypatch.setattr(collapse, "_ROWS", size)
        assert collapse.uniformity(rows) == pytest.approx(np.log(potential), rel=1e-5)


def test_vectors_that_are_alike():
    assert collapse.mean_cosine(_ALIKE) == pytest.approx(1)
    assert collapse.deviation(_ALIKE) == pytest.approx(0, abs=1e-7)
    assert collapse.uniformity(_ALIKE) == pytest.approx(0, abs=1e-6)
    assert collapse.alignment(_ALIKE, 2 * _ALIKE) == pytest.approx(0)
    # They differ in length alone: one direction. Without that nothing varies at all.
    assert collapse.effective_rank(_ALIKE) == pytest.approx(1, abs=1e-6)
    assert collapse.effective_rank(np.ones((9, 4))) == 0
    assert collapse.dead(np.full((9, 4), 0.1)) == 1


@pytest.mark.parametrize(
    "score", ["mean_cosine", "deviation", "dead", "rank_me", "effective_rank", "uniformity"]
)
def test_vectors_that_are_not_finite_are_refused(score):
    with pytest.raises(ValueError, match="finite"):
        getattr(collapse, score)(np.where(_SPREAD > 3, np.nan, _SPREAD))


def test_vectors_that_are_spread_evenly():
    assert collapse.mean_cosine(_SPREAD) == pytest.approx(0, abs=0.01)
    assert collapse.deviation(_SPREAD) == pytest.approx(1, abs=0.01)
    assert collapse.dead(_SPREAD) == 0
    assert collapse.effective_rank(_SPREAD) == pytest.approx(16, rel=0.01)
    opposite = collapse.alignment(_SPREAD, -_SPREAD)
    assert opposite == pytest.approx(4)
    assert collapse.alignment(_SPREAD, np.roll(_SPREAD, 1, axis=0)) == pytest.approx(2, abs=0.05)
    few = _SPREAD * (np.arange(16) < 4)  # dimensions that are not used
    assert collapse.dead(few) == collapse.dead(few + 1000) == 12 / 16
    assert collapse.effective_rank(few) == pytest.approx(4, rel=0.01)
    shifted = _SPREAD + 100  # a common direction lowers RankMe alone
    assert collapse.effective_rank(shifted) == pytest.approx(collapse.effective_rank(_SPREAD))
    assert collapse.rank_me(shifted) < 3 < 15 < collapse.rank_me(_SPREAD)
    assert collapse.mean_cosine(shifted) > 0.99
