"""Features of a data set from a frozen network.

A network takes images [B, H, W, 3] float32 in [0, 1] and returns a `methods.Features`-like object
with `.image` [B, d] and `.patches` [B, h, w, d]. Everything in `ssl_jax.evals` works on such a
function, so a trained network, an untrained one and raw pixels are scored by the same code.
"""

import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import store, tokens
from ssl_jax.evals.native import unit
from ssl_jax.evals.pixels import Pixels, raw_pixels
from ssl_jax.evals.store import Grids
from ssl_jax.train import distributed

__all__ = ["Extracted", "Grids", "Pixels", "extract", "images_of", "raw_pixels", "subset"]

_THREADS = min(16, os.cpu_count() or 1)  # that decode images
_AHEAD = 2  # batches that are decoded while the device is busy


class Extracted(NamedTuple):
    """Features and truth of N images, on the host. What was not asked for or does not exist is
    None. Where the images differ in size, patches and masks are `store.Grids` instead of arrays.
    """

    image: np.ndarray | None  # [N, d] float32
    patches: Any  # [N, h, w, d] float32
    labels: np.ndarray | None  # [N] int32
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
      network: see the module's docstring.
      source: `len(s)`, `s[i] -> {"image": uint8 or float [H, W, 3], "label"?, "mask"?}`,
        `s.name(i)`, `s.size`, `s.num_classes`.
      batch_size: images per call.
      indices: which records, in which order; None: all of them.
      image, patches: which features to keep.
      token, layers: which vectors, see `tokens.reader`.
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
    indices = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    kept = _kept(network, source, cache, indices, (image, patches, token, layers, crop, multiple))
    if kept is not None and (entry := kept.read()) is not None:
        return _restored(entry[0], entry[1], kept, source)
    mine = distributed.share(indices) if shared else indices
    alone = not shared or jax.process_count() == 1
    names = {"image": token} if image else {}
    names |= {"patches": tokens.DENSE} if patches else {}
    with contextlib.ExitStack() as stack:
        # With several processes each has a part of the rows: they are kept when they are joined.
        writer = stack.enter_context(kept.writing()) if kept and alone else None
        work = _Work(
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
                f"no readable image in {source!r} ({len(skipped)} unreadable, {len(indices)} asked"
                " for)"
            )
        for name in names:
            _check_finite(name, rows[name], rows["index"], source)
        if kept and not alone and distributed.is_first():
            writer = stack.enter_context(kept.writing())
        if writer:
            for name, array in _flat(rows).items():
                writer.keep(name, array)
            seen = _fingerprint(source, rows["index"])
            writer.notes |= {"skipped": list(skipped), "images": seen}
    return _extracted(rows, skipped, source)


