"""Scores during a run, and the final comparison of the trained network with the untrained network
and raw pixels, as table, JSON and pictures.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import evals
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import pictures, registry
from ssl_jax.methods.encoder import Encoder, bound
from ssl_jax.methods.pictures import attention, pca
from ssl_jax.ops import numerics
from ssl_jax.report import folders
from ssl_jax.report.table import IMAGES, comparison_table
from ssl_jax.runtime import distributed, progress, writing
from ssl_jax.train import state
from ssl_jax.train.best import BEST, FILE

_SHOWN = 6  # test images in the pictures of any network
_PICTURED = 2000  # images of each part used for pictures with `evals.picture_size`, at most


class Evaluation:
    """The evaluations of one config. Sources are opened once and shared by all calls.

    tasks: names of the evaluations to run; None = those of `evals.tasks`, () = none.
    """

    def __init__(self, config: ConfigDict, tasks: Sequence[str] | None = None):
        self.config = config
        # The Encoder whose weights are replaced; None = that of the config's method.
        self.network: Encoder | None = None
        self.tasks = tuple(evals.selected(config, tasks))
        # Cases of the network last scored, kept until its pictures are drawn.
        self._trained: dict[str, evals.Case] = {}

    @functools.cached_property
    def sources(self) -> dict:
        """{name: (train source, test source)}."""
        return evals.sources(self.config, self.tasks)

    def open(self) -> None:
        """Opens the sources. Raises InputError if one cannot be opened."""
        _ = self.sources

    def __call__(
        self, params: Any, constants: Any = None, *, draw_next: bool = False
    ) -> dict[str, float]:
        """All scores of a network with these weights (the teacher's or the student's tree).

        draw_next: whether to keep the features for a following call of `draw`."""
        cases = self._cases(self._encoder(params, constants))
        self._trained = cases if draw_next else {}
        return evals.run(cases)

    def _encoder(self, params, constants):
        if self.network is not None:
            return self.network.with_params(params)
        return Encoder(self.config, params, constants)

    def _untrained(self):
        """Initial weights."""
        if self.network is not None and self.network.init is not None:
            return self.network.init(numerics.key(self.config.seed))
        return state.initial_weights(bound(self.config), self.config.seed, self.config.model)

    def compare(
        self, params: Any, constants: Any = None, *, first: Callable[[dict], None] | None = None
    ) -> dict[str, dict[str, float]]:
        """{row: scores} of the untrained network (same seed), of raw pixels and of `params`, in the
        order of evals.ROWS; only of `params` without config.evals.baselines. A baseline has only
        scores of evaluations whose type names it.

        first: called with the scores of `params`, which are computed first.
        """
        with progress.part("the trained network"):
            trained = self(params, constants, draw_next=True)
        if first is not None:
            first(trained)
        if not self.config.evals.baselines:
            return {evals.TRAINED: trained}
        networks = (
            lambda: self._encoder(self._untrained(), constants),
            lambda: evals.raw_pixels(self.config.model.patch),
        )
        results = {}
        for row, network in zip(evals.BASELINES, networks, strict=True):
            types = evals.TYPES
            with progress.part(row):
                cases = self._cases(network()).items()
                results[row] = evals.run(
                    {name: c for name, c in cases if row in types[c.config.type].baselines}
                )
        return results | {evals.TRAINED: trained}

    def table(self, results: Mapping[str, Mapping[str, float]]) -> str:
        """The result of `compare` as text."""
        headings, name = evals.headings(self.config, self.tasks), self.config.evals.best
        table = comparison_table(results, headings, self._images())
        best = results.get(evals.TRAINED, {}).get(name + BEST)
        return table if best is None else f"{table}\nbest {name} of the run: {best:.1f} ({FILE})"

    def _images(self) -> dict[str, int]:
        """{score: number of test images} of the last scores that are shares of them."""
        return {
            registry.score_name(name, case.config.type, case.config.type): count
            for name, case in self._trained.items()
            if (count := evals.TYPES[case.config.type].images(case))
        }

    def _cases(self, network):
        return evals.cases(network, self.config, tasks=self.tasks, sources_of=self.sources)

    def draw(self, params: Any, constants: Any, folder: Path, tables: Path) -> list[Path]:
        """Draws the curves of metrics.csv and evals.csv in `tables`, and the pictures of the
        network, of each evaluation and of the method, into `folder`; returns the files.

        Pictures of the network show test images of an evaluation with masks if there is one, else
        of the first. A method chooses its own kind of images (`pictures.register`).
        """
        from ssl_jax.report import (
            curves,  # matplotlib takes a second to import
            render,
        )

        config, paths = self.config, []
        metrics, scores = (
            folders.read_metrics(tables / f"{name}.csv") for name in ("metrics", "evals")
        )
        if metrics:
            title = f"{config.method}, batch {config.optim.batch_size}"
            titles = evals.headings(config, self.tasks)
            options: dict = dict(scores=scores, shown=titles, title=title)
            with progress.part("curves"), render.survived(folder, "curves"):
                meanings = bound(FrozenConfigDict(config)).meanings
                paths.append(curves.draw(metrics, folder, meanings=meanings, **options))
        encoder = self._encoder(params, constants)
        # Only one process draws, so that no figure may wait for the others.
        pictured = self._pictured(encoder).items()
        cases = {name: dataclasses.replace(case, shared=False) for name, case in pictured}
        # Pictures of the network need a batch, so images of one size.
        alike = [case for case in cases.values() if case.test.size is not None]

        def chosen(scenes=True):
            return next((case for case in alike if _needs_masks(case) == scenes), alike[0])

        of_any = {"attention": attention, "pca": pca} if config.model.cls else {"pca": pca}
        for name, module in of_any.items() if alike else ():
            drawn = functools.partial(_of_any, module.draw, encoder, chosen())
            paths += render.draw(drawn, folder, name)
        for name, case in cases.items():
            figures = functools.partial(evals.TYPES[case.config.type].figures, case)
            prefix = "" if name == case.config.type else f"{name}_"
            paths += render.draw(figures, folder, name, prefix)
        if alike and (demand := pictures.wanted(config.method)):
            count, scenes, most = demand
            own = functools.partial(_of_method, encoder, chosen(scenes), count, most)
            paths += render.draw(own, folder, f"{config.method}_pictures", f"{config.method}_")
        self._trained = {}
        return paths

    def _pictured(self, encoder) -> dict:
        """{name: Case} for pictures, with images of `evals.picture_size` if that is set."""
        side = self.config.evals.picture_size
        if not side:
            return self._trained or self._cases(encoder)
        larger = ConfigDict(self.config.to_dict())
        sections = evals.selected(larger, self.tasks)
        names = [n for n in sections if not evals.TYPES[sections[n].type].trains]
        for section in (sections[name] for name in names):
            section.data.size, section.crop = side, 0
            for part in ("train_examples", "test_examples"):
                section[part] = min(section[part] or _PICTURED, _PICTURED)
        cases = evals.cases(encoder, larger, tasks=names)
        scored = self._trained or self._cases(encoder)
        return {name: cases.get(name, scored[name]) for name in sections}

    def publish(
        self, results: Mapping[str, Mapping[str, float]], params: Any, constants: Any, folder: Path
    ) -> list[Path]:
        """Prints the table of a comparison, and writes results.json, results.txt and pictures/*.png
        to `folder`. Returns the pictures. Of several processes, only the first does this."""
        if not distributed.is_first():
            return []
        table = self.table(results)
        shares = {name + IMAGES: count for name, count in self._images().items()}
        stored = {**results, evals.TRAINED: {**results[evals.TRAINED], **shares}}
        writing.replace({folder / "results.txt": f"{table}\n".encode()})
        print(table, flush=True)
        paths = self.draw(params, constants, folder / "pictures", folder)
        print(f"{len(paths)} pictures in {folder / 'pictures'}", flush=True)
        # Written last, because it marks the run as finished.
        writing.replace({folder / "results.json": writing.as_json(stored)})
        return paths


def _of_any(draw: Callable, encoder, case) -> Mapping:
    """The pictures that `draw` makes of test images."""
    return draw(encoder, case.images(case.test, _readable(case.test, _SHOWN)))


def _of_method(encoder, case, count: int, most: int) -> Mapping:
    """The method's pictures of `count` test images, with up to `most` training images as memory."""
    memory = None
    if most and case.train is not None:
        rows = _readable(case.train, most)
        memory = pictures.Memory(len(rows), lambda i: case.images(case.train, rows[i]))
    images = case.images(case.test, _readable(case.test, count))
    return pictures.draw(encoder, images, memory)


def _readable(source, count: int) -> np.ndarray:
    """The first `count` records that can be read."""
    rows: list[int] = []
    for row in range(len(source)):
        if len(rows) == count:
            break
        with contextlib.suppress(Unreadable):
            _ = source[row]
            rows.append(row)
    return np.array(rows)


def _needs_masks(case) -> bool:
    return evals.TYPES[case.config.type].needs == "masks"
