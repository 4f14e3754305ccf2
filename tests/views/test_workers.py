"""workers.py: elements in order whatever dies; tests/process/test_workers.py kills real ones."""

import threading

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.views import workers
from ssl_jax.views.workers import Ahead

NUMBERS = np.arange(40)


class Dying:
    """An iterator over NUMBERS from `start` on as grain's, whose worker dies at one of them."""

    def __init__(self, start, at, code=-9):
        self.next, self.at, self.code, self.closed = start, at, code, False

    def __next__(self):
        if self.next == self.at:
            raise RuntimeError(
                f"Worker process was terminated unexpectedly with exit code {self.code}. Search"
            )
        self.next += 1
        return NUMBERS[self.next - 1]

    def close(self):
        self.closed = True


@pytest.fixture
def dying(monkeypatch):
    """Sets at which numbers the first, second, ... iterator die; returns those that were made."""

    def places(*at, code=-9):
        made, at = [], iter(at)

        def iterate(sequence, start, count):
            made.append(Dying(start, next(at), code))
            made[-1].length = len(sequence)
            return made[-1]

        monkeypatch.setattr(workers, "_iterate", iterate)
        return made

    return places


def test_what_was_not_taken_comes_again(dying):
    made = dying(5, 4, None, 13, None)
    ahead = Ahead(NUMBERS, 3, 1)
    taken = [ahead.take(3) for _ in range(4)]
    assert [int(x) for part in taken for x in part] == list(range(3, 15))
    # Each from the first element of the three that were not complete; the third is a last try.
    assert [it.closed for it in made] == [True, True, True, True, False]
    # That makes nothing ahead: an element that kills its worker takes none before it with it.
    made = dying(3, 3, None, None)
    ahead = Ahead(NUMBERS, 3, 1)
    assert [int(x) for part in (ahead.take(4), ahead.take(4)) for x in part] == list(range(3, 11))
    assert [it.length for it in made] == [40, 40, 7, 40]


@pytest.mark.slow
@pytest.mark.parametrize("code, name", [(-9, "SIGKILL"), (3, "exit code 3")])
def test_a_worker_that_dies_again_and_again_ends_it(code, name, dying):
    made = dying(5, 5, 5, None, code=code)
    ahead = Ahead(NUMBERS, 3, 1)
    with pytest.raises(InputError, match=f"data.workers=1: .*{name}") as error:
        ahead.take(4)
    assert "\n" not in str(error.value)
    assert len(made) == 3 and made[2].closed
    ahead.close()  # once more, as a loader does that an error ends
    with pytest.raises(StopIteration):
        ahead.take(1)
    dying(5, 9, 12, 16, None, code=code)  # each time something was taken in between
    ahead = Ahead(NUMBERS, 3, 1)
    assert len([ahead.take(4) for _ in range(4)]) == 4


def test_a_sequence_that_cannot_be_pickled_is_named():
    ahead = Ahead([threading.Lock()], 0, 1)
    with pytest.raises(InputError, match="data.workers=1: .*lock"):
        ahead.take(1)
    ahead.close()


def test_other_errors_arrive_unchanged(dying, monkeypatch):
    made = dying(None)
    ahead = Ahead(NUMBERS, 0, 1)
    monkeypatch.setattr(Dying, "__next__", lambda self: (_ for _ in ()).throw(RuntimeError("own")))
    with pytest.raises(RuntimeError, match="^own$"):
        ahead.take(1)
    assert len(made) == 1
