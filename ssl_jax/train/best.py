"""Saves the best network of a run by one of its scores (`evals.best`), and warns when training
makes the weights worse that the run started from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.convert import own
from ssl_jax.evals import section
from ssl_jax.evals.registry import TRAINED
from ssl_jax.runtime import distributed
from ssl_jax.train import log

FILE = "best.safetensors"
BEST = "_best_of_run"  # ending of the best value of a score in results.json


class Best:
    """Follows `evals.best` through the scores in a run's evals.jsonl, so that a resumed run knows
    the earlier ones. Process 0 writes."""

    def __init__(self, workdir: Path, config: FrozenConfigDict):
        self._name, self._config, self._workdir = config.evals.best, config, workdir
        self._sign = -1 if self._name and section.is_lower_better(config, self._name) else 1

    def note(
        self, step: int, scores: Mapping[str, float], network: Callable[[], tuple[Any, Any]]
    ) -> str:
        """Saves the network if it is the best so far. All processes must call it, after the
        scores are written.

        network: returns weights and constants on this process; a collective.

        Returns:
          A line for the console, or "".

        Raises:
          InputError: the evaluation of `evals.best` has no such score.
        """
        if not self._name or self._name not in scores:
            self._refuse_unknown(scores)
            return ""
        better, text = self._judged(step, scores[self._name])
        if distributed.gather_json(better)[0]:
            weights = network()
            if distributed.is_first():
                self._keep(step, scores, *weights)
        return text

    def _refuse_unknown(self, scores):
        name, each = section.of_score(self._config, self._name) or ("", None)
        mine = [score for score in scores if f"{score}_".startswith(f"{name}_")]
        if each is not None and mine:
            raise InputError(f'evals.best is "{self._name}", but {name} has {", ".join(mine)}')

    def added(self, results: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
        """The final results with the run's best value of the score, as NAME_best_of_run of the
        trained network; call it after the last `note`."""
        rows = log.read_rows(self._workdir / "evals.jsonl") if self._name else []
        values = [row[self._name] for row in rows if self._name in row]
        if not values:
            return dict(results)
        return {
            **results,
            TRAINED: {**results[TRAINED], f"{self._name}{BEST}": max(values, key=self._good)},
        }

    def _good(self, value):
        return self._sign * value

    def _judged(self, step: int, score: float) -> tuple[bool, str]:
        """Whether a score is the run's best so far, and the line for the console; valid on process
        0 alone."""
        name, rows = self._name, log.read_rows(self._workdir / "evals.jsonl")
        earlier = [row for row in rows if row["step"] < step and name in row]
        best = max(earlier, key=lambda row: self._good(row[name]), default=None)
        start = next((row[name] for row in earlier if row["step"] == 0), None)
        if best is None or self._good(score) > self._good(best[name]):
            return True, "" if start is None else f"best {name} so far, kept as {FILE}"
        if start is not None and self._good(score) < self._good(start):
            return False, (
                f"warning: {name} is {score:.4g}, worse than the {start:.4g} of the network that"
                f" the run started from; {FILE} holds step {best['step']} ({best[name]:.4g}). Try a"
                " smaller learning rate"
            )
        return False, f"best {name}: {best[name]:.4g} at step {best['step']}"

    def _keep(self, step, scores, params, constants):
        params, constants = jax.tree.map(np.asarray, (params, constants))
        text = config_lib.to_json(self._config)
        notes = {"step": step, "scores": dict(scores)}
        own.write(self._workdir / FILE, own.Saved(text, params, constants, notes))
