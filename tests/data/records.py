"""A few records, and the files that hold them, for the tests of all kinds of sources."""

import io
import json

import numpy as np
from array_record.python import array_record_module
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
LABELS = np.arange(12) % 3
MASKS = np.random.default_rng(1).integers(0, 4, (12, 8, 8), np.uint8)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def write_tfds(
    folder, name, splits, *, label=True, mask=True, key="image", size=8, file_format="array_record"
):
    """A TFDS data set folder/name/1.0.0 in ArrayRecord form. splits: {split: indices into
    IMAGES}.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    place = folder / name / "1.0.0"
    place.mkdir(parents=True)
    image_class = "tensorflow_datasets.core.features.image_feature.Image"

    def feature(channels):
        shape = {"dimensions": [str(size), str(size), str(channels)]}
        return {
            "image": {"dtype": "uint8", "encodingFormat": "png", "shape": shape},
            "pythonClassName": image_class,
        }

    features = {key: feature(3)}
    if mask:
        features["segmentation_mask"] = feature(1)
    if label:
        label_class = "tensorflow_datasets.core.features.class_label_feature.ClassLabel"
        features["label"] = {"classLabel": {"numClasses": "3"}, "pythonClassName": label_class}
    nested = {"features": features}
    dict_class = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    (place / "features.json").write_text(
        json.dumps({"featuresDict": nested, "pythonClassName": dict_class})
    )
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    entries = []
    for split, indices in splits.items():
        path = place / f"{name}-{split}.{file_format}-00000-of-00001"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for i in indices:
            example = tf_example_pb2.Example()
            fields = example.features.feature
            fields[key].bytes_list.value.append(png(IMAGES[i]))
            if mask:
                fields["segmentation_mask"].bytes_list.value.append(png(MASKS[i]))
            if label:
                fields["label"].int64_list.value.append(int(LABELS[i]))
            writer.write(example.SerializeToString())
        writer.close()
        entry = {
            "filepathTemplate": template,
            "name": split,
            "numBytes": "1",
            "shardLengths": [str(len(indices))],
        }
        entries.append(entry)
    info = {"fileFormat": file_format, "name": name, "splits": entries, "version": "1.0.0"}
    (place / "dataset_info.json").write_text(json.dumps(info))


def same_record(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(value, b[key])
