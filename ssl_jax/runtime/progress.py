"""Passes the progress of long-running code to a console or other display.

    with progress.shown_by(tell):  # a console, for example
        with progress.part("knn", 1, 3), progress.counter(2000, "images") as add:
            add(64)  # tell("knn (1 of 3), 64 of 2000 images")

Outside `shown_by`, reports are dropped.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)
_PARTS: ContextVar[tuple[str, ...]] = ContextVar("parts", default=())


@contextlib.contextmanager
def shown_by(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, calls `tell` with a text at each change of progress; "" between parts."""
    tokens = _TELL.set(tell), _PARTS.set(())
    try:
        yield
    finally:
        _TELL.reset(tokens[0])
        _PARTS.reset(tokens[1])


@contextlib.contextmanager
def part(name: str, number: int = 0, of: int = 0) -> Iterator[None]:
    """Names the block's work, below the enclosing parts; this is part `number` of `of`."""
    text = f"{name} ({number} of {of})" if of > 1 else name
    token = _PARTS.set((*_PARTS.get(), text))
    try:
        _say()
        yield
    finally:
        _PARTS.reset(token)
        _say()


@contextlib.contextmanager
def counter(total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yields add(count), to call with the items just finished; they sum to `total`."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        _say(f"{done} of {total} {unit}")

    try:
        yield add
    finally:
        _say()


def speed(images_per_second: float) -> str:
    """Formats images per second with at least three digits: "1234", "12.3", "0.417"."""
    return f"{images_per_second:.0f}" if images_per_second >= 100 else f"{images_per_second:.3g}"


def _say(*more: str) -> None:
    tell = _TELL.get()
    if tell is not None:
        tell(", ".join((*_PARTS.get(), *more)))
