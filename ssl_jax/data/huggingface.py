"""A Hugging Face data set on disk as a source: parquet files, or what `save_to_disk` wrote."""

import os
import re
from typing import Any

import numpy as np

from ssl_jax.config import InputError, local, reading, reason
from ssl_jax.data import classes, kinds, listing
from ssl_jax.data.decode import Unreadable, most_bytes
from ssl_jax.data.labels import checked as checked_labels
from ssl_jax.data.lookup import checked, listed, named
from ssl_jax.data.stored import Stored

IMAGES = ("image", "img", "jpg", "png", "webp", "picture", "photo")
LABELS = ("label", "labels", "fine_label", "cls", "class", "category", "target")
MASKS = ("mask", "annotation", "segmentation_mask", "segmentation", "seg")


class HuggingFace(Stored):
    """A data set of the Hugging Face hub, as downloaded or as saved by `datasets`.

    Parquet files ("data/train-00000-of-00002.parquet", "train/0000.parquet") do not allow reading
    single rows, so their columns are held in memory, with encoded images. Arrow files, written by
    `Dataset.save_to_disk`, are memory-mapped and may be larger than memory. Every worker process
    opens the files again: with several workers use Arrow files.
    Columns are those that the section names, or the first with a usual name (IMAGES, LABELS,
    MASKS); class names are those of the column's ClassLabel. Labels are integers, strings, bools,
    or categories of these.
    """

    def __init__(self, section: kinds.Section, split: str):
        """section: the keys that `register` names below; dir is the folder of the data set.

        Raises:
          InputError: no such split or column; labels of another type; a file that is broken, or
            parquet files that are larger than half of the memory.
        """
        self._root, self._files = local(section["dir"]), _files(section, split)
        schema = _schema(self._files[0])
        usual = dict(images=IMAGES, labels=LABELS, masks=MASKS)
        columns = named(section, usual, schema.names, self._files[0])
        labels, masks = columns["labels"], columns["masks"]
        kinds_of_labels = _label_kinds([schema], labels)
        if section["labels"] and not all(kinds_of_labels):
            raise InputError(
                f"data.labels: the column {labels!r} has the type {schema.field(labels).type};"
                " labels must be integers, strings, booleans or categories of these"
            )
        if labels == masks or not all(kinds_of_labels):
            labels = None  # a column `label` of images holds masks
        self._columns = {"image": columns["images"], "label": labels, "mask": masks}
        self._open()
        values = self._label_values()
        numbers, names = checked_labels(values, self.name, _class_names(schema, labels))
        given = classes.of_masks(section) if masks else {}
        nulls = [table[masks].is_null().to_numpy() for table in self._tables] if masks else [()]
        unmasked = np.flatnonzero(np.concatenate(nulls)).tolist()
        given |= dict(masks=masks is not None, unmasked=unmasked, chosen=classes.chosen(section))
        self._describe(labels=numbers, class_names=names, **given)
        self._about = [repr(str(section["dir"])), repr(split)]
        self._about += self._encoded(labels or "", masks or "")

    def _open(self):
        """Reads or maps the columns."""
        used = [name for name in self._columns.values() if name is not None]
        self._tables = _tables(self._files, used)
        self._starts = np.cumsum([0, *(table.num_rows for table in self._tables)])
        if not self._starts[-1]:
            raise InputError(f"data.dir: {self._files[0]} and later files hold no rows")

    def _label_values(self):
        """Labels of all rows; None where there are none."""
        name = self._columns["label"]
        if name is None:
            return None
        kinds = _label_kinds([table.schema for table in self._tables], name)
        if len(set(kinds) - {"nothing"}) > 1:
            raise InputError(
                f"data.labels: the column {name!r} of {self._files[0]} and later files has several"
                f" types: {', '.join(sorted(set(kinds)))}"
            )
        values = [value for table in self._tables for value in table[name].to_pylist()]
        # As texts, or they would be the numbers 0 and 1.
        return [str(value) if isinstance(value, bool) else value for value in values]

    def _read(self, i: int, part: str) -> bytes | None:
        table, row = self._where(i)
        value = self._tables[table][self._columns[part]][row].as_py()
        if value is None and part == "mask":
            return None
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, str):  # the image lies beside the table
            try:
                folder = self._root.parent if self._root.is_file() else self._root
                path = os.path.join(folder, value)
                return reading.read_bytes(path, most_bytes(self.max_pixels))
            except OSError as error:
                raise Unreadable(self.name(i), f"{value}: {reason(error)}") from error
        if not isinstance(value, bytes) or not value:
            raise Unreadable(self.name(i), f"no {part} in the column {self._columns[part]!r}")
        return value

    def _files_of(self, i):
        return [self._files[self._where(i)[0]]]

    def _where(self, i):
        """(table, row of it) of record i."""
        table = int(np.searchsorted(self._starts, i, side="right")) - 1
        return table, int(i - self._starts[table])

    def __len__(self):
        return int(self._starts[-1])

    def name(self, i: int) -> str:
        table, row = self._where(checked(i, len(self)))
        return f"{self._files[table]}, row {row}"

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "_tables"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._open()


