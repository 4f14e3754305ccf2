"""In-memory sources and features for the tests of the evaluations."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import evals
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.case import Case
from ssl_jax.evals.pixels import Pixels


class Source:
    """Images [N, H, W, 3] with optional labels [N] and masks [N, H, W]; the records in `broken` are
    unreadable.
    """

    def __init__(self, images, labels=None, masks=None, broken=(), size="same"):
        self._images, self._labels, self._masks, self._broken = images, labels, masks, set(broken)
        self.size = images.shape[1:3] if size == "same" else size
        self.num_classes = None if labels is None else int(np.max(labels)) + 1
        self.has_masks = masks is not None

    def __len__(self):
        return len(self._images)

    def __getitem__(self, i):
        if i in self._broken:
            raise Unreadable(self.name(i), "broken on purpose")
        record = {"image": self._images[i]}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        if self._masks is not None:
            record["mask"] = self._masks[i]
        return record

    def name(self, i):
        return f"record/{i}"

    def shape(self, i):
        return self._images[i].shape[:2]

    def __repr__(self):
        return f"Source({len(self)} images)"


def images(count, height=8, width=8, seed=0):
    """uint8 [count, height, width, 3] noise."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3)).astype(np.uint8)


def counted_features(patch=4, dim=5):
    """A jitted features_fn (a fixed random projection per patch) and the list of input shapes it
    was traced for.
    """
    shapes = []
    kernel = jnp.asarray(
        np.random.default_rng(1).normal(size=(patch * patch * 3, dim)), jnp.float32
    )

    @jax.jit
    def apply(x):
        shapes.append(x.shape)
        b, height, width, _ = x.shape
        h, w = height // patch, width // patch
        cut = x.reshape(b, h, patch, w, patch, 3).swapaxes(2, 3).reshape(b, h, w, -1)
        out = jnp.einsum("bhwc,cd->bhwd", cut, kernel, precision="highest")
        return Pixels(image=out.mean(axis=(1, 2)), patches=out)

    return apply, shapes


@dataclass(frozen=True)
class _Given(Case):
    """parts: the features of the training and of the test images."""

    parts: Any = None

    def part(self, name, tokens="image", layers=1):
        return self.parts[name]


def case(type, train, test, source=None, **changes):
    """An evaluation whose features exist already: train and test have .image or .patches, and
    .labels or .masks. source: of the test images."""
    parts = dict(train=train, test=test)
    return _Given(None, evals.new(type, **changes), None, source, parts=parts)
