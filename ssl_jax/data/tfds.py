"""A TFDS data set as a source."""

import os
import re
from pathlib import Path

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import decode
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import checked, listed, nearest


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
        return f"{self._name}/{self._split}/{checked(i, len(self))}"

    def __repr__(self):
        return f"Tfds({self._name!r}, {self._split!r}, images={len(self)})"


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
            f"data.name: no {name!r} in {folder}; found: {listed(present)}{nearest(name, present)}"
        )
    try:
        info = tfds.builder(name, data_dir=folder).info
    # Versions, configs: TFDS has several error classes for what is not there.
    except Exception as error:
        versions = ["/".join(parts) for parts in prepared if parts[0] == base]
        raise InputError(
            f"data.name: cannot open {name!r} in {folder}; found: {listed(versions)}"
        ) from error
    if "image" not in info.features:
        raise InputError(
            f"data.name: {name} has no feature 'image'; its features: {listed(list(info.features))}"
        )
    try:
        records = info.splits[split].num_examples
    except (ValueError, KeyError, AssertionError) as error:
        splits = listed(list(info.splits))
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
