"""A folder of images as a source, with folders of masks and boxes next to it."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from ssl_jax.config import InputError, local
from ssl_jax.data import bands as bands_lib
from ssl_jax.data import boxes as boxes_lib
from ssl_jax.data import classes, decode, kinds, listing
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.files import Files
from ssl_jax.data.lookup import listed
from ssl_jax.data.stored import ReadsBoxes

# In capitals as well. A GIF is an animation or a drawing more often than a photograph.
EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
MASKS = (".bmp", ".gif", ".png", ".tif", ".tiff")  # a GIF is refused with its reason
_BESIDE = ("masks", "mask_suffix", "boxes")  # keys that say what lies beside the images
BESIDE = ("masks", "annotations")  # folders of masks that are found without being named
_IN_MASKS = re.compile(r"(?:^|/)(?:masks?|annotations?)/[^/]*$", re.IGNORECASE)
_FIRST = 100  # XML files that tell whether boxes have the classes of the images
_ACCEPTED = ", ".join(EXTENSIONS)
# What other kinds of data.kind read.
OTHERS = {".csv": "csv", ".tsv": "csv", ".tar": "webdataset", ".parquet": "huggingface"}
OTHERS |= {".arrow": "huggingface"}


class Folder(Files):
    """All JPEG, PNG, WebP, TIFF and BMP files below a folder, in the sorted order of their relative
    paths; where the section declares `channels`, all TIFF and .npy files, see `bands`.

    The order is that of plain strings: "10.png" comes before "9.png", so number with leading zeros.
    If `root/split` is a folder, the images are taken from it; so are those of "Training" or "TRAIN"
    for "train", see `listing.alike`. Without one, "train" means the whole folder, unless that has
    folders of other parts; any other split is an error, because scores on training images would
    pass for test scores. To hold out a part use slices: "train[:90%]", "train[90%:]", see
    `subset.sliced`. With masks or boxes, the images may lie in root/images (root/images/split,
    root/split/images) instead; without root/split also if there are none. A folder that contains
    only one folder of parts counts as that.

    Masks are found automatically: if root/masks or root/annotations exists, the images are those of
    root/images, and if one of the two folders has a mask for each image, it is used and named in
    `repr`. Folders that lack a mask, or hold colours instead of class numbers, are ignored; name
    the folder in the section, and the error gives the reason.

    Labels: if most images are in subfolders, and there are at least two, the first-level folders,
    sorted, are the classes (deeper levels do not count); images next to them have no label.
    Otherwise there are no labels.

    Masks and boxes: files with the stem of the image, at the same relative path or elsewhere below
    their folder. Every image needs a mask; an image without an XML file has no boxes.

    Hidden files and folders are left out; links to folders are followed. Images in folders called
    "masks" or "annotations" are left out if an image with the same stem is next to that folder or
    in a folder "images" next to it. `left_out` counts these, counts all files that are no images,
    and names image folders next to that of the split.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        section: kinds.Section = MappingProxyType({}),
    ):
        """
        Args:
          section: some keys of a section `data`:
            masks: folder of masks, below `root` or an absolute path; may have splits as the images
              have. "": masks are found automatically.
            mask_suffix: end of a mask's name after the stem of its image.
            boxes: folder of XML files (VOC, ILSVRC), likewise, or a COCO JSON file, in whose name
              "{split}" stands for the split's folder. "": none.
            class_names: file with the class names of masks and of boxes in XML files (by default
              those of the labels, or all names in the files). The others: see `classes.of_masks`.

        Raises:
          InputError: the folder or the split does not exist or holds no image; masks are missing or
            of the wrong kind.
        """
        masks, mask_suffix, boxes = (section.get(key, "") for key in _BESIDE)
        bands = bands_lib.of_section(section)
        root = _unpacked(local(root))
        beside = listing.place(root, "images", split)
        places = _mask_places(root, split) if beside and not (masks or boxes) else []
        if not (masks or boxes or places or _in_images_alone(root, split, beside)):
            beside = None
        folder = beside or _folder_of_split(root, split)
        beside_images = _found_beside(folder, places, mask_suffix, bands) if places else None
        mask_folder = _beside("masks", root, masks, split) if masks else beside_images
        others: Counter = Counter()
        paths = listing.files_below(folder, _extensions(bands), others)
        if mask_folder is not None and mask_folder.is_relative_to(folder):
            inside = mask_folder.relative_to(folder).parts
            paths = [p for p in paths if PurePosixPath(p).parts[: len(inside)] != inside]
        masks_among = _masks_among(paths)
        paths = [path for path in paths if path not in masks_among]
        if not paths:
            there = f" (found: {listing.counted(others)})" if others else ""
            kind = next((kind for end, kind in OTHERS.items() if end in others), "")
            hint = f"; data.kind={kind} reads them" if kind else ""
            hint = "; data.channels=C reads .npy files of C channels" if ".npy" in others else hint
            raise InputError(
                f"data.dir: no images in or below {folder}{there}{hint}; accepted extensions:"
                f" {', '.join(_extensions(bands))}"
            )
        label_names, labels = _folder_classes(paths)
        facts: dict[str, Any] = dict(labels=labels, class_names=label_names)
        if boxes:
            names = classes.given(section), label_names
            part = folder.name if listing.alike(split, [folder.name]) else split
            facts["boxes"], facts["box_names"] = _boxes(root, boxes, part, paths, *names)
        if mask_folder is not None:
            facts |= classes.of_masks(section)
            facts["masks"] = mask_files(mask_folder, paths, mask_suffix)
        about = [f"masks from {str(beside_images)!r}"] if beside_images is not None else []
        super().__init__("Folder", folder, paths, about=about, bands=bands, **facts)
        left_out = [f"{listing.counted(others)} in {folder} (not read)"] if others else []
        if masks_among:
            left_out.append(f"{len(masks_among)} masks, such as {min(masks_among)}")
        if unused := _unused(root, folder, {masks, boxes}):
            left_out.append(f"the images of {listed(unused)} next to {folder}")
        self.left_out = "; ".join(left_out)


