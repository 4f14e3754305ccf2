"""loader.py: which record comes when, what a batch holds, restart, processes, broken images."""

import contextlib
import threading
import time

import chex
import jax
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.config import InputError
from ssl_jax.data import base
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.values import check_range
from ssl_jax.train import setup
from ssl_jax.views import recipe as recipes
from ssl_jax.views import workers
from ssl_jax.views.batches import permutation
from ssl_jax.views.loader import Loader
from tests import tiny
from tests.views.batches import IMAGES, LABELS, RECORDS, SIZE, VIEWS, labelled, loader, take

FLOATS = (IMAGES / 255).astype(np.float32)


class Other:
    """RECORDS, of which some are changed or, where the change raises, cannot be read. Counts its
    reads, and lacks what came later."""

    size, num_classes, has_masks = (SIZE, SIZE), 5, False

    def __init__(self, bad, change=None):
        self.bad, self.change, self.reads = set(bad), change or self.broken, 0

    def broken(self, i):
        raise Unreadable(self.name(i), "broken on purpose")

    def __len__(self):
        return len(RECORDS)

    def __getitem__(self, i):
        self.reads += 1
        return self.change(i) if i in self.bad else RECORDS[i]

    def name(self, i):
        return f"image{i}.jpg"

    def __repr__(self):
        return "Other()"


# order


def test_a_permutation_depends_on_seed_and_epoch_alone_and_never_changes():
    """Stored runs resume only if it stays as it is."""
    pairs = [(seed, epoch) for seed in range(3) for epoch in range(3)]
    orders = {pair: permutation(50, *pair).tolist() for pair in pairs}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 9  # (0, 1) is not (1, 0)
    permutation.cache_clear()
    assert permutation(50, 2, 1).tolist() == orders[2, 1]
    assert permutation(10, 0, 0).tolist() == [1, 5, 6, 8, 2, 9, 4, 7, 0, 3]
    with pytest.raises(ValueError, match="read-only"):
        permutation(10, 0, 0)[0] = 1


def test_an_epoch_visits_no_record_twice_and_drops_the_rest():
    batches = take(12)  # 4 steps an epoch, 5 records left over
    epochs = [np.concatenate([b["index"] for b in batches[4 * e : 4 * e + 4]]) for e in range(3)]
    for e, indices in enumerate(epochs):
        np.testing.assert_array_equal(indices, permutation(37, 3, e)[:32])
        assert all((b["epoch"] == e).all() for b in batches[4 * e : 4 * e + 4])
    assert set(epochs[0]) != set(epochs[1])  # others are left over


def test_repeats_show_the_same_records_with_other_draws():
    order, seen = permutation(37, 3, 0), []
    batches = take(5, views=labelled(repeats=3))
    for number, batch in enumerate(batches[:4]):
        records = order[3 * number : 3 * number + 3]  # ceil(8 / 3) of them
        np.testing.assert_array_equal(batch["index"], [*records, *records, *records[:2]])
        np.testing.assert_array_equal(batch["epoch"], [0, 0, 0, 1, 1, 1, 2, 2])
        np.testing.assert_array_equal(batch["label"], LABELS[batch["index"]])
        boxes = batch["global"].boxes
        assert len({tuple(row) for row in boxes.reshape(8, 4).tolist()}) == 8
        pairs = batch["index"].reshape(4, 2)
        assert (pairs[:, 0] != pairs[:, 1]).all()  # what is mixed
        seen += records.tolist()
    assert len(set(seen)) == 12
    np.testing.assert_array_equal(batches[4]["epoch"], [3, 3, 3, 4, 4, 4, 5, 5])


# what a batch holds


@pytest.mark.parametrize("crop_on", ["host", "device"])
@pytest.mark.parametrize("views", [VIEWS, labelled()], ids=["masks", "labels"])
def test_a_batch_is_what_the_recipe_promises(views, crop_on):
    (batch,) = take(1, views=views, crop_on=crop_on)
    promised = recipes.abstract_batch(views, 8, (SIZE, SIZE), crop_on)
    chex.assert_trees_all_equal_shapes_and_dtypes(batch, promised)
    assert ("label" in batch) == (views is not VIEWS)
    if "label" in batch:
        np.testing.assert_array_equal(batch["label"], LABELS[batch["index"]])


def test_views_are_drawn_by_seed_epoch_and_record():
    ways = (take(6), take(6, area_crops=True), take(6, crop_on="device"))
    for batch, area, uncut in zip(*ways, strict=True):
        for row, (index, epoch) in enumerate(zip(batch["index"], batch["epoch"], strict=True)):
            stream = dict(seed=3, epoch=int(epoch), index=int(index))
            drawn = recipes.draw(VIEWS, **stream, source_size=(SIZE, SIZE))
            crops = recipes.crop_host(VIEWS, IMAGES[index], drawn, **stream)
            means = recipes.crop_host(VIEWS, IMAGES[index], drawn, area=True, **stream)
            for name in ("global", "local"):
                for field in ("boxes", "flips", "masks"):
                    expected = getattr(drawn[name], field)
                    for group in (batch[name], uncut[name]):
                        found = getattr(group, field)
                        assert (found is None) == (expected is None)
                        assert found is None or np.array_equal(found[row], expected)
                np.testing.assert_array_equal(batch[name].images[row], crops[name])
                np.testing.assert_array_equal(area[name].images[row], means[name])
                assert uncut[name].images is None
            np.testing.assert_array_equal(uncut["source"][row], IMAGES[index])
        np.testing.assert_array_equal(batch["source_size"], np.full((8, 2), SIZE))
        assert not batch["replaced"].any() and "source" not in batch
        assert any((batch[name].images != area[name].images).any() for name in ("global", "local"))