class _Work:
    """The records of one process on their way to arrays of features and truth."""

    def __init__(self, network, source, indices, *, crop, multiple, allocate):
        self._network, self._source, self._indices = network, source, indices
        self._crop, self._multiple, self._allocate = crop, multiple, allocate
        self._windows = self._planned()  # [N, 2]: height and width of the kept part
        self._arrays: dict[str, Any] = {}

    def _planned(self):
        """Height and width of what is kept of each record."""
        crop, multiple, count = self._crop, self._multiple, len(self._indices)
        size = self._source.size
        if size is not None:
            return np.tile(_window(size, crop, multiple)[2:], (count, 1))
        if crop:
            return np.tile(_window((crop, crop), crop, multiple)[2:], (count, 1))
        windows = np.zeros((count, 2), np.int64)
        for row, i in enumerate(self._indices):
            # An unreadable record keeps 0 x 0: it is met again, and named, when it is read.
            with contextlib.suppress(Unreadable):
                shape = base.shape(self._source, int(i))
                windows[row] = _window(shape, 0, multiple, self._source.name(int(i)))[2:]
        return windows

    def run(self, names: dict[str, str], layers: int, batch_size: int) -> tuple[dict, list[str]]:
        """({"index", "label", "mask" and features as arrays or Grids}, names of what is
        unreadable)."""
        network = self._network
        readers = {name: tokens.reader(network, kind, layers) for name, kind in names.items()}
        if layers == 1 and set(names.values()) <= {"image", tokens.DENSE}:
            # One pass gives both.
            readers = {"": lambda images: network(images)}
        done = np.zeros(len(self._indices), bool)
        labels: dict[int, int | None] = {}
        masked = 0
        skipped: list[str] = []
        pending = None
        for rows, records, missing, full in self._batches(batch_size):
            skipped += missing
            if not rows:
                continue
            images = _pad(np.stack([record["image"] for record in records]), full)
            found = {name: read(images) for name, read in readers.items()}
            if "" in found:
                found = {name: getattr(found[""], name) for name in names}
            for row, record in zip(rows, records):
                labels[row] = record.get("label")
                if record.get("mask") is not None:
                    masked += 1
                    self._put("masks", [row], record["mask"][None])
            # The device works on this batch while the last one is stored and the next is decoded.
            if pending is not None:
                self._store(*pending)
            pending = rows, found
            done[rows] = True
        if pending is not None:
            self._store(*pending)
        result = {name: self._ordered(array, done) for name, array in self._arrays.items()}
        result["index"] = self._indices[done]
        labelled = [labels[int(row)] for row in np.flatnonzero(done)]
        _all_or_none("mask", len(labelled) - masked, len(labelled), self._source)
        if _all_or_none("label", labelled.count(None), len(labelled), self._source):
            result["labels"] = np.asarray(labelled, np.int32)
        return result, skipped

    def _batches(self, batch_size: int) -> Iterator[tuple[list[int], list[dict], list[str], int]]:
        """(rows, their records, names of unreadable ones, images to fill up to), decoded ahead."""
        plan = _plan(self._windows, batch_size)
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            waiting: collections.deque = collections.deque()

            def ahead(count):
                for rows, full in itertools.islice(plan, count):
                    waiting.append((rows, full, [pool.submit(self._read, row) for row in rows]))

            ahead(_AHEAD)
            while waiting:
                rows, full, futures = waiting.popleft()
                ahead(1)
                kept, records, missing = [], [], []
                for row, future in zip(rows, futures):
                    try:
                        records.append(future.result())
                        kept.append(int(row))
                    except Unreadable:
                        missing.append(self._source.name(int(self._indices[row])))
                yield kept, records, missing, full

    def _read(self, row):
        """A record, its image and mask cut."""
        i = int(self._indices[row])
        record = self._source[i]
        shape = record["image"].shape[:2]
        window = _window(shape, self._crop, self._multiple, self._source.name(i))
        if window[2:] != tuple(self._windows[row]):
            raise InputError(
                f"{self._source.name(i)} has {shape[0]}x{shape[1]} pixels, another size than"
                f" {self._source!r} says; set data.size of the evaluation"
            )
        record = {**record, "image": unit(_cut(record["image"], window))}
        if record.get("mask") is not None:
            record["mask"] = _cut(record["mask"], window)
        return record

    def _store(self, rows, found):
        """Puts features of a batch where they belong."""
        for name, values in found.items():
            self._put(name, rows, np.asarray(values)[: len(rows)])

    def _put(self, name, rows, values):
        """Puts values [n, ...] into the given rows of an array, which the first ones make."""
        if name not in self._arrays:
            self._arrays[name] = self._empty(name, values)
        array = self._arrays[name]
        if isinstance(array, Grids):
            for row, value in zip(rows, values):
                array[row][:] = value
        else:
            array[rows] = values

    def _empty(self, name, values):
        """Room for the values of all records, from those of some: one vector each, one per pixel
        (masks) or one per patch."""
        count = len(self._indices)
        if values.ndim == 2 or (self._windows == self._windows[0]).all():
            return self._allocate(name, (count, *values.shape[1:]), values.dtype)
        side = 1 if name == "masks" else self._multiple
        grids = self._windows // side
        size = int(grids.prod(axis=1).sum())
        return Grids(self._allocate(name, (size, *values.shape[3:]), values.dtype), grids)

    def _ordered(self, array, done):
        """The array without the rows of unreadable records."""
        if done.all():
            return array
        if not isinstance(array, Grids):
            return _without_gaps(array, done)
        of_row = np.repeat(done, array.shapes.prod(axis=1))
        return Grids(_without_gaps(array.rows, of_row), array.shapes[done])


def _plan(windows, batch_size):
    """(rows, images to fill up to) of each batch: all of one shape, rows in order."""
    shapes, kind = np.unique(windows, axis=0, return_inverse=True)
    for number in range(len(shapes)):
        rows = np.flatnonzero(kind.reshape(-1) == number)
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            # Of a rare shape a smaller batch: powers of two, so that few programs are compiled.
            full = min(batch_size, 1 << (len(part) - 1).bit_length())
            yield part, batch_size if len(shapes) == 1 else full


def on_all_devices(network: Callable) -> Callable:
    """The network on all devices of this process, if it can be spread."""
    devices = jax.local_devices()
    return network.across(devices) if len(devices) > 1 and hasattr(network, "across") else network


def _without_gaps(array, done):
    """The rows that are done, moved together in place: a copy may not fit into memory."""
    count = int(done.sum())
    for new, old in enumerate(np.flatnonzero(done)):
        if new != old:
            array[new] = array[old]
    return array[:count]


