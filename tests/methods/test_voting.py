"""What SOP, SOVE and MaSSL share: temperatures, the teacher's parameters, pictures of
neighbours.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.methods import base, massl, sop, sove, voting
from tests.methods import voting_case as case

MODULES = (sop, sove, massl)


@functools.cache
def start(module):
    config = case.config_of(module.METHOD)
    params = jax.jit(lambda: module.METHOD.init(jax.random.key(0), config)[0])()
    return config, params, np.random.default_rng(0).random((12, 16, 16, 3), np.float32)


@pytest.mark.parametrize("module", MODULES)
def test_temperature_rises_with_every_step_to_its_end(module):
    config = case.config_of(module.METHOD)
    section = config[config.method]

    def at(step):
        return voting.temperatures(case.PROGRESS._replace(step=jnp.int32(step)), config)

    values = [float(at(step)["teacher_temperature"]) for step in range(12)]
    np.testing.assert_allclose(
        values[:8],
        np.linspace(section.teacher_temperature, section.final_teacher_temperature, 8),
        rtol=1e-6,
    )
    np.testing.assert_allclose(values[8:], section.final_teacher_temperature, rtol=1e-6)
    assert at(0)["student_temperature"] == section.student_temperature


def indices(images, row):
    """Which image each panel of a row shows."""
    return [
        int(np.flatnonzero([np.array_equal(panel.image, image) for image in images])[0])
        for panel in row
    ]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("with_head", [True, False])
def test_a_row_shows_an_anchor_and_its_nearest_images(module, with_head):
    config, params, images = start(module)
    weights = {"backbone": params["backbone"]} | ({"head": params["head"]} if with_head else {})
    picture = module.METHOD.pictures(weights, images, config)["neighbours"]
    embedding = voting.features(params, images, config).image
    if with_head:
        embedding = voting.networks(config, teacher=True)[1].apply(params["head"], embedding)
    embedding = np.asarray(embedding, np.float64)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    rows = [indices(images, row) for row in picture.rows]
    anchors = {row[0] for row in rows}
    assert len(rows) == len(anchors) == 6 and all(len(row) == 7 for row in rows)
    others = np.array(sorted(set(range(12)) - anchors))
    for row, panels in zip(rows, picture.rows):
        cosine = embedding[others] @ embedding[row[0]]
        assert row[1:] == others[np.argsort(-cosine)][:6].tolist()
        assert [panel.title for panel in panels[1:]] == [
            f"{s:.2f}" for s in np.sort(cosine)[::-1][:6]
        ]
        assert panels[0].title.startswith("anchor") and all(panel.marks == () for panel in panels)


@pytest.mark.parametrize("module", [sop, sove])
def test_patches_are_marked_and_come_from_other_images(module):
    config, params, images = start(module)
    picture = module.METHOD.pictures(params, images, config)["patch_neighbours"]
    found = voting.features(params, images, config)
    patches = np.asarray(
        voting.networks(config, teacher=True)[1].apply(params["head"], found.patches), np.float64
    )
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    anchors = {indices(images, row)[0] for row in picture.rows}
    for row in picture.rows:
        shown = indices(images, row)
        assert len(set(shown)) == len(shown) and not anchors & set(shown[1:])
        places = [tuple(int(4 * x) for x in panel.marks[0]) for panel in row]  # a grid of 4 x 4
        assert all(
            panel.marks == (((y + 0.5) / 4, (x + 0.5) / 4),) for panel, (y, x) in zip(row, places)
        )
        cosine = patches.reshape(12, 16, -1) @ patches[shown[0], *places[0]]
        best = {image: cosine[image].max() for image in range(12) if image not in anchors}
        assert shown[1:] == sorted(best, key=best.get, reverse=True)[:6]
        for image, (y, x), panel in zip(shown[1:], places[1:], row[1:]):
            assert cosine[image, 4 * y + x] == best[image] and panel.title == f"{best[image]:.2f}"


def test_pictures_depend_on_the_seed_alone_and_two_images_are_enough():
    config, params, images = start(massl)
    first, second = (massl.METHOD.pictures(params, images, config)["neighbours"] for _ in range(2))
    assert [indices(images, r) for r in first.rows] == [indices(images, r) for r in second.rows]
    config = case.config_of(massl.METHOD, seed=1)
    other = massl.METHOD.pictures(params, images, config)["neighbours"]
    assert [indices(images, r)[0] for r in first.rows] != [
        indices(images, r)[0] for r in other.rows
    ]
    (row,) = massl.METHOD.pictures(params, images[:2], config)["neighbours"].rows
    assert sorted(indices(images, row)) == [0, 1]


def test_massl_has_no_patches():
    config, params, images = start(massl)
    assert voting.tasks(config) == ("cls",) and set(
        massl.METHOD.pictures(params, images, config)
    ) == {"neighbours"}


@pytest.mark.parametrize("module", MODULES)
def test_panels_are_plain_arrays(module):
    config, params, images = start(module)
    for picture in module.METHOD.pictures(params, images, config).values():
        assert isinstance(picture, base.Picture) and picture.title
        assert all(isinstance(panel.image, np.ndarray) for row in picture.rows for panel in row)


@pytest.mark.parametrize("module", MODULES)
def test_health_watches_the_tasks_there_are(module):
    config, _, _ = start(module)
    row = {
        f"{name}_{kind}_entropy": 0.0
        for name in ("cls", "patch")
        for kind in ("teacher", "marginal")
    }
    kinds = [text.split(":")[0] for text in module.METHOD.health(row, config)]
    assert kinds == [f"collapse of {name} targets" for name in voting.tasks(config)]
