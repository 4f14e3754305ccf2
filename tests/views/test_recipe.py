"""Recipes and batches: purity of all draws, host and device modes, abstract shapes, the config's
keys, refusals.
"""

import dataclasses
import re
import zlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.models import zoo
from ssl_jax.views import crops, recipe, section
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.photometric import Photometric
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
    """Same bits for the same record at another place of another batch of that size; 1e-6 in other
    programs.
    """
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


def test_keys_are_the_fold_in_chain_and_belong_to_the_groups_name():
    keys = jax.random.key_data(recipe._keys(RECIPE, jnp.array([2, 3]), jnp.array([11, 12]), 5))
    assert keys.shape == (2, 5, 2)
    for at, name, view in ((0, "global", 0), (1, "global", 1), (4, "local", 2)):
        key = jax.random.key(5)
        for part in (3, 12, zlib.crc32(name.encode()), view):
            key = jax.random.fold_in(key, part)
        np.testing.assert_array_equal(keys[1, at], jax.random.key_data(key))


def test_eight_devices_make_the_same_views_without_moving_images():
    """Batch cut over 8 devices: the same pixels, and no collective in the program (nothing is
    gathered).
    """
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


@pytest.mark.parametrize(
    "crop_on,dtype", [("host", np.uint8), ("device", np.uint8), ("device", np.float32)]
)
def test_abstract_batch_agrees_with_a_batch_and_prepare_returns_floats(crop_on, dtype):
    batch = batch_of(RECIPE, [4, 7], crop_on=crop_on, dtype=dtype)
    abstract = recipe.abstract_batch(RECIPE, 2, SIZE, crop_on, dtype)
    chex.assert_trees_all_equal_shapes_and_dtypes(batch, abstract)
    out = jax.eval_shape(lambda b: recipe.prepare(RECIPE, b, 0), abstract)
    assert set(out) == {"global", "local", "source_size", "index", "epoch", "replaced"}
    assert out["global"].images.shape == (2, 2, 8, 8, 3)
    assert out["local"].images.shape == (2, 3, 4, 4, 3)
    assert out["global"].images.dtype == out["local"].images.dtype == jnp.float32
    assert out["global"].masks.shape == (2, 2, 16)


def test_what_cannot_be_is_refused():
    for name in ("seed", "epoch", "index"):
        with pytest.raises(InputError, match=name):
            recipe.draw(RECIPE, **dict(seed=0, epoch=0, index=0, source_size=SIZE) | {name: -1})
    for size, crop_on in ((SIZE, "gpu"), (None, "device")):
        with pytest.raises(InputError, match="data.crop_on"):
            recipe.abstract_batch(RECIPE, 2, size, crop_on)


def test_crop_host_cuts_the_drawn_boxes():
    drawn = recipe.draw(RECIPE, seed=0, epoch=0, index=4, source_size=SIZE)
    cut = recipe.crop_host(RECIPE, image(4), drawn)
    assert cut["global"].shape == (2, 8, 8, 3) and cut["local"].shape == (3, 4, 4, 3)
    boxes, flips = drawn["local"][:2]
    expected = crops.crop_host(image(4), boxes[2], 4, flips[2])
    np.testing.assert_array_equal(cut["local"][2], expected)


# -- recipes


def views_config(**changes):
    views = config_lib.build(section.defaults())
    views.update(changes)
    return views


def test_multicrop_follows_dino():
    r = recipe.recipe_multicrop(views_config(), 16)
    again = recipe.recipe_multicrop(views_config(), 16)
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


def test_multicrop_masks_global_views_only_and_may_have_no_locals():
    masked = dict(mask="block", mask_ratio=(0.1, 0.5), mask_prob=0.5)
    r = recipe.recipe_multicrop(views_config(**masked, local_count=2), 16)
    assert r["global"].mask == MaskRecipe("block", (0.1, 0.5), 0.5) and r["local"].mask is None
    assert recipe.max_masked(r, "global") == 98
    alone = recipe.recipe_multicrop(views_config(local_count=0), 16)
    assert [name for name, _ in alone.groups] == ["global"]


@pytest.mark.parametrize("count,blur", [(1, [1.0]), (3, [1.0, 0.1, 0.1])])
def test_multicrop_with_another_number_of_global_views(count, blur):
    views = recipe.recipe_multicrop(views_config(global_count=count), 16)["global"].photometric
    assert [p.blur_prob for p in views] == blur
    assert [p.solarize_prob for p in views] == [0.0, 0.2, 0.0][:count]


EDGES = [
    dict(local_count=0, local_size=100),
    dict(global_scale=(1.0, 1.0), mask="random", mask_ratio=(0.0, 0.0)),
    dict(global_count=1, flip=0, jitter=(0, 0, 0, 0.5), blur_radius=(1e-3, 1000)),
    dict(mask="block", mask_ratio=(0.1, 0.999), mask_prob=1),
]


@pytest.mark.parametrize("changes", EDGES, ids=str)
def test_the_edges_of_what_a_section_allows_make_a_recipe(changes):
    config = config_lib.build(dict(views=section.defaults(), model=zoo.defaults()))
    config.views.update(changes)
    for name, key in section.defaults().items():
        key.check(f"views.{name}", config.views[name])
    section.check(config)
    groups = dict(recipe.recipe_multicrop(config.views, 16).groups)
    assert set(groups) == ({"global", "local"} if config.views.local_count else {"global"})


@pytest.mark.parametrize(
    "name, value",
    [
        *(("count", 0), ("patch", 0), ("size", 9), ("scale", (0.5, 1.1)), ("flip", -0.5)),
        *(("ratio", (2.0, 1.0)), ("photometric", (DINO, DINO))),
    ],
)
def test_a_group_built_by_hand_has_the_ranges_of_the_keys(name, value):
    with pytest.raises(InputError, match=name):
        GroupRecipe(**dict(count=1, size=8, scale=(0.5, 1.0), patch=2) | {name: value})


@pytest.mark.parametrize("names", [(), ("a", "a"), ("index",)])
def test_groups_need_names_of_their_own(names):
    group = GroupRecipe(1, 8, (0.5, 1.0), patch=2)
    with pytest.raises(InputError):
        ViewRecipe(tuple((name, group) for name in names))
