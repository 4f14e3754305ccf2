"""A CSV or TSV file that lists images as a source."""

import csv
import io
import os
from pathlib import Path
from typing import Any

from ssl_jax.config import InputError, local
from ssl_jax.data import bands, classes, kinds, listing
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.files import Files
from ssl_jax.data.labels import numbered
from ssl_jax.data.lookup import listed, named

EXTENSIONS = (".csv", ".tsv")
# What columns are usually called, in small letters.
IMAGES = (
    "path",
    "image",
    "image_path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "img",
    "img_path",
)
LABELS = ("label", "class", "class_name", "label_name", "category", "target")
MASKS = ("mask", "mask_path", "segmentation", "annotation")
SPLITS = ("split", "subset", "set", "partition")
# How programs write that a cell is empty; but a class may be called so.
_MISSING = ("na", "n/a", "<na>", "nan", "none", "null")


class Table(Files):
    """Images that a CSV or TSV file with a header line lists, one a row.

    The columns of paths, labels and masks are those that the section names, or the first with a
    usual name (IMAGES, LABELS, MASKS; any case). Paths are absolute or relative to the folder of
    the file. Labels are strings, numbered in sorted order over all rows of the file, so that its
    parts agree. A column named as one of SPLITS divides the rows; so do files train.csv and val.csv
    in one folder. Otherwise all rows are "train", which can be sliced.
    """

    def __init__(self, section: kinds.Section, split: str):
        """section: the keys that `register` names below; dir is the file, or a folder that holds
        it.

        Raises:
          InputError: naming file and row for a row without a path, or with too few or too many
            cells; file and columns for a column or split that is not there.
        """
        self._list = _file(section["dir"], split)
        columns, rows = _read(self._list)
        column = _columns(section, self._list, columns)
        facts: dict[str, Any] = {}
        labels = _labels(rows, column["labels"])
        indices = _of_split(self._list, columns, rows, split)
        if labels is not None:
            numbers, names = numbered(labels)
            if (numbers[indices] >= 0).any():  # else a part whose labels are hidden
                facts |= dict(labels=numbers[indices], class_names=names)
        self._rows = [rows[i][0] for i in indices]
        paths = [rows[i][1][column["images"]] for i in indices]
        for line, path in zip(self._rows, paths):
            if not path:
                raise InputError(f"data.dir: {self._list}, row {line}: no path of an image")
        root, first = self._list.parent, self._list.parent / paths[0]
        if not os.path.isfile(first):
            raise InputError(
                f"data.dir: {self._list}, row {self._rows[0]}: {first} is not a file; paths are"
                f" relative to {root}"
            )
        if column["masks"] is not None:
            files = [rows[i][1][column["masks"]] for i in indices]
            facts["masks"] = [os.path.join(root, file) if file else None for file in files]
            facts |= classes.of_masks(section) | dict(chosen=classes.chosen(section))
        where = dict(list=self._list.name, split=split, labels=column["labels"])
        about = [f"{name}={value!r}" for name, value in where.items()]
        facts["bands"] = bands.of_section(section)
        super().__init__("Table", root, paths, about=about, **facts)
        doubtful = sorted(name for name in self.class_names or () if name.lower() in _MISSING)
        if doubtful:
            note = f"no row for its label, though {listed(doubtful)} became classes of that name"
            note += " (an empty cell means that an image has no label)"
            self.left_out = "; ".join(filter(None, [self.left_out, note]))

    def __getitem__(self, i: int) -> dict[str, Any]:
        try:
            return super().__getitem__(i)
        except Unreadable as error:
            where = f"{self._list}, row {self._rows[i]}"
            raise Unreadable(error.name, f"{error.reason} ({where})") from error


def parts(section: kinds.Section) -> list[str]:
    """Names of the parts of a list that is there."""
    files = _files(local(section["dir"]))
    if len(files) != 1:
        return sorted(file.stem for file in files)
    columns, rows = _read(files[0])
    return _values(rows, _split_column(files[0], columns))


def _files(place):
    if place.is_file():
        return [place]
    return listing.matching(place, "*.[cC][sS][vV]", "*.[tT][sS][vV]")


