"""Known data sets in the folders that their official downloads unpack to.

    kind            folder `data.dir`, its parts                                          splits
    voc             VOC2012: JPEGImages, SegmentationClass(Aug), ImageSets, Annotations   train, val
    pascal_context  VOC2010: JPEGImages, SegmentationClassContext, ImageSets              train, val
    ade20k          ADEChallengeData2016: images, annotations                             train, val
    cityscapes      leftImg8bit, gtFine                                                   train, val
    coco            train2017, val2017 (or images/...), annotations/instances_*.json      train, val
    coco_stuff      train2017, val2017 (or images/...), annotations or stuffthingmaps     train, val
    davis           JPEGImages, Annotations, ImageSets                                    2017/val

A parent folder (VOCdevkit) works too. Splits of `voc`, `pascal_context` and `davis` are the names
of lists in ImageSets: `train_aug` (or `trainaug`) is the larger training set of VOC.
"""

import os
from collections.abc import Callable
from pathlib import Path

from ssl_jax.config import InputError, did_you_mean, local
from ssl_jax.data import boxes as boxes_lib
from ssl_jax.data import classes, folder, kinds, listing, names
from ssl_jax.data.files import Files
from ssl_jax.data.lookup import listed

# Values of the mask files -> classes.
_ADE20K = {0: classes.IGNORE, **{i + 1: i for i in range(len(names.ADE20K))}}
_CITYSCAPES = {
    i: names.CITYSCAPES.index(name) if name in names.CITYSCAPES else classes.IGNORE
    for i, name in enumerate(names.CITYSCAPES_RAW)
}
# COCO numbers 80 things in 1..90 and stuff from 92 on; a mask has that number less one.
_COCO_UNUSED = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)
_COCO_STUFF = {value: i for i, value in enumerate(v for v in range(182) if v not in _COCO_UNUSED)}
_LONG = {"train": "training", "val": "validation"}  # splits of ADE20K


def _segmented(kind: str, find: Callable[[Path, str, bool], dict]) -> Callable:
    """Opens a set whose masks `find` finds: of (folder, split, whether values stay as they are), a
    dict of what `Files` takes, of the `names` of its own classes, and maybe of the table `before`
    that of the section."""

    def opened(section: kinds.Section, split: str) -> Files:
        facts = find(local(section["dir"]), split, section["raw_labels"])
        names, before = facts.pop("names"), facts.pop("before", None)
        return Files(f"{kind}/{split}", **facts, **classes.of_masks(section, names, before))

    return opened


def _voc(root, split, raw):
    del raw  # the values are the classes
    root = _root(root, "JPEGImages", "VOC2012")
    alike = (split, {"train_aug": "trainaug", "trainaug": "train_aug"}.get(split, split))
    ids = _listed_ids(root / "ImageSets" / "Segmentation", *alike)
    paths = [f"{name}.jpg" for name in ids]
    _check_files(root / "JPEGImages", paths, "the list names them")
    # VOC's own masks where there are some: those of the larger set have no ignored borders.
    places = [root / "SegmentationClass", root / "SegmentationClassAug"]
    masks = [_first(places, f"{name}.png") for name in ids]
    hint = f"they belong in {places[0]} or {places[1].name}"
    listing.refuse_missing("data.dir", "mask", paths, masks, hint)
    facts = dict(root=root / "JPEGImages", paths=paths, masks=masks, names=names.VOC)
    if (root / "Annotations").is_dir():
        objects = names.VOC[1:]
        reader, _ = folder.xml_boxes(root / "Annotations", paths, objects, first_pixel=1)
        facts |= dict(boxes=reader, box_names=objects)
    return facts


def _pascal_context(root, split, raw):
    del raw
    root = _root(root, "SegmentationClassContext", "VOC2010")
    ids = _listed_ids(root / "ImageSets" / "SegmentationContext", split)
    paths = [f"{name}.jpg" for name in ids]
    _check_files(root / "JPEGImages", paths, "the list names them")
    masks = folder.mask_files(root / "SegmentationClassContext", paths)
    return dict(root=root / "JPEGImages", paths=paths, masks=masks, names=names.PASCAL_CONTEXT)