def parts(section: kinds.Section) -> list[str]:
    """Names of the splits of a data set on disk."""
    place = local(section["dir"])
    if (place / "state.json").is_file():
        return []
    folders = [path.parent.name for path in listing.matching(place, "*/state.json")]
    files = [_split_of(path) for path in _parquet(place)]
    return sorted({*folders, *(name for name in files if name)})


def _parquet(place):
    """All parquet files of a data set."""
    return listing.matching(place, "*.parquet", "*/*.parquet", "*/*/*.parquet")


# "train-00000-of-00002-1a2b3c", "train-0".
_SHARD = re.compile(r"(.+?)-(\d+)(?:-of-(\d+))?(?:-(\w+))?$")


def _split_of(path):
    """The split that a parquet file belongs to: "train-00000-of-00002", "train/0000", "train"."""
    match = _SHARD.match(path.stem)
    if match:
        return match[1]
    return path.parent.name if path.stem.isdecimal() else path.stem


def _check_shards(paths):
    """Refuses the files of a split if some of their numbers are missing or there twice, as after a
    download that was cut off or repeated. Suffixes are no version: `datasets` once gave each file
    one of its own. Raises InputError."""
    there: dict[tuple[int, Any], Any] = {}  # {(count, number): path}
    for path in paths:
        match = _SHARD.match(path.stem)
        shard = (int(match[3]), int(match[2])) if match and match[3] else (0, path)
        same_count = shard[0] == next(iter(there), shard)[0]
        if (other := there.get(shard) if same_count else paths[0]) is not None:
            raise InputError(
                f"data.dir: {other} and {path} are of two versions of a split; move one away"
            )
        there[shard] = path
    count, numbers = next(iter(there))[0], {number for _, number in there}
    start = 1 if count in numbers else 0
    if (missing := count - len(numbers)) > 0:
        number = next(i for i in range(start, start + count) if i not in numbers)
        raise InputError(
            f"data.dir: {missing} of the {count} files of a split are missing beside {paths[0]},"
            f" first number {number}; download them, or rename the others without -of-{count:05d}"
        )


def _files(section, split) -> list[str]:
    """The files of a split, in their order."""
    place = local(section["dir"])
    if place.is_file():
        if split != "train" and not listing.alike(split, [_split_of(place)]):
            raise InputError(
                f"data.split: {place} is {_split_of(place)}, not {split!r}; to hold out a part, use"
                ' a slice such as "train[90%:]", or set data.dir to the folder of the data set'
            )
        return [str(place)]
    split = listing.alike(split, parts(section)) or split
    for folder in (place / split, *([place] if split == "train" else [])):
        if (folder / "state.json").is_file():
            return _saved_files(folder)
    files = [path for path in _parquet(place) if _split_of(path) == split]
    if len(configs := sorted({_config_of(path, place, split) for path in files})) > 1:
        raise InputError(
            f"data.dir: {place} holds the configurations {listed(configs)}; add the name of one"
        )
    if not files:
        there = listed(parts(section)) if place.is_dir() else "it is not a folder"
        raise InputError(
            f"data.split: {place} has no parquet or Arrow files of {split!r}; splits: {there}"
        )
    _check_shards(files)
    return list(map(str, files))


def _config_of(path, place, split):
    """The folder of a file's configuration, relative to the data set's."""
    folders = path.relative_to(place).parts[:-1]
    return "/".join(name for name in folders if name not in ("data", split)) or "."


