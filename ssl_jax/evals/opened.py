"""Opens the sources of evaluations, and refuses those that lack what an evaluation needs."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, flatten
from ssl_jax.data import base, kinds
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import listed
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.reduced import Reduced
from ssl_jax.data.source import EMBEDDED, has, make_source
from ssl_jax.data.subset import box_names, boxes_like, class_names, numbered_alike, split_name
from ssl_jax.evals import registry, section
from ssl_jax.evals.classes import check_classes
from ssl_jax.features.monitored import Monitored, sample_records
from ssl_jax.runtime import distributed

_CACHE_BYTES = 2**30  # of decoded images per source
_FEW = 1000  # records of which masks are looked at before anything is trained


def images_of_section(config: ConfigDict) -> tuple:
    """The settings that determine which images an evaluation uses."""
    data = sorted(flatten(config.data).items())
    options = (config.get(name, False) for name in ("reduce", "bilinear"))
    return (*data, config.train_examples, config.test_examples, *options)


def sources(config: ConfigDict, tasks: Sequence[str] | None = None) -> dict[str, tuple]:
    """{name: (train source, test source)} of the evaluations to run. Open them once to evaluate
    several networks; evaluations of the same images share their sources.

    Raises InputError if a source cannot be opened or lacks what an evaluation needs, or if too many
    images of a small set are unreadable.
    """
    opened: dict[tuple, tuple] = {}
    result, stored = {}, list[Monitored]()
    for name, c in section.selected(config, tasks).items():
        images = images_of_section(c)
        if images not in opened:
            opened[images] = _pair(name, c, config)
            stored += opened[images] if c.data.kind not in EMBEDDED else ()
        result[name] = opened[images]
        for source in result[name]:
            _check(name, c, source)
            base.check_channels(source, config.model.in_channels)
        _check_same_classes(name, c, *result[name])
        _warn_of_overlap(name, c, config.seed, *result[name])
    for source in stored:
        source.look(config.seed)
    for name, c in section.selected(config, tasks).items():
        type, (train, test) = registry.get(c.type), result[name]
        parts = [(test, c.test_examples, 1), (train, c.train_examples, 2)]
        for part, count, least in parts[: 1 + type.learns] if type.needs == "masks" else ():
            records = sample_records(part, count, config.seed, masked=True)
            if len(records) <= _FEW:
                check_classes(name, part, _masks(part, records), "masks", least)
    return result


def _masks(source: Monitored, records: np.ndarray) -> Iterator[np.ndarray]:
    """The masks of the readable records."""
    for i in records.tolist():
        with contextlib.suppress(Unreadable):
            if (mask := source[i].get("mask")) is not None:
                yield mask


def _pair(name: str, c: ConfigDict, config: ConfigDict) -> tuple[Monitored, ...]:
    """(training source, test source) of the evaluation `name`; errors name the keys of its
    section."""
    numbering = kinds.get(c.data.kind).classes
    data = ConfigDict(c.data.to_dict() | {"dir": section.folder(config, c)})
    parts = (
        (data.split, data.get("list", ""), c.train_examples),
        (data.test_split, data.get("test_list", ""), c.test_examples),
    )

    def made(split, names, count):
        source = make_source(data, split=split, list=names, bilinear=c.get("bilinear", False))
        return _cached(Reduced(source, config.model.patch) if c.get("reduce") else source, count)

    try:
        train, test = (made(*part) for part in parts)
        if numbering != "declared":  # each part numbers its own classes
            train, test = numbered_alike(train, test, numbering == "numbers")
            test = boxes_like(test, train)
    except InputError as error:
        key = rf"(?<![\w./])data\.(?=(?:{'|'.join(data)})\b)"
        raise InputError(re.sub(key, f"evals.{name}.data.", str(error))) from error
    share = config.data.max_unreadable
    drawn = (
        (part, len(sample_records(part, count, config.seed)))
        for part, count in ((train, c.train_examples), (test, c.test_examples))
    )
    return tuple(Monitored(part, count, share=share) for part, count in drawn)


def _cached(source, examples: int):
    """Keeps decoded records in RAM if they fit, because several networks are scored on them."""
    if source.size is None:
        return source
    count = min(len(source), examples or len(source))
    fits = count * source.image_bytes(source.size) <= _CACHE_BYTES
    return Prepared(source, cache=True) if fits else source


def _check(name: str, c: ConfigDict, source: Monitored) -> None:
    """Raises InputError if a source lacks what the evaluation `name` needs."""
    type = registry.get(c.type)
    if type.needs and not has(source, type.needs):
        raise section.lacking(name, c, source)
    if type.one_size and not c.crop and source.size is None:
        raise InputError(
            f'evals.{name}: the type "{c.type}" needs images of one size, and those of {source}'
            f" have their own; set evals.{name}.data.size or evals.{name}.crop, in pixels"
        )


def _warn_of_overlap(name: str, c: ConfigDict, seed: int, train: Monitored, test: Monitored):
    """Prints how many scored images are also trained on: with them a score means nothing."""
    data = c.data
    if not registry.get(c.type).needs or not distributed.is_first():
        return
    if split_name(data.split)[0] != split_name(data.test_split)[0]:
        return
    parts = ((train, c.train_examples), (test, c.test_examples))
    learned, scored = (
        {part.name(int(i)) for i in sample_records(part, count, seed)} for part, count in parts
    )
    if both := len(learned & scored):
        print(
            f"  warning: evals.{name}: {both} of its {len(scored)} test images are also in its"
            f" training part (data.split={data.split}, data.test_split={data.test_split})",
            flush=True,
        )


def _check_same_classes(name: str, c: ConfigDict, train: Monitored, test: Monitored) -> None:
    """Raises InputError if the scored part of a set has a class that the other part lacks, where
    each part numbers its own classes."""
    type = registry.get(c.type)
    if kinds.get(c.data.kind).classes == "declared" or type.needs not in ("labels", "boxes"):
        return

    def names(part):
        """Those of the images if they are classified, else of their boxes."""
        of_images = class_names(part) if type.needs == "labels" or type.share else None
        return set(of_images or (box_names(part) if type.needs == "boxes" else None) or ())

    trained, scored = names(train), names(test)
    if trained and scored - trained:
        raise InputError(
            f"evals.{name}: the parts of {c.data.dir} have other classes (only {c.data.test_split}"
            f" has {listed(sorted(scored - trained))}, only {c.data.split}"
            f" {listed(sorted(trained - scored))}); only classes that are also trained on can be"
            " scored"
        )
