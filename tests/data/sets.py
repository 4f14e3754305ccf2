"""A small set of every kind, and what its records must be.

`MAKERS[id](folder, broken)` writes one into an empty folder; the id begins with the kind. Where
`broken`, the last image is a file that was cut off.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ssl_jax.data import names, photos, videos
from ssl_jax.data.arrays import ArraySource
from tests.data.records import IMAGES, LABELS, MASKS, coco_json, png, shard, write_tfds, xml

PICTURES = IMAGES[:, :6]  # 6 high, 8 wide
TRUTH = MASKS[:, :6]
NOTHING = {"boxes": np.zeros((0, 4), np.float32), "box_labels": np.zeros(0, np.int32)}


@dataclasses.dataclass
class Case:
    """config: of `make_source`, or the source itself. facts: those that not every source has."""

    config: Any
    records: list[dict]
    facts: dict[str, Any]


class Pairs:
    """As torchvision's data sets."""

    classes = ("oak", "ash", "elm")

    def __init__(self, count, broken=False):
        self.count, self.broken = count, broken

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.broken and i == self.count - 1:
            raise OSError("the disk is gone")
        return Image.fromarray(PICTURES[i]), LABELS[i]


def pairs(dir, split):
    return Pairs({"train": 4, "test": 3}[split], dir == "broken")


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def put_images(root, paths, broken=False):
    """PNG files, whatever their names end with: they give back the pixels."""
    for i, path in enumerate(paths):
        put(root / path, png(PICTURES[i])[: 60 if broken and i == len(paths) - 1 else None])


def columns_of(*values):
    """A mask of 6 x 8 whose columns have these values, the last one repeated."""
    values = [*values, *[values[-1]] * (8 - len(values))]
    return np.repeat(np.array(values, np.uint8)[None], 6, axis=0)


def palette(mask):
    """As VOC and DAVIS store masks: indices of colours."""
    image = Image.fromarray(mask)
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    return image


def records(count, **columns):
    """Records of the first PICTURES; columns: what else they have, one value for each."""
    rows = [dict(zip(columns, values)) for values in zip(*columns.values(), strict=True)]
    return [{"image": PICTURES[i]} | (rows[i] if rows else {}) for i in range(count)]


def boxes_of(*of_images):
    """The columns `boxes` and `box_labels`; of_images: lists of (y, x, height, width, class)."""
    arrays = [np.array(rows, np.float32).reshape(-1, 5) for rows in of_images]
    return dict(boxes=[x[:, :4] for x in arrays], box_labels=[x[:, 4].astype(int) for x in arrays])


# What the annotations in `coco_json` say of a.jpg, b.jpg, c.jpg.
COCO_BOXES = boxes_of([(2, 1, 4, 3, 1)], [(0, 0, 2, 2, 0), (4, 5, 1, 1, 1)], [])
COCO_NAMES = ("person", "toothbrush")


def boxed(names):
    return dict(has_boxes=True, box_names=tuple(names), num_box_classes=len(names))


def masked(names=None):
    return dict(has_masks=True, mask_names=names)


def labelled(names, count=None):
    return dict(class_names=names, num_classes=count or len(names))


def embedded(kind, make, facts):
    def maker(root, broken):
        config = dict(kind=kind, split="test", length=4, size=32)
        known = facts | dict(size=(32, 32))
        return Case(config, [make(0, "test", i, size=32) for i in range(4)], known)

    return maker


def arrays(root, broken):
    boxes = COCO_BOXES["boxes"] + COCO_BOXES["boxes"][:1]
    box_labels = COCO_BOXES["box_labels"] + COCO_BOXES["box_labels"][:1]
    source = ArraySource(PICTURES[:4], LABELS[:4], TRUTH[:4], boxes, box_labels)
    known = labelled(None, 3) | masked() | dict(size=(6, 8), has_boxes=True, num_box_classes=2)
    columns = dict(label=LABELS[:4], mask=TRUTH, boxes=boxes, box_labels=box_labels)
    return Case(source, records(4, **{k: v[:4] for k, v in columns.items()}), known)


def called(root, broken):
    config = dict(kind="python:tests.data.sets.pairs", dir="broken" * broken)
    return Case(config, records(4, label=LABELS[:4]), labelled(Pairs.classes))


def folder_of_classes(root, broken):
    put_images(
        root, ("train/a/x.PNG", "train/a/z.jpg", "train/b/1.webp", "train/c/d/e.Jpeg"), broken
    )
    facts = labelled(("a", "b", "c"))
    return Case(dict(kind="folder", dir=root), records(4, label=[0, 0, 1, 2]), facts)


