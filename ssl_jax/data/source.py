"""Random-access image sources: their protocol, and the one that a config names.

A source is any picklable object with

    len(s)           number of records
    s[i]             dict: "image" uint8 [H,W,C] (in memory also float32 in [0,1]), "label" int
                     (absent without labels, -1 for those in s.unlabelled), "mask" uint8 [H,W]
                     (class per pixel, 255 = ignore; absent without masks), "boxes" float32 [n,4]
                     (y, x, height, width in pixels; absent without boxes, [0,4] for an image
                     without objects), "box_labels" int32 [n] (absent where boxes have no classes),
                     "crowd_boxes" and "crowd_labels" likewise, of regions with many objects of one
                     class (only in images that have some),
                     "sequence" str and "frame" int (videos). Raises decode.Unreadable if it cannot
                     be decoded.
    s.name(i)        path or id of record i, for messages
    s.num_classes    number of label classes, None without labels
    s.unlabelled     indices of the records that have no label although others do
    s.unmasked       indices of the records that have no mask although others do
    s.has_masks      whether records have "mask"
    s.has_boxes      whether records have "boxes"
    s.num_box_classes   number of classes of boxes, None where they have none
    s.class_names    names of the label classes; s.mask_names and s.box_names: those of the classes
                     of masks and of boxes; None if unknown
    s.channels       channels of an image; by default 3
    s.floats         whether images are float32 that may be cropped on the host and kept on devices
    s.size           (H, W) if all images have this size, None if they differ or it is unknown
    s.shape(i)       (H, W) of image i, without decoding its pixels where that is possible
    s.sequences      {name: range of records} of a video set, else None
    s.image_ids      ids of the images in s.annotations, a COCO JSON file; None for all other sets
    s.left_out       the files that are no records, as text ("3 .heic, 1 .txt of /my/images"), or ""
    s.list_names()   the names that `data.list` may contain, None where records have none
    s.unresized      the source of the records before they were resized, s itself where none are
    repr(s)          the same text in every process and run

and safe to read from several threads. Do not write to the arrays of a record: a cache may return
them again. A source of your own needs only the first two: `base.adopt(s)` adds the missing ones
with the defaults of `base.Source`.

Kinds of a config: `embedded`, `folder`, a CSV list (`table`), WebDataset `tars`, `huggingface`,
`tfds`, the result of a function of yours (`python`), and known data sets in the folders of their
official downloads (`layouts`). `arrays` holds images in memory, `prepared` resizes and caches those
of another source, `subset` selects some of them.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ssl_jax.config import InputError, key
from ssl_jax.data import bands, classes, decode, embedded, folder, kinds, listing, python, subset
from ssl_jax.data.base import Source, adopt
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.stored import Stored

EMBEDDED = embedded.SETS  # need no download


def title(kind: str, name: str) -> str:
    """A set in one word, without folders: `data.name` of a TFDS set, which other kinds ignore."""
    return name if kind == "tfds" else kind


def defaults() -> dict:
    """The keys that name a set of images: of the section `data`, and of each evaluation.

    Training uses only images, so the keys of masks and boxes may change on resume.
    """
    return dict(
        kind=key(
            "photos",
            'kind of the data set: "photos", "photo_collages" and "moving_shapes" come with the'
            ' package, "voc" and those after it are official downloads, "python:module.function"'
            " calls your function, which returns the records",
            choices=kinds.names(),
            prefix=python.PREFIX,
            acts="is a function that is called",
        ),
        name=key("", 'name of a data set of TFDS; used by kind="tfds" alone', acts=""),
        dir=key(
            "",
            "folder of images, TFDS data directory, CSV file or its folder, folder of tars, or"
            " folder of a Hugging Face data set",
            path=True,
            free=True,
            acts="",
        ),
        split=key(
            "train",
            'part of the data set, or a slice of it in TFDS notation: "train[:90%]", "train[90%:]"',
            acts="",
        ),
        list=key(
            "",
            "text file with one image name or relative path per line, which restricts a data set"
            ' of files or of TFDS to these images; "" = all images',
            path=True,
            acts="",
        ),
        images=key(
            "",
            "where images are. TFDS, Hugging Face: name of the feature; CSV: name of the column"
            ' with their paths; WebDataset: extension; "" = the usual names',
            acts="",
        ),
        labels=key(
            "",
            "where labels are. CSV, Hugging Face: name of the column; WebDataset: extension, or"
            ' key in the json; "" = the usual names',
            acts="",
        ),
        masks=key(
            "",
            "where class masks are. Folder: a folder in it or an absolute path, with a file of the"
            ' same stem for each image, "" = masks or annotations next to the images, if any;'
            " other kinds: name of a feature or column, or extension in tars",
            free=True,
            acts="",
        ),
        mask_suffix=key(
            "",
            'ending of the names of mask files, before the extension: "_mask" if a_mask.png'
            ' belongs to a.jpg; "" = the same stem',
            free=True,
            acts="",
        ),
        boxes=key(
            "",
            "where boxes are. Folder: a folder of XML files, or a COCO JSON file, in whose name"
            ' {split} stands for the split; TFDS: name of a sequence ("objects"), "" = the first'
            " sequence",
            free=True,
            acts="",
        ),
        class_names=key(
            "",
            "text file with the class names of masks and boxes, one per line",
            path=True,
            free=True,
            acts="",
        ),
        class_map=key(
            (),
            "classes of the mask values 0, 1, ..., or {value: class}, for example {0:0,255:1};"
            " class 255 = ignored; () = mask values are classes",
            element=0,
            pairs=True,
            free=True,
        ),
        reduce_zero_label=key(
            False,
            "ignore class 0 of masks and move the other classes down by one (VOC without"
            " background)",
            free=True,
        ),
        ignore=key(
            255, "value of mask pixels that are ignored, besides 255", least=0, most=255, free=True
        ),
        raw_labels=key(
            False,
            "official data sets: keep the values of the mask files instead of the benchmark's"
            " classes (Cityscapes: 34 ids, not 19 classes)",
            free=True,
        ),
        length=key(
            10000,
            "number of generated images, for kinds that come with the package",
            "images",
            above=0,
            most=2**31 - 1,
        ),
        **bands.keys(),
        size=key(
            0,
            "length to which the shorter side is resized before a square centre crop; 0 = images"
            " as stored. One image of the largest size takes 0.8 GB",
            "pixels",
            least=0,
            most=16384,
        ),
        max_pixels=key(
            decode.MAX_PIXELS,
            "largest number of pixels of an image, whose decoding takes 4 to 16 bytes per pixel;"
            " an image with more counts as unreadable; 0 = no limit",
            "pixels",
            least=0,
            most=2**40,
            free=True,
        ),
    )


def check(name: str, section: ConfigDict, place: str) -> None:
    """Refuses a section of that name that lacks what its kind needs.

    Args:
      place: the folder where it finds its images.
    """
    kind = kinds.get(section.kind)
    kind.check(name, section.kind, {**section, "dir": place})
    readers = kinds.specific()
    for entry in sorted(unused(section)):
        if section[entry]:
            raise InputError(
                f"{name}.{entry} is {section[entry]!r}, which has no meaning for"
                f' {name}.kind="{section.kind}"; it is for {", ".join(readers[entry])}'
            )
    classes.table(section.class_map, ignore=section.ignore)


def unused(section: ConfigDict) -> set[str]:
    """The keys of a section that mean nothing for its kind."""
    kind = kinds.find(section.kind)
    return kinds.specific().keys() - set(kind.keys if kind else ())


def parts(section: ConfigDict) -> Sequence[str]:
    """Names of the parts of a set that can be opened; none for a set that is not divided."""
    kind = kinds.get(section.kind)
    names = kind.parts(section)
    if kind.classes == "declared" or listing.alike(subset.split_name(section.split)[0], names):
        return names
    return ()  # folders and files that are no parts


def kind_at(place: str) -> str:
    """The kind of the set at a place of which only the place is known: a folder of images, as a
    rule."""
    return folder.OTHERS.get(posixpath.splitext(place)[1].lower(), "folder")


def at(place: str, trained: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keys of a section for the set at a place. trained: the section of a network's run, whose
    files are taken to be like those there."""
    kind = kind_at(place)
    alike = set(kinds.FILE_KEYS) & set(kinds.get(kind).keys) & set(trained or ())
    return dict(kind=kind, dir=place) | {name: trained[name] for name in alike if trained}


