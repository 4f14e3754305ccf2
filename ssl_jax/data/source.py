"""Random-access image sources.

A source is any picklable object with

    len(s)           number of records
    s[i]             dict: "image" uint8 [H,W,3] (in memory also float32 in [0,1]), "label" int
                     (absent without labels), "mask" uint8 [H,W] (class per pixel, 255 = ignore;
                     absent without masks), "boxes" float32 [n,4] (y, x, height, width in pixels;
                     optional). Raises Unreadable if it cannot be decoded.
    s.name(i)        path or id of record i, for messages
    s.num_classes    number of label classes, None without labels
    s.has_masks      whether records have "mask"
    s.class_names    names of the label classes, s.mask_names of the classes of masks; None or
                     absent where nobody knows them
    s.size           (H, W) if all images have this size, None if they differ or nobody knows
    repr(s)          the same text in every process and run

and safe to read from several threads. Arrays of a record are not to be written to: a cache may hand
them out again.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, key
from ssl_jax.data import decode, generated, photos
from ssl_jax.data.decode import Unreadable

__all__ = [
    "EXTENSIONS",
    "ArraySource",
    "Folder",
    "GeneratedSource",
    "Prepared",
    "Tfds",
    "Unreadable",
    "make_source",
]

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")  # in capitals as well
_ACCEPTED = ", ".join(EXTENSIONS)


class _Embedded(NamedTuple):
    """An embedded set: what makes a picture, and the names of its classes; None = no labels, no
    masks."""

    make: Callable
    class_names: tuple[str, ...] | None
    mask_names: tuple[str, ...] | None


_GENERATED = {
    "photos": _Embedded(photos.photos, photos.CLASS_NAMES, None),
    "photo_collages": _Embedded(photos.photo_collages, None, photos.CLASS_NAMES),
}
_GENERATED_SIZE = 64
_GENERATED_SEED = 0  # the pictures are a data set: they do not change with the seed of a run
KINDS = (*_GENERATED, "folder", "tfds")


def defaults() -> dict:
    """The keys that name a set of images: of the section `data`, and of each evaluation."""
    return dict(
        kind=key(
            "photos",
            'what the set is: "photos" and "photo_collages" are embedded (no download)',
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
    if kind in _GENERATED:
        source = GeneratedSource(kind, split, config.get("length", 0), size=size or _GENERATED_SIZE)
    elif kind == "folder":
        source = Folder(config.get("dir", ""), split)
    elif kind == "tfds":
        source = Tfds(config.get("name", ""), config.get("dir"), split)
    else:
        raise InputError(
            f"data.kind: one of {', '.join(KINDS)}, not {kind!r}{_nearest(kind, KINDS)}"
        )
    cache = bool(config.get("cache", False))
    return Prepared(source, size=size, cache=cache) if size or cache else source


class GeneratedSource:
    """The embedded sets of `photos`, of any length: picture i depends on (seed, split, i).

    `size` is the side at which pictures are composed. Records of collages also have "labels" [n],
    one per box.
    """

    def __init__(
        self, kind: str, split: str, length: int, *, size: int = 64, seed: int = _GENERATED_SEED
    ):
        """Raises InputError for an unknown kind or split, a length below 1 or a size below 16."""
        if kind not in _GENERATED:
            raise InputError(f"data.kind: embedded sets are {', '.join(_GENERATED)}, got {kind!r}")
        if split not in generated.SPLITS:
            raise InputError(
                f"data.split: {kind} has the splits {', '.join(generated.SPLITS)}, got {split!r}"
            )
        if length < 1:
            raise InputError(
                f"data.length: {kind} needs a number of pictures to generate, at least 1, got"
                f" {length}"
            )
        if size < generated.MIN_SIZE:
            raise InputError(
                f"data.size: {kind} needs at least {generated.MIN_SIZE} pixels, got {size}"
            )
        self._kind, self._split, self._length, self._seed = kind, split, int(length), seed
        self.size = (size, size)
        _, self.class_names, self.mask_names = _GENERATED[kind]
        self.num_classes = len(self.class_names) if self.class_names else None
        self.has_masks = self.mask_names is not None

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return _GENERATED[self._kind].make(
            self._seed, self._split, _checked(i, self._length), size=self.size[0]
        )

    def name(self, i: int) -> str:
        return f"{self._kind}/{self._split}/{i}"

    def __repr__(self):
        which = f"{self._kind!r}, {self._split!r}, {self._length}"
        return f"GeneratedSource({which}, size={self.size[0]}, seed={self._seed})"


class Folder:
    """All JPEG, PNG and WebP files below a folder, in the sorted order of their relative paths.

    The order is that of plain strings: "10.png" comes before "9.png", so number with leading zeros.
    If `root/split` is a folder, the images are taken from it. Without one, "train" means the whole
    folder; any other split is an error, because scores on training images would pass for test
    scores.
    Labels: where all images lie in subfolders, at least two of them, the folders of the first
    level, sorted, are the classes (deeper ones do not count); otherwise there are no labels.
    Hidden files and folders are left out; links to folders are followed.
    """

    has_masks = False
    size = None

    def __init__(self, root: str | os.PathLike, split: str = "train"):
        """Raises InputError if the folder or the split does not exist or holds no image."""
        if not root:
            raise InputError("data.dir is empty: give the folder that holds the images")
        self._root = _folder_of_split(Path(root).expanduser(), split)
        self._paths = _image_paths(self._root)
        if not self._paths:
            raise InputError(
                f"data.dir: no image in or below {self._root}; accepted extensions: {_ACCEPTED}"
            )
        self.class_names, self._labels = _folder_classes(self._paths)
        self.num_classes = len(self.class_names) if self.class_names else None

    def __len__(self):
        return len(self._paths)

    def __getitem__(self, i):
        record = {"image": decode.decode_image(self.name(i))}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        return record

    def name(self, i: int) -> str:
        return os.path.join(self._root, self._paths[_checked(i, len(self))])

    def __repr__(self):
        return f"Folder({str(self._root)!r}, images={len(self)}, classes={self.num_classes})"


class Tfds:
    """A prepared TFDS data set in random-access form (ArrayRecord), read by `tfds.data_source`
    without TensorFlow.

    Uses the features `image`, `label` and `segmentation_mask`; decodes lazily and with the same
    code as a folder."""

    def __init__(self, name: str, data_dir: str | os.PathLike | None, split: str = "train"):
        """Opens the set.

        Args:
          name: as TFDS takes it, "name[/config][:version]".
          data_dir: the folder that holds the data sets; None or "": TFDS's own default.
          split: TFDS split, slices included.
        Raises:
          InputError: naming what exists for a wrong folder, name or split; for a set without
          images.
        """
        self._name, self._split = name, split
        self._records = _open_tfds(name, data_dir, split)
        features = self._records.dataset_info.features
        label = features["label"] if "label" in features else None
        self.num_classes = getattr(label, "num_classes", None)
        self.class_names = getattr(label, "names", None)
        self.has_masks = "segmentation_mask" in features
        self.size = self._declared_size(features["image"].shape)

    def _declared_size(self, shape):
        """(H, W) of the image feature if it is fixed and record 0 keeps to it (some sets do not),
        else None.
        """
        try:
            size = self[0]["image"].shape[:2]
        except Unreadable:
            return None
        return size if size == tuple(shape[:2]) else None

    def __len__(self):
        return len(self._records)

    def __getitem__(self, i):
        name = self.name(i)
        try:
            record = self._records[int(i)]
        except Exception as error:  # array_record and protobuf have no common error class
            raise Unreadable(name, " ".join(str(error).split()) or type(error).__name__) from error
        sample = {"image": _pixels(record["image"], name)}
        if self.num_classes is not None:
            sample["label"] = int(record["label"])
        if self.has_masks:
            sample["mask"] = _classes(record["segmentation_mask"], name)
        return sample

    def name(self, i: int) -> str:
        return f"{self._name}/{self._split}/{_checked(i, len(self))}"

    def __repr__(self):
        return f"Tfds({self._name!r}, {self._split!r}, images={len(self)})"


class ArraySource:
    """Images in memory: uint8 [N,H,W,3], or float32 [N,H,W,3] in [0,1] (not checked: NaN may be
    tested with it).
    """

    def __init__(
        self, images: ArrayLike, labels: ArrayLike | None = None, masks: ArrayLike | None = None
    ):
        """labels: int [N]. masks: uint8 [N,H,W]. Raises InputError for any other shape or dtype, or
        no image at all.
        """
        self._images = np.asarray(images)
        self._labels = None if labels is None else np.asarray(labels)
        self._masks = None if masks is None else np.asarray(masks)
        shape = self._images.shape
        if (
            len(shape) != 4
            or shape[-1] != 3
            or not shape[0]
            or self._images.dtype not in (np.uint8, np.float32)
        ):
            raise InputError(
                "images must be uint8 or float32 [N,H,W,3] with N > 0, got"
                f" {_described(self._images)}"
            )
        if self._labels is not None and (
            self._labels.shape != shape[:1] or self._labels.dtype.kind not in "iu"
        ):
            raise InputError(
                f"labels must be integers [{shape[0]}], got {_described(self._labels)}"
            )
        if self._labels is not None and self._labels.min() < 0:
            raise InputError(f"labels must not be negative, got {self._labels.min()}")
        if self._masks is not None and (
            self._masks.shape != shape[:3] or self._masks.dtype != np.uint8
        ):
            raise InputError(
                f"masks must be uint8 {list(shape[:3])}, got {_described(self._masks)}"
            )
        self.size = shape[1:3]
        self.num_classes = None if self._labels is None else int(self._labels.max()) + 1
        self.has_masks = masks is not None

    def __len__(self):
        return len(self._images)

    def __getitem__(self, i):
        i = _checked(i, len(self))
        record = {"image": self._images[i]}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        if self._masks is not None:
            record["mask"] = self._masks[i]
        return record

    def name(self, i: int) -> str:
        return f"array/{i}"

    def __repr__(self):
        return (
            f"ArraySource({_described(self._images)}, classes={self.num_classes},"
            f" masks={self.has_masks})"
        )


class Prepared:
    """Another source, resized to a square and/or kept in RAM once decoded.

    size: 0 leaves images as they are; otherwise short side to `size` (antialiased bicubic), then
    the central square; masks by nearest neighbour, boxes cut at the border (so one may end up
    without area).
    cache: every process (so every worker) that reads a record keeps it: N * H * W * 3 bytes in
      the end.
    """

    def __init__(self, source: Any, *, size: int = 0, cache: bool = False):
        self._source, self._side = source, int(size)
        self._cache: dict[int, dict] | None = {} if cache else None
        self.size = (self._side, self._side) if size else source.size
        self.num_classes, self.has_masks = source.num_classes, source.has_masks
        for name in ("class_names", "mask_names"):
            setattr(self, name, getattr(source, name, None))

    def __len__(self):
        return len(self._source)

    def __getitem__(self, i):
        if self._cache is None:
            return self._read(i)
        record = self._cache.get(i)
        if record is None:  # two threads may decode the same record: same result, no lock needed
            record = self._cache[i] = self._read(i)
            for value in record.values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
        return record

    def name(self, i: int) -> str:
        return self._source.name(i)

    def _read(self, i):
        record = self._source[i]
        return (
            _square(record, self._side)
            if self._side and record["image"].shape[:2] != self.size
            else record
        )

    def __getstate__(self):
        # A worker process fills a cache of its own.
        return {**self.__dict__, "_cache": None if self._cache is None else {}}

    def __repr__(self):
        size = f", size={self._side}" if self._side else ""
        return (
            f"Prepared({self._source!r}{size}{', cache=True' if self._cache is not None else ''})"
        )


def _square(record, side):
    """A record with image, mask and boxes resized to [side, side]."""
    height, width = record["image"].shape[:2]
    record = {**record, "image": decode.resize_square(record["image"], side)}
    if "mask" in record:
        record["mask"] = decode.resize_square_mask(record["mask"], side)
    if "boxes" in record:
        y, x, square = decode.central_square(height, width)
        corner = (record["boxes"][:, :2] - (y, x)) * (side / square)
        opposite = corner + record["boxes"][:, 2:] * (side / square)
        corner, opposite = np.clip(corner, 0, side), np.clip(opposite, 0, side)
        record["boxes"] = np.concatenate([corner, opposite - corner], axis=1).astype(np.float32)
    return record


def _checked(i, length):
    """i as int; IndexError outside of [0, length), so that `for record in source` ends."""
    if not 0 <= i < length:
        raise IndexError(f"record {i} of {length}")
    return int(i)


def _described(array):
    """Dtype and shape as text: "uint8 [2, 3]"."""
    return f"{array.dtype} {list(array.shape)}"


def _nearest(word, words):
    """The text "; did you mean ...?" if one of the words is close, else none."""
    close = difflib.get_close_matches(str(word), words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _pixels(value, name):
    """An image feature, encoded or decoded, as uint8 [H,W,3]."""
    if isinstance(value, bytes):
        return decode.decode_image(value, name)
    return np.broadcast_to(np.asarray(value, np.uint8), (*value.shape[:2], 3))


def _classes(value, name):
    """A mask feature, encoded or decoded ([H,W] or [H,W,1]), as uint8 [H,W]."""
    if isinstance(value, bytes):
        return decode.decode_mask(value, name)
    return np.asarray(value, np.uint8).reshape(value.shape[:2])


def _folder_of_split(root, split):
    """root/split if there is one, root for "train" otherwise."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"data.dir: {root} {what}; give a folder of images ({_ACCEPTED})")
    if (root / split).is_dir():
        return root / split
    if split == "train":
        return root
    names = sorted(
        path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    raise InputError(f"data.split: {root} has no subfolder {split!r}; subfolders: {_listed(names)}")


def _image_paths(root):
    """Sorted relative paths ("/" between parts) of the images below root."""
    paths, visited = [], set()

    def fail(error):
        raise InputError(f"data.dir: cannot list {error.filename}: {error.strerror}") from error

    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        subfolders[:] = (
            [] if real in visited else [name for name in subfolders if not name.startswith(".")]
        )
        files = [] if real in visited else files  # a link back to a parent would never end
        visited.add(real)
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else relative + "/"
        paths += [
            prefix + name
            for name in files
            if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        ]
    return sorted(paths)


def _folder_classes(paths):
    """(sorted first-level folders, int32 [N] labels); (None, None) with images at the top or a
    single folder.
    """
    tops = [path.split("/", 1)[0] if "/" in path else None for path in paths]
    classes = sorted({top for top in tops if top is not None})
    if None in tops or len(classes) < 2:
        return None, None
    number = {name: i for i, name in enumerate(classes)}
    return tuple(classes), np.array([number[top] for top in tops], np.int32)


def _listed(names, limit=20):
    """At most `limit` names as text."""
    if not names:
        return "none"
    return ", ".join(names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )


def _open_tfds(name, data_dir, split):
    """The `tfds.data_source` of an image set, its images left encoded. InputError for whatever does
    not exist.
    """
    import tensorflow_datasets as tfds  # half a second, only for those who use it

    if not name:
        raise InputError("data.name is empty: give the name of the TFDS data set")
    folder = Path(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    ).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"data.dir: {folder} does not exist; give the folder that holds the TFDS sets"
            " (NAME/VERSION)"
        )
    prepared = _prepared_sets(folder)
    present = sorted({parts[0] for parts in prepared})
    base = re.split("[/:]", name)[0]
    if base not in present:
        raise InputError(
            f"data.name: no {name!r} in {folder}; found:"
            f" {_listed(present)}{_nearest(name, present)}"
        )
    try:
        info = tfds.builder(name, data_dir=folder).info
    # Versions, configs: TFDS has several error classes for what is not there.
    except Exception as error:
        versions = ["/".join(parts) for parts in prepared if parts[0] == base]
        raise InputError(
            f"data.name: cannot open {name!r} in {folder}; found: {_listed(versions)}"
        ) from error
    if "image" not in info.features:
        raise InputError(
            f"data.name: {name} has no feature 'image'; its features:"
            f" {_listed(list(info.features))}"
        )
    try:
        records = info.splits[split].num_examples
    except (ValueError, KeyError, AssertionError) as error:
        splits = _listed(list(info.splits))
        raise InputError(
            f"data.split: {name} has {splits} and slices such as train[:10%], not {split!r}"
        ) from error
    if not records:
        raise InputError(f"data.split: {split!r} of {name} holds no record")
    decoders = {
        key: tfds.decode.SkipDecoding()
        for key in ("image", "segmentation_mask")
        if key in info.features and isinstance(info.features[key], tfds.features.Image)
    }
    try:
        return tfds.data_source(
            name, data_dir=folder, split=split, download=False, decoders=decoders
        )
    # NotImplementedError for TFRecord files, FileNotFoundError for missing shards.
    except Exception as error:
        raise InputError(
            f"data.dir: {name} in {folder} cannot be read by index: {_first_sentence(error)}"
        ) from error


def _prepared_sets(folder):
    """Sorted (name, version) and (name, config, version) of the data sets that lie prepared in a
    folder.
    """
    files = (
        path for depth in ("*/*", "*/*/*") for path in folder.glob(f"{depth}/dataset_info.json")
    )
    return sorted(path.relative_to(folder).parent.parts for path in files)


def _first_sentence(error):
    return " ".join(str(error).split()).split(". ")[0] or type(error).__name__
