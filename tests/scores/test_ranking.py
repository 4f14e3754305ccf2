"""Average precision and precision at k on rankings worked out by hand, with ignored rows."""

import numpy as np
import pytest

from ssl_jax.scores import ranking
from ssl_jax.scores.ranking import Query


def _query(relevant, ignored=()):
    return Query(np.array(relevant, int), np.array(ignored, int))


@pytest.mark.parametrize(
    "places, expected",
    [
        ([0], 1.0),
        ([0, 1, 2], 1.0),
        ([1], (0 / 1 + 1 / 2) / 2),
        ([0, 2], ((1 + 1) + (1 / 2 + 2 / 3)) / 4),
        ([3, 4], ((0 + 1 / 4) + (1 / 4 + 2 / 5)) / 4),
    ],
)
def test_average_precision_is_trapezoidal(places, expected):
    assert ranking.average_precision(places) == pytest.approx(expected)


def test_equals_the_area_under_the_curve_walked_row_by_row(monkeypatch):
    """However many queries are ranked at once."""
    rng = np.random.default_rng(0)
    queries, gallery = rng.normal(size=(7, 5)), rng.normal(size=(40, 5))
    parts = [rng.permutation(40) for _ in queries]
    wanted = [_query(p[:6], p[6:14]) for p in parts]
    expected, at_five = [], []
    for query, want in zip(queries, wanted):
        order = sorted(range(40), key=lambda row: -gallery[row] @ query)
        kept = [row for row in order if row not in set(want.ignored)]
        hits, area, flags = 0, 0.0, []
        for place, row in enumerate(kept):
            before = hits / place if place else 1.0
            flags.append(row in set(want.relevant))
            if flags[-1]:
                hits += 1
                area += (before + hits / (place + 1)) / 2 / 6  # a trapezoid
        expected.append(area)
        last = max(place for place, right in enumerate(flags) if right) + 1
        at_five.append(sum(flags[: min(5, last)]) / min(5, last))
    for chunk in (ranking._CHUNK, 3):
        monkeypatch.setattr(ranking, "_CHUNK", chunk)
        scores = ranking.evaluate(queries, gallery, [*wanted], (5,))
        assert scores.mean_ap == pytest.approx(np.mean(expected))
        assert scores.precision == {5: pytest.approx(np.mean(at_five))}


def test_integers_and_half_precision_are_ranked_by_their_values():
    gallery = np.array([[0, 1], [1, 0], [1, 1]])
    for dtype, scale in ((np.uint8, 100), (np.int8, 60), (np.float16, 300), (np.float32, 1)):
        order = ranking.ranking(*(scale * np.asarray(x, dtype) for x in ([[2, 1]], gallery)))
        np.testing.assert_array_equal(order, [[2, 1, 0]])
    with pytest.raises(ValueError, match="gallery"):
        ranking.ranking(gallery, np.full(gallery.shape, np.inf))


def test_queries_without_anything_to_find_do_not_count():
    vectors = np.eye(3)
    wanted = [_query([0]), _query([], [1]), _query([1])]
    scores = ranking.evaluate(vectors, vectors, wanted, (1,))
    assert scores.queries == 2
    # the third query finds itself first, then rows 0 and 1, equal, in their order
    assert scores.mean_ap == pytest.approx((1 + (0 / 2 + 1 / 3) / 2) / 2)
    with pytest.raises(ValueError):
        ranking.evaluate(vectors, vectors, [_query([])] * 3)


def test_levels_of_the_benchmark():
    parts = ([np.array(rows)] for rows in ([1, 2], [3], [4]))
    expected = {"medium": ({1, 2, 3}, {4}), "hard": ({3}, {1, 2, 4}), "easy": ({1, 2}, {3, 4})}
    for name, (query,) in ranking.levels(*parts).items():
        assert (set(query.relevant), set(query.ignored)) == expected[name]
