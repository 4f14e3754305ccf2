"""A TFDS data set as a source."""

import hashlib
import os
import re
import sys
from collections.abc import Sequence

import numpy as np

from ssl_jax.config import InputError, did_you_mean, local, read_json, reason
from ssl_jax.data import boxes as boxes_lib
from ssl_jax.data import classes, kinds
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked, listed, named
from ssl_jax.data.stored import Stored, date

IMAGES = ("image", "image_left")
MASKS = ("segmentation_mask", "annotation", "segmentation_label")
FILE_NAMES = ("file_name", "filename", "image/filename", "id", "image/id", "image_id")


class Tfds(Stored):
    """A prepared TFDS data set in random-access form (ArrayRecord), read by `tfds.data_source`
    without TensorFlow.

    Uses the feature `label`, and those of images, masks and boxes that the section names: images
    and masks the first of IMAGES and MASKS that the set has, boxes the first sequence that has
    boxes, of which crowds are told apart by `is_crowd`. Decodes lazily and with the same code as a
    folder."""

    def __init__(self, section: kinds.Section, split: str):
        """Opens the set.

        Args:
          section: the keys that `register` names below; name is as TFDS takes it,
            "name[/config][:version]", dir the folder that holds the data sets, "" TFDS's own
            default, boxes the name of the sequence ("objects") with a feature of boxes and maybe
            `label`.
          split: TFDS split, slices included.
        Raises:
          InputError: naming what exists for a wrong folder, name, split or feature; for a set
            without images.
        """
        self._name, self._split = section["name"], split
        self._records, features, columns, self._files = _open_tfds(section, split)
        self._parts = {"image": columns["images"], "mask": columns["masks"]}
        self._file_name = next((key for key in FILE_NAMES if key in features), None)
        masks = self._parts["mask"]
        names = _names(features[masks]) if masks else None
        facts = classes.of_masks(section, names) | dict(chosen=classes.chosen(section))
        self._describe(masks=masks is not None, **facts)
        label = features["label"] if "label" in features else None
        self.num_classes, self.class_names = getattr(label, "num_classes", None), _names(label)
        self._sequence, self._bbox = _boxes_feature(self._name, features, section["boxes"])
        if self._sequence is not None:
            inner = features[self._sequence].feature
            label = inner["label"] if "label" in inner else None
            self.has_boxes, self.box_names = True, _names(label)
            self.num_box_classes = getattr(label, "num_classes", None)
        if self.num_classes is not None and self._is_hidden_part():
            self.num_classes = self.class_names = None
        self.size = self._declared_size(features[self._parts["image"]].shape)
        about = [repr(self._name), repr(split), f"images={len(self)}"]
        self._about = about + ([classes.summary(self._table, masks)] if self.has_masks else [])

    def _is_hidden_part(self):
        """Whether record 0 has the label -1, as TFDS marks a part without labels."""
        try:
            return self._record(0)["label"] < 0
        except Unreadable:
            return False

    def _declared_size(self, shape):
        """(H, W) of the image feature if it is fixed and record 0 keeps to it (some sets do not),
        else None.
        """
        try:
            size = self.shape(0)
        except Unreadable:
            return None
        return size if size == tuple(shape[:2]) else None

    def __len__(self):
        return len(self._records)

    def _record(self, i):
        """Record i as TFDS gives it."""
        try:
            return self._records[int(i)]
        except Exception as error:  # array_record and protobuf have no common error class
            raise Unreadable(self.name(i), reason(error)) from error

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """See `Source.fingerprint`; of all files of the split, whichever the records."""
        digest = hashlib.sha256(repr(sorted(self._parts.items())).encode())
        for path in self._files:
            digest.update(f"{path}\0{date(path)}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:20] if self._files else ""

    def _reader(self, i):
        record = self._record(i)
        return lambda part: record[self._parts.get(part, part)]

    def _label(self, i, read):
        return None if self.num_classes is None else read("label")

    def _objects(self, i, read, shape, turn):
        if not self.has_boxes:
            return None
        objects = read(self._sequence)
        # Without TensorFlow a sequence comes as a list, flat if it is empty or of one box.
        corners, labels = np.asarray(objects[self._bbox], np.float32).reshape(-1, 4), None
        if self.num_box_classes is not None:
            labels = np.asarray(objects["label"], np.int32).reshape(-1)
        try:
            return boxes_lib.from_corners(
                corners, labels, shape, turn, (1, 1), objects.get("is_crowd")
            )
        except ValueError as error:
            raise Unreadable(self.name(i), str(error)) from error

    def name(self, i: int) -> str:
        return f"{self._name}/{self._split}/{checked(i, len(self))}"

    def list_names(self) -> list[str] | None:
        """The file name or id of each record, None without either. Reads the whole set once."""
        if self._file_name is None:
            return None
        if self._names is None:
            values = (self._record(i)[self._file_name] for i in range(len(self)))
            self._names = [v.decode() if isinstance(v, bytes) else str(v) for v in values]
        return self._names

    _names: list[str] | None = None


def parts(section: kinds.Section) -> list[str]:
    """Names of the splits of a set that is there."""
    return list(_info(section["name"], _folder(section["dir"])).splits)


def _info(name, folder):
    """What TFDS knows of a prepared set. TFDS fetches a set with a namespace ("huggingface:x"), and
    imports the modules of features that it does not have; both are refused by InputError."""
    import tensorflow_datasets as tfds  # half a second, only for those who use it

    if not re.fullmatch(r"[\w-]+(/[\w+.-]+)?(:[\d.*]+)?", name):
        raise InputError(f"data.name is {name!r}; write NAME, NAME/CONFIG or NAME:VERSION")
    place = folder / re.split("[/:]", name)[0]
    # TFDS would wait for a pipe for ever.
    if odd := [str(path) for path in place.rglob("*") if not (path.is_file() or path.is_dir())]:
        raise InputError(f"data.dir: {listed(odd, 3)} are not regular files")
    for file in place.rglob("features.json"):
        for feature in _classes_in(read_json(file)):
            module = feature.rpartition(".")[0]
            if not module.startswith("tensorflow_datasets.") and module not in sys.modules:
                raise InputError(
                    f"{file} has a feature {feature}, for which TFDS imports {module}; if you trust"
                    f" it, import it first (--import={module})"
                )
    return tfds.builder(name, data_dir=folder).info


def _classes_in(value):
    """Names of the classes of features that a features.json names."""
    if isinstance(value, dict):
        for name in ("pythonClassName", "python_class_name", "type"):
            if isinstance(value.get(name), str) and "." in value[name]:
                yield value[name]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in inner:
        yield from _classes_in(entry)


def _names(feature):
    """Names of the classes of a feature, None if it has none."""
    names = getattr(feature, "names", None)
    return tuple(names) if names else None


def _boxes_feature(name, features, path):
    """(sequence, its feature of boxes) that `path` ("objects" or "objects/bbox") names, or the
    first there is; (None, None) for a set without boxes."""
    pairs = [
        (sequence, key)
        for sequence, feature in features.items()
        for key, inner in (getattr(feature, "feature", None) or {}).items()
        if hasattr(inner, "bbox_format")
    ]
    if path:
        pairs = [pair for pair in pairs if path in (pair[0], "/".join(pair))]
        if not pairs:
            raise InputError(
                f"data.boxes: {name} has no sequence of boxes {path!r}; its features:"
                f" {listed(list(features))}"
            )
    if not pairs:
        return None, None
    sequence, key = pairs[0]
    form = features[sequence].feature[key].bbox_format
    if getattr(form, "value", "REL_YXYX") != "REL_YXYX":
        raise InputError(
            f"data.boxes: the boxes {sequence}/{key} of {name} are {form.value}; only REL_YXYX, the"
            " usual form of TFDS, is read"
        )
    return sequence, key


def _open_tfds(section, split):
    """(`tfds.data_source` of an image set, its images left encoded; its features; the names of
    those of images and of masks; the files of the split). InputError for whatever does not exist.
    """
    import tensorflow_datasets as tfds  # half a second, only for those who use it

    name, folder = section["name"], _folder(section["dir"])
    info = _existing(name, folder)
    features = info.features
    images = [key for key in features if isinstance(features[key], tfds.features.Image)]
    masks = [key for key in MASKS if key in features and _is_readable(features[key], "masks")]
    columns = named(section, dict(images=IMAGES, masks=masks), list(features), name)
    for key, column in columns.items():
        if column and not _is_readable(features[column], key):
            raise InputError(
                f"data.{key}: {column} of {name} is {features[column]}, but only images of 8 or 16"
                " bits and tensors of 8 are read. A function of yours can read others:"
                " data.kind=python:module.function"
            )
    try:
        count = info.splits[split].num_examples
    except (ValueError, KeyError, AssertionError) as error:
        splits = listed(list(info.splits))
        raise InputError(
            f"data.split: {name} has {splits} and slices such as train[:10%], not {split!r}"
        ) from error
    if not count:
        raise InputError(f"data.split: {split!r} of {name} holds no records")
    decoders = {key: tfds.decode.SkipDecoding() for key in images}
    try:
        records = tfds.data_source(
            name, data_dir=folder, split=split, download=False, decoders=decoders
        )
    # NotImplementedError for TFRecord files, FileNotFoundError for missing shards.
    except Exception as error:
        raise InputError(
            f"data.dir: {name} in {folder} cannot be read by index: {reason(error).split('. ')[0]}"
        ) from error
    return records, features, columns, sorted(map(str, info.splits[split].filepaths))


def _is_readable(feature, key):
    """Whether a feature holds `key`, images or masks: of 8 or 16 bits, or a tensor of 8."""
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.Image):
        return feature.np_dtype != np.float32  # which is stored as other bytes
    if not isinstance(feature, tfds.features.Tensor) or feature.np_dtype != np.uint8:
        return False
    channels = feature.shape[2:] if len(feature.shape) > 1 else None
    return channels in (((1,), (3,)) if key == "images" else ((), (1,)))


