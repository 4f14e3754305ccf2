"""Known data sets in the folders that their official downloads unpack to.

    kind            folder `data.dir`, its parts                                          splits
    voc             VOC2012: JPEGImages, SegmentationClass(Aug), ImageSets, Annotations   train, val
    pascal_context  VOC2010: JPEGImages, SegmentationClassContext, ImageSets              train, val
    ade20k          ADEChallengeData2016: images, annotations                             train, val
    cityscapes      leftImg8bit, gtFine                                                   train, val
    coco            train2017, val2017 (or images/...), annotations/instances_*.json      train, val
    coco_stuff      train2017, val2017 (or images/...), annotations or stuffthingmaps     train, val
    davis           JPEGImages, Annotations, ImageSets                                    2017/val

A parent folder (VOCdevkit) is as good. Splits of `voc`, `pascal_context` and `davis` are the names
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
    paths = _existing(root / "JPEGImages", ids, ".jpg")
    # VOC's own masks where there are some: those of the larger set have no ignored borders.
    places = [root / "SegmentationClass", root / "SegmentationClassAug"]
    masks = [_first(places, f"{name}.png") for name in ids]
    hint = f"they belong in {places[0]} or {places[1].name}"
    listing.refuse_missing("data.dir", "mask", paths, masks, hint)
    found = dict(root=root / "JPEGImages", paths=paths, masks=masks, names=names.VOC)
    if (root / "Annotations").is_dir():
        objects = names.VOC[1:]
        reader, _ = folder.xml_boxes(root / "Annotations", paths, objects, first_pixel=1)
        found |= dict(boxes=reader, box_names=objects)
    return found


def _pascal_context(root, split, raw):
    del raw
    root = _root(root, "SegmentationClassContext", "VOC2010")
    ids = _listed_ids(root / "ImageSets" / "SegmentationContext", split)
    paths = _existing(root / "JPEGImages", ids, ".jpg")
    masks = folder.mask_files(root / "SegmentationClassContext", paths)
    return dict(root=root / "JPEGImages", paths=paths, masks=masks, names=names.PASCAL_CONTEXT)


def _ade20k(root, split, raw):
    root = _root(root, "annotations", "ADEChallengeData2016")
    split = _LONG.get(split, split)
    found = _images(_split_folder(root / "images", split))
    found["masks"] = folder.mask_files(root / "annotations" / split, found["paths"])
    own = ("unlabelled", *names.ADE20K)
    return found | (dict(names=own) if raw else _mapped(names.ADE20K, _ADE20K))


def _cityscapes(root, split, raw):
    root = _root(root, "leftImg8bit", "cityscapes")
    found = _images(_split_folder(root / "leftImg8bit", split))
    end = "_leftImg8bit"
    found["paths"] = [path for path in found["paths"] if listing.stem(path).endswith(end)]
    pairs = [path.replace(end, "_gtFine_labelIds") for path in found["paths"]]
    found["masks"] = folder.mask_files(root / "gtFine" / split, pairs)
    raws = dict(names=names.CITYSCAPES_RAW)
    return found | (raws if raw else _mapped(names.CITYSCAPES, _CITYSCAPES))


def _coco_stuff(root, split, raw):
    root = _root(root, "annotations", "coco", marks=("stuffthingmaps",))
    images = _year(root, split)
    found, year = _images(images), images.name
    places = [root / part / year for part in ("annotations", "stuffthingmaps")]
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        raise InputError(f"data.dir: neither {places[0]} nor {places[1]} is a folder of masks")
    # mmsegmentation keeps its 171 classes in files beside the 182 values of the download.
    ready = (place / f"{listing.stem(found['paths'][0])}_labelTrainIds.png").is_file()
    if ready and not raw:
        found["masks"] = folder.mask_files(place, found["paths"], "_labelTrainIds")
        return found | dict(names=names.COCO_STUFF)
    found["masks"] = folder.mask_files(place, found["paths"])
    return found | (dict(names=None) if raw else _mapped(names.COCO_STUFF, _COCO_STUFF))


def _coco(section, split):
    """COCO detection: the images that the JSON file lists; crowds are no boxes. Knows `image_ids`
    and `annotations`, the JSON file itself, for evaluators."""
    root = _root(local(section["dir"]), "annotations", "coco")
    images = _year(root, split)
    path = root / "annotations" / f"instances_{images.name}.json"
    content = boxes_lib.read_coco(path)
    there = set(listing.files_below(images, folder.EXTENSIONS))
    found = [file if file in there else None for file in content.files]
    hint = f"{path.name} lists them"
    listing.refuse_missing("data.dir", f"file in {images}", content.files, found, hint)
    source = Files(
        f"coco/{split}",
        images,
        content.files,
        boxes=boxes_lib.TableBoxes(content.corners, content.labels, content.sizes),
        box_names=content.names,
    )
    source.image_ids, source.annotations = content.ids, str(path)
    return source


def _davis(section, split):
    """DAVIS 2016 and 2017: sequences of frames. Split "2016/val" or "2017/val" ("val") is a list of
    ImageSets; in that of 2016 all objects are one (1)."""
    root = _root(local(section["dir"]), "JPEGImages", "DAVIS")
    wanted = split if "/" in split else f"2017/{split}"
    year = wanted.split("/")[0]
    lists = root / "ImageSets" / year
    if not lists.is_dir():
        years = listing.subfolders(root / "ImageSets") if (root / "ImageSets").is_dir() else []
        raise InputError(
            f"data.split: no lists of {year!r} in {root / 'ImageSets'}, which has {listed(years)};"
            ' write "2017/val"'
        )
    videos = _listed_ids(lists, wanted.split("/", 1)[1], column_part=-2)
    parts = [_resolution(root / part) for part in ("JPEGImages", "Annotations")]
    paths, masks, sequences = [], [], {}
    for video in videos:
        if not (parts[0] / video).is_dir():
            raise InputError(f"data.dir: {parts[0]} has no sequence {video!r}, which {lists} lists")
        frames = [f"{video}/{name}" for name in listing.files_below(parts[0] / video, (".jpg",))]
        sequences[video] = range(len(paths), len(paths) + len(frames))
        paths += frames
        # Only the first frame of the test sequences is annotated.
        masks += [_first([parts[1]], f"{listing.stem(path)}.png") for path in frames]
    single = year in ("2016", "480p")  # the lists of the first release lie in 480p
    table = classes.table({0: 0, **dict.fromkeys(range(1, 256), 1)}) if single else classes.table()
    return Files(
        f"davis/{wanted}",
        parts[0],
        paths,
        masks=masks,
        table=table,
        mask_names=("background", "object") if single else None,
        sequences=sequences,
    )


def _mapped(own, class_map):
    """Names and table of a set whose files hold other numbers than its classes."""
    return dict(names=own, before=classes.table(class_map, num_classes=len(own)))


def _root(root, mark, inner, marks=()):
    """The folder with the subfolder `mark` (or one of `marks`): root, or what its parents are
    usually called."""
    wanted = (mark, *marks)
    for place in (root, root / inner, root / "VOCdevkit" / inner):
        if any((place / one).is_dir() for one in wanted):
            return place
    what = "has" if root.is_dir() else "does not exist and has"
    raise InputError(
        f"data.dir: {root} {what} no folder {' or '.join(wanted)}; give the folder"
        f" {inner} that the download unpacks to"
    )


def _split_folder(root, split):
    if (root / split).is_dir():
        return root / split
    there = listing.subfolders(root) if root.is_dir() else []
    short = {long: name for name, long in _LONG.items()}
    there = [short.get(name, name) for name in there]
    raise InputError(f"data.split: {root} has no {split!r}; splits: {listed(there)}")


def _year(root, split):
    """The folder of a split of COCO's images: train2017 for "train"."""
    places = [base / name for base in (root, root / "images") for name in (split, f"{split}2017")]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise InputError(
            f"data.split: no images of {split!r} in {root}: neither {split}2017 nor"
            f" images/{split}2017 exists"
        )
    return found


