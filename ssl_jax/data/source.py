"""Random-access image sources: their protocol, and the one that a config names.

A source is any picklable object with

    len(s)           number of records
    s[i]             dict: "image" uint8 [H,W,3] (in memory also float32 in [0,1]), "label" int
                     (absent without labels), "mask" uint8 [H,W] (class per pixel, 255 = ignore;
                     absent without masks), "boxes" float32 [n,4] (y, x, height, width in pixels;
                     optional). Raises decode.Unreadable if it cannot be decoded.
    s.name(i)        path or id of record i, for messages
    s.num_classes    number of label classes, None without labels
    s.has_masks      whether records have "mask"
    s.class_names    names of the label classes, s.mask_names of the classes of masks; None or
                     absent where nobody knows them
    s.sequences      of videos: {name: range of records, in order of time}; empty or absent else
    s.size           (H, W) if all images have this size, None if they differ or nobody knows
    repr(s)          the same text in every process and run

and safe to read from several threads. Arrays of a record are not to be written to: a cache may hand
them out again.

Kinds of a config: `embedded`, `folder`, `tfds`. `arrays` holds images in memory, `prepared` resizes
and keeps those of another source.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from ssl_jax.config import InputError, key
from ssl_jax.data import embedded
from ssl_jax.data.embedded import GeneratedSource
from ssl_jax.data.folder import Folder
from ssl_jax.data.lookup import nearest
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.tfds import Tfds

KINDS = (*embedded.SETS, "folder", "tfds")


def defaults() -> dict:
    """The keys that name a set of images: of the section `data`, and of each evaluation."""
    return dict(
        kind=key(
            "photos",
            'what the set is: "photos", "photo_collages" and "moving_shapes" are embedded (no'
            " download)",
            choices=KINDS,
        ),
        name=key("", "name of a TFDS set"),
        dir=key("", "folder of images, or TFDS data directory", free=True),
        split=key("train", 'part of the set; TFDS slices such as "train[:10%]" work'),
        length=key(
            10000,
            "number of generated images (embedded sets); records are counted in 32 bits",
            "images",
            above=0,
            most=2**31 - 1,
        ),
        size=key(
            0,
            "shorter side resized to this, then a square centre crop; 0 = as stored; "
            "one image of the largest size takes 0.8 GB",
            "pixels",
            least=0,
            most=16384,
        ),
    )


def check(name: str, section: ConfigDict, folder: str) -> None:
    """Refuses a section of that name that lacks what its kind needs.

    Args:
      folder: where it finds its images.
    """
    if section.kind == "folder" and not folder:
        raise InputError(
            f'{name}.dir is ""; {name}.kind="folder" needs the folder that holds the images'
        )
    if section.kind == "tfds" and not section.name:
        raise InputError(
            f'{name}.name is ""; {name}.kind="tfds" needs the name of a set, for example "cifar10"'
        )


def make_source(
    config: ConfigDict | Mapping[str, Any], *, split: str | None = None
) -> "GeneratedSource | Folder | Tfds | Prepared":
    """The source that a `data` section of the config describes.

    Args:
      config: ConfigDict or dict with `kind`, `split`; `name` (tfds), `dir` (folder, tfds), `length`
        (generated sets); `size` (0: native) and `cache` (off if absent) for all.
      split: instead of config["split"]: "train" or "test" (generated), a subfolder, a TFDS split
        ("train[:10%]").

    Raises:
      InputError: names the key and what would be right.
    """
    kind = config.get("kind")
    split = split or config.get("split") or "train"
    size = config.get("size", 0)
    if size < 0:
        raise InputError(f"data.size must be 0 (native) or a number of pixels, got {size}")
    source: GeneratedSource | Folder | Tfds
    if kind in embedded.SETS:
        source = GeneratedSource(kind, split, config.get("length", 0), size=size or embedded.SIZE)
    elif kind == "folder":
        source = Folder(config.get("dir", ""), split)
    elif kind == "tfds":
        source = Tfds(config.get("name", ""), config.get("dir"), split)
    else:
        raise InputError(
            f"data.kind: one of {', '.join(KINDS)}, not {kind!r}{nearest(kind, KINDS)}"
        )
    cache = bool(config.get("cache", False))
    return Prepared(source, size=size, cache=cache) if size or cache else source