def may_have(section: ConfigDict, need: str) -> bool:
    """Whether a set that this section names can have one of NEEDS; an opened one says for sure,
    see `has`."""
    kind = kinds.get(section.kind)
    return need in (kind.has(section) if callable(kind.has) else kind.has)


def has(source: Any, need: str) -> bool:
    """Whether a source has one of NEEDS."""
    source = adopt(source)
    if need == "labels":
        return source.num_classes is not None
    if need == "sequences":
        return bool(source.sequences)
    return source.has_masks if need == "masks" else source.has_boxes


def make_source(
    config: ConfigDict | Mapping[str, Any],
    *,
    split: str | None = None,
    list: str | None = None,
    truth: bool = True,
    bilinear: bool = False,
) -> Source:
    """The source that a `data` section of the config describes.

    Args:
      config: ConfigDict or dict with `kind`, `split`, and the keys of `defaults` that its kind uses
        (`class_map` may be a dict here); `cache` and `decode_size` (off if absent) for all.
      split: instead of config["split"]: "train" or "test" (generated), a subfolder, a TFDS split,
        a list of a known set; slices ("train[:10%]") are those of `subset.sliced`, of TFDS its own.
      list: instead of config["list"].
      truth: False: leaves out masks and boxes, which training does not need.
      bilinear: whether images are resized to `size` bilinearly instead of bicubically.

    Raises:
      InputError: names the key and what would be right.
    """
    absent = {name: declared.default for name, declared in defaults().items()}
    c = {**absent, "length": 0, "cache": "none", "decode_size": 0, **config}
    split = split or c["split"] or "train"
    list, size = c["list"] if list is None else list, c["size"]
    if size < 0:
        raise InputError(f"data.size must be 0 (native) or a number of pixels, got {size}")
    kind = kinds.get(config.get("kind"))
    kind.check("data", c["kind"], c)
    if "class_names" in kind.keys:
        classes.given(c)  # a file that cannot be read is refused, whether there are masks or not
    name, is_slice = subset.split_name(split)
    is_slice = is_slice and kind.slices
    source = adopt(kind.open(c, name if is_slice else split), c["kind"])
    if isinstance(source, Stored):
        _limit(source, c, truth)
    if is_slice:
        source = subset.sliced(source, split)
    if list:
        if "list" not in kind.keys:
            raise InputError(f'data.list: {list!r} cannot restrict data.kind="{c["kind"]}"')
        source = subset.listed_records(source, list)
    where = c["name"] if c["kind"] == "tfds" else c["dir"]  # a preset names its TFDS set
    source.place = f"{where or c['kind']} ({split})"
    cache = c["cache"] == "memory"
    how = dict(size=size, cache=cache, bilinear=bilinear)
    return Prepared(source, **how) if size or cache else source


def _limit(source: Stored, c: Mapping[str, Any], truth: bool) -> None:
    """Sets the limits of the section for decoding. Masks and boxes are of images as they
    are stored, and so is a size that all images share."""
    if not truth:
        source.leave_out_annotations()
    source.max_pixels = c["max_pixels"]
    if not (source.has_masks or source.has_boxes):
        source.short_side = 0 if source.size else c["decode_size"]