def folder_with_masks(root, broken):
    put_images(root / "images", [f"{n}.jpg" for n in "abcd"], broken)
    for i, n in enumerate("abcd"):
        put(root / "masks" / f"{n}.png", png(TRUTH[i]))
    return Case(dict(kind="folder", dir=root, masks="masks"), records(4, mask=TRUTH[:4]), masked())


def folder_with_boxes(root, broken):
    put_images(root / "train", ("n1/n1_5.JPEG", "n1/n1_6.JPEG", "n2/n2_7.JPEG"), broken)
    put(root / "boxes/train/n1/n1_5.xml", xml((6, 8), [("n1", (0, 0, 4, 8)), ("n1", (4, 4, 6, 8))]))
    put(root / "boxes/train/n2/n2_7.xml", xml((6, 8), [("n2", (2, 2, 4, 4))]))
    boxes = boxes_of([(0, 0, 4, 8, 0), (4, 4, 2, 4, 0)], [], [(2, 2, 2, 2, 1)])
    facts = labelled(("n1", "n2")) | boxed(("n1", "n2"))
    config = dict(kind="folder", dir=root, boxes="boxes")
    return Case(config, records(3, label=[0, 0, 1], **boxes), facts)


def csv(root, broken):
    put_images(root / "jpg", [f"{i}.png" for i in range(4)], broken)
    lines = ["file_name,Label,other,Mask"]
    for i, name in enumerate(("oak", "ash", "oak", "elm")):
        put(root / "seg" / f"{i}.png", png(TRUTH[i]))
        lines.append(f"jpg/{i}.png,{name},{i % 2},seg/{i}.png")
    put(root / "set.csv", "\ufeff" + "\n".join(lines) + "\n")
    facts = labelled(("ash", "elm", "oak")) | masked()
    config = dict(kind="csv", dir=root)
    return Case(config, records(4, label=[2, 0, 2, 1], mask=TRUTH[:4]), facts)


def webdataset(root, broken):
    put_images(root, [f"x{i}" for i in range(4)], broken)
    for part, rows in enumerate(((0, 1, 2), (3,))):
        members = {}
        for i in rows:
            fields = {"label": "xyz"[LABELS[i]], "other": i % 2}
            members[f"{i:03}.png"] = (root / f"x{i}").read_bytes()
            members |= {f"{i:03}.json": json.dumps(fields), f"{i:03}.seg.png": png(TRUTH[i])}
        shard(root / f"set-{part:04}.tar", members)
    facts = labelled(("x", "y", "z")) | masked()
    config = dict(kind="webdataset", dir=root)
    return Case(config, records(4, label=LABELS[:4], mask=TRUTH[:4]), facts)


def table(rows, broken=False, **columns):
    """As `Dataset.to_parquet` writes it. columns: others, or other values of the usual ones."""
    contents = [png(PICTURES[i])[: 60 if broken and i == rows[-1] else None] for i in rows]
    names = [["angular leaf spot", "bean rust", "healthy"], ["0", "1"]]
    columns = {
        "image": [{"bytes": content, "path": f"{i}.png"} for i, content in zip(rows, contents)],
        "labels": [int(LABELS[i]) for i in rows],
        "other": [i % 2 for i in rows],
        "annotation": [{"bytes": png(TRUTH[i]), "path": ""} for i in rows],
    } | columns
    features = {"image": {"_type": "Image"}}
    features |= {n: dict(names=v, _type="ClassLabel") for n, v in zip(("labels", "other"), names)}
    info = json.dumps({"info": {"features": features}})
    kept = {name: values for name, values in columns.items() if values is not None}
    return pa.table(kept).replace_schema_metadata({"huggingface": info})


def parquet(path, rows, broken=False, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(rows, broken, **columns), path, row_group_size=2)


def arrow(folder, *tables):
    """As `Dataset.save_to_disk` writes it."""
    folder.mkdir(parents=True)
    files = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
    for name, one in zip(files, tables):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, one.schema) as w:
            w.write_table(one, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in files]}
    (folder / "state.json").write_text(json.dumps(state))


def huggingface(root, broken):
    parquet(root / "data" / "train-00000-of-00002.parquet", range(3))
    parquet(root / "data" / "train-00001-of-00002-1a2b3c.parquet", range(3, 4), broken)
    parquet(root / "data" / "validation-00000-of-00001.parquet", range(4, 6))
    facts = labelled(("angular leaf spot", "bean rust", "healthy")) | masked()
    config = dict(kind="huggingface", dir=str(root))
    return Case(config, records(4, label=LABELS[:4], mask=TRUTH[:4]), facts)


