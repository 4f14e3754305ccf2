"""Scores during a run, and the final comparison: trained network, the same network untrained, raw
pixels; table, JSON, pictures.
"""

import json
from pathlib import Path

from ssl_jax import evals
from ssl_jax.train import state


class Evaluation:
    """The evaluations of one config; data sources and the compiled network are made once and shared
    by all calls.
    """

    def __init__(self, method, config, tasks=None):
        self.method, self.config = method, config
        self.tasks = evals.check_tasks(config.eval.tasks if tasks is None else tasks)
        self._bind = evals.network(method, config)
        self._sources = None
        self._extracted = {}  # features of the trained network as last compared, for the pictures

    @property
    def sources(self) -> dict:
        """{section: (train source, test source)}, opened at first use."""
        if self._sources is None:
            self._sources = evals.sources(self.config, tasks=self.tasks)
        return self._sources

    def __call__(self, weights) -> dict[str, float]:
        """All scores of a network with these weights (the teacher's or the student's tree)."""
        return self._score(self._bind(weights))

    def compare(self, weights) -> dict[str, dict[str, float]]:
        """Scores of the untrained network (same seed), of raw pixels and of `weights`, in the order
        of evals.ROWS.
        """
        untrained = state.initial_weights(self.method, self.config)
        rows = evals.raw_pixels(self.config.model.patch)
        self._extracted = {}
        scores = (
            self._score(self._bind(untrained)),
            self._score(rows),
            self._score(self._bind(weights), self._extracted),
        )
        return dict(zip(evals.ROWS, scores, strict=True))

    def _score(self, features_fn, extracted=None):
        return evals.evaluate(
            features_fn, self.config, tasks=self.tasks, sources_of=self.sources, extracted=extracted
        )

    def draw(self, weights, folder: Path, tables: Path) -> list[Path]:
        """Draws every picture that the data allow and the method's own into `folder`, curves from
        `tables`/metrics.csv and evals.csv; returns the files.
        """
        from ssl_jax.evals import panels, visualise  # matplotlib takes a second to import

        def table(name):
            path = tables / f"{name}.csv"
            return visualise.read_metrics(path) if path.exists() and path.stat().st_size else None

        attend = (
            evals.network(self.method, self.config, attention=True)(weights)
            if self.config.model.cls
            else None
        )
        paths = visualise.draw(
            self.config,
            folder,
            self._extracted,
            self.sources,
            attention_fn=attend,
            metrics=table("metrics"),
            scores=table("evals"),
        )
        return paths + panels.draw(self.method, weights, self.config, self.sources, folder)


def write(evaluation: Evaluation, weights, folder: Path) -> dict[str, dict[str, float]]:
    """Compares, prints the table, and leaves results.json, results.txt and pictures/*.png in
    `folder`. Returns the comparison.
    """
    if not evaluation.tasks:
        return {}
    results = evaluation.compare(weights)
    table = evals.comparison_table(results)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (folder / "results.txt").write_text(table + "\n")
    print(table, flush=True)
    for path in evaluation.draw(weights, folder / "pictures", folder):
        print(f"picture: {path}", flush=True)
    return results