def mask_files(folder: Path, paths: Sequence[str], suffix: str = "") -> list[str]:
    """Path of the mask of each image. Raises InputError naming images that have none."""
    files = listing.matched(paths, listing.files_below(folder, MASKS), suffix)
    example = listing.stem(paths[0]) + suffix + ".png"
    hint = f"{paths[0]} needs {example} below {folder}; see data.masks and data.mask_suffix"
    listing.refuse_missing("data.masks", "mask", paths, files, hint)
    return [os.path.join(folder, path) for path in files if path is not None]


def xml_boxes(
    folder: Path,
    paths: Sequence[str],
    names: Sequence[str] | None,
    first_pixel: int = 0,
    likely: Sequence[str] | None = None,
) -> tuple[ReadsBoxes, Sequence[str]]:
    """Reader of the XML files that belong to images, and the names of its classes: `names`, or
    `likely` if the first files have no other class, or all that are in the files. Raises InputError
    if no file belongs to an image."""
    matches = listing.matched(paths, listing.files_below(folder, (".xml",)))
    files = [None if path is None else os.path.join(folder, path) for path in matches]
    if not any(files):
        raise InputError(
            f"data.boxes: no image has an XML file in or below {folder}; {paths[0]} would have"
            f" {listing.stem(paths[0])}.xml"
        )
    there = [path for path in files if path is not None]
    if not names and likely and set(_named_in(there[:_FIRST])) <= set(likely):
        names = likely
    names = names or _named_in(there)
    return boxes_lib.XmlBoxes(files, names, first_pixel), names


def _named_in(files):
    """Sorted names of all classes in XML files."""
    try:
        return tuple(sorted({name for path in files for name, _ in boxes_lib.parse_xml(path)[2]}))
    except Unreadable as error:
        raise InputError(f"data.boxes: {error}") from error


def _boxes(root, where, split, paths, names, likely):
    """(reader, class names) of the boxes in a folder of XML files or a COCO JSON file. names,
    likely: see `xml_boxes`."""
    if not where.endswith(".json"):
        return xml_boxes(_beside("boxes", root, where, split), paths, names, likely=likely)
    content = boxes_lib.read_coco(root / local(where.replace("{split}", split)))
    files = list(map(listing.composed, content.files))
    stems = list(map(listing.stem, files))
    count = Counter(stems)
    # The extension may differ, unless two images differ in nothing else.
    number = {stem: i for i, stem in enumerate(stems) if count[stem] == 1}
    number |= {file: i for i, file in enumerate(files)}
    named = map(listing.composed, paths)
    order = [number.get(path, number.get(listing.stem(path))) for path in named]
    listing.refuse_missing("data.boxes", f"entry in {where}", paths, order, "it must list them all")
    every: tuple[Any, ...] = (content.corners, content.labels, content.sizes, content.crowds)
    mine = ([values[i] for i in order if i is not None] for values in every)
    return boxes_lib.TableBoxes(*mine), content.names


def _beside(key, root, where, split):
    """The folder of masks or boxes: its part for the split, or the whole."""
    where = str(local(where))
    folder = listing.place(root, where, split) or root / where
    if not folder.is_dir():
        raise InputError(
            f"data.{key}: {folder} is not a folder; give one below {root}, or an absolute path"
        )
    return folder


