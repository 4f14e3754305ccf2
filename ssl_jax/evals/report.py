"""Scores during a run, and the final comparison: trained network, the same network untrained, raw
pixels; table, JSON, pictures.
"""

import functools
import json
from pathlib import Path

from ssl_jax import evals, methods
from ssl_jax.methods.encoder import Encoder
from ssl_jax.train import state


class Evaluation:
    """The evaluations of one config; data sources are opened once and shared by all calls."""

    def __init__(self, config, tasks=None):
        self.config = config
        self.tasks = evals.check_tasks(config.eval.tasks if tasks is None else tasks)
        self._extracted = {}  # features of the trained network as last compared, for the pictures

    @functools.cached_property
    def sources(self) -> dict:
        """{section: (train source, test source)}."""
        return evals.sources(self.config, tasks=self.tasks)

    def open(self) -> None:
        """Opens the data sources. Raises InputError where one cannot be opened."""
        _ = self.sources

    def __call__(self, params, constants=None) -> dict[str, float]:
        """All scores of a network with these weights (the teacher's or the student's tree)."""
        return self._score(Encoder(self.config, params, constants))

    def compare(self, params, constants=None) -> dict[str, dict[str, float]]:
        """Scores of the untrained network (same seed), of raw pixels and of `params`, in the order
        of evals.ROWS."""
        untrained = state.initial_weights(methods.make(self.config), self.config.seed)
        rows = evals.raw_pixels(self.config.model.patch)
        self._extracted = {}
        scores = (
            self._score(Encoder(self.config, untrained, constants)),
            self._score(rows),
            self._score(Encoder(self.config, params, constants), self._extracted),
        )
        return dict(zip(evals.ROWS, scores, strict=True))

    def _score(self, features_fn, extracted=None):
        return evals.evaluate(
            features_fn, self.config, tasks=self.tasks, sources_of=self.sources, extracted=extracted
        )

    def draw(self, params, constants, folder: Path, tables: Path) -> list[Path]:
        """Draws every picture that the data allow and the method's own into `folder`, curves from
        `tables`/metrics.csv and evals.csv; returns the files."""
        from ssl_jax.evals import panels, visualise  # matplotlib takes a second to import

        def table(name):
            path = tables / f"{name}.csv"
            return visualise.read_metrics(path) if path.exists() and path.stat().st_size else None

        encoder = Encoder(self.config, params, constants)
        attend = functools.partial(encoder, attention=True) if self.config.model.cls else None
        paths = visualise.draw(
            self.config,
            folder,
            self._extracted,
            self.sources,
            attention_fn=attend,
            metrics=table("metrics"),
            scores=table("evals"),
        )
        return paths + panels.draw(encoder, self.sources, folder)

    def report(self, params, constants, folder: Path) -> dict[str, dict[str, float]]:
        """Compares, prints the table, and leaves results.json, results.txt and pictures/*.png in
        `folder`. Returns the comparison."""
        if not self.tasks:
            return {}
        results = self.compare(params, constants)
        table = evals.comparison_table(results)
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        (folder / "results.txt").write_text(table + "\n")
        print(table, flush=True)
        for path in self.draw(params, constants, folder / "pictures", folder):
            print(f"picture: {path}", flush=True)
        return results
