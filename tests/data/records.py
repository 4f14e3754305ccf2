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
    folder,
    name,
    splits,
    *,
    label=True,
    mask=True,
    key="image",
    mask_key="segmentation_mask",
    size=8,
    file_format="array_record",
    file_name="",
    boxes=None,
    box_labels=None,
    crowds=None,
    bbox_format="REL_YXYX",
):
    """A TFDS data set folder/name/1.0.0 in ArrayRecord form.

    splits: {split: indices into IMAGES}. file_name: with {} for the index; "": not stored.
    boxes: for each image [n,4] (ymin, xmin, ymax, xmax) in 0-1; box_labels, crowds: [n].
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
        features[mask_key] = feature(1)
    if label:
        label_class = "tensorflow_datasets.core.features.class_label_feature.ClassLabel"
        features["label"] = {"classLabel": {"numClasses": "3"}, "pythonClassName": label_class}
    if file_name:
        text_class = "tensorflow_datasets.core.features.text_feature.Text"
        features["file_name"] = {"text": {}, "pythonClassName": text_class}
    if boxes is not None:
        features["objects"] = _objects(bbox_format, box_labels is not None, crowds is not None)
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
                fields[mask_key].bytes_list.value.append(png(MASKS[i]))
            if label:
                fields["label"].int64_list.value.append(int(LABELS[i]))
            if file_name:
                fields["file_name"].bytes_list.value.append(file_name.format(i).encode())
            if boxes is not None:
                fields["objects/bbox"].float_list.value.extend(np.ravel(boxes[i]).tolist())
            if box_labels is not None:
                fields["objects/label"].int64_list.value.extend(box_labels[i])
            if crowds is not None:
                fields["objects/is_crowd"].int64_list.value.extend(crowds[i])
            writer.write(example.SerializeToString())
        writer.close()
        entry = {
            "filepathTemplate": template,
            "name": split,
            "numBytes": "1",
            "shardLengths": [str(len(indices))],
        }
        entries.append(entry)
    if boxes is not None and box_labels is not None:
        (place / "objects-label.labels.txt").write_text("red\nwhite\nplatelet\n")
    info = {"fileFormat": file_format, "name": name, "splits": entries, "version": "1.0.0"}
    (place / "dataset_info.json").write_text(json.dumps(info))


def _objects(bbox_format, labels, crowds):
    """The feature `objects` of TFDS's `coco`."""
    core = "tensorflow_datasets.core.features"
    box = {"bboxFormat": bbox_format, "dtype": "float32", "shape": {"dimensions": ["4"]}}
    inner = {"bbox": {"boundingBox": box, "pythonClassName": f"{core}.bounding_boxes.BBoxFeature"}}
    if labels:
        name = f"{core}.class_label_feature.ClassLabel"
        inner["label"] = {"classLabel": {"numClasses": "3"}, "pythonClassName": name}
    if crowds:
        tensor = {"dtype": "bool", "encoding": "none", "shape": {}}
        inner["is_crowd"] = {"tensor": tensor, "pythonClassName": f"{core}.tensor_feature.Tensor"}
    nested = {
        "featuresDict": {"features": inner},
        "pythonClassName": f"{core}.features_dict.FeaturesDict",
    }
    return {
        "sequence": {"feature": nested, "length": "-1"},
        "pythonClassName": f"{core}.sequence_feature.Sequence",
    }


def same_record(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(value, b[key])


def xml(size, objects):
    """An annotation in the form of VOC and ILSVRC.

    size: (H, W). objects: (class, (ymin, xmin, ymax, xmax)).
    """
    entries = "".join(
        f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{left}</xmin>"
        f"<ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, (top, left, bottom, right) in objects
    )
    height, width = size
    shape = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>x</filename>{shape}{entries}</annotation>"


def coco_json():
    """Three images of 8 x 8, one of them without objects; a crowd; ids that are not in order."""

    def entry(number, image, category, box, crowd=0):
        known = dict(id=number, image_id=image, category_id=category, bbox=box, iscrowd=crowd)
        return known | dict(area=box[2] * box[3])

    return dict(
        images=[
            dict(id=9, file_name="b.jpg", height=8, width=8),
            dict(id=4, file_name="a.jpg", height=8, width=8),
            dict(id=2, file_name="c.jpg", height=8, width=8),
        ],
        annotations=[
            entry(1, 9, 1, [0, 0, 2, 2]),
            entry(2, 4, 90, [1, 2, 3, 4]),
            entry(3, 4, 1, [0, 0, 8, 8], crowd=1),
            entry(4, 9, 90, [5, 4, 1, 1]),
        ],
        categories=[dict(id=90, name="toothbrush"), dict(id=1, name="person")],
    )
