"""Prefetches elements of a sequence, by threads of this process or by worker processes, which are
restarted when one of them dies.
"""

import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from ssl_jax.config import InputError
from ssl_jax.runtime import stop

THREADS = 2  # in the main process; more only fight for the interpreter lock
_WORKER_BUFFER = 2  # finished elements that wait in each worker process
_DEATHS = 3  # in a row, without anything taken between them, that are no accident
# What grain says of a worker that ended without an exception of its own.
_NO_GUARD = 78  # exit code of a worker whose script starts a run where it is imported
_DIED = re.compile(r"Worker process was terminated unexpectedly with exit code (-?\d+)")


class Ahead:
    """The elements of `sequence` from `start` on, in order, prefetched by `workers` processes (0 =
    by threads of this one).

    If a worker process dies, for example because memory runs out, its prefetched elements are lost.
    All workers then restart at the first element that was not taken yet; elements and their order
    do not change.
    """

    def __init__(self, sequence: Any, start: int, workers: int):
        """sequence: with a length and elements by index, which are pytrees of arrays; picklable."""
        self._sequence, self._next, self._workers = sequence, start, workers
        self._iterator: Any = _iterate(sequence, start, workers)

    def take(self, count: int) -> list[Any]:
        """The next `count` elements, pytrees of arrays. StopIteration where fewer are left; raises
        what making one raised; InputError when workers die again and again, or where the sequence
        cannot be sent to them.
        """
        for deaths in itertools.count(1):
            if self._iterator is None:
                raise StopIteration
            try:
                taken = [self._element() for _ in range(count)]
            except RuntimeError as error:
                died = _DIED.match(str(error))
                if died is None:
                    raise
                if int(died[1]) == _NO_GUARD:
                    raise InputError(
                        f"data.workers={self._workers}: each worker imports the main script,"
                        ' and would train too; put the call below if __name__ == "__main__":'
                    ) from error
                self._begin_again(_how(int(died[1])), deaths, count)
                continue
            except Exception as error:  # of any class, with a note of grain's
                if not any("be pickled" in note for note in getattr(error, "__notes__", ())):
                    raise
                raise InputError(
                    f"data.workers={self._workers}: the data set cannot be sent to worker processes"
                    f" ({error}); let its __getitem__ open files, or set data.workers=0"
                ) from error
            self._next += count
            if deaths == _DEATHS:  # the last try made no more than these
                self.close()
                if self._next < len(self._sequence):
                    self._iterator = _iterate(self._sequence, self._next, self._workers)
            return taken
        raise AssertionError("unreachable")

    def _element(self):
        """The next one. Workers send shared memory, of which a machine may have little: copied, it
        is free again at once.
        """
        element = next(self._iterator)
        return jax.tree.map(np.array, element) if self._workers else element

    def _begin_again(self, how, deaths, count):
        self.close()
        if deaths == _DEATHS:
            raise InputError(
                f"data.workers={self._workers}: {deaths} worker processes in a row died before"
                f" one batch was read (the last: {how}); if memory runs out, lower data.workers"
                " or data.max_pixels, otherwise an image or its decoder crashes the process"
            )
        print(
            f"  warning: a data worker died ({how}); restarting all workers where they were (no"
            " batch changes). If memory runs out, lower data.workers",
            flush=True,
        )
        sequence = self._sequence
        if deaths == _DEATHS - 1:
            # The last try makes nothing ahead: what dies there takes nothing with it that is good.
            sequence = _Beginning(sequence, self._next + count)
        self._iterator = _iterate(sequence, self._next, self._workers)

    def close(self) -> None:
        """Stops threads and processes and lets go of what they made; nothing can be taken any
        more.
        """
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()
            del iterator
            if self._workers:
                # grain's threads keep what came last in tracebacks of their StopIteration, and its
                # shared memory with it.
                gc.collect()


class _Beginning:
    """The first elements of a sequence."""

    def __init__(self, sequence, length):
        self._sequence, self._length = sequence, min(length, len(sequence))

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return self._sequence[i]


def end_in_worker() -> None:
    """Ends the worker process that imports a script which starts a run at its top level, so that
    the process of the run can say why."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_NO_GUARD)


def _how(code):
    """What ended a process, by its exit code: "SIGKILL", "exit code 1"."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def _iterate(sequence, start, workers):
    """grain iterator over sequence[start:], prepared ahead by threads or worker processes."""
    if not flags.FLAGS.is_parsed():
        # grain reads absl flags, which raises where nobody parsed any (notebooks, tests)
        flags.FLAGS.mark_as_parsed()
    dataset = grain.MapDataset.source(sequence)[start:]
    if not workers:
        return iter(
            dataset.to_iter_dataset(
                grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=THREADS)
            )
        )
    dataset = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    options = grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=_WORKER_BUFFER
    )
    return iter(dataset.mp_prefetch(options, worker_init_fn=_start_worker))


def _start_worker(index, count):
    """Lets a worker leave signals to the main process (which saves, then closes), and end when it
    does, however."""
    del index, count
    for number in stop.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
