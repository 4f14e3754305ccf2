"""Features of a data set from a frozen network."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.features import cached, extraction, store, tokens
from ssl_jax.features.network import adopt
from ssl_jax.features.network import on_all_devices as on_all_devices
from ssl_jax.features.telling import drawn as drawn
from ssl_jax.features.telling import subset as subset
from ssl_jax.runtime import distributed


class Extracted(NamedTuple):
    """Features and truth of N images, on the host. What was not asked for or does not exist is
    None. Where the images differ in size, patches and masks are `store.Grids` instead of arrays.
    """

    image: Any  # [N, d] float32
    patches: Any  # [N, h, w, d] float32
    labels: Any  # [N] int32
    masks: Any  # [N, H, W] uint8, 255 = ignore; cropped like the images
    # [N] int64, record of the source each row came from
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index
    num_classes: int | None  # of the labels
    skipped: tuple[str, ...]  # names of the records that could not be read


def extract(
    network: Callable[[np.ndarray], Any],
    source: Any,
    *,
    batch_size: int,
    indices: Sequence[int] | np.ndarray | None = None,
    image: bool = True,
    patches: bool = False,
    token: str = "image",
    layers: int = 1,
    crop: int = 0,
    multiple: int = 1,
    shared: bool = True,
    cache: str | Path = "",
) -> Extracted:
    """Runs a network over records of `source`, on all devices of the process.

    Several processes share the records out, and all get all rows. Every call has ONE batch shape
    (the last batch is padded), so the network is compiled once. The source resizes (its `size`:
    short side, then centre crop); `crop` and `multiple` only cut borders off, from image and mask
    alike: the protocol "resize to 256, centre crop 224" is a source of size 256 with crop=224.
    Images of different sizes are put into batches by shape; each shape is compiled by itself.

    Args:
      network: an Encoder, or any function of images, see `features.network`.
      source: `len(s)`, `s[i] -> {"image": uint8 or float [H, W, 3], "label"?, "mask"?}`,
        `s.name(i)`, `s.size`, `s.num_classes`.
      batch_size: images per call.
      indices: which records, in which order; None: all of them.
      image, patches: which features to keep.
      token, layers: which vectors, see `Network.read`.
      crop: side of the square kept from the centre, in pixels; 0: everything.
      multiple: height and width are cut to a multiple of this (the patch size), around the centre.
      shared: whether all processes call this, each for its share; False: this one by itself.
      cache: folder in which features are kept for the next time and found again; "" = none.

    Returns:
      Extracted, one row per readable record; unreadable ones are left out and named in `skipped`.
      Arrays too large for memory are files.

    Raises:
      InputError: nothing is readable, an image is smaller than the crop or a patch, a feature is
        not finite, only some of the records have a label (or a mask), the network lacks such
        tokens, or the cache holds features of other images.
    """
    network = adopt(network)
    indices = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    kept = _kept(network, source, cache, indices, (image, patches, token, layers, crop, multiple))
    if kept is not None and (entry := kept.read()) is not None:
        arrays, notes = entry
        cached.check_images(kept, notes["images"], source)
        return _extracted(store.folded(arrays), notes["skipped"], source)
    mine = distributed.share(indices) if shared else indices
    alone = not shared or jax.process_count() == 1
    names = {"image": token} if image else {}
    names |= {"patches": tokens.DENSE} if patches else {}
    with contextlib.ExitStack() as stack:
        # With several processes each has a part of the rows: they are kept when they are joined.
        writer = stack.enter_context(kept.writing()) if kept and alone else None
        work = extraction.Work(
            on_all_devices(network),
            source,
            mine,
            crop=crop,
            multiple=multiple,
            allocate=writer.allocate if writer else store.allocate,
        )
        rows, skipped = work.run(names, layers, batch_size)
        if not alone:
            rows, skipped = _joined(rows, skipped)
        if not len(rows["index"]):
            raise InputError(
                f"no readable image in {source} ({len(skipped)} of {len(indices)} unreadable)"
            )
        for name in names:
            check_finite(name, rows[name], rows["index"], source)
        if kept and not alone and distributed.is_first():
            writer = stack.enter_context(kept.writing())
        if writer:
            for name, array in store.flat(rows).items():
                writer.keep(name, array)
            seen = cached.fingerprint(source, rows["index"])
            writer.notes |= {"skipped": list(skipped), "images": seen}
    return _extracted(rows, skipped, source)


def _kept(network, source, cache, indices, choice):
    """The Cache entry of an extraction; None without a folder, or for a network that cannot be told
    from another one."""
    if not cache or not network.digest:
        return None
    key = {
        "network": network.digest,
        "source": repr(source),
        "records": hashlib.sha256(np.ascontiguousarray(indices).tobytes()).hexdigest(),
        **dict(zip(("image", "patches", "token", "layers", "crop", "multiple"), choice)),
    }
    return cached.Cache(cache, key)


def _extracted(rows, skipped, source):
    return Extracted(
        image=rows.get("image"),
        patches=rows.get("patches"),
        labels=rows.get("labels"),
        masks=rows.get("masks"),
        index=rows["index"],
        num_classes=source.num_classes,
        skipped=tuple(skipped),
    )


def _joined(rows: dict, skipped: list[str]) -> tuple[dict, list[str]]:
    """Rows and names of all processes. Which rows there are is told first: a process without
    readable records has no shapes, and all must take the same way."""
    flat = store.flat(rows)
    shapes = {name: (x.shape[1:], str(x.dtype)) for name, x in flat.items()}
    every = distributed.told({"shapes": shapes, "count": len(flat["index"]), "skipped": skipped})
    known: dict = {}
    for one in every:
        known |= one["shapes"]
    some = [one["shapes"].keys() for one in every if one["count"]]
    if any(names != known.keys() for names in some):
        partly = known.keys() - set.intersection(*map(set, some))
        raise InputError(
            f"only some records have {', '.join(sorted(partly))}; give all of them, or none"
        )
    joined = {
        name: distributed.joined(flat.get(name, np.empty((0, *shape), dtype)))
        for name, (shape, dtype) in sorted(known.items())
    }
    return store.folded(joined), [name for one in every for name in one["skipped"]]


def check_finite(name: str, values: Any, kept: np.ndarray, source: Any) -> None:
    """Refuses features that are not finite; a few images at a time, since they may be a file."""
    bad: list[int] = []
    for start in range(0, len(kept), 256):
        stop = min(start + 256, len(kept))
        part = [values[i] for i in range(start, stop)]
        bad += [start + i for i, value in enumerate(part) if not np.isfinite(value).all()]
    if bad:
        raise InputError(
            f"{name} features of {len(bad)} of {len(kept)} images are not finite (first:"
            f" {source.name(kept[bad[0]])})"
        )
