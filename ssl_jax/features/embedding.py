"""Embeds a data set, for `ssl_jax.embed` and `ssl-jax embed`; `formats` writes the files."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ssl_jax
from ssl_jax import config as config_lib
from ssl_jax.config import InputError, Unavailable, check_choice, local
from ssl_jax.data import base, listing
from ssl_jax.data import source as source_lib
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.prepared import Prepared
from ssl_jax.features import formats, monitored, store
from ssl_jax.features import tokens as kinds
from ssl_jax.features.extract import check_finite, check_labels, digest, encode
from ssl_jax.features.network import on_all_devices
from ssl_jax.methods.encoder import Encoder
from ssl_jax.ops import devices
from ssl_jax.runtime import lock

TOKENS = ("image", "cls", "mean", "patches", "sparse")
DTYPES = ("float32", "float16")
_BYTES = 2**28  # of features in a part, at most
_NAME = "{:012d}"  # of a part, from its first image


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which vectors of which images are computed."""

    encoder: Encoder
    source: monitored.Monitored
    tokens: Mapping[str, str]  # {name of an array: kind of token, see `features.tokens`}
    layers: int  # number of last blocks, see there
    batch_size: int  # images in a forward pass
    dtype: np.dtype  # of the vectors

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the images. Cached, because some sets must be read whole to list them."""
        return _names(self.source)

    @functools.cached_property
    def described(self) -> dict[str, Any]:
        """Everything the result depends on, as JSON values."""
        return dict(
            program=ssl_jax.__version__,
            arrays=2,  # version of those of `compute`
            network=self.encoder.digest,
            data=repr(self.source),
            names=zlib.crc32("\n".join(self.names).encode()),
            tokens=sorted(self.tokens),
            layers=self.layers,
            dtype=str(self.dtype),
            images_of_a_part=self.images_of_a_part(),
        )

    def images_of_a_part(self) -> int:
        """Number of images in a part: whole batches, and few enough to fit in memory."""
        shape = self.encoder.shape
        patches = (shape.image_size // shape.patch) ** 2
        vectors = sum(patches if kind == kinds.DENSE else 1 for kind in self.tokens.values())
        batches = _BYTES // (4 * vectors * shape.width * self.layers * self.batch_size)
        return self.batch_size * min(max(batches, 1), max(4096 // self.batch_size, 1))

    def starts(self) -> range:
        """The first image of each part."""
        return range(0, len(self.source), self.images_of_a_part())

    def compute(self, start: int, stop: int, folder: Path | None = None) -> dict[str, np.ndarray]:
        """Computes the part of images start to stop.

        Of the n readable images it has "index" [n], "names" [n], "sizes" [n, 2] (stored height and
        width), "labels" [n] (-1: none), "labelled" [1] (whether records have labels, if only -1),
        and each kind of vector [n, ...]. Patches are rows [sum of h * w, d] with "patches_shapes"
        [n, 2]. "skipped" names the unreadable images.

        folder: holds the files of the arrays, see `store.allocate`."""
        rows, skipped = encode(
            on_all_devices(self.encoder),
            self.source,
            np.arange(start, stop),
            self.tokens,
            layers=self.layers,
            batch_size=self.batch_size,
            multiple=self.encoder.shape.patch,
            masks=False,
            folder=folder,
        )
        index = rows["index"]
        # Missing if no image of the part can be read.
        vectors = {name: rows.pop(name) for name in self.tokens if name in rows}
        check_finite(vectors, index, self.source)
        check_labels(rows.get("labels", index[:0]), index, self.source)
        stored = self.source.unresized
        sizes = [stored.shape(int(i)) for i in index]
        part = rows | dict(
            labels=np.maximum(rows.get("labels", np.full(len(index), -1, np.int32)), -1),
            labelled=np.array(["labels" in rows]),
            names=_text([self.names[int(i)] for i in index]),
            sizes=np.asarray(sizes, np.int32).reshape(-1, 2),
            skipped=_text([listing.readable(name) for name in skipped]),
        )
        for name, values in vectors.items():
            grids = self.tokens[name] == kinds.DENSE
            part |= store.flat({name: store.Grids.of(values) if grids else values})
            part[name] = part[name].astype(self.dtype, copy=False)
        return part

    def parts(self, folder: Path | None = None) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
        """Yields (images done, part) for all parts in order. With a folder, parts that are stored
        there are read, and the others are computed and stored."""
        for start in self.starts():
            stop = self._stop(start)
            if folder is None:
                yield stop, self.compute(start, stop)
                continue
            entry = self._entry(folder, start)
            if (stored := entry.read()) is not None:
                yield stop, store.flat(stored[0])
                continue
            with entry.new() as place:
                part = self.compute(start, stop, place)
                entry.finish(place, part)
            yield stop, part

    def _stop(self, start: int) -> int:
        return min(start + self.images_of_a_part(), len(self.source))

    def _entry(self, folder: Path, start: int) -> store.Entry:
        """The stored part that begins with image `start`."""
        images = range(start, self._stop(start))
        files = self.source.fingerprint(np.asarray(images)) or [
            digest(self.source, i, labelled=True)
            for i in (images[0], images[len(images) // 2], images[-1])
        ]
        return store.Entry(folder / _NAME.format(start), self.described | {"files": files})

    def remove(self, folder: Path) -> None:
        """Removes the entries of all parts."""
        for start in self.starts():
            name = _NAME.format(start)
            store.Entry(folder / name, self.described).remove()
            for unfinished in folder.glob(f".{name}_*"):
                shutil.rmtree(unfinished)

    def whole(self, parts: Iterable[Mapping[str, np.ndarray]]) -> formats.Vectors:
        """Joins all parts, which are iterated several times. Raises InputError if no image can be
        read."""
        # Copies, because the files of a part stay open as long as one of its arrays.
        facts = [[np.array(part[x]) for x in ("index", "labelled", "skipped")] for part in parts]
        index, labels, skipped = map(np.concatenate, zip(*facts))
        if not len(index):
            raise InputError(f"no readable image in {self.source}")
        others, labelled = {"skipped": skipped}, bool(labels.any())
        if self.source.class_names and labelled:
            others["class_names"] = np.asarray(self.source.class_names, np.str_)
        about = dict(
            network=repr(self.encoder),
            digest=self.encoder.digest,
            data=repr(self.source),
            tokens=sorted(self.tokens),
            layers=self.layers,
        )
        others["about"] = np.asarray(json.dumps(about))
        return formats.Vectors(parts, tuple(self.tokens), labelled, others)


@dataclasses.dataclass(frozen=True)
class _Stored:
    """The stored parts of a plan. Each pass opens them one by one, because every array of a part
    takes a file descriptor."""

    plan: Plan
    folder: Path

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        for start in self.plan.starts():
            # `parts` has checked its key.
            entry = store.Entry(self.folder / _NAME.format(start), {})
            if (stored := entry.read()) is None:
                raise InputError(f"{entry.path} has been removed; run the same call again")
            yield store.flat(stored[0])


def plan(
    encoder: Encoder,
    source: Any,
    *,
    tokens: Sequence[str] = ("image",),
    layers: int = 1,
    batch_size: int | None = None,
    dtype: str = "float32",
) -> Plan:
    """The plan of an embedding; arguments as in `ssl_jax.embed`. Raises InputError for values out
    of range."""
    if batch_size is None:
        # A block's activations of 16 images of 224 px fit in a CPU's cache: 1.3 x as fast as 64.
        batch_size = 16 if devices.platform() == "cpu" else 64
    for name in tokens:
        check_choice("tokens", name, TOKENS)
    check_choice("dtype", dtype, DTYPES)
    for name, number in dict(layers=layers, batch_size=batch_size).items():
        if number < 1:
            raise InputError(f"{name} is {number}; it must be 1 or more")
    if not tokens:
        raise InputError(f"tokens is empty; choose at least one of {', '.join(TOKENS)}")
    chosen = {name: kinds.SPARSE_TOKENS if name == "sparse" else name for name in tokens}
    return Plan(encoder, source, chosen, layers, batch_size, np.dtype(dtype))


def opened(data: Any, size: int | None, encoder: Encoder) -> monitored.Monitored:
    """Opens `data`: a folder of images, a mapping with the keys of a `data` section, an array of
    images or a source; see `ssl_jax.embed`. Raises InputError if the set has several parts and
    `data` names none."""
    share = monitored.SHARE
    if size is not None and size < 0:
        raise InputError(f"size is {size}; use a number of pixels, or 0 for images as stored")
    if isinstance(data, str | Path):
        data = source_lib.at(str(data), encoder.config.get("data"))
    if isinstance(data, Mapping):
        share = data.get("max_unreadable", share)
        side = (data.get("size") or encoder.shape.image_size) if size is None else size
        source = source_lib.make_source({**data, "size": side})
        _check_parts(data)
        base.check_channels(source, encoder.shape.in_channels)
        return monitored.Monitored(source, share=share)
    source = ArraySource(np.asarray(data)) if _is_array(data) else base.adopt(data)
    base.check_channels(source, encoder.shape.in_channels)
    return monitored.Monitored(Prepared(source, size=size) if size else source, share=share)


def _is_array(data):
    """Whether this is an array, or a list of images of one shape or of nothing."""
    if not isinstance(data, list | tuple):
        return hasattr(data, "__array__") and not callable(getattr(data, "name", None))
    images = all(hasattr(x, "__array__") or hasattr(x, "__array_interface__") for x in data)
    return images and len({np.shape(x) for x in data}) <= 1


def _check_parts(data: Mapping) -> None:
    """Refuses a set with several parts if none is named, as the default is only the first part."""
    section = config_lib.build(source_lib.defaults())
    section.update({name: value for name, value in data.items() if name in section})
    if data.get("split") or section.kind in source_lib.EMBEDDED:
        return
    parts = source_lib.parts(section)
    if len(parts) > 1:
        raise InputError(
            f"{section.dir or section.name} has the parts {', '.join(parts)}; name the one to embed"
            f' with data.split, for example split="{parts[0]}"'
        )


def in_memory(plan: Plan) -> dict[str, np.ndarray]:
    """Computes an embedding: {name: array}."""
    plan.source.look()
    return plan.whole([part for _, part in plan.parts()]).joined()


def writable(out: str | Path) -> tuple[Path, Callable]:
    """The path of a new file and the function that writes its format. Raises InputError for an
    unknown format, a file that exists, or a folder that does not."""
    out = local(out)
    write = formats.writer(out)
    if out.exists():
        raise InputError(f"{out} already exists; choose another name")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the folder {out.parent} does not exist; create it")
    return out, write


def to_file(
    plan: Plan, out: str | Path, *, progress: Callable[[int, int, int], None] | None = None
) -> Path:
    """Writes an embedding to one file, part after part; returns its path.

    Finished parts are stored in the folder OUT.parts next to the file. After an interruption the
    same call resumes from them; the folder is removed once the file is written. One process at a
    time writes to it.

    progress: called after each part with (images done, all images, unreadable images of the part).
    """
    out, write = writable(out)
    folder, first = out.with_name(out.name + ".parts"), _NAME.format(0)
    if not folder.exists():
        plan.source.look()  # refuses unreadable images before anything is written
    else:
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        if first not in names and (others := names - {lock.FILE}):
            raise InputError(
                f"{folder} already exists and holds {min(others)}; choose another name for the file"
            )
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        writable(out)  # by now, another process may have written it
        for stop, part in plan.parts(folder):
            if progress is not None:
                progress(stop, len(plan.source), len(part["skipped"]))
        temporary = folder / (out.name + ".part")  # next to `out` it could overwrite a user's file
        try:
            write(temporary, plan.whole(_Stored(plan, folder)))
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
        plan.remove(folder)
    return out


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder of an embedding, and removes it in the end if it is empty. Raises InputError
    if another process has it."""
    try:
        of_this_process = lock.Lock(folder).take()
    except Unavailable:
        raise
    except InputError as error:
        raise InputError(
            f"another process is writing to {folder}; wait for it, or choose another name"
        ) from error
    try:
        yield
    finally:
        of_this_process.release()
        with contextlib.suppress(OSError):
            folder.rmdir()


def _names(source) -> list[str]:
    """Names of all records: relative paths where the source has them."""
    names = source.unresized.list_names() or map(source.name, range(len(source)))
    # File names may contain bytes that are not valid text.
    return [os.fsencode(name).decode(errors="backslashreplace") for name in names]


def _text(names) -> np.ndarray:
    return np.asarray(names, np.str_) if len(names) else np.zeros(0, "<U1")