def _file(place, split) -> Path:
    """The list of a split."""
    place = local(place)
    if not place.exists():
        raise InputError(f"data.dir: {place} does not exist; give a CSV file, or its folder")
    files = _files(place)
    name = listing.alike(split, [file.stem for file in files])
    matches = [file for file in files if file.stem == name]
    if len(files) == 1 and (place.is_file() or not _is_part(files[0])):
        matches = files
    if not matches:
        names = listed([file.name for file in files])
        raise InputError(f"data.split: {place} has no list {split}.csv; lists: {names}")
    return matches[0]


def _is_part(file):
    """Whether a list is one part of a set: by its name, and without a column that divides it."""
    return listing.is_part(file.stem) and _split_column(file, _read(file)[0]) is None


def _read(path):
    """(names of the columns, [(row of the file, {column: cell})]) of a CSV or TSV file."""
    text = listing.text_of("dir", path)
    head = text.split("\n", 1)[0]
    delimiter = max("\t,;", key=head.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        for cells in reader:
            if None in cells or None in cells.values():
                raise InputError(
                    f"data.dir: {path}, row {reader.line_num}: expected {len(columns)} cells, as in"
                    " the header"
                )
            rows.append((reader.line_num, {name: cell.strip() for name, cell in cells.items()}))
    except csv.Error as error:
        raise InputError(f"data.dir: {path}, row {reader.line_num}: {error}") from error
    if not rows:
        raise InputError(f"data.dir: {path} lists no image below its header line")
    return columns, rows


def _columns(section, path, columns):
    """{key: the column that it means}, None for those that are not there."""
    usual = dict(images=IMAGES, labels=LABELS, masks=MASKS)
    usual = {key: _in_any_case(names, columns) for key, names in usual.items()}
    result = named(section, usual, columns, path)
    for key, name in result.items():
        _check_single(key, path, columns, name)
    return result


def _in_any_case(names, columns):
    """Those of the columns that are called so."""
    small = {name.lower(): name for name in reversed(columns)}
    return [small[name] for name in names if name in small]


def _check_single(key, path, columns, name):
    if columns.count(name) > 1:
        raise InputError(f"data.{key}: {path} has several columns {name!r}; rename all but one")


def _split_column(path, columns):
    """The column that divides the rows; None if there is none."""
    name = next(iter(_in_any_case(SPLITS, columns)), None)
    _check_single("split", path, columns, name)
    return name


def _labels(rows, column):
    """The texts of all labels, None for an empty cell, and for -1 among several classes; None
    without a column, or if it holds no label."""
    if column is None:
        return None
    texts = [cells[column] for _, cells in rows]
    none = {"", "-1"} if len({*texts} - {"", "-1"}) > 1 else {""}
    found = [None if text in none else text for text in texts]
    return found if any(found) else None


def _of_split(path, columns, rows, split):
    """Indices of the rows of a split."""
    column = _split_column(path, columns)
    there = _values(rows, column)
    value = listing.alike(split, there)
    if value is None and (listing.alike(split, [path.stem]) or (not column and split == "train")):
        return list(range(len(rows)))
    if column is None:
        raise InputError(
            f"data.split: {path} has no column {' or '.join(SPLITS)}, so its rows are the part"
            f' train, not {split!r}; to hold out a part, use a slice such as "train[90%:]"'
        )
    if value is None:
        raise InputError(
            f"data.split: no row of {path} has {split!r} in the column {column!r}, which has"
            f" {listed(there)}"
        )
    return [i for i, (_, cells) in enumerate(rows) if cells[column].lower() == value.lower()]


def _values(rows, column):
    """What divides the rows, sorted; of texts that differ in capitals only one. () without a
    column."""
    texts = sorted({cells[column] for _, cells in rows} if column else ())
    return sorted({text.lower(): text for text in reversed(texts)}.values())


_KEYS = (*kinds.COLUMNS["keys"], *kinds.FILE_KEYS)
kinds.register("csv", Table, parts=parts, classes="names", **kinds.COLUMNS | dict(keys=_KEYS))