def huggingface_arrow(root, broken):
    case = huggingface(root / "unused", broken)
    arrow(root / "saved" / "train", table(range(3)), table(range(3, 4), broken))
    case.config["dir"] = str(root / "saved")
    return case


def tfds(root, broken):
    relative = [[[0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1]], [], [[0, 0.25, 1, 1]], [[0, 0, 1, 1]]]
    box_labels = [[2, 0], [], [1], [0]]
    write_tfds(
        *(root, "tiny_shapes", {"train": range(4), "test": [2, 3]}),
        **dict(file_name="pic_{}.png", boxes=relative, box_labels=box_labels, broken=broken),
    )
    # (ymin, xmin, ymax, xmax) of 8 x 8 pixels
    pixels = ([[2, 0, 4, 4], [4, 4, 4, 4]], np.zeros((0, 4)), [[0, 2, 8, 6]], [[0, 0, 8, 8]])
    rows = zip(IMAGES, LABELS, MASKS, pixels, box_labels)
    keys = ("image", "label", "mask", "boxes", "box_labels")
    facts = labelled(("0", "1", "2")) | masked() | dict(size=(8, 8))
    facts |= boxed(("red", "white", "platelet"))
    config = dict(kind="tfds", name="tiny_shapes", dir=root)
    return Case(config, [dict(zip(keys, row)) for row in rows], facts)


def voc(root, broken):
    """VOCtrainval_11-May-2012.tar and SegmentationClassAug with DeepLab's list of paths."""
    place, ids = root / "VOCdevkit" / "VOC2012", ("2007_000032", "2007_000033", "2008_000002")
    put_images(place / "JPEGImages", [f"{ids[i]}.jpg" for i in (0, 1)], broken)
    put(place / "JPEGImages" / f"{ids[2]}.jpg", png(PICTURES[2]))
    masks = [columns_of(0, 1, 20, 255), columns_of(0, 5)]
    (place / "SegmentationClass").mkdir()
    for name, mask in zip(ids, masks):
        palette(mask).save(place / "SegmentationClass" / f"{name}.png")
    put(place / "SegmentationClassAug" / f"{ids[0]}.png", png(columns_of(0, 1, 20, 20)))
    put(place / "SegmentationClassAug" / f"{ids[2]}.png", png(columns_of(15)))
    aug = [f"/JPEGImages/{n}.jpg /SegmentationClassAug/{n}.png\n" for n in (ids[0], ids[2])]
    lists = dict(train=f"{ids[0]}\n{ids[1]}\n", val=f"{ids[1]}\n", train_aug="".join(aug))
    for split, text in lists.items():
        put(place / "ImageSets" / "Segmentation" / f"{split}.txt", text)
    objects = [("aeroplane", (1, 1, 6, 8)), ("tvmonitor", (2, 3, 4, 4))]
    put(place / "Annotations" / f"{ids[0]}.xml", xml((6, 8), objects))
    put(place / "Annotations" / f"{ids[1]}.xml", xml((6, 8), []))
    boxes = boxes_of([(0, 0, 6, 8, 0), (1, 2, 3, 2, 19)], [])
    facts = masked(names.VOC) | boxed(names.VOC[1:])
    return Case(dict(kind="voc", dir=place), records(2, mask=masks, **boxes), facts)


def pascal_context(root, broken):
    """As mmsegmentation's converter writes VOC2010."""
    place, ids = root / "VOC2010", ("2008_000002", "2008_000003")
    put_images(place / "JPEGImages", [f"{name}.jpg" for name in ids], broken)
    masks = [columns_of(0, 1, 59), columns_of(7)]
    for name, mask in zip(ids, masks):
        put(place / "SegmentationClassContext" / f"{name}.png", png(mask))
    for split, chosen in dict(train=ids, val=ids[1:]).items():
        put(place / "ImageSets/SegmentationContext" / f"{split}.txt", "\n".join(chosen) + "\n")
    facts = masked(names.PASCAL_CONTEXT)
    return Case(dict(kind="pascal_context", dir=root), records(2, mask=masks), facts)


def ade20k(root, broken):
    """ADEChallengeData2016.zip."""
    place = root / "ADEChallengeData2016"
    for split, short, count in (("training", "train", 2), ("validation", "val", 1)):
        files = [f"ADE_{short}_0000000{i}" for i in range(count)]
        put_images(place / "images" / split, [f"{name}.jpg" for name in files], broken)
        for name in files:
            put(place / "annotations" / split / f"{name}.png", png(columns_of(0, 1, 150)))
    masks = [columns_of(255, 0, 149)] * 2
    return Case(dict(kind="ade20k", dir=root), records(2, mask=masks), masked(names.ADE20K))


