"""Logistic regression on frozen features, by scikit-learn. It is convex, so the only setting to
select is the strength of the penalty."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import register_module
from ssl_jax.features import tokens
from ssl_jax.scores.classification import PENALTIES, logistic


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    c: tuple[float, ...] = field(
        PENALTIES,
        "inverse strengths of the L2 penalty that are tried; the best on a held-out 10 % counts",
        above=0,
    )
    iterations: int = field(1000, "largest number of L-BFGS iterations", above=0, most=10**6)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`logistic`, test accuracy in percent; `logistic_c`, the selected C."""
    train, test = case.labelled(settings.tokens, settings.layers)
    accuracy, penalty = logistic(
        train.image,
        train.labels,
        test.image,
        test.labels,
        penalties=tuple(settings.c),
        iterations=settings.iterations,
        seed=case.seed,
    )
    return {"logistic": 100.0 * accuracy, "logistic_c": penalty}


register_module(__name__, heading="logistic", needs="labels", share=True)
