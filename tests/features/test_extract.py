"""Feature extraction: one trace, padding without effect, what is cut off, bad records; the
raw-pixel baseline.
"""

import os

import jax.numpy as jnp
import numpy as np
import pytest

import ssl_jax
from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.source import make_source
from ssl_jax.features import extract, store, windows
from ssl_jax.features.monitored import subset
from ssl_jax.features.pixels import Pixels, area_weights, raw_pixels
from ssl_jax.runtime import distributed
from tests.data.sets import put_images
from tests.evals import fakes


def test_padding_changes_no_feature_and_there_is_one_trace(monkeypatch):
    masks = np.zeros((7, 8, 8), np.uint8)
    source = fakes.Source(fakes.images(7), labels=np.arange(7) % 3, masks=masks)
    fn, shapes = fakes.counted_features()
    padded = extract.extract(fn, source, batch_size=4, patches=True)
    assert shapes == [(4, 8, 8, 3)]
    whole = extract.extract(fn, source, batch_size=7, patches=True)
    np.testing.assert_allclose(padded.image, whole.image, rtol=1e-6)
    np.testing.assert_allclose(padded.patches, whole.patches, rtol=1e-6)
    assert padded.image.shape == (7, 5) and padded.patches.shape == (7, 2, 2, 5)
    np.testing.assert_array_equal(padded.labels, np.arange(7) % 3)
    assert padded.masks.shape == (7, 8, 8) and padded.skipped == ()
    monkeypatch.setattr(store, "IN_MEMORY", 100)  # features too large for it are a file
    filed = extract.extract(fn, source, batch_size=4, patches=True)
    assert isinstance(filed.patches, np.memmap) and not isinstance(padded.patches, np.memmap)
    np.testing.assert_array_equal(filed.patches, padded.patches)


def test_rows_follow_the_indices_and_pixels_are_in_0_1():
    pixels = fakes.images(6)
    source = fakes.Source(pixels, labels=np.arange(6))

    def flat(x):
        return Pixels(jnp.asarray(x).reshape(len(x), -1), jnp.zeros((len(x), 1, 1, 1)))

    seen = extract.extract(flat, source, batch_size=2, indices=[4, 0, 3])
    np.testing.assert_array_equal(seen.index, [4, 0, 3])
    np.testing.assert_array_equal(seen.labels, [4, 0, 3])
    expected = pixels[[4, 0, 3]].reshape(3, -1).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(seen.image, expected)
    assert seen.patches is None
    given = pixels / np.float32(256)  # floats pass unchanged
    np.testing.assert_array_equal(windows.images_of(fakes.Source(given), [1]), given[1:2])


def test_image_and_mask_are_cut_alike_around_the_centre():
    masks = np.arange(2 * 10 * 13).reshape(2, 10, 13).astype(np.uint8)
    source = fakes.Source(fakes.images(2, 10, 13), masks=masks)
    fn, shapes = fakes.counted_features(patch=4)
    out = extract.extract(fn, source, batch_size=2, patches=True, multiple=4)
    assert shapes == [(2, 8, 12, 3)]  # 10x13, reduced to a multiple of 4
    np.testing.assert_array_equal(out.masks, masks[:, 1:9, 0:12])
    cropped = extract.extract(fn, source, batch_size=2, patches=True, crop=8, multiple=4)
    np.testing.assert_array_equal(cropped.masks, masks[:, 1:9, 2:10])
    expected = fn(windows.images_of(source, [0, 1], crop=8)).patches
    np.testing.assert_allclose(cropped.patches, expected, rtol=1e-6)


def test_masks_are_no_part_of_image_vectors():
    """So some images may have none."""
    masks = [np.zeros((8, 8), np.uint8), None]
    source = fakes.Source(fakes.images(2), masks=masks)
    fn, _ = fakes.counted_features()
    assert extract.extract(fn, source, batch_size=2).masks is None


def _mixed(height, width, **options):
    """Two images of 8 x 8 and one of another size."""
    return fakes.Source([*fakes.images(2), fakes.images(1, height, width)[0]], **options)


@pytest.mark.parametrize(
    "source, options, named",
    [
        (_mixed(3, 8, size=None), dict(multiple=4), "record/2"),  # smaller than a patch
        (_mixed(6, 8, size=None), dict(crop=8), "record/2"),
        (_mixed(6, 8, size=(8, 8)), {}, "record/2"),
        (fakes.Source(fakes.images(2), broken=(0, 1)), {}, "readable"),
        (fakes.Source(fakes.images(2)), dict(crop=9), "crop"),
        (fakes.Source(fakes.images(2)), dict(multiple=16), "patch"),
        (fakes.Source(np.full((2, 8, 8, 3), np.nan, np.float32)), {}, "record/0"),
        (fakes.Source(np.full((2, 8, 8, 3), 99, np.float32)), {}, "record/0.*255"),
    ],
)
def test_what_cannot_work_is_named(source, options, named):
    fn, _ = fakes.counted_features()
    with pytest.raises(InputError, match=named):
        extract.extract(fn, source, batch_size=2, **options)