def test_a_run_cuts_as_its_section_says():
    def first(area):
        run = api.prepare(tiny.config("dino", data__crop_on="host", data__area_crops=area))
        with contextlib.closing(setup.open_loader(run)) as batches:
            return next(batches)["global"].images

    assert (first(True) != first(False)).any()


def test_images_of_different_sizes_on_the_host():
    sizes = np.random.default_rng(0).integers(8, 30, (len(RECORDS), 2))
    records = Other(range(37), lambda i: {"image": np.full((*sizes[i], 3), 7, np.uint8)})
    records.size = None
    (batch,) = take(1, records)
    np.testing.assert_array_equal(batch["source_size"], sizes[batch["index"]])
    assert (batch["global"].images == 7).all()
    with pytest.raises(InputError, match=r"data.crop_on=device .*\.jpg.*data\.size"):
        take(1, records, crop_on="device")


RANGES = [  # right, wrong
    # The second is what resampling rounds to.
    *((FLOATS[0], FLOATS[0] * 1.05), (FLOATS[0] + np.float32(0.0015), FLOATS[0] * 2 - 1)),
    *((IMAGES[0], FLOATS[0] * 255), (FLOATS[0] * np.nan, (FLOATS[0] - 0.45) / 0.22)),
    (np.float32([[[np.inf, -np.inf, 0.5]]]), np.float32([[[np.nan, np.inf, 3.0]]])),
]


def test_float_images_are_for_the_device_and_in_range():
    for right, wrong in RANGES:
        check_range(right, "a")
        with pytest.raises(InputError, match="^a "):
            check_range(wrong, "a")
    (batch,) = take(1, ArraySource(FLOATS), crop_on="device")
    assert batch["source"].dtype == np.float32
    with pytest.raises(InputError, match="data.crop_on=host"):
        take(1, ArraySource(FLOATS))
    images = FLOATS.copy()
    images[[4, 11]] *= 255
    with pytest.raises(InputError, match="array/(4|11) "):
        take(8, ArraySource(images), crop_on="device")


# restart, processes


def test_a_restart_at_every_batch_changes_nothing():
    whole = take(11)
    for start in range(11):
        found = take(min(2, 11 - start), start_record=8 * start)
        chex.assert_trees_all_equal(whole[start : start + 2], found, strict=True)


@pytest.mark.parametrize(
    "views", [VIEWS, labelled(), labelled(repeats=3)], ids=["masks", "labels", "repeats"]
)
def test_processes_share_the_global_batch(views):
    whole = take(6, views=views)
    chex.assert_trees_all_equal(take(2, views=views, start_record=4 * 8), whole[4:], strict=True)
    for count in (2, 4):
        options = dict(views=views, process_count=count)
        parts = [take(6, process_index=p, **options) for p in range(count)]
        for batch, *rows in zip(whole, *parts, strict=True):
            together = jax.tree.map(lambda *x: np.concatenate(x), *rows)
            chex.assert_trees_all_equal(batch, together, strict=True)


def test_the_state_is_the_next_global_record_and_total_records_the_end():
    batches = loader(start_record=16, process_index=1, process_count=4)
    assert batches.state() == {"record": 16} and batches.steps_per_epoch == 4
    next(batches)
    time.sleep(0.1)  # what is prefetched does not count
    assert batches.state() == {"record": 24}
    batches.close()
    assert batches.state() == {"record": 24}
    batches = loader(start_record=16, total_records=52)
    assert len(list(batches)) == 4  # records 16 to 47; 52 is not a whole batch
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(
    "change, key",
    [
        (dict(batch_size=38), "optim.batch_size=38 .*37"),
        (dict(batch_size=0), "optim.batch_size"),
        (dict(process_count=3), "optim.batch_size=8 .*3"),
        (dict(start_record=12), "start_record=12"),
        (dict(seed=-1), "seed"),
        (dict(records=ArraySource(IMAGES), views=labelled()), "labels"),
        (dict(views=labelled(classes=7)), "classes"),
    ],
)
def test_what_does_not_fit_is_refused(change, key):
    with pytest.raises(InputError, match=key):
        take(0, **change)


# broken images


