"""Writes sets with boxes as launch/detection reads them, a COCO file and a folder of images.

    python -m launch.detection.data set OUT --kind tfds --dir /data/tfds --name bccd --split train
    python -m launch.detection.data uavdt /data/UAVDT OUT

`set` copies a part of any set with boxes that ssl_jax reads: OUT/SPLIT.json, and its images as PNG
in OUT/SPLIT. `uavdt` reads UAVDT's download (M_attr, UAV-benchmark-M, UAV-benchmark-MOTD_v1.0/GT)
and writes OUT/train.json and OUT/test.json, of images that stay in UAV-benchmark-M.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

from PIL import Image

from experiments import runs
from ssl_jax.config import InputError, reading
from ssl_jax.data import source
from ssl_jax.runtime import writing

VEHICLES = ("car", "truck", "bus")  # UAVDT's categories 1, 2, 3


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("set", help="a set that ssl_jax reads")
    one.add_argument("out", type=Path)
    for key in ("kind", "dir", "name", "split"):
        one.add_argument(f"--{key}", default="", help=f"data.{key} of a config")
    one.add_argument("--images", type=int, default=0, help="the first ones alone; 0 = all")
    two = commands.add_parser("uavdt", help="UAVDT's download")
    two.add_argument("folder", type=Path)
    two.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    if args.command == "uavdt":
        for part in ("train", "test"):
            content = uavdt(args.folder, part)
            claim(args.out / f"{part}.json", f"UAVDT in {args.folder.resolve()}")
            _write(args.out / f"{part}.json", content)
        return 0
    keys = {key: getattr(args, key) for key in ("kind", "dir", "name", "split")}
    part = args.split or "train"
    _write(
        args.out / f"{part}.json", copied(source.make_source(keys), args.out / part, args.images)
    )
    return 0


def _write(file: Path, content: dict) -> None:
    writing.replace({file: json.dumps(content).encode()})
    print(f"{file}: {len(content['images'])} images, {len(content['annotations'])} objects")


def claim(file: Path, origin: str) -> None:
    """Notes beside a COCO file of what it and the images in the folder of its name are made.
    Raises InputError if something else is there, or nobody knows what."""
    mark, folder = (file.with_name(f"{file.stem}{end}") for end in (".source.txt", ""))
    before = mark.read_text(encoding="utf-8") if mark.exists() else ""
    there = mark.exists() or file.exists() or (folder.is_dir() and any(folder.iterdir()))
    if there and before != origin:
        of = f"of {before}" if before else f"without a {mark.name} that says of which set"
        raise InputError(f"{file.parent} holds {file.stem} {of}, not {origin}; give another OUT")
    writing.replace({mark: origin.encode()})


def copied(records, folder: Path, count: int = 0) -> dict:
    """COCO's form of a source, whose images are written as PNG; one that is there stays.

    Raises InputError for a source without boxes, and for a folder with images of another one.
    """
    if not records.has_boxes:
        raise InputError(f"{records!r} has no boxes; detectors need a set with boxes")
    classes = records.num_box_classes or 1
    names = records.box_names or [str(c) for c in range(classes)]
    images, annotations = list[dict](), list[dict]()
    claim(folder.with_name(f"{folder.name}.json"), repr(records))
    for i in range(min(len(records), count or len(records))):
        record, file = records[i], folder / f"{i:06}.png"
        if not file.exists():
            with writing.replacing(file) as new:
                Image.fromarray(record["image"]).save(new, "PNG")
        height, width = record["image"].shape[:2]
        images.append(dict(id=i + 1, file_name=file.name, height=height, width=width))
        for boxes, labels, crowd in (
            ("boxes", "box_labels", 0),
            ("crowd_boxes", "crowd_labels", 1),
        ):
            rows = record.get(boxes, ())
            for box, label in zip(rows, record.get(labels, [0] * len(rows))):
                y, x, h, w = map(float, box)
                annotations.append(_object(annotations, i + 1, (x, y, w, h), int(label) + 1, crowd))
    return dict(images=images, annotations=annotations, categories=_categories(names))


def _object(before: list, image: int, box, category: int, crowd: int) -> dict:
    """An annotation of COCO's after others; box: (left, top, width, height)."""
    entry = dict(id=len(before) + 1, image_id=image, category_id=category, bbox=list(box))
    return entry | dict(area=box[2] * box[3], iscrowd=crowd)


def _categories(names) -> list[dict]:
    return [dict(id=number, name=name) for number, name in enumerate(names, 1)]


def uavdt(folder: Path, part: str) -> dict:
    """COCO's form of UAVDT's "train" or "test": frames with a vehicle; ignored areas are crowds.

    Du et al. 2018. A line of Mxxxx_gt_whole.txt and Mxxxx_gt_ignore.txt: frame, target, left, top,
    width, height, out of view, occlusion, category (1 car, 2 truck, 3 bus).

    Raises InputError for a folder or file that is not there, and a line of another form.
    """
    sequences = sorted(x.name[:5] for x in (folder / "M_attr" / part).glob("M????_attr.txt"))
    if not sequences:
        raise InputError(
            f"{folder}/M_attr/{part} names no sequence (Mxxxx_attr.txt); see UAVDT's DET"
        )
    images, annotations = list[dict](), list[dict]()
    for sequence in sequences:
        truth = folder / "UAV-benchmark-MOTD_v1.0" / "GT"
        vehicles = _lines(truth / f"{sequence}_gt_whole.txt")
        ignored = _lines(truth / f"{sequence}_gt_ignore.txt", ignored=True)
        width = height = 0
        for frame in sorted(vehicles):
            name = f"{sequence}/img{frame:06}.jpg"
            if not width:
                width, height = _size(folder / "UAV-benchmark-M" / name)
            number = len(images) + 1
            images.append(dict(id=number, file_name=name, height=height, width=width))
            for crowd, rows in enumerate((vehicles[frame], ignored.get(frame, ()))):
                for box, category in rows:
                    annotations.append(_object(annotations, number, box, category, crowd))
    return dict(images=images, annotations=annotations, categories=_categories(VEHICLES))


def _size(path: Path) -> tuple[int, int]:
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            return image.size
    except OSError as error:
        raise InputError(f"{path} cannot be read, a frame with annotations: {error}") from error


def _lines(path: Path, ignored: bool = False) -> dict[int, list]:
    """{frame: [((left, top, width, height), category)]} of a file; areas to ignore are category 1,
    and a sequence without the file has none."""
    if ignored and not path.exists():
        return {}
    try:
        lines = reading.read_text(path).split()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    found = defaultdict(list)
    for number, line in enumerate(lines, 1):
        if not re.fullmatch(r"-?\d+(,-?\d+){8}", line):
            raise InputError(f"{path}, line {number}: expected nine whole numbers, got {line!r}")
        frame, _, *box, _, _, category = map(int, line.split(","))
        category = 1 if ignored else category
        if category not in (1, 2, 3):
            raise InputError(f"{path}, line {number}: category {category} is none of 1, 2, 3")
        if min(box[2:]) > 0:
            found[frame].append((box, category))
    return found


if __name__ == "__main__":
    runs.start(main)
