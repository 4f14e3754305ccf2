"""Records made ahead by threads that nobody waits for."""

import collections
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

_THREADS = min(16, 4 + (os.cpu_count() or 1))  # some wait for a disk while others decode
_PATIENCE = 1.0  # seconds for what is being made when the rest is not wanted any more

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(
    function: Callable[[Item], Made], batches: Iterable[Iterable[Item]], count: int
) -> Iterator[list[Made]]:
    """[function(item) of each item] of each batch, in order; threads make `count` batches more than
    the one that is taken. Raises what making one raised.

    A thread that hangs, as a read from a disk on the network can, holds neither who leaves early,
    by an exception or a signal, nor Python's own end.
    """
    jobs: queue.SimpleQueue = queue.SimpleQueue()

    def work():
        while (job := jobs.get()) is not None:
            future, item = job
            try:
                future.set_result(function(item))
            except BaseException as error:  # raised where the result is taken
                future.set_exception(error)
            del job, future, item  # not kept while the thread waits

    def begin(item):
        jobs.put((future := Future[Made](), item))
        return future

    threads = [threading.Thread(target=work, daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    waiting: collections.deque[list[Future[Made]]] = collections.deque()
    try:
        for batch in batches:
            waiting.append([begin(item) for item in batch])
            if len(waiting) > count:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                jobs.get_nowait()
        for _ in threads:
            jobs.put(None)
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(0, until - time.monotonic()))
