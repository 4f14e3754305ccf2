"""Images in files, with what other files say of them: masks and boxes."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ssl_jax.data import bands as bands_lib
from ssl_jax.data import classes
from ssl_jax.data.lookup import checked
from ssl_jax.data.stored import Stored, digest_of_names


class Files(Stored):
    """Image files, each with a label, a mask file and boxes as far as they are given."""

    def __init__(
        self,
        title: str,
        root: str | os.PathLike,
        paths: Sequence[str],
        *,
        masks: Sequence[str | None] | None = None,
        sequences: Mapping[str, range] | None = None,
        about: Sequence[str] = (),
        bands: bands_lib.Bands | None = None,
        **facts: Any,
    ):
        """
        Args:
          title: what the set is called in messages. root: folder. paths: of the images, below it.
          masks: paths of the mask files; None for an image without one.
          sequences: name -> range of records, all records in this order; they know their
            "sequence" and their "frame" in it.
          about: what else tells this set apart. facts: see `Stored._describe`, which checks them.
          bands: how files of other channels or numbers are read. Raises InputError where the first
            is not so.
        """
        self._title, self._root, self._paths, self._masks = title, str(root), tuple(paths), masks
        self.sequences = sequences
        if bands is not None:
            self.bands, self.channels, self.floats = bands, bands.channels, bands.floats
            bands_lib.check(self.name(0), bands)
        videos = (sequences or {}).items()
        self._frames = [(name, frame) for name, rows in videos for frame in range(len(rows))]
        unmasked = [i for i, mask in enumerate(masks or ()) if mask is None]
        self._describe(masks=masks is not None, unmasked=unmasked, **facts)
        files = [] if masks is None else [classes.summary(self._table, *map(str, masks))]
        how = "" if bands is None else f", channels={bands.channels}, range={bands.range}"
        self._about = [repr(self._root) + how, f"images={len(self)}", f"classes={self.num_classes}"]
        self._about += [*files, *about, *["boxes=True"] * self.has_boxes]

    def __len__(self):
        return len(self._paths)

    def __getitem__(self, i: int) -> dict[str, Any]:
        record = super().__getitem__(i)
        if self._frames:
            record["sequence"], record["frame"] = self._frames[i]
        return record

    def _read(self, i, part):
        return self.name(i) if part == "image" else (self._masks or ())[i]

    def name(self, i: int) -> str:
        return os.path.join(self._root, self._paths[checked(i, len(self))])

    def _files_of(self, i):
        mask = None if self._masks is None else self._masks[i]
        return [self.name(i), *([] if mask is None else [str(mask)])]

    def names_digest(self) -> str:
        """See `Source.names_digest`."""
        return self._names_digest

    @functools.cached_property  # a start asks three times, and a set can have a million names
    def _names_digest(self):
        return digest_of_names(self._paths)

    def list_names(self) -> Sequence[str]:
        """The relative path of each image."""
        return self._paths
