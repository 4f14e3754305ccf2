"""workers.py: elements in order whatever dies, and what is said of it."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data import loader, workers
from ssl_jax.data.workers import Ahead
from tests.data.test_loader import RECIPE, RECORDS, assert_same, take

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
    made = []

    def places(*at, code=-9):
        at = iter(at)

        def iterate(sequence, start, count):
            made.append(Dying(start, next(at), code))
            return made[-1]

        monkeypatch.setattr(workers, "_iterate", iterate)
        return made

    return places


def test_what_was_not_taken_comes_again(dying, capsys):
    made = dying(5, 4, None, 13, None)
    ahead = Ahead(NUMBERS, 3, 1)
    taken = [ahead.take(3) for _ in range(4)]
    assert [int(x) for part in taken for x in part] == list(range(3, 15))
    # Each from the first element of the three that were not complete; the third is a last try.
    assert [it.closed for it in made] == [True, True, True, True, False]
    out = capsys.readouterr().out
    assert out.count("a data worker died (SIGKILL)") == 3 and out.count("\n") == 3


def test_a_worker_that_dies_again_and_again_ends_it(dying):
    made = dying(5, 5, 5, None)
    ahead = Ahead(NUMBERS, 3, 1)
    with pytest.raises(InputError, match="data.workers=1: 3 times in a row .* by SIGKILL") as error:
        ahead.take(4)
    assert "\n" not in str(error.value)
    assert len(made) == 3 and made[2].closed
    ahead.close()  # once more, as a loader does that an error ends
    with pytest.raises(StopIteration):
        ahead.take(1)
    dying(5, 9, 12, 16, None, code=3)  # each time something was taken in between
    ahead = Ahead(NUMBERS, 3, 1)
    assert len([ahead.take(4) for _ in range(4)]) == 4


def test_the_last_try_makes_nothing_ahead(dying, monkeypatch):
    """So an element that kills its worker does not take those before it with it."""
    dying(3, 3, None, None)
    lengths, iterate = [], workers._iterate

    def noted(sequence, start, count):
        lengths.append((start, len(sequence)))
        return iterate(sequence, start, count)

    monkeypatch.setattr(workers, "_iterate", noted)
    ahead = Ahead(NUMBERS, 3, 1)
    assert [int(x) for part in (ahead.take(4), ahead.take(4)) for x in part] == list(range(3, 11))
    assert lengths == [(3, 40), (3, 40), (3, 7), (7, 40)]


def test_how_it_died_is_named(dying):
    dying(3, 3, 3, code=3)
    with pytest.raises(InputError, match="by exit code 3"):
        Ahead(NUMBERS, 3, 1).take(4)


def test_other_errors_arrive_unchanged(dying, monkeypatch):
    made = dying(None)
    ahead = Ahead(NUMBERS, 0, 1)
    monkeypatch.setattr(made[0], "at", 0)
    monkeypatch.setattr(Dying, "__next__", lambda self: (_ for _ in ()).throw(RuntimeError("own")))
    with pytest.raises(RuntimeError, match="^own$"):
        ahead.take(1)
    assert len(made) == 1


def test_threads_take_and_close():
    ahead = Ahead(NUMBERS, 36, 0)
    assert ahead.take(3) == [36, 37, 38]
    with pytest.raises(StopIteration):
        ahead.take(2)
    ahead.close()
    with pytest.raises(StopIteration):
        ahead.take(1)


def test_a_killed_worker_changes_no_batch(monkeypatch, capsys):
    """Two real processes, of which the system kills one: the same batches, to the bit."""
    monkeypatch.setattr(loader, "_UNIT", 3)  # a batch is of several units
    options = dict(batch_size=8, seed=3, start_record=16, total_records=16 + 8 * 12)
    alone = take(12, **options)
    together = loader.Loader(RECORDS, RECIPE, workers=2, **options)
    for number, batch in enumerate(alone):
        if number == 2:
            victim = multiprocessing.active_children()[0]
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
        assert_same(batch, next(together))
        assert together.state() == {"record": 16 + 8 * (number + 1)}
    with pytest.raises(StopIteration):
        next(together)
    assert capsys.readouterr().out.count("a data worker died (SIGKILL)") == 1
