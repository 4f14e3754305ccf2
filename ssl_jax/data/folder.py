"""A folder of images as a source."""

import os
from pathlib import Path

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import decode
from ssl_jax.data.lookup import checked, listed

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")  # in capitals as well
_ACCEPTED = ", ".join(EXTENSIONS)


class Folder:
    """All JPEG, PNG and WebP files below a folder, in the sorted order of their relative paths.

    The order is that of plain strings: "10.png" comes before "9.png", so number with leading zeros.
    If `root/split` is a folder, the images are taken from it. Without one, "train" means the whole
    folder; any other split is an error, because scores on training images would pass for test
    scores.
    Labels: where all images lie in subfolders, at least two of them, the folders of the first
    level, sorted, are the classes (deeper ones do not count); otherwise there are no labels.
    Hidden files and folders are left out; links to folders are followed.
    """

    has_masks = False
    size = None

    def __init__(self, root: str | os.PathLike, split: str = "train"):
        """Raises InputError if the folder or the split does not exist or holds no image."""
        if not root:
            raise InputError("data.dir is empty: give the folder that holds the images")
        self._root = _folder_of_split(Path(root).expanduser(), split)
        self._paths = _image_paths(self._root)
        if not self._paths:
            raise InputError(
                f"data.dir: no image in or below {self._root}; accepted extensions: {_ACCEPTED}"
            )
        self.class_names, self._labels = _folder_classes(self._paths)
        self.num_classes = len(self.class_names) if self.class_names else None

    def __len__(self):
        return len(self._paths)

    def __getitem__(self, i):
        record = {"image": decode.decode_image(self.name(i))}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        return record

    def name(self, i: int) -> str:
        return os.path.join(self._root, self._paths[checked(i, len(self))])

    def __repr__(self):
        return f"Folder({str(self._root)!r}, images={len(self)}, classes={self.num_classes})"


def _folder_of_split(root, split):
    """root/split if there is one, root for "train" otherwise."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"data.dir: {root} {what}; give a folder of images ({_ACCEPTED})")
    if (root / split).is_dir():
        return root / split
    if split == "train":
        return root
    names = sorted(
        path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    raise InputError(f"data.split: {root} has no subfolder {split!r}; subfolders: {listed(names)}")


def _image_paths(root):
    """Sorted relative paths ("/" between parts) of the images below root."""
    paths, visited = [], set()

    def fail(error):
        raise InputError(f"data.dir: cannot list {error.filename}: {error.strerror}") from error

    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        subfolders[:] = (
            [] if real in visited else [name for name in subfolders if not name.startswith(".")]
        )
        files = [] if real in visited else files  # a link back to a parent would never end
        visited.add(real)
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else relative + "/"
        paths += [
            prefix + name
            for name in files
            if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        ]
    return sorted(paths)


def _folder_classes(paths):
    """(sorted first-level folders, int32 [N] labels); (None, None) with images at the top or a
    single folder.
    """
    tops = [path.split("/", 1)[0] if "/" in path else None for path in paths]
    classes = sorted({top for top in tops if top is not None})
    if None in tops or len(classes) < 2:
        return None, None
    number = {name: i for i, name in enumerate(classes)}
    return tuple(classes), np.array([number[top] for top in tops], np.int32)
