"""A data set as vectors: what `ssl_jax.embed` and `ssl-jax embed` write.

`parts` encodes so many images at a time, `files` puts the parts together into one file.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssl_jax import config as config_lib
from ssl_jax.config import InputError, check_choice, local
from ssl_jax.data import source as source_lib
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.base import Source
from ssl_jax.data.prepared import Prepared
from ssl_jax.features import telling
from ssl_jax.features import tokens as kinds
from ssl_jax.features.embedding import files, parts
from ssl_jax.methods.encoder import Encoder

# What an image becomes, as people name it, and as `features.tokens` does.
TOKENS = {
    "image": "image",
    "cls": "cls",
    "mean": "mean",
    "patches": kinds.DENSE,
    "sparse": kinds.SPARSE_TOKENS,
}
DTYPES = ("float32", "float16")


def plan(
    encoder: Encoder,
    source: Any,
    *,
    tokens: Sequence[str] = ("image",),
    layers: int = 1,
    batch_size: int | None = None,
    dtype: str = "float32",
) -> parts.Plan:
    """What is to be computed; see `ssl_jax.embed`. Raises InputError for what cannot be."""
    if batch_size is None:
        # What a block makes of 16 images of 224 px stays in a CPU's cache: 1.3 x as fast as 64.
        batch_size = 16 if jax.default_backend() == "cpu" else 64
    for name in tokens:
        check_choice("tokens", name, TOKENS)
    check_choice("dtype", dtype, DTYPES)
    for what, number in dict(layers=layers, batch_size=batch_size).items():
        if number < 1:
            raise InputError(f"{what} is {number}; it must be 1 or more")
    if not tokens:
        raise InputError(f"tokens is empty; give some of {', '.join(TOKENS)}")
    chosen = {name: TOKENS[name] for name in dict.fromkeys(tokens)}
    return parts.Plan(encoder, source, chosen, layers, batch_size, np.dtype(dtype))


def opened(data: Any, size: int | None, encoder: Encoder) -> Any:
    """The source of `data`: a folder of images, a mapping with the keys of a `data` section, an
    array of images or a source; see `ssl_jax.embed`. Raises InputError for a set of several parts
    of which none is named."""
    share = telling.SHARE
    if isinstance(data, str | Path):
        data = dict(kind=source_lib.kind_at(str(data)), dir=str(data))
    if isinstance(data, Mapping):
        share = data.get("max_unreadable", share)
        side = encoder.shape.image_size if size is None else size
        source = source_lib.make_source({**data, "size": side})
        _check_parts(data)
        return telling.Telling(source, share=share)
    if not isinstance(data, Source) and not hasattr(data, "name"):
        data = ArraySource(np.asarray(data))
    return telling.Telling(Prepared(data, size=size) if size else data, share=share)


def _check_parts(data: Mapping) -> None:
    """Refuses a set on this disk that has parts, if none is named: its first is not all of it."""
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


def in_memory(what: parts.Plan) -> dict[str, np.ndarray]:
    """All arrays of an embedding."""
    what.source.look()
    return files.joined([part for _, part in _computed(what)], what)


def to_file(
    what: parts.Plan, out: str | Path, *, progress: Callable[[int, int, int], None] | None = None
) -> Path:
    """Writes an embedding to one file, part after part; returns its path.

    What is done lies in a folder beside it, OUT.parts, from which the same call goes on, and which
    is gone when the file is there.

    progress: is told after each part how many images of how many are done, and how many of the
      part are left out.
    """
    out = local(out)
    write = files.writer(out)
    if out.exists():
        raise InputError(f"{out} already exists; choose another name")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the folder {out.parent} does not exist; create it")
    folder = out.with_name(out.name + ".parts")
    if not folder.exists():
        what.source.look()  # before anything is written
    kept = parts.Kept(folder, what.described())
    for stop, part in _computed(what, kept):
        if progress is not None:
            progress(stop, len(what.source), len(part["skipped"]))
    temporary = kept.folder / (out.name + ".part")  # beside `out` such a file may be somebody's
    try:
        write(temporary, kept.all(), what)
        temporary.replace(out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    kept.remove()
    return out


def _computed(
    what: parts.Plan, kept: parts.Kept | None = None
) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
    """(images done, part) of all parts in their order; those that are kept are not computed."""
    count, step = len(what.source), what.images_of_a_part()
    for start in range(0, count, step):
        stop = min(start + step, count)
        part = kept.read(start) if kept else None
        if part is None:
            part = what.compute(start, stop)
            if kept:
                kept.write(start, part)
        yield stop, part
