"""Recipes and batches: purity of all draws, host and device modes, DINO's recipe, refusals."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.views import configured, recipe, section
from ssl_jax.views.erasing import Erasing
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.mixing import Mixing
from ssl_jax.views.photometric import Photometric
from ssl_jax.views.randaugment import RandAugment
from ssl_jax.views.recipe import Group, GroupRecipe, ViewRecipe

SIZE = (24, 20)
DINO = Photometric((0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.5, (0.1, 2.0), 0.2)
GLOBAL = GroupRecipe(2, 8, (0.25, 1.0), 2, photometric=(DINO,) * 2, mask=MaskRecipe("block"))
LOCAL = GroupRecipe(3, 4, (0.05, 0.25), patch=2, photometric=(DINO,) * 3)
RECIPE = ViewRecipe((("global", GLOBAL), ("local", LOCAL)))


def image(index):
    """A smooth image of its own per record, uint8."""
    rng = np.random.default_rng(index)
    y, x = np.mgrid[0 : SIZE[0], 0 : SIZE[1]]
    a, b, c = rng.uniform(1, 5, (3, 3))
    return (127 + 120 * np.sin(a * x[..., None] / 9 + b * y[..., None] / 9 + c)).astype(np.uint8)


def batch_of(view_recipe, indices, *, epoch=0, crop_on="host", seed=0, dtype=np.uint8):
    """The batch a loader would make."""
    stream = dict(seed=seed, epoch=epoch, source_size=SIZE)
    drawn = [recipe.draw(view_recipe, index=i, **stream) for i in indices]
    n = len(indices)
    batch = {
        "source_size": np.tile(np.float32(SIZE), (n, 1)),
        "index": np.array(indices, np.int32),
        "epoch": np.full(n, epoch, np.int32),
        "replaced": np.zeros(n, bool),
    }
    if crop_on == "device":
        source = np.stack([image(i) for i in indices])
        batch["source"] = source if dtype == np.uint8 else source.astype(np.float32) / 255
    else:
        cut = [recipe.crop_host(view_recipe, image(i), d) for i, d in zip(indices, drawn)]
    for name, _ in view_recipe.groups:
        columns = zip(*(d[name] for d in drawn), strict=True)
        images = np.stack([c[name] for c in cut]) if crop_on == "host" else None
        batch[name] = Group(images, *(None if x[0] is None else np.stack(x) for x in columns))
    return batch


PREPARE = jax.jit(recipe.prepare, static_argnums=(0, 2))


def images_of(batch):
    return {name: np.asarray(batch[name].images) for name in ("global", "local")}


def same_draws(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


# -- draws on the host


def test_draws_are_a_pure_function_of_seed_epoch_and_index():
    base = dict(seed=3, epoch=2, index=5, source_size=SIZE)
    first = recipe.draw(RECIPE, **base)
    recipe.draw(RECIPE, **base | dict(index=6))
    assert same_draws(first, recipe.draw(RECIPE, **base))
    # Seed and epoch do not stand in for each other.
    for change in (dict(seed=4), dict(epoch=3), dict(index=6), dict(seed=2, epoch=3)):
        other = recipe.draw(RECIPE, **base | change)
        assert not np.array_equal(first["global"].boxes, other["global"].boxes)
        assert not np.array_equal(first["global"].masks, other["global"].masks)


def test_masks_on_or_off_leave_the_crops_alone():
    name, group = RECIPE.groups[0]
    without = ViewRecipe(((name, dataclasses.replace(group, mask=None)), RECIPE.groups[1]))
    a = recipe.draw(RECIPE, seed=0, epoch=0, index=9, source_size=SIZE)
    b = recipe.draw(without, seed=0, epoch=0, index=9, source_size=SIZE)
    for name in a:
        assert same_draws(a[name][:2], b[name][:2])


def test_views_of_one_record_differ_and_half_of_them_are_flipped():
    stream = dict(seed=0, epoch=0, source_size=(64, 64))
    drawn = [recipe.draw(RECIPE, index=i, **stream)["global"] for i in range(500)]
    assert max(d.masks.sum(1).max() for d in drawn) == recipe.max_masked(RECIPE, "global") == 4
    assert recipe.max_masked(RECIPE, "local") == 0
    assert np.mean([np.array_equal(*d.boxes) for d in drawn]) < 0.02
    assert np.mean([d.flips for d in drawn]) == pytest.approx(0.5, abs=0.065)


def test_dropped_patches_come_with_the_kept_indices():
    mask = MaskRecipe("random", (0.75, 0.75), drop=True)
    drop = ViewRecipe((("global", GroupRecipe(2, 8, (1.0, 1.0), patch=2, mask=mask)),))
    drawn = recipe.draw(drop, seed=0, epoch=0, index=0, source_size=SIZE)["global"]
    assert drawn.keep.shape == (2, 4) and drawn.keep.dtype == np.int32
    for keep, row in zip(drawn.keep, drawn.masks, strict=True):
        np.testing.assert_array_equal(keep, np.flatnonzero(~row))
    assert recipe.abstract_batch(drop, 5, SIZE, "host")["global"].keep.shape == (5, 2, 4)


# -- batches on the device


def test_a_view_does_not_depend_on_batch_order_size_or_other_groups():
    batch = batch_of(RECIPE, [4, 7, 1, 9])
    a = images_of(PREPARE(RECIPE, batch, 0))
    b = images_of(PREPARE(RECIPE, batch_of(RECIPE, [9, 2, 4, 30]), 0))
    for name in a:
        np.testing.assert_array_equal(a[name][0], b[name][2])
        np.testing.assert_array_equal(a[name][3], b[name][0])
    alone = images_of(PREPARE(RECIPE, batch_of(RECIPE, [7]), 0))
    turned = images_of(PREPARE(ViewRecipe(RECIPE.groups[::-1]), batch, 0))
    halves = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), batch)
    mapped = images_of(jax.jit(jax.vmap(lambda b: recipe.prepare(RECIPE, b, 0)))(halves))
    for name in a:
        np.testing.assert_allclose(a[name][1], alone[name][0], atol=1e-6)
        np.testing.assert_allclose(turned[name], a[name], atol=1e-6)
        np.testing.assert_allclose(mapped[name].reshape(a[name].shape), a[name], atol=1e-6)


def test_photometric_draws_change_with_seed_epoch_index_and_view():
    batch = batch_of(RECIPE, [4, 4, 4, 4])
    batch["index"], batch["epoch"] = np.int32([4, 5, 4, 4]), np.int32([0, 0, 1, 0])
    for name in ("global", "local"):  # the same pixels everywhere
        images = batch[name].images
        batch[name] = batch[name]._replace(images=np.broadcast_to(images[:1, :1], images.shape))
    first, second = images_of(PREPARE(RECIPE, batch, 0)), images_of(PREPARE(RECIPE, batch, 1))
    for name in first:
        x = first[name]
        np.testing.assert_array_equal(x[0], x[3])  # the same record
        for other in (x[1], x[2], second[name][0]):  # another index, epoch, seed
            assert not np.array_equal(x[0], other)
        assert len({x[0, v].tobytes() for v in range(x.shape[1])}) == x.shape[1]


def test_eight_devices_make_the_same_views_without_moving_images():
    batch = batch_of(RECIPE, range(8), crop_on="device")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    cut = jax.device_put(batch, sharding)
    compiled = PREPARE.lower(RECIPE, cut, 0).compile()
    assert not re.search(r"all-gather|all-reduce|all-to-all|collective-permute", compiled.as_text())
    one, eight = images_of(PREPARE(RECIPE, batch, 0)), images_of(compiled(cut))
    for name in one:
        np.testing.assert_allclose(eight[name], one[name], atol=1e-6)


def test_device_crops_equal_host_crops():
    """Without photometric draws, up to Pillow's 8-bit rounding; uint8 and float32 sources alike."""
    bare = ViewRecipe(tuple((n, dataclasses.replace(g, photometric=())) for n, g in RECIPE.groups))
    ways = ({}, dict(crop_on="device"), dict(crop_on="device", dtype=np.float32))
    batches = [batch_of(bare, [4, 7, 1], **way) for way in ways]
    host, device, floats = (images_of(PREPARE(bare, batch, 0)) for batch in batches)
    for name in host:
        assert np.abs(host[name] - device[name]).max() <= 1.1 / 255
        np.testing.assert_allclose(device[name], floats[name], atol=1e-6)