def test_an_unreadable_image_is_replaced_by_the_next_and_flagged():
    bad = {4, 5, 36}
    views = labelled()
    good = take(8, views=views)
    batches = take(8, Other(bad), views, crop_on="device", max_unreadable=0.1)
    stand_in = {4: 6, 5: 6, 36: 0}
    seen = set()
    for whole, batch in zip(good, batches, strict=True):
        np.testing.assert_array_equal(batch["index"], whole["index"])
        np.testing.assert_array_equal(batch["replaced"], [i in bad for i in batch["index"]])
        shown = [stand_in.get(i, i) for i in batch["index"].tolist()]
        np.testing.assert_array_equal(batch["source"], IMAGES[shown])
        np.testing.assert_array_equal(batch["label"], LABELS[shown])
        # The draws stay the record's own.
        np.testing.assert_array_equal(batch["global"].boxes, whole["global"].boxes)
        seen |= bad & set(batch["index"].tolist())
    assert len(seen) > 1


@pytest.mark.parametrize("label", [None, 5, -1])
def test_a_record_without_a_possible_label_is_named(label):
    with pytest.raises(InputError, match="image11.jpg .*label"):
        take(4, Other([11], lambda i: RECORDS[i] | {"label": label}), labelled())


def test_too_many_unreadable_images_stop_the_run():
    with pytest.raises(InputError, match="data.max_unreadable=0.1.* 4 of 37") as caught:
        take(8, Other(range(4)), max_unreadable=0.1)  # 3.7 records
    assert "\n" not in str(caught.value)
    assert all(f"image{i}.jpg (broken on purpose)" in str(caught.value) for i in range(4))
    take(8, Other(range(3)), max_unreadable=0.1)
    records = Other(range(37))
    with pytest.raises(InputError, match="image"):
        take(1, records, max_unreadable=0.2)
    assert records.reads < 20  # two threads, of which each may find 8
    with pytest.raises(InputError, match=r"Other\(\)"):
        take(1, Other(range(37)), max_unreadable=1.0)


def test_a_bad_record_is_tried_once_and_any_other_error_arrives_unchanged():
    records = Other([7])
    list(loader(records, total_records=32 * 5, max_unreadable=0.5))
    assert records.reads <= 32 * 5 + 1
    ours = type("Ours", (Other, base.Source), {})
    with pytest.raises(ZeroDivisionError):
        take(1, ours(range(37), lambda i: 1 / 0))


# threads


def threads():
    return {thread for thread in threading.enumerate() if "grain" in thread.name}


def all_end(before, seconds=20.0):
    end = time.monotonic() + seconds
    while threads() - before and time.monotonic() < end:
        time.sleep(0.05)
    return not threads() - before


def test_prefetch_is_bounded_and_the_threads_end():
    before = threads()
    records = Other([])
    batches = Loader(records, VIEWS, batch_size=4, seed=3)
    next(batches)
    assert threads() - before
    time.sleep(0.5)
    assert records.reads <= 4 * (1 + workers.THREADS)
    batches.close()
    batches.close()
    assert all_end(before)
    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(InputError):  # so does an error
        next(Loader(Other(range(37)), VIEWS, batch_size=4, seed=3))
    assert all_end(before)


# classes of the patches


def test_classes_of_patches_are_those_under_their_centres():
    """Of nested, mirrored crops, in threads as in processes; nothing else of a batch changes."""
    masks = np.random.default_rng(1).integers(0, 256, (37, SIZE, SIZE), np.uint8)
    inner = recipes.GroupRecipe(3, 4, (0.1, 0.3), 2, inside="global")
    groups = (("global", recipes.GroupRecipe(2, 8, (0.3, 1.0), 4)), ("local", inner))
    views = recipes.ViewRecipe(groups, patch_labels=True)
    records = ArraySource(IMAGES, masks=masks)
    batches = take(2, records, views)
    for batch in batches:
        for name, (_, n) in {"global": (2, 4), "local": (3, 4)}.items():
            group, side = batch[name], int(n**0.5)
            for b, v, k in np.ndindex(group.labels.shape):
                row, column = divmod(k, side)
                column = side - 1 - column if group.flips[b, v] else column
                y, x, h, w = group.boxes[b, v].astype(float)
                at = int(y + (row + 0.5) * h / side), int(x + (column + 0.5) * w / side)
                assert group.labels[b, v, k] == masks[batch["index"][b]][at]
    for other in (take(2, records, views, workers=1), take(2, records, views, crop_on="device")):
        for a, b in zip(batches, other, strict=True):
            for name in ("global", "local"):
                np.testing.assert_array_equal(a[name].labels, b[name].labels)
    for batch, plain in zip(batches, take(2, views=recipes.ViewRecipe(groups)), strict=True):
        for name in ("global", "local"):
            assert plain[name].labels is None
            assert tiny.identical(plain[name], batch[name]._replace(labels=None))


def test_records_without_the_masks_that_are_asked_for_are_refused():
    views = recipes.ViewRecipe(VIEWS.groups, patch_labels=True)
    with pytest.raises(InputError, match="no masks"):
        loader(RECORDS, views)
    for mask in (None, np.zeros((SIZE, SIZE - 1), np.uint8), np.zeros((SIZE, SIZE), np.int32)):
        given = {} if mask is None else {"mask": mask}
        records = Other(range(37), lambda i, given=given: RECORDS[i] | given)
        records.has_masks = True
        with pytest.raises(InputError, match="image.* mask of 12x12"):
            take(1, records, views)