def _ade20k(root, split, raw):
    root = _root(root, "annotations", "ADEChallengeData2016")
    split = _LONG.get(split, split)
    facts = _images(_first_folder("split", root / "images" / split))
    facts["masks"] = folder.mask_files(root / "annotations" / split, facts["paths"])
    raws = dict(names=("unlabelled", *names.ADE20K))
    return facts | (raws if raw else _mapped(names.ADE20K, _ADE20K))


def _cityscapes(root, split, raw):
    root = _root(root, "leftImg8bit", "cityscapes")
    facts = _images(_first_folder("split", root / "leftImg8bit" / split))
    end = "_leftImg8bit"
    facts["paths"] = [path for path in facts["paths"] if listing.stem(path).endswith(end)]
    pairs = [path.replace(end, "_gtFine_labelIds") for path in facts["paths"]]
    facts["masks"] = folder.mask_files(root / "gtFine" / split, pairs)
    raws = dict(names=names.CITYSCAPES_RAW)
    return facts | (raws if raw else _mapped(names.CITYSCAPES, _CITYSCAPES))


def _coco_stuff(root, split, raw):
    root = _root(root, "annotations", "coco", marks=("stuffthingmaps",))
    images = _year(root, split)
    facts, year = _images(images), images.name
    place = _first_folder("dir", *(root / x / year for x in ("annotations", "stuffthingmaps")))
    # mmsegmentation keeps its 171 classes in files beside the 182 values of the download.
    ready = (place / f"{listing.stem(facts['paths'][0])}_labelTrainIds.png").is_file()
    if ready and not raw:
        facts["masks"] = folder.mask_files(place, facts["paths"], "_labelTrainIds")
        return facts | dict(names=names.COCO_STUFF)
    facts["masks"] = folder.mask_files(place, facts["paths"])
    return facts | (dict(names=None) if raw else _mapped(names.COCO_STUFF, _COCO_STUFF))


def _coco(section, split):
    """COCO detection: the images that the JSON file lists. Knows `image_ids`
    and `annotations`, the JSON file itself, for evaluators."""
    root = _root(local(section["dir"]), "annotations", "coco")
    images = _year(root, split)
    path = root / "annotations" / f"instances_{images.name}.json"
    content = boxes_lib.read_coco(path)
    _check_files(images, content.files, f"{path.name} lists them")
    source = Files(
        f"coco/{split}",
        images,
        content.files,
        boxes=boxes_lib.TableBoxes(content.corners, content.labels, content.sizes, content.crowds),
        box_names=content.names,
    )
    source.image_ids, source.annotations = content.ids, str(path)
    return source


def _davis(section, split):
    """DAVIS 2016 and 2017: sequences of frames. Split "2016/val" or "2017/val" ("val") is a list of
    ImageSets; in that of 2016 all objects are one (1)."""
    root = _root(local(section["dir"]), "JPEGImages", "DAVIS")
    split = split if "/" in split else f"2017/{split}"
    year, part = split.split("/", 1)
    lists = root / "ImageSets" / year
    if not lists.is_dir():
        years = listing.subfolders(root / "ImageSets") if (root / "ImageSets").is_dir() else []
        raise InputError(
            f"data.split: no lists of {year!r} in {root / 'ImageSets'}, which has {listed(years)};"
            ' write "2017/val"'
        )
    videos = _listed_ids(lists, part, column_part=-2)
    images, annotations = (_resolution(root / name) for name in ("JPEGImages", "Annotations"))
    paths, masks, sequences = list[str](), list[str | None](), dict[str, range]()
    for video in videos:
        if not (images / video).is_dir():
            raise InputError(f"data.dir: {images} has no sequence {video!r}, which {lists} lists")
        frames = [f"{video}/{name}" for name in listing.files_below(images / video, (".jpg",))]
        sequences[video] = range(len(paths), len(paths) + len(frames))
        paths += frames
        # Only the first frame of the test sequences is annotated.
        masks += [_first([annotations], f"{listing.stem(path)}.png") for path in frames]
    single = year in ("2016", "480p")  # the lists of the first release lie in 480p
    table = classes.table({0: 0, **dict.fromkeys(range(1, 256), 1)}) if single else classes.table()
    return Files(
        f"davis/{split}",
        images,
        paths,
        masks=masks,
        table=table,
        mask_names=("background", "object") if single else None,
        sequences=sequences,
    )