def test_nan_in_a_float_source_reaches_every_view_of_its_record_only():
    batch = batch_of(RECIPE, [4, 7, 1], crop_on="device", dtype=np.float32)
    clean = images_of(PREPARE(RECIPE, batch, 0))
    batch["source"][1, 3, 5, 0] = np.nan
    dirty = images_of(PREPARE(RECIPE, batch, 0))
    for name in clean:
        np.testing.assert_array_equal(clean[name][[0, 2]], dirty[name][[0, 2]])
        assert np.isnan(dirty[name][1]).any((1, 2, 3)).all()


def test_what_cannot_be_is_refused():
    for name in ("seed", "epoch", "index"):
        with pytest.raises(InputError, match=name):
            recipe.draw(RECIPE, **dict(seed=0, epoch=0, index=0, source_size=SIZE) | {name: -1})
    for size, crop_on in ((SIZE, "gpu"), (None, "device")):
        with pytest.raises(InputError, match="data.crop_on"):
            recipe.abstract_batch(RECIPE, 2, size, crop_on)


# -- recipes


def views_config(**changes):
    views = config_lib.build(section.defaults())
    views.update(changes)
    return views


def test_multicrop_follows_dino():
    r = configured.recipe_multicrop(views_config(), 16)
    again = configured.recipe_multicrop(views_config(), 16)
    assert r == again and hash(r) == hash(again)
    g, local = r["global"], r["local"]
    assert (g.count, g.size, g.scale) == (2, 224, (0.25, 1.0))
    assert (g.flip, g.grid, g.mask) == (0.5, (14, 14), None)
    assert (local.count, local.size, local.scale) == (10, 96, (0.05, 0.25))
    assert g.ratio == local.ratio == (3 / 4, 4 / 3)
    for view in (*g.photometric, *local.photometric):
        assert (view.jitter, view.jitter_prob, view.gray_prob) == ((0.4, 0.4, 0.2, 0.1), 0.8, 0.2)
        assert view.blur_radius == (0.1, 2.0) and view.solarize_threshold == 0.5
    assert [(p.blur_prob, p.solarize_prob) for p in g.photometric] == [(1.0, 0.0), (0.1, 0.2)]
    assert [(p.blur_prob, p.solarize_prob) for p in local.photometric] == [(0.5, 0.0)] * 10