def _sized(*sizes, broken=()):
    """A source of images and masks of these sizes."""
    images = [fakes.images(1, *size, seed=i)[0] for i, size in enumerate(sizes)]
    masks = [np.full(size, i, np.uint8) for i, size in enumerate(sizes)]
    labels = np.arange(len(sizes))
    return fakes.Source(images, labels=labels, masks=masks, broken=broken, size=None)


@pytest.mark.parametrize("broken", [(), (1,)])
def test_images_of_different_sizes_go_by_shape_and_come_in_order(broken):
    source = _sized((8, 12), (9, 8), (8, 13), (8, 8), (10, 15), broken=broken)
    cuts = [(8, 12), (8, 8), (8, 12), (8, 8), (8, 12)]
    fn, shapes = fakes.counted_features()
    out = extract.extract(fn, source, batch_size=4, patches=True, multiple=4)
    # 8x12 has three images, which take a batch of four; 8x8 has two.
    assert sorted(shapes) == [(2, 8, 8, 3), (4, 8, 12, 3)]
    readable = [i for i in range(5) if i not in broken]
    np.testing.assert_array_equal(out.labels, readable)
    np.testing.assert_array_equal(out.index, readable)
    assert out.skipped == tuple(f"record/{i}" for i in broken)
    assert len(store.Grids.of(out.patches).rows) == 6 * 3 + 4 * (2 - len(broken))
    for row, i in enumerate(readable):
        alone = fn(windows.images_of(source, [i], multiple=4))
        assert out.patches[row].shape[:2] == (cuts[i][0] // 4, cuts[i][1] // 4)
        np.testing.assert_allclose(out.patches[row], alone.patches[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out.image[row], alone.image[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(out.masks[row], np.full(cuts[i], i))


class _Counted:
    """A network with a digest, and the number of batches that it was given."""

    def __init__(self, digest="weights"):
        self.digest, self.batches = digest, 0
        self._apply, _ = fakes.counted_features()

    def __call__(self, images):
        self.batches += 1
        return self._apply(images)


@pytest.mark.parametrize("sizes", [[(8, 8)] * 3, [(8, 8), (8, 12), (12, 8)]])
def test_kept_features_are_found_again_with_the_same_bits(tmp_path, sizes):
    options = dict(batch_size=2, patches=True, multiple=4)
    source, network = _sized(*sizes), _Counted()
    bare = extract.extract(network, source, **options)
    first = extract.extract(network, source, **options, cache=tmp_path / "new")
    seen = network.batches
    again = extract.extract(network, _sized(*sizes), **options, cache=tmp_path / "new")
    assert network.batches == seen
    for one, other in ((bare, first), (bare, again)):
        for name in ("image", "labels", "index"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for i in range(3):
            np.testing.assert_array_equal(one.patches[i], other.patches[i])
            np.testing.assert_array_equal(one.masks[i], other.masks[i])
    assert isinstance(store.Grids.of(again.patches).rows, np.memmap)
    # Other weights, records or choices are other entries.
    extract.extract(_Counted("others"), source, **options, cache=tmp_path / "new")
    extract.extract(network, source, **options, indices=[1, 0], cache=tmp_path / "new")
    assert network.batches > seen and len(list((tmp_path / "new").iterdir())) == 3


def test_features_of_another_program_are_other_entries(tmp_path, monkeypatch):
    options = dict(batch_size=2, cache=tmp_path)
    for version in ("1", "2"):
        monkeypatch.setattr(ssl_jax, "__version__", version)
        extract.extract(_Counted(), fakes.Source(fakes.images(2)), **options)
    assert len(list(tmp_path.iterdir())) == 2


def test_changed_labels_and_files_are_other_entries(tmp_path):
    network, options = _Counted(), dict(batch_size=2, crop=4, cache=tmp_path / "cache")
    images = [f"{name}/{i}.png" for name in "ab" for i in range(2)]
    put_images(tmp_path / "set", images)
    rows = [f"set/{path},{path[0]}" for path in images]

    def labels(rows):
        (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
        source = make_source(dict(kind="csv", dir=str(tmp_path / "list.csv")))
        return extract.extract(network, source, **options).labels.tolist()

    assert labels(rows) == labels(rows) == [0, 0, 1, 1]
    seen = network.batches
    assert labels([rows[0], rows[1].replace(",a", ",b"), *rows[2:]]) == [0, 1, 1, 1]
    os.utime(tmp_path / "set" / images[1], (1, 1))  # an image that is not looked at
    assert labels(rows) == [0, 0, 1, 1] and network.batches == 3 * seen


def test_images_of_which_nothing_is_known_are_not_kept(tmp_path):
    source = fakes.Source(fakes.images(2))
    source.fingerprint = lambda indices: ""
    extract.extract(_Counted(), source, batch_size=2, cache=tmp_path)
    assert not list(tmp_path.iterdir())
    arrays = ArraySource(fakes.images(2), labels=[0, 1])
    extract.extract(_Counted(), arrays, batch_size=2, cache=tmp_path)
    other = ArraySource(fakes.images(2), labels=[1, 0])
    found = extract.extract(_Counted(), other, batch_size=2, cache=tmp_path)
    assert found.labels.tolist() == [1, 0] and len(list(tmp_path.iterdir())) == 2


def test_an_entry_that_another_process_lacks_is_not_used(tmp_path, monkeypatch):
    source, network = fakes.Source(fakes.images(2)), _Counted()
    for times in (1, 2):  # as on a disk of its own
        monkeypatch.setattr(distributed, "gather_json", lambda value: [value, False])
        monkeypatch.setattr(extract, "_entry", lambda *_: store.Entry(tmp_path / "entry", {}))
        extract.extract(network, source, batch_size=2, cache=tmp_path)
        assert network.batches == times


def test_processes_whose_images_differ_in_size_join_their_rows(monkeypatch):
    def rows(height, width):
        patches = np.arange(height * width, dtype=np.float32).reshape(1, height, width, 1)
        masks = np.arange(height * width, dtype=np.uint8).reshape(1, height, width)
        return dict(index=np.arange(1), image=np.ones((1, 2)), patches=patches, masks=masks)

    other = rows(4, 2)
    theirs = {name: list(x.shape[1:]) for name, x in other.items()}
    monkeypatch.setattr(distributed, "gather_json", lambda value: [value, theirs])
    mine = extract._of_one_form(rows(2, 4))
    assert isinstance(mine["image"], np.ndarray)
    for name in ("patches", "masks"):
        np.testing.assert_array_equal(mine[name][0], rows(2, 4)[name][0])
        assert mine[name].shapes.tolist() == [[2, 4]]


def test_a_cache_of_other_images_or_with_damage_is_refused(tmp_path):
    options = dict(batch_size=2, cache=tmp_path)
    network = _Counted()
    with pytest.raises(InputError):
        extract.extract(network, fakes.Source(np.full((2, 8, 8, 3), np.nan)), **options)
    assert not list(tmp_path.iterdir())  # one that fails leaves nothing behind
    extract.extract(network, fakes.Source(fakes.images(4)), **options)
    with pytest.raises(InputError, match="record/0"):
        extract.extract(network, fakes.Source(fakes.images(4, seed=5)), **options)
    (file,) = tmp_path.glob("*/image.npy")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="image.npy"):
        extract.extract(network, fakes.Source(fakes.images(4)), **options)


def test_subset_is_drawn_without_repetition_from_the_seed():
    a = subset(1000, 50, seed=3)
    assert len(np.unique(a)) == 50 and (np.diff(a) > 0).all() and a.max() > 700
    np.testing.assert_array_equal(a, subset(1000, 50, seed=3))
    assert not np.array_equal(a, subset(1000, 50, seed=4))
    np.testing.assert_array_equal(subset(5, 0, seed=0), np.arange(5))
    np.testing.assert_array_equal(subset(5, 9, seed=0), np.arange(5))


def test_raw_pixels_average_down_centre_and_cut_patches():
    x = np.random.default_rng(0).random((2, 32, 32, 3)).astype(np.float32)
    out = raw_pixels(8)(x)
    small = x.reshape(2, 16, 2, 16, 2, 3).mean(axis=(2, 4), dtype=np.float64)
    small -= small.mean(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(out.image, small.reshape(2, -1), atol=1e-6)
    assert out.patches.shape == (2, 4, 4, 192)
    patch = x[1, 16:24, 24:32].reshape(-1) - 0.5
    np.testing.assert_allclose(out.patches[1, 2, 3], patch, atol=1e-6)
    for size, cells in ((40, 16), (12, 16), (7, 3)):
        weights = area_weights(size, cells)
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)  # each cell is an average
        np.testing.assert_allclose(weights.sum(axis=0), cells / size, rtol=1e-5)  # all alike
