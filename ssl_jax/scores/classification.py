"""Classification of features: accuracies, logistic regression, and the split of a training set into
rows for training and rows for selecting settings. `probe` trains linear classifiers."""

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.scores import checked

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
TOP = 5
_HELD_OUT = 0.1


def split(order: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Splits rows [n] in random order into (training rows, selection rows).

    share: of the selection rows, in [0, 1); 0 = none, otherwise they are at least 1 and at most
    n - 1."""
    count = min(max(1, round(share * len(order))), len(order) - 1) if share else 0
    return order[count:], order[:count]


def accuracies(logits: ArrayLike, labels: ArrayLike, ks: tuple[int, ...] = (1, TOP)) -> list[float]:
    """Share of rows, in [0, 1], whose label is among the k highest scores, for each k.

    Ties count with the probability that a random order of the tied scores puts the label among the
    k highest, so a constant output scores at chance.

    Args:
      logits: [n, c], n > 0; labels: [n] int in [0, c).

    Raises:
      ValueError: shapes do not fit, a label is out of range, or a logit is NaN or inf (-inf: a
        class that cannot be).
    """
    scores, labels = checked.real(logits), np.asarray(labels)
    if scores.ndim != 2 or not len(scores) or labels.shape != scores.shape[:1]:
        raise ValueError(f"logits {scores.shape} and labels {labels.shape} do not fit [n, c], [n]")
    labels = checked.classes(labels, scores.shape[1])
    if not (scores < np.inf).all():
        raise ValueError(f"logits {scores.shape} have values that are NaN or inf")
    of_label = scores[np.arange(len(labels)), labels][:, None]
    above, equal = (scores > of_label).sum(axis=1), (scores == of_label).sum(axis=1)
    return [float(np.clip((k - above) / equal, 0, 1).mean()) for k in ks]


def logistic(
    train: np.ndarray,
    labels: ArrayLike,
    test: np.ndarray,
    test_labels: ArrayLike,
    *,
    penalties: tuple[float, ...] = PENALTIES,
    iterations: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Logistic regression: (accuracy on the test set, selected C).

    C is selected on a tenth of the training set (at least as many rows as classes), drawn in
    proportion to the classes if each has two rows; of a rare class it may have none. Then the model
    is fitted to the whole training set. A single penalty is used without selection.

    Args:
      train: [n, d] features, standardised here with their mean and deviation; labels: [n].
      test: [m, d], test_labels: [m].
      penalties: values of C. seed: of the draw.

    Raises:
      InputError: the other nine tenths have a single class.
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
        # Further iterations change at most the third digit of an accuracy.
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
