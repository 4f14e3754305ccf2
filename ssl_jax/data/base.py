"""What all sources share; `source` describes the protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

from ssl_jax.data.decode import Unreadable

_NAMED = 5  # unreadable records in an error


class Source:
    """A source that knows nothing yet: without labels, masks and boxes, its images of any size."""

    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    unlabelled: Sequence[int] = ()
    has_masks: bool = False
    mask_names: Sequence[str] | None = None
    has_boxes: bool = False
    num_box_classes: int | None = None
    box_names: Sequence[str] | None = None
    size: tuple[int, int] | None = None
    sequences: Mapping[str, range] | None = None
    image_ids: Sequence[int] | None = None
    annotations: str | None = None
    left_out: str = ""
    place: str = ""  # where the images are, for people; repr tells sources apart

    def __str__(self) -> str:
        return self.place or repr(self)

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> dict[str, Any]:
        raise NotImplementedError

    def name(self, i: int) -> str:
        raise NotImplementedError

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i; decodes it where nothing is cheaper. Raises decode.Unreadable."""
        if self.size is not None:
            return self.size
        height, width = self[i]["image"].shape[:2]
        return height, width

    def _take_facts(self, source: Any) -> None:
        """The FACTS of another source, which may be no `Source` and lack some."""
        for name in FACTS:
            setattr(self, name, getattr(source, name, getattr(Source, name)))


# What a source knows of all its records; one that wraps another has the same.
FACTS = tuple(Source.__annotations__)


def unresized(source: Any) -> Any:
    """The source of the records as they were before they were resized; itself where none are."""
    return getattr(source, "unresized", source)


def shape(source: Any, i: int) -> tuple[int, int]:
    """`source.shape(i)`, also of a source that has no such method."""
    own = getattr(source, "shape", None)
    return own(i) if own is not None else Source.shape(source, i)


def why_unreadable(source: Any, i: int) -> str:
    """The reason why record i cannot be read, in one line; reads it once more."""
    try:
        source[i]
    except Unreadable as error:
        return error.reason
    return "readable now"


def named_unreadable(source: Any, bad: Mapping[int, str | None]) -> str:
    """Some unreadable records for a message: "a.png (truncated), ... and 3 more".

    bad: {index: reason, or None to ask again}.
    """
    named = [
        f"{source.name(i)} ({reason or why_unreadable(source, i)})"
        for i, reason in list(bad.items())[:_NAMED]
    ]
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return ", ".join(named) + more