def _mapped(names, class_map):
    """Names and table of a set whose files hold other numbers than its classes."""
    return dict(names=names, before=classes.table(class_map, num_classes=len(names)))


def _root(root, mark, inner, marks=()):
    """The folder with the subfolder `mark` (or one of `marks`): root, or what its parents are
    usually called."""
    marks = (mark, *marks)
    for place in (root, root / inner, root / "VOCdevkit" / inner):
        if any((place / name).is_dir() for name in marks):
            return place
    what = "has" if root.is_dir() else "does not exist and has"
    raise InputError(
        f"data.dir: {root} {what} no folder {' or '.join(marks)}; give the folder"
        f" {inner} that the download unpacks to"
    )


def _first_folder(key, *places):
    """The first of the places that is a folder. Raises InputError."""
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        parent = places[0].parent
        there = listed(listing.subfolders(parent)) if parent.is_dir() else "none"
        tried = " or ".join(map(str, places))
        raise InputError(f"data.{key}: no folder {tried}; folders there: {there}")
    return place


def _year(root, split):
    """The folder of a split of COCO's images: train2017 for "train"."""
    bases = (root, root / "images")
    return _first_folder(
        "split", *(base / f"{split}{end}" for base in bases for end in ("", "2017"))
    )


def _images(place):
    """{root, paths} of all images in a folder."""
    paths = listing.files_below(place, folder.EXTENSIONS)
    if not paths:
        raise InputError(f"data.dir: no images in or below {place}")
    return dict(root=place, paths=paths)


def _check_files(place, files, hint):
    """Refuses names of images that are not there. Raises InputError naming them."""
    there = set(listing.files_below(place, folder.EXTENSIONS))
    present = [file if file in there else None for file in files]
    listing.refuse_missing("data.dir", f"file in {place}", files, present, hint)


def _first(places, name):
    """Path of the first folder's file of that name, None if none has it."""
    paths = (os.path.join(place, name) for place in places)
    return next((path for path in paths if os.path.isfile(path)), None)


def _resolution(place):
    """480p, or the only other resolution."""
    there = listing.subfolders(place) if place.is_dir() else []
    if "480p" not in there and len(there) != 1:
        raise InputError(f"data.dir: {place} needs a folder 480p, it has {listed(there)}")
    return place / ("480p" if "480p" in there else there[0])


def _listed_ids(place, *splits, column_part=-1):
    """Names in the first of the lists place/SPLIT.txt that exists, without repetition: of each line
    the first column, of a path in it that part without extension ("/JPEGImages/a.jpg" -> "a")."""
    file = next((place / f"{s}.txt" for s in splits if (place / f"{s}.txt").is_file()), None)
    if file is None:
        there = sorted(path.stem for path in place.glob("*.txt"))
        raise InputError(
            f"data.split: no list {splits[0]}.txt in {place}; splits: {listed(there)}"
            f"{did_you_mean(splits[0], there)}"
        )
    columns = [line.split()[0] for line in listing.lines_of("split", file)]
    parts = [column.strip("/").split("/") for column in columns]
    chosen = (part[column_part] if len(part) > 1 else part[0] for part in parts)
    return list(dict.fromkeys(name.rsplit(".", 1)[0] for name in chosen))


def _register(kind, opened, keys, has, slices=True):
    kinds.register(
        kind,
        opened,
        parts=lambda section: ("train", "val"),
        keys=("dir", *keys),
        has=has,
        required={"dir": "the folder of the download"},
        slices=slices,
    )


for _find in (_voc, _pascal_context, _ade20k, _cityscapes, _coco_stuff):
    _kind = _find.__name__.removeprefix("_")
    _has = ("masks", *["boxes"] * (_find is _voc))
    _register(_kind, _segmented(_kind, _find), ("list", "raw_labels", *kinds.MASK_KEYS), _has)
_register("coco", _coco, ("list",), ("boxes",))
_register("davis", _davis, (), ("masks", "sequences"), slices=False)