def _images(place):
    """{root, paths} of all images in a folder."""
    paths = listing.files_below(place, folder.EXTENSIONS)
    if not paths:
        raise InputError(f"data.dir: no images in or below {place}")
    return dict(root=place, paths=paths)


def _existing(place, ids, extension):
    """File names of images by their ids. InputError naming those that do not exist."""
    there = set(os.listdir(place)) if place.is_dir() else set()
    files = [f"{name}{extension}" for name in ids]
    found = [name if name in there else None for name in files]
    listing.refuse_missing("data.dir", f"file in {place}", files, found, "the list names them")
    return files


def _first(places, name):
    """Path of the first folder's file of that name, None if none has it."""
    paths = (os.path.join(place, name) for place in places)
    return next((path for path in paths if os.path.isfile(path)), None)


def _resolution(place):
    """480p, or the only other resolution."""
    found = listing.subfolders(place) if place.is_dir() else []
    if "480p" not in found and len(found) != 1:
        raise InputError(f"data.dir: {place} needs a folder 480p, it has {listed(found)}")
    return place / ("480p" if "480p" in found else found[0])


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


def _register(kind, opened, has, keys, slices=True):
    required = {"dir": "the folder of the download"}
    splits = ("train", "val")
    kinds.register(
        kind,
        opened,
        parts=lambda section: splits,
        keys=("dir", *keys),
        has=has,
        required=required,
        slices=slices,
    )


for _kind, _find in dict(
    voc=_voc,
    pascal_context=_pascal_context,
    ade20k=_ade20k,
    cityscapes=_cityscapes,
    coco_stuff=_coco_stuff,
).items():
    _has = ("masks", "boxes") if _kind == "voc" else ("masks",)
    _register(_kind, _segmented(_kind, _find), _has, ("list", "raw_labels", *classes.KEYS))
_register("coco", _coco, ("boxes",), ("list",))
_register("davis", _davis, ("masks", "sequences"), (), slices=False)
