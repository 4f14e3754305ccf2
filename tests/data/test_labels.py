"""Labels in batches and repeated augmentation: loader.py."""

import jax
import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.loader import Loader, permutation
from ssl_jax.views import recipe as recipes
from ssl_jax.views.randaugment import RandAugment

IMAGES = np.random.default_rng(0).integers(0, 256, (37, 12, 12, 3), np.uint8)
LABELS = np.arange(37) % 5
SOURCE = ArraySource(IMAGES, labels=LABELS)


def recipe(**changes):
    policy = RandAugment(2, prob=1.0)
    group = recipes.GroupRecipe(1, 8, (0.3, 1.0), 4, randaugment=policy)
    return recipes.ViewRecipe((("global", group),), **dict(classes=5) | changes)


def take(count, source=SOURCE, *, views=None, **options):
    batches = Loader(source, views or recipe(), **dict(batch_size=8, seed=3) | options)
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_each_row_has_the_label_of_its_record():
    for batch in take(6):
        assert batch["label"].dtype == np.int32 and batch["label"].shape == (8,)
        np.testing.assert_array_equal(batch["label"], LABELS[batch["index"]])
    assert "label" not in take(1, views=recipe(classes=0))[0]
    shapes = recipes.abstract_batch(recipe(), 8, None, "host")
    found = jax.tree.map(lambda x: (x.shape, x.dtype), take(1)[0])
    assert found == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)


@pytest.mark.parametrize("repeats", [1, 3])
def test_workers_processes_and_restarts_change_nothing(repeats):
    views = recipe(repeats=repeats)
    whole = take(6, views=views)
    parts = [take(6, views=views, process_index=i, process_count=2) for i in range(2)]
    for batch, *halves in zip(whole, *parts):
        same(batch, jax.tree.map(lambda *x: np.concatenate(x), *halves))
    same(take(2, views=views, start_record=4 * 8), whole[4:])
    if repeats == 3:
        same(take(2, views=views, workers=1), whole[:2])


def test_repeats_show_the_same_records_with_other_draws():
    views = recipe(repeats=3)
    order, seen = permutation(37, 3, 0), []
    for number, batch in enumerate(take(4, views=views)):
        index, passes = batch["index"], batch["epoch"]
        records = order[3 * number : 3 * number + 3]  # ceil(8 / 3) of them
        np.testing.assert_array_equal(index, [*records, *records, *records[:2]])
        np.testing.assert_array_equal(passes, [0, 0, 0, 1, 1, 1, 2, 2])
        np.testing.assert_array_equal(batch["label"], LABELS[index])
        boxes = batch["global"].boxes
        assert len({tuple(row) for row in boxes.reshape(8, 4).tolist()}) == 8
        assert (index.reshape(4, 2)[:, 0] != index.reshape(4, 2)[:, 1]).all()  # what is mixed
        seen += records.tolist()
    assert len(set(seen)) == 12
    later = take(5, views=views)[4]
    np.testing.assert_array_equal(later["epoch"], [3, 3, 3, 4, 4, 4, 5, 5])


class Wrong:
    """SOURCE with one record changed."""

    size, num_classes, has_masks = (12, 12), 5, False

    def __init__(self, change):
        self._change = change

    def __len__(self):
        return len(SOURCE)

    def __getitem__(self, i):
        return self._change(dict(SOURCE[i])) if i == 11 else SOURCE[i]

    def name(self, i):
        return f"record/{i}"

    def __repr__(self):
        return "Wrong()"


def test_a_stand_in_brings_its_own_label():
    def broken(record):
        raise Unreadable("record/11", "broken on purpose")

    batches = take(4, Wrong(broken), max_unreadable=1.0)
    rows = {int(i): int(k) for b in batches for i, k in zip(b["index"], b["label"])}
    assert rows[11] == LABELS[12] and rows[10] == LABELS[10]


@pytest.mark.parametrize("label", [None, 5, -1])
def test_a_record_without_a_possible_label_is_named(label):
    with pytest.raises(InputError, match=rf"record/11 .* the label {label}; .* from 0 to 4"):
        take(4, Wrong(lambda record: record | {"label": label}))


def test_a_source_without_the_labels_is_refused():
    with pytest.raises(InputError, match="ArraySource.* has no labels"):
        take(1, ArraySource(IMAGES))
    with pytest.raises(InputError, match="has 5 classes, but the method is set to 7"):
        take(1, views=recipe(classes=7))
