"""The embedded sets as sources."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import generated, kinds, photos, videos
from ssl_jax.data.base import Source
from ssl_jax.data.lookup import checked


class _Embedded(NamedTuple):
    """An embedded set: what makes a picture, and the names of its classes; None = no labels, no
    masks. frames: of each video, 0 = single pictures."""

    make: Callable
    class_names: tuple[str, ...] | None
    mask_names: tuple[str, ...] | None
    frames: int = 0


SETS = {
    "photos": _Embedded(photos.photos, photos.CLASS_NAMES, None),
    "photo_collages": _Embedded(photos.photo_collages, None, photos.CLASS_NAMES),
    "moving_shapes": _Embedded(videos.moving_shapes, None, videos.MASK_NAMES, videos.FRAMES),
}
SIZE = 64  # pixels, where nothing else is asked for
_SEED = 0  # the pictures are a data set: they do not change with the seed of a run


class _Videos(Mapping[str, range]):
    """The frames of videos of one length, by the names of the videos: none is in memory."""

    def __init__(self, prefix: str, frames: int, count: int):
        self._prefix, self._frames, self._count = prefix, frames, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (f"{self._prefix}{i}" for i in range(self._count))

    def __getitem__(self, name: str) -> range:
        number = name.removeprefix(self._prefix)
        if f"{self._prefix}{number}" != name or not number.isdecimal() or int(number) >= len(self):
            raise KeyError(name)
        return range(int(number) * self._frames, (int(number) + 1) * self._frames)


class GeneratedSource(Source):
    """The embedded sets of `photos` and `videos`, of any length: picture i depends on (seed, split,
    i).

    `size` is the side at which pictures are composed. The boxes of collages have the classes of
    their masks.
    """

    def __init__(self, kind: str, split: str, length: int, *, size: int = SIZE, seed: int = _SEED):
        """Raises InputError for an unknown split, a length below 1 or a size below 16."""
        if split not in generated.SPLITS:
            raise InputError(
                f"data.split: {kind} has the splits {', '.join(generated.SPLITS)}, got {split!r}"
            )
        if length < 1:
            raise InputError(
                f"data.length: {kind} needs the number of images to generate, at least 1, got"
                f" {length}"
            )
        if size < generated.MIN_SIZE:
            raise InputError(
                f"data.size: {kind} needs at least {generated.MIN_SIZE} pixels, got {size}"
            )
        self._kind, self._split, self._length, self._seed = kind, split, int(length), seed
        self.size: tuple[int, int] = (size, size)
        _, self.class_names, self.mask_names, frames = SETS[kind]
        self.num_classes = len(self.class_names) if self.class_names else None
        self.has_masks = self.mask_names is not None
        if frames:
            # What is left after the last whole video belongs to none.
            self.sequences = _Videos(f"{kind}/{split}/", frames, length // frames)
        elif self.mask_names is not None:
            self.has_boxes = True
            self.box_names, self.num_box_classes = self.mask_names, len(self.mask_names)

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return SETS[self._kind].make(
            self._seed, self._split, checked(i, self._length), size=self.size[0]
        )

    def name(self, i: int) -> str:
        return f"{self._kind}/{self._split}/{i}"

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """See `Source.fingerprint`; these pictures never change."""
        return repr(self)

    def __repr__(self):
        which = f"{self._kind!r}, {self._split!r}, {self._length}"
        return f"GeneratedSource({which}, size={self.size[0]}, seed={self._seed})"


def _open(section, split):
    size = section["size"] or SIZE
    return GeneratedSource(section["kind"], split, section["length"], size=size)


def _has(entry):
    """What of `kinds.NEEDS` an embedded set has."""
    if entry.mask_names is None:
        return ("labels",)
    return ("masks", "sequences" if entry.frames else "boxes")


for _kind, _entry in SETS.items():
    kinds.register(
        _kind, _open, parts=lambda section: generated.SPLITS, has=_has(_entry), slices=False
    )
