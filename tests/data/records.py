"""A few records, and the files that hold them, for the tests of all kinds of sources."""

import io
import json
import tarfile

import numpy as np
from array_record.python import array_record_module
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
LABELS = np.arange(12) % 3
MASKS = np.random.default_rng(1).integers(0, 4, (12, 8, 8), np.uint8)


def save(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def shard(path, members):
    """A tar of {name: bytes or text}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


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
    broken=False,
):
    """A TFDS data set folder/name/1.0.0 in ArrayRecord form.

    splits: {split: indices into IMAGES}. file_name: with {} for the index; "": not stored.
    broken: the last image of each split is a file that was cut off.
    boxes: for each image [n,4] (ymin, xmin, ymax, xmax) in 0-1; box_labels, crowds: [n].
    """
    from tensorflow_datasets.proto import tf_example_pb2

    place = folder / name / "1.0.0"
    place.mkdir(parents=True)

    def image(channels):
        shape = {"dimensions": [str(size), str(size), str(channels)]}
        encoded = {"dtype": "uint8", "encodingFormat": "png", "shape": shape}
        return feature("image_feature.Image", image=encoded)

    features = {key: image(3)}
    if mask:
        features[mask_key] = image(1)
    if label:
        features["label"] = CLASSES
    if file_name:
        features["file_name"] = feature("text_feature.Text", text={})
    if boxes is not None:
        inner = {"bbox": feature("bounding_boxes.BBoxFeature", boundingBox=_box(bbox_format))}
        if box_labels is not None:
            inner["label"] = CLASSES
            (place / "objects-label.labels.txt").write_text("red\nwhite\nplatelet\n")
        if crowds is not None:
            flag = {"dtype": "bool", "encoding": "none", "shape": {}}
            inner["is_crowd"] = feature("tensor_feature.Tensor", tensor=flag)
        entry = {"feature": _dict(inner), "length": "-1"}
        features["objects"] = feature("sequence_feature.Sequence", sequence=entry)
    (place / "features.json").write_text(json.dumps(_dict(features)))
    entries = []
    for split, indices in splits.items():
        path = place / f"{name}-{split}.{file_format}-00000-of-00001"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for i in indices:
            example = tf_example_pb2.Example()
            fields = example.features.feature
            cut = 60 if broken and i == indices[-1] else None
            fields[key].bytes_list.value.append(png(IMAGES[i])[:cut])
            if mask:
                fields[mask_key].bytes_list.value.append(png(MASKS[i]))
            if label:
                fields["label"].int64_list.value.append(int(LABELS[i]))
            if file_name:
                fields["file_name"].bytes_list.value.append(file_name.format(i).encode())
            if boxes is not None:
                fields["objects/bbox"].float_list.value.extend(np.ravel(boxes[i]).tolist())
            for column, values in (("label", box_labels), ("is_crowd", crowds)):
                if values is not None:
                    fields[f"objects/{column}"].int64_list.value.extend(values[i])
            writer.write(example.SerializeToString())
        writer.close()
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        known = {"filepathTemplate": template, "name": split, "numBytes": "1"}
        entries.append(known | {"shardLengths": [str(len(indices))]})
    info = {"fileFormat": file_format, "name": name, "splits": entries, "version": "1.0.0"}
    (place / "dataset_info.json").write_text(json.dumps(info))


def feature(name, **content):
    """An entry of features.json."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}


CLASSES = feature("class_label_feature.ClassLabel", classLabel={"numClasses": "3"})


def _box(bbox_format):
    return {"bboxFormat": bbox_format, "dtype": "float32", "shape": {"dimensions": ["4"]}}


def _dict(features):
    return feature("features_dict.FeaturesDict", featuresDict={"features": features})


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
    keys = ("id", "image_id", "category_id", "bbox", "iscrowd", "area")
    annotations = [
        (1, 9, 1, [0, 0, 2, 2], 0, 4),
        (2, 4, 90, [1, 2, 3, 4], 0, 12),
        (3, 4, 1, [0, 0, 8, 8], 1, 64),
        (4, 9, 90, [5, 4, 1, 1], 0, 1),
    ]
    images = [(9, "b.jpg"), (4, "a.jpg"), (2, "c.jpg")]
    return dict(
        images=[dict(id=i, file_name=name, height=8, width=8) for i, name in images],
        annotations=[dict(zip(keys, row)) for row in annotations],
        categories=[dict(id=90, name="toothbrush"), dict(id=1, name="person")],
    )