def _existing(name, folder):
    """`_info` of a set; InputError naming the sets that lie in the folder where it is none."""
    if not folder.is_dir():
        raise InputError(
            f"data.dir: {folder} does not exist; give the folder that holds the TFDS sets"
            " (NAME/VERSION)"
        )
    prepared = _prepared_sets(folder)
    present = sorted({parts[0] for parts in prepared})
    base = re.split("[/:]", name)[0]
    if base not in present:
        hint = did_you_mean(name, present) or "; if it is a folder of images, set data.kind=folder"
        raise InputError(f"data.name: no {name!r} in {folder}; found: {listed(present)}{hint}")
    try:
        return _info(name, folder)
    except InputError:
        raise
    # Versions, configs: TFDS has several error classes for what is not there.
    except Exception as error:
        versions = ["/".join(parts) for parts in prepared if parts[0] == base]
        raise InputError(
            f"data.name: cannot open {name!r} in {folder}; found: {listed(versions)}"
        ) from error


def _folder(data_dir):
    """Where TFDS sets are looked for."""
    place = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return local(place)


def _prepared_sets(folder):
    """Sorted (name, version) and (name, config, version) of the data sets that lie prepared in a
    folder.
    """
    files = (
        path for depth in ("*/*", "*/*/*") for path in folder.glob(f"{depth}/dataset_info.json")
    )
    return sorted(path.relative_to(folder).parent.parts for path in files)


kinds.register(
    "tfds",
    Tfds,
    parts=parts,
    keys=("dir", "list", "images", "masks", "boxes", *kinds.MASK_KEYS),
    has=("labels", "masks", "boxes"),
    required={"name": 'the name of a set, for example "cifar10"'},
    slices=False,
)
