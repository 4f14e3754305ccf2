"""Logistic regression on frozen features, by scikit-learn: convex, so that nothing but the strength
of the penalty is chosen."""

import dataclasses
import math
import warnings

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import register_module
from ssl_jax.features import tokens

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
_HELD_OUT = 0.1


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    """The keys of this type of evaluation."""

    c: tuple[float, ...] = field(
        PENALTIES,
        "inverse strengths of the L2 penalty; the best on a held-out 10 % counts",
        above=0,
    )
    iterations: int = field(1000, "of L-BFGS, at most", above=0, most=10**6)


def fit(
    train: np.ndarray,
    labels: ArrayLike,
    test: np.ndarray,
    test_labels: ArrayLike,
    *,
    penalties: tuple[float, ...] = PENALTIES,
    iterations: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """(accuracy on the test set, the chosen C): chosen on a tenth of the training set, drawn by
    class from the seed and at least one of each; then fitted to all of it. A single C is not
    searched for.

    Args:
      train: [n, d] features, standardised here with their mean and deviation; labels: [n].
      test: [m, d], test_labels: [m].

    Raises:
      InputError: the part that is left for learning has a single class.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def model(c):
        return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=iterations))

    chosen = penalties[0]
    with warnings.catch_warnings():
        # More iterations change the third digit of an accuracy at most.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if len(penalties) > 1:
            counts = np.unique(labels, return_counts=True)[1]
            by_class = counts.min() > 1
            held_out = math.ceil(_HELD_OUT * len(train))
            parts = train_test_split(
                np.asarray(train),
                np.asarray(labels),
                test_size=max(held_out, len(counts)) if by_class else held_out,
                random_state=seed,
                stratify=labels if by_class else None,
            )
            learn, choose, learn_labels, choose_labels = parts
            if len(np.unique(learn_labels)) < 2:
                raise InputError(
                    f"logistic: {len(train)} training images of {len(counts)} classes are too few"
                    " to choose c on a tenth of them; give one c, or more images"
                )
            scores = [
                model(c).fit(learn, learn_labels).score(choose, choose_labels) for c in penalties
            ]
            chosen = penalties[int(np.argmax(scores))]
        accuracy = model(chosen).fit(train, labels).score(test, test_labels)
    return float(accuracy), float(chosen)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`logistic`: test accuracy in percent; `logistic_c`: the chosen C.

    Raises InputError for a set without labels, or with a single class.
    """
    c = case.config
    train, test = case.labelled(c.tokens, c.layers)
    accuracy, chosen = fit(
        train.image,
        train.labels,
        test.image,
        test.labels,
        penalties=tuple(c.c),
        iterations=c.iterations,
        seed=case.seed,
    )
    return {"logistic": 100.0 * accuracy, "logistic_c": chosen}


register_module(__name__, heading="logistic", needs="labels", share=True)