def test_multicrop_masks_global_views_only_and_has_other_numbers_of_views():
    masked = dict(mask="block", mask_ratio=(0.1, 0.5), mask_prob=0.5)
    r = configured.recipe_multicrop(views_config(**masked, local_count=2), 16)
    assert r["global"].mask == MaskRecipe("block", (0.1, 0.5), 0.5) and r["local"].mask is None
    assert recipe.max_masked(r, "global") == 98
    alone = configured.recipe_multicrop(views_config(local_count=0), 16)
    assert [name for name, _ in alone.groups] == ["global"]
    more = configured.recipe_multicrop(views_config(global_count=3), 16)["global"].photometric
    assert [(p.blur_prob, p.solarize_prob) for p in more] == [(1.0, 0.0), (0.1, 0.2), (0.1, 0.0)]


PLAIN = GroupRecipe(1, 8, (0.5, 1.0), patch=2)
REFUSED = {
    MaskRecipe: [
        *(dict(kind="grid"), dict(ratio=(0.5, 0.1)), dict(ratio=(0.5, 1.0)), dict(prob=1.5)),
        *(dict(ratio=(-0.1, 0.1)), dict(drop=True)),
        dict(kind="random", ratio=(0.1, 0.5), drop=True),
    ],
    Photometric: [
        *(dict(jitter=(0.4, -0.1, 0.2, 0.1)), dict(jitter=(0.4, 0.4, 0.2, 0.6))),
        *(dict(jitter=(0.4, 0.4, 0.2)), dict(gray_prob=1.2), dict(blur_prob=-0.1)),
        *(dict(blur_radius=(2.0, 0.1)), dict(blur_radius=(0.0, 1.0))),
        *(dict(solarize_prob=float("nan")), dict(alternative_prob=1.5)),
        *(dict(alternative=(0.1, 2.0)), dict(alternative=(0.1,))),
    ],
    Erasing: [dict(prob=1.5), dict(prob=0.5, area=(0.5, 0.2))],
    RandAugment: [dict(count=-1), dict(magnitude=11.0), dict(std=-1.0), dict(prob=1.5)],
    Mixing: [
        *(dict(mixup=0.0, cutmix=0.0), dict(mixup=-1.0), dict(prob=2.0), dict(switch_prob=-1.0))
    ],
    functools.partial(dataclasses.replace, PLAIN): [
        *(dict(count=0), dict(patch=0), dict(size=9), dict(scale=(0.5, 1.1)), dict(flip=-0.5)),
        *(dict(ratio=(2.0, 1.0)), dict(photometric=(DINO, DINO))),
    ],
    functools.partial(ViewRecipe, (("global", PLAIN),), mix=Mixing()): [
        *(dict(classes=0), dict(classes=5, repeats=0))
    ],
    lambda **to: ViewRecipe((("global", dataclasses.replace(PLAIN, **to)), ("local", PLAIN))): [
        *(dict(inside="global"), dict(inside="local"), dict(reuse="global"), dict(reuse="local"))
    ],
    lambda names: ViewRecipe(tuple((name, PLAIN) for name in names)): [
        *(dict(names=()), dict(names=("a", "a")), dict(names=("index",)))
    ],
}


@pytest.mark.parametrize("make, wrong", [(m, w) for m, rows in REFUSED.items() for w in rows])
def test_recipes_built_by_hand_have_the_ranges_of_the_keys(make, wrong):
    with pytest.raises(InputError, match="group" if "names" in wrong else "|".join(wrong)):
        make(**wrong)