def parts(section: kinds.Section) -> list[str]:
    """Names of the subfolders that can be a split."""
    root = _unpacked(local(section["dir"]))
    images = listing.below(root, "images")
    # Masks or boxes lie in other folders, so that root/images may hold the splits.
    divided = any(section.get(key) for key in ("masks", "boxes"))
    divided |= any(listing.below(root, name) for name in BESIDE)
    inside = listing.subfolders(images) if images else []
    inner = [name for name in inside if divided or listing.is_part(name)]
    return sorted({*listing.subfolders(root), *inner})


def _in_images_alone(root, split, beside):
    """Whether the split is a folder in root/images, as YOLO has it, and none in `root`."""
    inside = beside is not None and beside != listing.below(root, "images")
    return inside and not listing.below(root, split)


def _masks_among(paths):
    """Those of the images that are masks of others, see `Folder`."""
    candidates = [path for path in paths if _IN_MASKS.search(path)]
    stems = set(map(listing.stem, paths)) if candidates else set()
    found = set()
    for path in candidates:
        *above, _, name = listing.stem(path).split("/")
        if any("/".join((*place, name)) in stems for place in (above, [*above, "images"])):
            found.add(path)
    return found


def _mask_places(root, split):
    """Folders beside root/images that may hold its masks."""
    return [place for name in BESIDE if (place := listing.place(root, name, split)) is not None]


def _found_beside(images, places, suffix, bands):
    """The folder that has a mask for each image; None if there is not exactly one."""
    paths = listing.files_below(images, _extensions(bands))
    fitting = [place for place in places if _fits(images, place, paths, suffix, bands)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(images, folder, paths, suffix, bands):
    """Whether a folder has a mask for each image, the first of them with numbers of classes."""
    masks = listing.matched(paths, listing.files_below(folder, MASKS), suffix)
    if not masks or masks[0] is None or None in masks:
        return False
    try:
        first = os.path.join(images, paths[0])
        header = decode.image_header
        shape, turn = (bands_lib.header(first, bands), None) if bands else header(first)
        path = os.path.join(folder, masks[0])
        return decode.decode_mask(path, turn=turn, shape=shape).shape == shape
    except Unreadable:
        return masks[0].lower().endswith(".gif")  # which the set then refuses with its reason


def _extensions(bands):
    """Of the files that are images."""
    return EXTENSIONS if bands is None else bands_lib.EXTENSIONS


def _folder_of_split(root, split):
    """root/split if there is one, root for "train" otherwise."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"data.dir: {root} {what}; give a folder of images ({_ACCEPTED})")
    names = listing.subfolders(root)
    if part := listing.below(root, split, names):
        return part
    held_out = [name for name in names if listing.is_part(name) and _holds_images(root / name)]
    if split == "train" and held_out:
        raise InputError(
            f"data.split: {root} has the part {listed(held_out)} but no folder train; move the"
            f" training images to {root / 'train'}, or set data.split={held_out[0]}"
        )
    if split == "train":
        return root
    raise InputError(
        f"data.split: {root} has no subfolder {split!r}; subfolders: {listed(names)}; to hold out"
        ' a part, use a slice such as "train[90%:]"'
    )


def _unpacked(root: Path) -> Path:
    """The only folder in `root` where that has the parts, as some archives unpack; else `root`."""
    names = listing.subfolders(root) if root.is_dir() else []
    if len(names) != 1 or listing.is_part(names[0]):
        return root
    inner = root / names[0]
    return inner if any(map(listing.is_part, listing.subfolders(inner))) else root


def _holds_images(folder):
    """Whether there is an image in or below a folder."""
    return any(name.lower().endswith(EXTENSIONS) for *_, files in os.walk(folder) for name in files)


def _unused(root, folder, named):
    """Names of folders with images beside that of a split that are no other part, and no masks."""
    if folder.parent != root or not listing.is_part(folder.name):
        return []
    others = [name for name in listing.subfolders(root) if not listing.is_part(name)]
    others = [name for name in others if not listing.alike(name, ("images", *BESIDE))]
    return [name for name in others if name not in named and _holds_images(root / name)]


def _folder_classes(paths):
    """(sorted first-level folders, int32 [N] labels, -1 for images at the top); (None, None) where
    half of the images and more are at the top, or with a single folder.
    """
    tops = [path.split("/", 1)[0] if "/" in path else None for path in paths]
    names = sorted({top for top in tops if top is not None})
    if 2 * tops.count(None) >= len(tops) or len(names) < 2:
        return None, None
    number = {None: -1} | {name: i for i, name in enumerate(names)}
    return tuple(map(listing.readable, names)), np.array([number[top] for top in tops], np.int32)


def _has(section):
    return ("labels", "masks", *["boxes"] * bool(section["boxes"]))


kinds.register(
    "folder",
    lambda section, split: Folder(section["dir"], split, section),
    parts=parts,
    keys=("dir", "list", *_BESIDE, *kinds.MASK_KEYS, *kinds.FILE_KEYS),
    has=_has,
    classes="names",
    **kinds.FOLDER,
)
