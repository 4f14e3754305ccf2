"""Extracts features of a data set with a frozen network: threads decode ahead, batches of one shape
are encoded, and their features are put into rows."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import ssl_jax
from ssl_jax.config import InputError, local
from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import pixels
from ssl_jax.data.values import check_range
from ssl_jax.features import store, tokens
from ssl_jax.features.feed import Batch, View, encoded, feed, planned
from ssl_jax.features.network import Network, adopt, on_all_devices
from ssl_jax.features.windows import cut, unit, window
from ssl_jax.runtime import distributed, progress

_NONE = -2  # in place of the label of a record that has none


class Extracted(NamedTuple):
    """Features and ground truth of N images, on the host. A field that was not requested or does
    not exist is None. If the images differ in size, patches and masks are `store.Grids`.
    """

    image: Any  # [N, d] float32
    patches: Any  # [N, h, w, d] float32
    labels: Any  # [N] int32
    masks: Any  # [N, H, W] uint8, 255 = ignore; cropped like the images
    # [N] int64, number of the record each row belongs to
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index
    skipped: tuple[str, ...]  # names of the records that could not be read


def extract(
    network: Network | Callable[[np.ndarray], Any],
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

    Several processes divide the records among them, and all of them return all rows. All batches
    have one shape (the last one is padded), so the network is compiled once. Images of different
    sizes are batched by shape, and each shape is compiled once. The source resizes (its `size`:
    short side, then centre crop); `crop` and `multiple` only crop the borders of image and mask:
    the protocol "resize to 256, centre crop 224" is a source of size 256 with crop=224.

    Args:
      network: an Encoder, or any function of images, see `features.network`.
      source: `len(s)`, `s[i] -> {"image": uint8 or float32 [H, W, 3], "label"?, "mask"?}`,
        `s.name(i)`, `s.size`, `s.num_classes`.
      batch_size: images in a forward pass.
      indices: numbers of the records, in the order of the rows; None = all.
      image, patches: whether these features are returned.
      token, layers: which vectors, see `Network.read`.
      crop: side of the central square that is kept, in pixels; 0 = the whole image.
      multiple: height and width are cropped to a multiple of this (the patch size), around the
        centre.
      shared: whether all processes make this call and divide the records; False = only this one.
      cache: folder in which features are stored, and from which later calls read them; "" = none.

    Returns:
      Extracted, one row per readable record; unreadable ones are left out and named in `skipped`.
      Arrays too large for memory are memory-mapped files.

    Raises:
      InputError: no record is readable, an image is smaller than the crop or a patch, a feature is
        not finite, only some of the records have a label (or a mask), the network lacks the
        tokens, or the cache holds features of other images.
    """
    network, source = adopt(network), base.adopt(source)
    indices = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    choice = (image, patches, token, layers, crop, multiple)
    entry = _entry(network, source, cache, indices, choice, shared)
    stored = None if entry is None else entry.read()
    if entry is not None and shared:  # on disks of their own, some processes may have none
        if not all(distributed.gather_json(stored is not None)):
            stored = None
    if entry is not None and stored is not None:
        arrays, notes = stored
        _check_images(entry, notes["images"], source)
        return _extracted(arrays, notes["skipped"])
    alone = not shared or jax.process_count() == 1
    kinds = ({"image": token} if image else {}) | ({"patches": tokens.DENSE} if patches else {})
    with contextlib.ExitStack() as stack:
        # Several processes hold a part of the rows each; the gathered rows are stored below.
        folder = stack.enter_context(entry.new()) if entry and alone else None
        rows, skipped = encode(
            on_all_devices(network),
            source,
            distributed.share(indices, shared),
            kinds,
            layers=layers,
            batch_size=batch_size,
            crop=crop,
            multiple=multiple,
            masks=patches,
            folder=folder,
        )
        if not alone:
            rows, skipped = _joined(rows, skipped)
        if not len(rows["index"]):
            raise InputError(
                f"no readable image in {source} ({len(skipped)} of {len(indices)} unreadable)"
            )
        _all_or_none("label", rows.get("labels", np.zeros(0)) != _NONE, source)
        check_finite({name: rows[name] for name in kinds}, rows["index"], source)
        if entry and not alone and distributed.is_first():
            folder = stack.enter_context(entry.new())
        if entry and folder:
            index = rows["index"]
            images = {i: digest(source, i) for i in index[[0, len(index) // 2, -1]].tolist()}
            entry.finish(folder, rows, skipped=list(skipped), images=images)
    return _extracted(rows, skipped)


def encode(
    network: Network,
    source: Any,
    records: np.ndarray,
    kinds: Mapping[str, str],
    *,
    layers: int,
    batch_size: int,
    crop: int = 0,
    multiple: int = 1,
    masks: bool = True,
    folder: Path | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Encodes records of this process: ({"index", "labels", "masks" and features as arrays or
    Grids}, names of the unreadable records). "labels" is missing if no record has one; where some
    have none, it is -2.

    kinds: {name of the features: kind of token}. masks: whether masks are returned. folder: holds
    the files of the arrays, see `store.allocate`. Other arguments: see `extract`.
    """
    sizes = _sizes(source, records, crop, multiple)
    table = store.Table(sizes, folder)
    done, masked = np.zeros((2, len(records)), bool)
    labels = np.full(len(records), _NONE)
    skipped: list[int] = []

    def view(row: int, record: Mapping[str, Any]) -> Iterator[View]:
        name, image = source.name(int(records[row])), record["image"]
        part = window(image.shape, crop, multiple, name)
        _check(record, name)
        if part.size != tuple(sizes[row]):
            raise InputError(
                f"{name} has {pixels(image.shape)} pixels, but {source} reports another size; set"
                " data.size of the evaluation"
            )
        mask = record.get("mask") if masks else None
        mask = mask if mask is None else cut(mask, part)
        yield View((row, record.get("label"), mask), unit(cut(image, part)))

    def batches() -> Iterator[Batch]:
        for batch in feed(source, records, view, plan=planned(sizes, batch_size)):
            add(len(batch.views) + len(batch.skipped))
            skipped.extend(batch.skipped)
            yield batch

    with progress.counter(len(records), "images") as add:
        for views, features in encoded(lambda x: network.read(x, kinds, layers), batches()):
            rows = [row for (row, _, _), _ in views]
            for (row, label, mask), _ in views:
                labels[row] = _NONE if label is None else label
                if mask is not None:
                    masked[row] = True
                    table.put("masks", [row], mask[None], side=1)
            done[rows] = True
            for name, values in features.items():
                table.put(name, rows, values, side=multiple if values.ndim == 4 else 0)
    result: dict[str, Any] = {**table.arrays(done), "index": records[done]}
    _all_or_none("mask", masked[done], source)
    if (labels[done] != _NONE).any():
        result["labels"] = labels[done].astype(np.int32)
    return result, [source.name(i) for i in skipped]


def _sizes(source, records, crop, multiple):
    """Height and width of each record after cropping, [N, 2]."""
    size = source.size or ((crop, crop) if crop else None)
    if size is not None:
        return np.tile(window(size, crop, multiple).size, (len(records), 1))
    sizes = np.zeros((len(records), 2), np.int64)
    for row, i in enumerate(map(int, records)):
        # An unreadable record keeps 0 x 0; it is reported when it is read for encoding.
        with contextlib.suppress(Unreadable):
            sizes[row] = window(source.shape(i), 0, multiple, source.name(i)).size
    return sizes


def _check(record: Mapping[str, Any], name: str) -> None:
    """Raises InputError for a label that is not a class number, or pixels outside [0, 1]."""
    label = record.get("label")
    if label is not None and (label != int(label) or not -1 <= label < 2**31):
        raise InputError(f"{name} has the label {label}, which is not a class")
    check_range(record["image"], name)


def check_labels(labels: np.ndarray, index: np.ndarray, source: Any) -> None:
    """Raises InputError if a label of the records `index` is none of the source's classes."""
    classes = source.num_classes
    if classes is not None and (bad := np.flatnonzero(labels >= classes)).size:
        raise InputError(
            f"{source.name(int(index[bad[0]]))} has the label {labels[bad[0]]}; it must be a whole"
            f" number from 0 to {classes - 1}"
        )


def _all_or_none(name: str, has: np.ndarray, source: Any) -> bool:
    """Whether all records have the value `name`. Raises InputError if only some have it."""
    if has.any() and not has.all():
        raise InputError(
            f"{(~has).sum()} of {len(has)} records of {source} have no {name}; give all of them"
            " one, or none"
        )
    return bool(has.any())


def check_finite(features: Mapping[str, Any], index: np.ndarray, source: Any) -> None:
    """Raises InputError for features that are not finite. Reads them image by image, because they
    may be a file larger than memory."""
    for name, values in features.items():
        bad = [i for i, row in enumerate(values) if not np.isfinite(row).all()]
        if bad:
            raise InputError(
                f"{name} features of {len(bad)} of {len(index)} images are not finite (first:"
                f" {source.name(index[bad[0]])})"
            )


def _joined(rows: dict, skipped: list[str]) -> tuple[dict, list[str]]:
    """Gathers the rows and the names of skipped records of all processes. Shapes are gathered
    first, because a process without readable records has none, yet must join each gather."""
    rows = _of_one_form(rows)
    flat = store.flat(rows)
    shapes = {name: (x.shape[1:], str(x.dtype)) for name, x in flat.items()}
    gathered = distributed.gather_json(
        {"shapes": shapes, "count": len(flat["index"]), "skipped": skipped}
    )
    all_shapes: dict = {}
    for part in gathered:
        all_shapes |= part["shapes"]
    names_of_parts = [part["shapes"].keys() for part in gathered if part["count"]]
    if any(names != all_shapes.keys() for names in names_of_parts):
        partly = all_shapes.keys() - set.intersection(*map(set, names_of_parts))
        raise InputError(
            f"only some records have {', '.join(sorted(partly))}; give all of them, or none"
        )
    joined = {
        name: distributed.gather_rows(flat.get(name, np.empty((0, *shape), dtype)))
        for name, (shape, dtype) in sorted(all_shapes.items())
    }
    return store.folded(joined), [name for part in gathered for name in part["skipped"]]


def _of_one_form(rows: dict) -> dict:
    """Arrays of images whose size differs between processes, or within one, as Grids in all."""
    sides = {n: [] if isinstance(x, store.Grids) else list(x.shape[1:]) for n, x in rows.items()}
    every = distributed.gather_json(sides)

    def differ(name):
        return len({tuple(part[name]) for part in every if name in part}) > 1

    return {name: store.Grids.of(x) if differ(name) else x for name, x in rows.items()}


def _extracted(rows, skipped):
    columns = {name: rows.get(name) for name in Extracted._fields if name != "skipped"}
    return Extracted(**columns, skipped=tuple(skipped))


def _entry(network, source, cache, indices, choice, shared):
    """The cache entry of an extraction; None without a folder, for a network without digest, and
    for a source that does not tell what its records depend on."""
    if not cache or not network.digest:
        return None
    files = source.fingerprint(indices)
    if shared:  # dates may differ between machines, but all must find the entry, or none
        files = distributed.gather_json(files)[0]
    if not files:  # nobody would notice other images or labels
        return None
    key = {
        "network": network.digest,
        "source": repr(source),
        "classes": list(source.class_names or ()),
        "files": files,
        "records": hashlib.sha256(np.ascontiguousarray(indices).tobytes()).hexdigest(),
        **dict(zip(("image", "patches", "token", "layers", "crop", "multiple"), choice)),
    }
    # Another version of the package may compute other features.
    text = json.dumps(key | {"program": ssl_jax.__version__}, sort_keys=True)
    return store.Entry(local(cache) / hashlib.sha256(text.encode()).hexdigest()[:20], key)


def digest(source: Any, i: int, *, labelled: bool = False) -> str:
    """Hash of the pixels of a record, and of its label and the type if labelled; "" if it cannot be
    read."""
    try:
        record = source[i]
    except Unreadable:
        return ""
    image = np.ascontiguousarray(record["image"])
    about = f"{image.dtype} {image.shape} {record.get('label')}" if labelled else ""
    return hashlib.sha256(about.encode() + image.tobytes()).hexdigest()


def _check_images(entry: store.Entry, digests: Mapping[str, str], source: Any) -> None:
    """Raises InputError if the source's images have changed since the entry was stored. stored:
    {record: digest} of some images of the entry."""
    for i, before in digests.items():
        if digest(source, int(i)) != before:
            raise InputError(
                f"evals.cache: {entry.path} holds features of other images ({source.name(int(i))}"
                ' has changed); choose another folder for evals.cache, or ""'
            )