def _saved_files(folder) -> list[str]:
    """The files that `save_to_disk` wrote, in their order."""
    path = folder / "state.json"
    try:
        entries = reading.parse_json(reading.read_bytes(path))["_data_files"]
        return [os.path.join(folder, entry["filename"]) for entry in entries or [{}]]
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"data.dir: {path} does not name the files of a data set: {reason(error)}"
        ) from error


def _pyarrow():
    import pyarrow.parquet  # takes a second

    return pyarrow


def _stream(path):
    """The reader of an Arrow file, which is mapped into memory."""
    return _pyarrow().ipc.open_stream(_pyarrow().memory_map(path))


def _schema(path):
    pyarrow = _pyarrow()
    try:
        reading.check_regular(path)
        return pyarrow.parquet.read_schema(path) if _is_parquet(path) else _stream(path).schema
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"data.dir: {path} cannot be read: {reason(error)}") from error


def _tables(files, columns):
    """The columns of each file. Raises InputError for parquet files too large for the memory."""
    tables, limit = [], reading.free_memory() // 2
    try:
        for path in files:
            reading.check_regular(path)
        if sum(_bytes_in_memory(path, columns) for path in files if _is_parquet(path)) > limit:
            raise MemoryError
        for path in files:
            if _is_parquet(path):
                tables.append(_read_parquet(path, columns, limit))
                limit -= tables[-1].nbytes
            else:
                tables.append(_stream(path).read_all().select(columns))
    except MemoryError as error:
        raise InputError(
            f"data.dir: {files[0]} and later files need more than half of the free memory;"
            " convert them to Arrow files, which are read from disk:"
            ' datasets.load_dataset("parquet", data_dir=...).save_to_disk(...)'
        ) from error
    except (OSError, KeyError, _pyarrow().ArrowException) as error:
        where = getattr(error, "filename", None) or files[len(tables)]
        raise InputError(f"data.dir: {where} cannot be read: {reason(error)}") from error
    return tables


def _is_parquet(path):
    return path.endswith(".parquet")


def _read_parquet(path, columns, limit):
    """The columns of a file. Raises MemoryError where they take more bytes than `limit`: one value
    in a dictionary can stand for all rows."""
    pyarrow, batches = _pyarrow(), []
    with pyarrow.parquet.ParquetFile(path) as file:
        # No value is larger than all that a column holds.
        rows = min(_ROWS, max(1, limit // max(1, _bytes_in_memory(path, columns))))
        for batch in file.iter_batches(rows, columns=columns):
            limit -= batch.nbytes
            if limit < 0:
                raise MemoryError
            batches.append(batch)
        schema = pyarrow.schema([file.schema_arrow.field(name) for name in columns])
        return pyarrow.Table.from_batches(batches, batches[0].schema if batches else schema)


_ROWS = 1024  # that are decoded at once


def _bytes_in_memory(path, columns):
    """At least so many bytes the columns of a parquet file take."""
    metadata = _pyarrow().parquet.read_metadata(path)
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    chunks = (group.column(j) for group in groups for j in range(group.num_columns))
    # A column of images is a struct: "image.bytes".
    return metadata.num_rows + sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.split(".")[0] in columns
    )


def _class_names(schema, column):
    """The names that `datasets` wrote of a column's classes; None without them."""
    text = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        names = reading.parse_json(text)["info"]["features"][column]["names"]
        return names if all(isinstance(name, str) for name in names) else None
    except (ValueError, LookupError, TypeError):
        return None


def _label_kinds(schemas, name):
    """What the labels in a column are by each schema; "" for none that can be labels."""
    types = _pyarrow().types
    kinds = {
        "integers": (types.is_integer,),
        "texts": (types.is_string, types.is_large_string, types.is_string_view),
        "bools": (types.is_boolean,),
        "nothing": (types.is_null,),  # as in a hidden test set
    }

    def kind(field):
        type_ = field.type.value_type if types.is_dictionary(field.type) else field.type
        return next((kind for kind, tests in kinds.items() if any(t(type_) for t in tests)), "")

    return [kind(schema.field(name)) for schema in schemas if name is not None]


kinds.register("huggingface", HuggingFace, parts=parts, classes="numbers", **kinds.COLUMNS)
