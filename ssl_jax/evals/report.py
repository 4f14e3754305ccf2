"""Scores during a run, and the final comparison: trained network, the same network untrained, raw pixels; table, JSON, pictures."""

import json
from pathlib import Path

from ssl_jax import evals, state


class Evaluation:
    """The evaluations of one config; data sources and the compiled network are made once and shared by all calls."""

    def __init__(self, method, config, tasks=None):
        self.method, self.config = method, config
        self.tasks = evals.check_tasks(config.eval.tasks if tasks is None else tasks)
        self._bind = evals.network(method, config)
        self._sources = None

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
        """Scores of the untrained network (same seed), of raw pixels and of `weights`, in the order of evals.ROWS."""
        untrained = state.initial_weights(self.method, self.config)
        rows = evals.raw_pixels(self.config.model.patch)
        functions = (self._bind(untrained), rows, self._bind(weights))
        return {name: self._score(function) for name, function in zip(evals.ROWS, functions, strict=True)}

    def _score(self, features_fn):
        return evals.evaluate(features_fn, self.config, tasks=self.tasks, sources_of=self.sources)


def write(evaluation: Evaluation, weights, folder: Path) -> dict[str, dict[str, float]]:
    """Compares, prints the table, and leaves results.json, results.txt and pictures/*.png in `folder`. Returns the comparison."""
    if not evaluation.tasks:
        return {}
    results = evaluation.compare(weights)
    table = evals.comparison_table(results)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (folder / "results.txt").write_text(table + "\n")
    print(table, flush=True)
    from ssl_jax.evals import pictures  # matplotlib takes a second to import

    written = pictures.draw(evaluation, weights, folder)
    print("pictures: " + "  ".join(str(path) for path in written), flush=True)
    return results
