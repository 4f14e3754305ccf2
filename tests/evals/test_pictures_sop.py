"""Pictures of SOP, SOVE and MaSSL: an anchor and its nearest neighbours."""

import functools

import jax
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from ssl_jax import methods
from ssl_jax.evals import pictures
from ssl_jax.methods.encoder import Encoder
from tests.methods import embeddings_case as case


@functools.cache
def start(name, with_head=True):
    """An encoder of random weights, and 12 images."""
    config = FrozenConfigDict(case.config_of(name))
    encoder, method = Encoder(config, None), methods.make(config)
    params = jax.jit(lambda: method.init(jax.random.key(0))[0])()
    if not with_head:
        params = {"backbone": params["backbone"]}
    images = np.random.default_rng(0).random((12, 16, 16, 3), np.float32)
    return encoder.with_params(params), images


def unit(embeddings):
    embeddings = np.asarray(embeddings, np.float64)
    return embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)


def indices(images, row):
    """Which image each panel of a row shows."""
    return [
        int(np.flatnonzero([np.array_equal(panel.image, image) for image in images])[0])
        for panel in row
    ]


@pytest.mark.parametrize(
    "name, with_head", [("sop", True), pytest.param("massl", False, marks=pytest.mark.slow)]
)
def test_a_row_shows_an_anchor_and_its_nearest_images(name, with_head):
    encoder, images = start(name, with_head)
    picture = pictures.draw(encoder, images)["neighbours"]
    features = encoder(images, extras=True)
    embedding = unit(features.extras["embedding"] if with_head else features.image)
    rows = [indices(images, row) for row in picture.rows]
    anchors = {row[0] for row in rows}
    assert len(rows) == len(anchors) == 6 and all(len(row) == 7 for row in rows)
    (pair,) = pictures.draw(encoder, images[:2])["neighbours"].rows  # two images are enough
    assert sorted(indices(images, pair)) == [0, 1]
    others = np.array(sorted(set(range(12)) - anchors))
    for row, panels in zip(rows, picture.rows, strict=True):
        cosine = embedding[others] @ embedding[row[0]]
        assert row[1:] == others[np.argsort(-cosine)][:6].tolist()
        shown = [float(panel.title) for panel in panels[1:]]
        np.testing.assert_allclose(shown, np.sort(cosine)[::-1][:6], atol=0.0051)
        assert all(panel.marks == () for panel in panels)


def test_patches_are_marked_and_come_from_other_images():
    encoder, images = start("sop")
    picture = pictures.draw(encoder, images)["patch_neighbours"]
    patches = unit(encoder(images, extras=True).extras["patch_embeddings"])
    anchors = {indices(images, row)[0] for row in picture.rows}
    for row in picture.rows:
        shown = indices(images, row)
        assert len(set(shown)) == len(shown) and not anchors & set(shown[1:])
        places = [tuple(int(4 * x) for x in panel.marks[0]) for panel in row]  # a grid of 4 x 4
        for panel, (y, x) in zip(row, places, strict=True):
            assert panel.marks == (((y + 0.5) / 4, (x + 0.5) / 4),)
        cosine = patches.reshape(12, 16, -1) @ patches[shown[0], *places[0]]
        best = {image: cosine[image].max() for image in range(12) if image not in anchors}
        assert shown[1:] == sorted(best, key=best.get, reverse=True)[:6]
        for image, (y, x), panel in zip(shown[1:], places[1:], row[1:], strict=True):
            assert cosine[image, 4 * y + x] == best[image] and panel.title == f"{best[image]:.2f}"
