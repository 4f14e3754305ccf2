"""Reports what is being done at the moment from code that takes long to whoever shows it.

    with progress.shown_by(tell):  # a console, for example
        with progress.part("knn", 1, 3), progress.counter(2000, "images") as add:
            add(64)  # tell("knn (1 of 3), 64 of 2000 images")

Without anybody who shows it, nothing happens.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)
_PARTS: ContextVar[tuple[str, ...]] = ContextVar("parts", default=())


@contextlib.contextmanager
def shown_by(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, `tell` gets a text whenever something new is done; "" = nothing named."""
    tokens = _TELL.set(tell), _PARTS.set(())
    try:
        yield
    finally:
        _TELL.reset(tokens[0])
        _PARTS.reset(tokens[1])


@contextlib.contextmanager
def part(name: str, number: int = 0, of: int = 0) -> Iterator[None]:
    """Names what the block does, within the parts around it; number: which one `of` how many."""
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
    """A function that is called with how many more are done, `total` in the end."""
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
    """A number of images a second in three digits or more: "1234", "12.3", "0.417"."""
    return f"{images_per_second:.0f}" if images_per_second >= 100 else f"{images_per_second:.3g}"


def _say(*more: str) -> None:
    tell = _TELL.get()
    if tell is not None:
        tell(", ".join((*_PARTS.get(), *more)))
