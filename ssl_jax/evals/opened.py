"""Opens the sources of evaluations."""

import re
from collections.abc import Sequence

from ml_collections import ConfigDict

from ssl_jax.config import InputError, flatten
from ssl_jax.data import base
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.reduced import Reduced
from ssl_jax.data.source import EMBEDDED, make_source
from ssl_jax.evals import section
from ssl_jax.features.monitored import Monitored

_CACHE_BYTES = 2**30  # of decoded images per source


def images_of_section(config: ConfigDict) -> tuple:
    """The settings that determine which images an evaluation uses."""
    data = sorted(flatten(config.data).items())
    options = (config.get(name, False) for name in ("reduce", "bilinear"))
    return (*data, config.train_examples, config.test_examples, *options)


def sources(config: ConfigDict, tasks: Sequence[str] | None = None) -> dict[str, tuple]:
    """{name: (train source, test source)} of the evaluations to run. Open them once to evaluate
    several networks; evaluations of the same images share their sources.

    Raises InputError if a source cannot be opened, or if too many images of a small set are
    unreadable.
    """
    opened: dict[tuple, tuple] = {}
    result, stored = {}, list[Monitored]()
    for name, c in section.selected(config, tasks).items():
        images = images_of_section(c)
        if images not in opened:
            opened[images] = _named_pair(name, c, config)
            stored += opened[images] if c.data.kind not in EMBEDDED else ()
        for source in opened[images]:
            section.check_source(name, c, source)
            base.check_channels(source, config.model.in_channels)
        section.check_same_classes(name, c, *opened[images])
        result[name] = opened[images]
    for source in stored:
        source.look(config.seed)
    return result


def _named_pair(name: str, c: ConfigDict, config: ConfigDict) -> tuple[Monitored, ...]:
    """`_pair` of the evaluation `name`, whose errors name the keys of its section."""
    try:
        return _pair(c, config.data.max_unreadable, config.model.patch)
    except InputError as error:
        key = rf"(?<![\w./])data\.(?=(?:{'|'.join(c.data)})\b)"
        raise InputError(re.sub(key, f"evals.{name}.data.", str(error))) from error


def _pair(c: ConfigDict, share: float, patch: int) -> tuple[Monitored, ...]:
    """(training source, test source) of an evaluation's section."""

    def made(split, names, count):
        source = make_source(c.data, split=split, list=names, bilinear=c.get("bilinear", False))
        return _cached(Reduced(source, patch) if c.get("reduce") else source, count)

    parts = (
        (c.data.split, c.data.get("list", ""), c.train_examples),
        (c.data.test_split, c.data.get("test_list", ""), c.test_examples),
    )
    pair = section.numbered_alike(c, *(made(*part) for part in parts))
    return tuple(Monitored(part, count, share=share) for part, (*_, count) in zip(pair, parts))


def _cached(source, examples: int):
    """Keeps decoded records in RAM if they fit, because several networks are scored on them."""
    if source.size is None:
        return source
    count = min(len(source), examples or len(source))
    fits = count * source.image_bytes(source.size) <= _CACHE_BYTES
    return Prepared(source, cache=True) if fits else source