def cityscapes(root, broken):
    """gtFine_trainvaltest.zip and leftImg8bit_trainvaltest.zip."""
    for split, cities in dict(train=("aachen", "zurich"), val=("munster",)).items():
        frames = [f"{split}/{city}/{city}_000000_000019" for city in cities]
        put_images(root / "leftImg8bit", [f"{f}_leftImg8bit.png" for f in frames], broken)
        for frame in frames:
            for what in ("labelIds", "instanceIds", "color"):
                values = (0, 3, 7, 8, 26, 33, 29) if what == "labelIds" else (99,)
                put(root / "gtFine" / f"{frame}_gtFine_{what}.png", png(columns_of(*values)))
    masks = [columns_of(255, 255, 0, 1, 13, 18, 255)] * 2
    config = dict(kind="cityscapes", dir=root)
    return Case(config, records(2, mask=masks), masked(names.CITYSCAPES))


def coco(root, broken):
    """The archives of 2017 in mmsegmentation's places."""
    for split in ("train2017", "val2017"):
        put_images(root / "images" / split, [f"{n}.jpg" for n in "abc"], broken)
        for n in "abc":
            put(root / "annotations" / split / f"{n}.png", png(columns_of(0, 12, 91, 181, 255)))
        put(root / "annotations" / f"instances_{split}.json", json.dumps(coco_json()))
    facts = boxed(COCO_NAMES) | dict(image_ids=(4, 9, 2))
    facts["annotations"] = str(root / "annotations" / "instances_train2017.json")
    expected = records(3, **COCO_BOXES)
    expected[0] |= dict(crowd_boxes=np.array([[0, 0, 6, 8]]), crowd_labels=np.array([0]))
    return Case(dict(kind="coco", dir=root), expected, facts)


def coco_stuff(root, broken):
    coco(root, broken)
    masks = [columns_of(0, 11, 80, 170, 255)] * 3
    return Case(dict(kind="coco_stuff", dir=root), records(3, mask=masks), masked(names.COCO_STUFF))


def davis(root, broken):
    """DAVIS-2017-trainval-480p.zip."""
    place, counts = root / "DAVIS", dict(dogs=2, bear=3, cows=1)
    frames = [(video, i) for video in counts for i in range(counts[video])]
    put_images(place / "JPEGImages/480p", [f"{v}/{i:05d}.jpg" for v, i in frames[:5]], broken)
    put(place / "JPEGImages/480p/cows/00000.jpg", png(PICTURES[5]))
    masks = [columns_of(0, i + 1, 2) for _, i in frames]
    for (video, i), mask in zip(frames, masks):
        put(place / "Annotations/480p" / video / f"{i:05d}.png", b"")
        palette(mask).save(place / "Annotations/480p" / video / f"{i:05d}.png")
    pair = "/JPEGImages/480p/bear/{0}.jpg /Annotations/480p/bear/{0}.png\n"
    lists = {"2017/train": "cows", "2017/val": "dogs\nbear\n", "2016/val": "bear\n"}
    lists["480p/val"] = pair.format("00000") + pair.format("00001")
    for split, text in lists.items():
        put(place / "ImageSets" / f"{split}.txt", text)
    videos_of, numbers = zip(*frames[:5])
    facts = masked() | dict(sequences={"dogs": range(2), "bear": range(2, 5)})
    columns = dict(mask=masks[:5], sequence=videos_of, frame=numbers)
    return Case(dict(kind="davis", dir=root, split="val"), records(5, **columns), facts)


COLLAGES = masked(photos.CLASS_NAMES) | boxed(photos.CLASS_NAMES)
MOVING = masked(videos.MASK_NAMES) | dict(sequences={})
MAKERS = {
    "photos": embedded("photos", photos.photos, labelled(photos.CLASS_NAMES)),
    "photo_collages": embedded("photo_collages", photos.photo_collages, COLLAGES),
    "moving_shapes": embedded("moving_shapes", videos.moving_shapes, MOVING),
    "arrays": arrays,
    "python": called,
    "folder of classes": folder_of_classes,
    "folder with masks": folder_with_masks,
    "folder with boxes": folder_with_boxes,
    "csv": csv,
    "webdataset": webdataset,
    "huggingface": huggingface,
    "huggingface arrow": huggingface_arrow,
    "tfds": tfds,
    **{make.__name__: make for make in (voc, pascal_context, ade20k, cityscapes, coco)},
    **{make.__name__: make for make in (coco_stuff, davis)},
}
