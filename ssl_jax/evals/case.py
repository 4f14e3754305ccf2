"""A `Case` is one evaluation of one network; `run` computes the scores of several."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, flatten
from ssl_jax.data import base
from ssl_jax.evals import registry, section
from ssl_jax.evals.classes import check_classes
from ssl_jax.evals.opened import images_of_section, sources
from ssl_jax.features.crops import drawn
from ssl_jax.features.extract import Extracted, check_labels, extract
from ssl_jax.features.feed import by_shape, feed
from ssl_jax.features.monitored import sample_records
from ssl_jax.features.network import Network, adopt
from ssl_jax.features.tokens import DENSE
from ssl_jax.features.windows import cut_record, floored, images_of, stacked
from ssl_jax.runtime import progress


class Labelled(NamedTuple):
    """Vectors and labels of N images."""

    image: np.ndarray  # [N, d] float32
    labels: np.ndarray  # [N] int32, >= 0
    # [N] int64, number of the record each row belongs to
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index


class Masked(NamedTuple):
    """Patches and masks of N images; `store.Grids` if the images differ in size."""

    patches: Any  # [N, h, w, d] float32
    masks: Any  # [N, H, W] uint8, 255 = ignore
    # [N] int64, number of the record each row belongs to
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index


class Records(NamedTuple):
    """Some records of a source."""

    source: Any
    indices: np.ndarray  # [n] int64


@dataclass(frozen=True)
class Case:
    """One evaluation of one network, the argument of its type's `score` and `figures`.

    encoder: an Encoder, raw pixels or any function of images, see `features.network`; `network` is
      the adopted one.
    extracted: features shared by all evaluations of this network on the same images, and results
      stored by `cached`; filled on demand.
    """

    encoder: Any
    config: ConfigDict  # the evaluation's section
    train: Any  # the source of its training images, adopted; None = not used
    test: Any
    seed: int = 0  # of all random draws
    patch: int = 1  # images are cropped to a multiple of it
    batch_size: int = 64  # images in a forward pass
    extracted: dict = field(default_factory=dict)
    shared: bool = True  # whether all processes divide the work, see `features.extract`
    cache: str = ""  # folder of stored features, see `features.extract`

    def __post_init__(self):
        for name in ("train", "test"):
            if (source := getattr(self, name)) is not None:
                object.__setattr__(self, name, base.adopt(source))

    @functools.cached_property
    def network(self) -> Network:
        """The adopted `encoder`."""
        return adopt(self.encoder)

    def features(self, name: str, tokens: str = "image", layers: int = 1) -> Extracted:
        """Features of the training or the test images.

        Each image is encoded once for all evaluations with the same data, examples, crop, tokens
        and layers.

        name: "train" or "test". tokens: of `tokens.KINDS` for one vector per image, or "patches".
        layers: see `Network.read`.
        """
        choice = (self.config.crop, tokens, layers, name, self._scores_masks)
        place = (*images_of_section(self.config), *choice)
        if place not in self.extracted:
            self.extracted[place] = self.features_of(*self.records(name), tokens, layers)
        return self.extracted[place]

    def labelled(self, tokens: str = "image", layers: int = 1) -> tuple[Labelled, Labelled]:
        """Vectors and labels of the training and the test images, see `features`. Raises InputError
        if labels are missing, or all training images have one class."""
        parts = [self.features(name, tokens, layers) for name in ("train", "test")]
        for part, source in zip(parts, (self.train, self.test)):
            self.need(part.labels is not None and part.labels.min() >= 0, "labels from 0 on")
            check_labels(part.labels, part.index, source)
        check_classes(self.config.type, self.train, [parts[0].labels], "labels")
        train, test = (Labelled(part.image, part.labels, part.index) for part in parts)
        return train, test

    def masked(self, name: str, layers: int = 1) -> Masked:
        """Patches and masks of the training or the test images, see `features`. Raises InputError
        if there are no masks, training masks have one class, or test masks none."""
        part = self.features(name, DENSE, layers)
        self.need(part.masks is not None, "masks")
        least = 2 if name == "train" else 1
        check_classes(self.config.type, getattr(self, name), part.masks, "masks", least)
        return Masked(part.patches, part.masks, part.index)

    def boxed(self, name: str) -> Records:
        """The records of the training or the test images. Raises InputError if they have no
        boxes."""
        records = self.records(name)
        self.need(records.source.has_boxes, "boxes")
        return records

    def videos(self) -> Mapping[str, range]:
        """{name: records} of the test videos, whose frames have masks. Raises InputError if there
        are none."""
        self.need(bool(self.test.sequences), "videos with masks")
        return self.test.sequences

    def need(self, there: bool, needs: str) -> None:
        """Raises InputError, which says that the evaluation needs `needs`, unless `there`."""
        if not there:
            raise InputError(
                f"{self.config.type} needs {needs}; point the evaluation's data at a set with"
                f" {needs}, or leave it out of evals.tasks"
            )

    def records(self, name: str) -> Records:
        """The used records of the "train" or "test" images. Records without a label are left out if
        others have one; of an evaluation of masks, so are those without a mask."""
        source, count = getattr(self, name), self.config[f"{name}_examples"]
        return Records(source, sample_records(source, count, self.seed, self._scores_masks))

    @property
    def _scores_masks(self):
        """Whether records without a mask are left out."""
        return registry.get(self.config.type).needs == "masks"

    def features_of(
        self, source: Any, indices: np.ndarray | None, tokens: str = "image", layers: int = 1
    ) -> Extracted:
        """Features of records of any source (None = all), cropped like the evaluation's images; see
        `features`."""
        dense = tokens == DENSE
        return extract(
            self.network,
            source,
            batch_size=self.batch_size,
            indices=indices,
            image=not dense,
            patches=dense,
            token="image" if dense else tokens,
            layers=layers,
            crop=self.config.crop,
            multiple=self.patch,
            shared=self.shared,
            cache=self.cache,
        )

    def key_of(self, name: str, *more: Any) -> tuple:
        """The key in `extracted` of results of this evaluation."""
        return (name, *sorted(flatten(self.config).items()), *more)

    def cached(self, name: str, make: Callable[["Case"], Any], *more: Any) -> Any:
        """make(self), computed once for the scores and pictures of this evaluation."""
        place = self.key_of(name, *more)
        if place not in self.extracted:
            self.extracted[place] = make(self)
        return self.extracted[place]

    def images(self, source: Any, indices: Iterable[int]) -> np.ndarray:
        """Images [n, H, W, 3] float32 in [0, 1] of records of `train` or `test`, cropped as for
        `features`."""
        return images_of(source, indices, crop=self.config.crop, multiple=self.patch)

    def crop_of(self, record: Any, scale: Sequence[float], *draw: int) -> np.ndarray:
        """A random crop of a record of the stored size, [crop, crop, 3] in whole patches. draw:
        numbers that identify the draw among those with the same seed. Raises InputError without a
        `crop`."""
        if not self.config.crop:
            raise InputError("crop_scale needs the size of a crop: set crop")
        (side, _) = floored((self.config.crop, self.config.crop), self.patch)
        return drawn(record["image"], side, scale, (self.seed, *draw))

    def batches(self, *, whole: bool = False, scale: Sequence[float] = ()) -> Iterator[np.ndarray]:
        """Batches [b, H, W, 3] float32 in [0, 1] of the readable test images, b <= `batch_size`:
        cropped as for `features`; whole; or, with a range of areas `scale`, random crops (see
        `crop_of`)."""
        how = {} if whole else dict(crop=self.config.crop, multiple=self.patch)
        source, records = self.records("test")
        source = source.unresized if scale else source

        def cut(row, record):
            if scale:
                yield self.crop_of(record, scale, row)
            else:
                yield cut_record(record, source.name(int(records[row])), **how)

        size = self.batch_size
        for batch in by_shape(feed(source, records, cut, size), size, shape=lambda image: None):
            yield stacked(batch.views)


def cases(
    encoder: Any,
    config: ConfigDict,
    *,
    tasks: Sequence[str] | None = None,
    sources_of: Mapping[str, tuple] | None = None,
    shared: bool = True,
) -> dict[str, Case]:
    """{name: Case} of the evaluations to run on one network; they share extracted features.

    Args:
      encoder, shared: see `Case`. config: of a run, with the section `evals`.
      tasks: names of evaluations; None = those of `evals.tasks`.
      sources_of: result of `sources`; None = opened here.
    """
    sources_of = sources(config, tasks) if sources_of is None else sources_of
    inner = adopt(encoder).encoder
    common = dict(
        seed=config.seed,
        patch=config.model.patch if inner is None else inner.shape.patch,
        batch_size=config.evals.batch_size,
        extracted={},
        shared=shared,
        cache=config.evals.cache,
    )
    return {
        name: Case(encoder, c, *sources_of[name], **common)
        for name, c in section.selected(config, tasks).items()
    }


def run(cases: Mapping[str, Case]) -> dict[str, float]:
    """All scores of `cases` as one dict in their order; in percent unless the type gives another
    unit."""
    scores = {}
    for number, (name, case) in enumerate(cases.items(), start=1):
        type = case.config.type
        with progress.part(name, number, len(cases)):
            results = registry.get(type).run(case)
        for score, value in results.items():
            scores[registry.score_name(name, type, score)] = value
    return scores


def evaluate(
    encoder: Any,
    config: ConfigDict,
    *,
    tasks: Sequence[str] | None = None,
    sources_of: Mapping[str, tuple] | None = None,
) -> dict[str, float]:
    """Scores of frozen features; see `cases` for the arguments and `run` for the result."""
    return run(cases(encoder, config, tasks=tasks, sources_of=sources_of))
