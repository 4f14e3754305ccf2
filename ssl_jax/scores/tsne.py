"""t-SNE of vectors (van der Maaten & Hinton 2008), and the trustworthiness of the result."""

import numpy as np
from numpy.typing import ArrayLike

_NEIGHBOURS = 5  # neighbours of a point in the trustworthiness


def embed(
    features: ArrayLike, *, perplexity: float = 30.0, dimensions: int = 2, seed: int = 0
) -> np.ndarray:
    """Points [N, dimensions] float32 of rows [N, d], by scikit-learn's t-SNE from a random start.

    Raises ValueError unless there are at least 3 rows and more than the perplexity.
    """
    from sklearn.manifold import TSNE

    features = np.asarray(features, np.float32)
    if len(features) <= max(perplexity, 2):
        raise ValueError(
            f"t-SNE has {len(features)} vectors; it needs at least 3, and more than the perplexity"
            f" of {perplexity:g}"
        )
    model = TSNE(dimensions, perplexity=perplexity, init="random", random_state=seed)
    return model.fit_transform(features)


def trust(features: ArrayLike, points: np.ndarray) -> float:
    """Trustworthiness, 0..1, of points [N, p] for rows [N, d]: 1 if the five nearest neighbours of
    each point are also neighbours among the rows (Venna & Kaski 2001, scikit-learn)."""
    from sklearn.manifold import trustworthiness

    count = min(_NEIGHBOURS, (len(points) - 1) // 2)
    return float(trustworthiness(features, points, n_neighbors=count))
