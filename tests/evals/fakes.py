"""In-memory sources and features for the tests of the evaluations."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import evals
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.case import Case
from ssl_jax.features.pixels import Pixels


class Source:
    """Images [N, H, W, 3] or a list of them, with labels [N], masks [N, H, W], boxes and their
    labels where they are given; the records in `broken` are unreadable. others: attributes."""

    def __init__(self, images, labels=None, masks=None, broken=(), size="same", **others):
        self._parts = dict(image=images, label=labels, mask=masks)
        self._parts |= {name: others.pop(name, None) for name in ("boxes", "box_labels")}
        sizes = {image.shape[:2] for image in images}
        self.size = size if size != "same" else sizes.pop() if len(sizes) == 1 else None
        self._broken = set(broken)
        self.num_classes = None if labels is None else int(np.max(labels)) + 1
        self.has_masks, self.has_boxes = masks is not None, self._parts["boxes"] is not None
        vars(self).update(others)

    def __len__(self):
        return len(self._parts["image"])

    def __getitem__(self, i):
        if i in self._broken:
            raise Unreadable(self.name(i), "broken on purpose")
        return {name: part[i] for name, part in self._parts.items() if part is not None}

    def name(self, i):
        return f"record/{i}"

    def shape(self, i):
        return self._parts["image"][i].shape[:2]

    def fingerprint(self, indices):
        return "labels and files never change"

    def __repr__(self):
        return f"Source({len(self)} images)"


def boxed(images, boxes, **others):
    """A Source of images with boxes [n, 4] each."""
    boxes = [np.asarray(of_one, np.float32).reshape(-1, 4) for of_one in boxes]
    return Source(images, boxes=boxes, **others)


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

    def features(self, name, tokens="image", layers=1):
        return self.parts[name]


def case(type, train, test, source=None, **changes):
    """An evaluation whose features exist already: train and test have .image or .patches, and
    .labels or .masks. source: of the test images."""
    parts, source = dict(train=train, test=test), source or Source(images(1))
    return _Given(None, evals.new(type, **changes), source, source, parts=parts)
