"""What is being done is told in words, nested, and to nobody where nobody shows it."""

from ssl_jax.runtime import progress


def test_a_slow_speed_is_not_0():
    assert [progress.speed(x) for x in (0.417, 12.34, 1234.5)] == ["0.417", "12.3", "1234"]


def test_parts_and_counts_are_told_as_they_come():
    told = []
    with progress.shown_by(told.append):
        with progress.part("raw pixels"), progress.part("knn", 1, 3):
            with progress.counter(100, "images") as add:
                add(64)
                add(36)
        with progress.part("dense", 1, 1):
            pass
    knn = "raw pixels, knn (1 of 3)"
    counts = [f"{knn}, {count} of 100 images" for count in (64, 100)]
    assert told == ["raw pixels", knn, *counts, knn, "raw pixels", "", "dense", ""]