def _kept(network, source, cache, indices, choice):
    """The Cache entry of an extraction; None without a folder, or for a network that cannot be told
    from another one."""
    digest = getattr(network, "digest", None)
    if not cache or digest is None:
        return None
    key = {
        "network": digest,
        "source": repr(source),
        "records": hashlib.sha256(np.ascontiguousarray(indices).tobytes()).hexdigest(),
        **dict(zip(("image", "patches", "token", "layers", "crop", "multiple"), choice)),
    }
    return store.Cache(cache, key)


def _fingerprint(source, index):
    """What tells the images of a source from others of the same names: a hash of three of them."""
    chosen = sorted({int(index[0]), int(index[len(index) // 2]), int(index[-1])})
    return {
        str(i): hashlib.sha256(np.ascontiguousarray(source[i]["image"]).tobytes()).hexdigest()
        for i in chosen
    }


def _flat(rows):
    """Arrays alone: Grids as their rows and shapes."""
    flat = {}
    for name, array in rows.items():
        if isinstance(array, Grids):
            flat |= {name: array.rows, f"{name}_shapes": array.shapes}
        else:
            flat[name] = array
    return flat


def _restored(arrays, notes, kept, source):
    """Extracted from an entry of the cache."""
    for i, known in notes["images"].items():
        try:
            now = _fingerprint(source, [int(i)])[i]
        except Unreadable:
            now = None
        if now != known:
            raise InputError(
                f"evals.cache: {kept.path} holds features of other images ({source.name(int(i))}"
                ' has changed); choose another folder for evals.cache, or ""'
            )
    rows = {
        name: Grids(array, np.asarray(arrays[f"{name}_shapes"]))
        if f"{name}_shapes" in arrays
        else array
        for name, array in arrays.items()
        if not name.endswith("_shapes")
    }
    return _extracted(rows, notes["skipped"], source)


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
    flat = _flat(rows)
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
    joined: dict[str, Any] = {}
    for name, (shape, dtype) in sorted(known.items()):
        mine = flat.get(name, np.empty((0, *shape), dtype))
        joined[name] = distributed.joined(mine)
    for name in [name for name in joined if f"{name}_shapes" in joined]:
        joined[name] = Grids(joined[name], joined.pop(f"{name}_shapes"))
    return joined, [name for one in every for name in one["skipped"]]


def images_of(
    source: Any, indices: Iterable[int], *, crop: int = 0, multiple: int = 1
) -> np.ndarray:
    """Images [n, H, W, 3] float32 in [0, 1] of the given records, cut as `extract` cuts them, for
    figures; where they differ in size, all are cut to the smallest.
    """
    images = []
    for i in indices:
        image = source[int(i)]["image"]
        window = _window(image.shape[:2], crop, multiple, source.name(int(i)))
        images.append(unit(_cut(image, window)))
    least = tuple(min(sides) for sides in zip(*(image.shape[:2] for image in images)))
    return np.stack([_cut(image, _window(image.shape[:2], 0, 1, size=least)) for image in images])


def subset(length: int, count: int, seed: int) -> np.ndarray:
    """`count` of `length` records, drawn without replacement, ascending; all if count is 0 or not
    smaller.
    """
    if count <= 0 or count >= length:
        return np.arange(length)
    rng = np.random.Generator(np.random.Philox(key=seed))
    return np.sort(rng.choice(length, count, replace=False))


def _window(shape, crop, multiple, name="", size=None):
    """(top, left, height, width) of the kept part of an image of `shape` (height, width).

    name: of the image, for messages. size: of the kept part, instead of crop and multiple.
    """
    if size is None:
        if crop and crop > min(shape):
            raise InputError(
                f"the evaluation crop is {crop} pixels but"
                f" {name or 'the images'} {'has' if name else 'are'} {shape[0]}x{shape[1]}; "
                "use a larger `size` or a smaller crop"
            )
        size = tuple((crop or side) // multiple * multiple for side in shape)
    height, width = size
    if not height or not width:
        raise InputError(
            f"images of {shape[0]}x{shape[1]} pixels are smaller than one patch of {multiple}"
            f" pixels{f' ({name})' if name else ''}"
        )
    return (shape[0] - height) // 2, (shape[1] - width) // 2, height, width


def _cut(array, window):
    top, left, height, width = window
    return np.asarray(array)[top : top + height, left : left + width]


def _pad(batch, size):
    """Repeats the last row until there are `size`; examples are encoded one by one, so padding
    changes no feature.
    """
    return (
        np.concatenate([batch, np.repeat(batch[-1:], size - len(batch), axis=0)])
        if len(batch) < size
        else batch
    )


def _all_or_none(name, missing, count, source):
    """Whether all records have such a value; InputError if only some have."""
    if 0 < missing < count:
        raise InputError(
            f"{missing} of {count} records of {source!r} have no {name}; give all of them one, or"
            " none"
        )
    return count > 0 and not missing


def _check_finite(name, values, kept, source):
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
