"""A TFDS data set as a source."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError, local, read_json, reason
from ssl_jax.data import boxes as boxes_lib
from ssl_jax.data import classes
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked, chosen, listed, nearest
from ssl_jax.data.stored import Stored

IMAGES = ("image", "image_left")
MASKS = ("segmentation_mask", "annotation", "segmentation_label")
FILE_NAMES = ("file_name", "filename", "image/filename", "id", "image/id", "image_id")


class Tfds(Stored):
    """A prepared TFDS data set in random-access form (ArrayRecord), read by `tfds.data_source`
    without TensorFlow.

    Uses the feature `label`, and those of images, masks and boxes that its arguments name; decodes
    lazily and with the same code as a folder. Of boxes, crowds (`is_crowd`) are left out."""

    def __init__(
        self,
        name: str,
        data_dir: str | os.PathLike | None,
        split: str = "train",
        *,
        images: str = "",
        masks: str = "",
        boxes: str = "",
        class_names: Sequence[str] = (),
        rules: Mapping[str, Any] | None = None,
    ):
        """Opens the set.

        Args:
          name: as TFDS takes it, "name[/config][:version]".
          data_dir: the folder that holds the data sets; None or "": TFDS's own default.
          split: TFDS split, slices included.
          images, masks: names of features; "": the first of IMAGES or MASKS that the set has.
          boxes: name of the sequence ("objects") with a feature of boxes and maybe `label`; "": the
            first sequence that has boxes.
          class_names: of masks. rules: class_map, reduce_zero_label, ignore of `classes.table`.
        Raises:
          InputError: naming what exists for a wrong folder, name, split or feature; for a set
            without images.
        """
        self._name, self._split = name, split
        self._records, self._image, self._masks = _open_tfds(name, data_dir, split, images, masks)
        features = self._records.dataset_info.features
        label = features["label"] if "label" in features else None
        self.num_classes = getattr(label, "num_classes", None)
        self.class_names = _names(label)
        self.has_masks = self._masks is not None
        if self.has_masks:
            names = _names(features[self._masks])
            self._table, self.mask_names = classes.final(rules or {}, names, given=class_names)
        self._objects, self._bbox = _boxes_feature(name, features, boxes)
        self.has_boxes = self._objects is not None
        if self.has_boxes:
            inner = features[self._objects].feature
            box_label = inner["label"] if "label" in inner else None
            self.num_box_classes = getattr(box_label, "num_classes", None)
            self.box_names = _names(box_label)
        self._file_name = next((key for key in FILE_NAMES if key in features), None)
        self.size = self._declared_size(features[self._image].shape)
        self._check_first_mask()

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

    def _read_record(self, i):
        """(record i as TFDS gives it, its name)."""
        name = self.name(i)
        try:
            return self._records[int(i)], name
        except Exception as error:  # array_record and protobuf have no common error class
            raise Unreadable(name, reason(error)) from error

    def __getitem__(self, i: int) -> dict[str, Any]:
        record, name = self._read_record(i)
        image, turn = self._pixels(record[self._image], name)
        sample: dict[str, Any] = {"image": image}
        if self.num_classes is not None:
            sample["label"] = int(record["label"])
        if self.has_masks:
            sample["mask"] = self._mask_of(record, name, image.shape[:2], turn)
        if self.has_boxes:
            sample |= self._boxes_of(record[self._objects], name, image.shape[:2], turn)
        return sample

    def _pixels(self, value, name):
        """An image feature, encoded or decoded: uint8 [H,W,3], its EXIF orientation."""
        if isinstance(value, bytes):
            return self._decoded(value, name)
        return np.broadcast_to(np.asarray(value, np.uint8), (*value.shape[:2], 3)), 1

    def _mask_of(self, record, name, shape, turn):
        """Classes uint8 [H,W] of a mask feature, encoded or decoded ([H,W] or [H,W,1])."""
        value = record[self._masks]
        if not isinstance(value, bytes):
            value = np.asarray(value)
            if value.ndim != 2 and value.shape[2:] != (1,):
                raise Unreadable(
                    name, f"a mask needs one channel, this one has shape {value.shape}"
                )
            value = value.astype(np.uint8).reshape(value.shape[:2])
        return self._classes(value, name, shape, turn)

    def _boxes_of(self, objects, name, shape, turn):
        """{"boxes", "box_labels" if they have classes} of a record."""
        # Without TensorFlow a sequence comes as a list, flat if it is empty or of one box.
        corners = np.asarray(objects[self._bbox], np.float32).reshape(-1, 4)
        labels = None
        if self.num_box_classes is not None:
            labels = np.asarray(objects["label"], np.int32).reshape(-1)
        if "is_crowd" in objects:
            kept = ~np.asarray(objects["is_crowd"], bool).reshape(-1)
            corners, labels = corners[kept], None if labels is None else labels[kept]
        try:
            found = boxes_lib.from_corners(corners, labels, shape, turn, stated=(1, 1))
        except ValueError as error:
            raise Unreadable(name, str(error)) from error
        return {"boxes": found.boxes} | ({} if labels is None else {"box_labels": found.labels})

    def _header_of(self, i):
        record, name = self._read_record(i)
        value = record[self._image]
        return self._header(value, name) if isinstance(value, bytes) else (value.shape[:2], 1)

    def _mask(self, i, shape, turn):
        return self._mask_of(*self._read_record(i), shape, turn)

    def name(self, i: int) -> str:
        return f"{self._name}/{self._split}/{checked(i, len(self))}"

    def list_names(self) -> list[str] | None:
        """The file name or id of each record, None without either. Reads the whole set once."""
        if self._file_name is None:
            return None
        if self._names is None:
            values = (self._read_record(i)[0][self._file_name] for i in range(len(self)))
            self._names = [v.decode() if isinstance(v, bytes) else str(v) for v in values]
        return self._names

    _names: list[str] | None = None

    def __repr__(self):
        masks = f", {classes.told(self._table, self._masks)}" if self.has_masks else ""
        return f"Tfds({self._name!r}, {self._split!r}, images={len(self)}{masks})"


def parts(name: str, data_dir: str | os.PathLike | None) -> list[str]:
    """Names of the splits of a set that is there."""
    return list(_info(name, _folder(data_dir)).splits)


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


def _boxes_feature(name, features, wanted):
    """(sequence, its feature of boxes) that `wanted` ("objects" or "objects/bbox") names, or the
    first there is; (None, None) for a set without boxes."""
    found = [
        (sequence, key)
        for sequence, feature in features.items()
        for key, inner in (getattr(feature, "feature", None) or {}).items()
        if hasattr(inner, "bbox_format")
    ]
    if wanted:
        found = [pair for pair in found if wanted in (pair[0], "/".join(pair))]
        if not found:
            raise InputError(
                f"data.boxes: {name} has no sequence of boxes {wanted!r}; its features:"
                f" {listed(list(features))}"
            )
    if not found:
        return None, None
    sequence, key = found[0]
    form = features[sequence].feature[key].bbox_format
    if getattr(form, "value", "REL_YXYX") != "REL_YXYX":
        raise InputError(
            f"data.boxes: the boxes {sequence}/{key} of {name} are {form.value}; only REL_YXYX, the"
            " usual form of TFDS, is read"
        )
    return sequence, key


def _open_tfds(name, data_dir, split, images, masks):
    """(`tfds.data_source` of an image set, its images left encoded; the features of images and of
    masks, None without these). InputError for whatever does not exist.
    """
    import tensorflow_datasets as tfds  # half a second, only for those who use it

    if not name:
        raise InputError("data.name is empty: give the name of the TFDS data set")
    folder = _folder(data_dir)
    if not folder.is_dir():
        raise InputError(
            f"data.dir: {folder} does not exist; give the folder that holds the TFDS sets"
            " (NAME/VERSION)"
        )
    prepared = _prepared_sets(folder)
    present = sorted({parts[0] for parts in prepared})
    base = re.split("[/:]", name)[0]
    if base not in present:
        hint = nearest(name, present) or "; if it is a folder of images, set data.kind=folder"
        raise InputError(f"data.name: no {name!r} in {folder}; found: {listed(present)}{hint}")
    try:
        info = _info(name, folder)
    except InputError:
        raise
    # Versions, configs: TFDS has several error classes for what is not there.
    except Exception as error:
        versions = ["/".join(parts) for parts in prepared if parts[0] == base]
        raise InputError(
            f"data.name: cannot open {name!r} in {folder}; found: {listed(versions)}"
        ) from error
    features = list(info.features)
    image = chosen("images", images, IMAGES, features, name)
    mask = chosen("masks", masks, MASKS, features, name)
    if image is None:
        raise InputError(
            f"data.name: {name} has no feature 'image'; its features: {listed(features)}"
            "; if one of them holds images, name it in data.images"
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
    decoders = {
        key: tfds.decode.SkipDecoding()
        for key, feature in info.features.items()
        if isinstance(feature, tfds.features.Image)
    }
    try:
        records = tfds.data_source(
            name, data_dir=folder, split=split, download=False, decoders=decoders
        )
    # NotImplementedError for TFRecord files, FileNotFoundError for missing shards.
    except Exception as error:
        raise InputError(
            f"data.dir: {name} in {folder} cannot be read by index: {reason(error).split('. ')[0]}"
        ) from error
    return records, image, mask


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
