"""From records to batches: threads read and crop ahead, and views are grouped by shape.

    batches = feed(source, records, lambda row, record: [View(row, record["image"])], 64)
    for views, features in encoded(read, by_shape(batches, 64)):
        ...

`feed` leaves out records that cannot be read; a `monitored.Monitored` source warns of each of
them and refuses more than a given share. `ahead` and `readable` serve views drawn at random.
"""

import collections
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.features import windows
from ssl_jax.runtime import memory

_THREADS = min(16, 4 + (os.cpu_count() or 1))  # more than cores: some wait for the disk
_PATIENCE = 1.0  # seconds to wait for a thread once its result is no longer needed
_AHEAD = 2  # batches that are read while the device is busy
_WAITING = 8  # batches' worth of views that may wait for others of their shape

Item = TypeVar("Item")
Result = TypeVar("Result")
Plan = Sequence[tuple[np.ndarray, int]]  # (rows, images to fill up to) of each batch


class View(NamedTuple):
    """An image for the network, made from a record."""

    what: Any  # identifies the view; passed on with its features
    image: np.ndarray  # [H, W, 3] float32 in [0, 1], sides multiples of the patch


class Batch(NamedTuple):
    """Views of some records, and the records that could not be read."""

    views: list
    size: int  # number of images after padding
    skipped: list[int]

    @property
    def images(self) -> np.ndarray:
        """Images [size, H, W, 3] of views of one shape, padded with copies of the last one."""
        return windows.filled(np.stack([view.image for view in self.views]), self.size)


def feed(
    source: Any,
    records: Sequence[int] | np.ndarray,
    cut: Callable[[int, Any], Iterable],
    size: int = 1,
    *,
    plan: Plan | None = None,
) -> Iterator[Batch]:
    """Batches of views of records, in order; threads read records and call `cut` ahead.

    Args:
      records: numbers of records of the source.
      cut: (row, record) -> views of the record, none to leave it out; `row` is its place in
        `records`. Called by threads.
      size: records in a batch. plan: which rows form a batch, see `planned`; overrides `size`.

    Yields:
      a Batch for each batch of records, without those that cannot be read.
    """
    if plan is None:
        rows = np.arange(len(records))
        plan = [(rows[start : start + size], size) for start in range(0, len(rows), size)]

    def views_of(row):
        try:
            record = source[int(records[row])]
        except Unreadable:
            return None
        return list(cut(int(row), record))

    for results, (rows, full) in zip(ahead(views_of, (rows for rows, _ in plan), _AHEAD), plan):
        views = [view for result in results if result is not None for view in result]
        skipped = [int(records[int(row)]) for row, x in zip(rows, results) if x is None]
        yield Batch(views, full, skipped)


def planned(shapes: np.ndarray, size: int) -> Plan:
    """The plan for images of known shapes [n, 2]: each batch has one shape and its rows in
    order."""
    plan = []
    different, kinds = np.unique(shapes, axis=0, return_inverse=True)
    for kind in range(len(different)):
        rows = np.flatnonzero(kinds.reshape(-1) == kind)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            plan.append((part, size if len(different) == 1 else _power(len(part), size)))
    return plan


def by_shape(
    batches: Iterable[Batch],
    size: int,
    shape: Callable[[View], Any] = lambda view: view.image.shape,
) -> Iterator[Batch]:
    """Regroups the views of a feed into batches of one shape each.

    A batch is complete with `size` views. The last batch of a shape is padded to `size`, or to a
    power of two if the shape is rare, so that few programs are compiled. If `_WAITING * size`
    views of all shapes wait, the largest group is yielded. So with several shapes the order of
    views changes; with one it does not.
    """
    waiting: dict[Any, list] = {}
    often = set()

    def group(key):
        views = waiting.pop(key)
        return Batch(views, size if key in often else _power(len(views), size), [])

    for view in (view for batch in batches for view in batch.views):
        key = shape(view)
        waiting.setdefault(key, []).append(view)
        if len(waiting[key]) == size:
            often.add(key)
            yield group(key)
        elif sum(map(len, waiting.values())) >= _WAITING * size:  # bounds memory
            yield group(max(waiting, key=lambda other: len(waiting[other])))
    for key in list(waiting):
        yield group(key)


def _power(count, most):
    """The power of two to which the batch of a rare shape is padded."""
    return min(most, 1 << (count - 1).bit_length())


def encoded(
    read: Callable[[np.ndarray], Any], batches: Iterable[Batch]
) -> Iterator[tuple[list[View], Any]]:
    """Encodes batches of one shape each; yields (views, their features on the host) of each batch
    with views.

    read: images [B, H, W, 3] -> features [B, ...], an array or a tree of them, see `Network.read`.
    """

    def on_host(batch, features):
        with _fitting(batch):
            rows = jax.tree.map(lambda x: np.asarray(x)[: len(batch.views)], features)
        return batch.views, rows

    pending = None
    for batch in batches:
        if batch.views:
            with _fitting(batch):
                started = batch, read(batch.images)
            # The device computes this batch while the host handles the previous and the next one.
            if pending is not None:
                yield on_host(*pending)
            pending = started
    if pending is not None:
        yield on_host(*pending)


@contextlib.contextmanager
def _fitting(batch: Batch) -> Iterator[None]:
    """Names a batch that does not fit in the device's memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if memory.exhausted(error) is None:
            raise
        height, width = batch.views[0].image.shape[:2]
        raise InputError(
            f"{batch.size} images of {height} x {width} pixels do not fit in memory in one forward"
            " pass; use smaller batches (evals.batch_size, or --batch of embed) or images"
            " (data.size of the evaluation)"
        ) from error


def readable(source: Any, records: Sequence[int] | np.ndarray, row: int) -> tuple[int, Any]:
    """(number, record) at place `row` of `records`, or of the next one that can be read. Raises
    InputError if none can be read."""
    for step in range(len(records)):
        number = int(records[(int(row) + step) % len(records)])
        with contextlib.suppress(Unreadable):
            return number, source[number]
    raise InputError(f"no readable image in {source}")


def ahead(
    function: Callable[[Item], Result], batches: Iterable[Iterable[Item]], count: int
) -> Iterator[list[Result]]:
    """Yields [function(item) for item in batch] for each batch, in order; threads work up to
    `count` batches ahead. Exceptions of `function` are raised here.

    A thread that hangs, for example on a network disk, blocks neither the caller, if an exception
    or a signal ends the iteration, nor the exit of Python.
    """
    jobs: queue.SimpleQueue = queue.SimpleQueue()

    def work():
        while (job := jobs.get()) is not None:
            future, item = job
            try:
                future.set_result(function(item))
            except BaseException as error:  # raised again by future.result()
                future.set_exception(error)
            del job, future, item  # frees their memory while the thread waits

    def begin(item):
        jobs.put((future := Future[Result](), item))
        return future

    threads = [threading.Thread(target=work, daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    waiting: collections.deque[list[Future[Result]]] = collections.deque()
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
