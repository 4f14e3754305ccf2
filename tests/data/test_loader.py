"""loader.py: which record comes when, what a batch holds, restart, processes, workers, broken
images.
"""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax
import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data import loader, workers
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.folder import Folder
from ssl_jax.data.loader import Loader, permutation
from ssl_jax.views import recipe as recipes
from ssl_jax.views.masks import MaskRecipe

SIZE = 12
IMAGES = np.random.default_rng(0).integers(0, 256, (37, SIZE, SIZE, 3), np.uint8)
RECORDS = ArraySource(IMAGES)
RECIPE = recipes.ViewRecipe(
    (
        (
            "global",
            recipes.GroupRecipe(2, 8, (0.3, 1.0), 4, mask=MaskRecipe("random", (0.5, 0.5), 1.0)),
        ),
        ("local", recipes.GroupRecipe(3, 4, (0.1, 0.3), 4)),
    )
)


def take(count, records=RECORDS, recipe=RECIPE, **options):
    """The first `count` batches of a loader (batch 8, seed 3)."""
    batches = Loader(records, recipe, **{**dict(batch_size=8, seed=3), **options})
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


class Broken:
    """RECORDS, of which some cannot be read. Counts its reads."""

    size, num_classes, has_masks = (SIZE, SIZE), None, False

    def __init__(self, bad):
        self.bad, self.reads = set(bad), 0

    def __len__(self):
        return len(RECORDS)

    def __getitem__(self, i):
        self.reads += 1
        if i in self.bad:
            raise Unreadable(self.name(i), "broken on purpose")
        return RECORDS[i]

    def name(self, i):
        return f"image{i}.jpg"

    def __repr__(self):
        return "Broken()"


# order


def test_permutation_is_a_permutation_and_depends_on_seed_and_epoch_alone():
    orders = {
        (seed, epoch): permutation(50, seed, epoch).tolist()
        for seed in range(3)
        for epoch in range(3)
    }
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert (
        len({tuple(order) for order in orders.values()}) == 9
    )  # (seed 0, epoch 1) is not (seed 1, epoch 0)
    permutation.cache_clear()
    assert permutation(50, 2, 1).tolist() == orders[2, 1]


def test_permutation_never_changes():
    """Stored runs resume only if this stays as it is."""
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


# what a batch holds


@pytest.mark.parametrize("crop_on", ["host", "device"])
def test_batch_is_what_the_recipe_promises(crop_on):
    (batch,) = take(1, crop_on=crop_on)
    promised = recipes.abstract_batch(RECIPE, 8, (SIZE, SIZE), crop_on)
    described = jax.tree.map(lambda x: (x.shape, np.dtype(x.dtype)), (batch, promised))
    assert described[0] == described[1]


def test_views_are_drawn_by_seed_epoch_and_record():
    host, device = take(6), take(6, crop_on="device")
    for batch, uncut in zip(host, device, strict=True):
        for row, (index, epoch) in enumerate(zip(batch["index"], batch["epoch"], strict=True)):
            drawn = recipes.draw(
                RECIPE, seed=3, epoch=int(epoch), index=int(index), source_size=(SIZE, SIZE)
            )
            crops = recipes.crop_host(RECIPE, IMAGES[index], drawn)
            for name in ("global", "local"):
                for field in ("boxes", "flips", "masks"):
                    expected = getattr(drawn[name], field)
                    for group in (batch[name], uncut[name]):
                        found = getattr(group, field)
                        assert (found is None) == (expected is None)
                        assert found is None or np.array_equal(found[row], expected)
                np.testing.assert_array_equal(batch[name].images[row], crops[name])
                assert uncut[name].images is None
            np.testing.assert_array_equal(uncut["source"][row], IMAGES[index])
        np.testing.assert_array_equal(batch["source_size"], np.full((8, 2), SIZE))
        assert not batch["replaced"].any() and "source" not in batch


def test_images_of_different_sizes_on_the_host():
    sizes = np.random.default_rng(0).integers(8, 30, (len(RECORDS), 2))

    class Varied(Broken):
        size = None

        def __getitem__(self, i):
            return {"image": np.full((*sizes[i], 3), 7, np.uint8)}

    records = Varied([])
    (batch,) = take(1, records)
    np.testing.assert_array_equal(batch["source_size"], sizes[batch["index"]])
    assert (batch["global"].images == 7).all()
    with pytest.raises(
        InputError, match=r"data.crop_on=device needs images of one size.*\.jpg.*data\.size"
    ):
        take(1, records, crop_on="device")


def test_float_images_are_for_the_device():
    floats = ArraySource((IMAGES / 255).astype(np.float32))
    (batch,) = take(1, floats, crop_on="device")
    assert batch["source"].dtype == np.float32
    with pytest.raises(InputError, match="data.crop_on=host needs uint8"):
        take(1, floats)


# restart, processes


def test_restart_at_every_batch():
    whole = take(11)
    for start in range(11):
        assert_same(whole[start : start + 2], take(min(2, 11 - start), start_record=8 * start))


def test_state_is_the_next_global_record():
    batches = Loader(
        RECORDS, RECIPE, batch_size=8, seed=3, start_record=16, process_index=1, process_count=4
    )
    assert batches.state() == {"record": 16} and batches.steps_per_epoch == 4
    next(batches)
    time.sleep(0.1)  # what is prefetched does not count
    assert batches.state() == {"record": 24}
    batches.close()
    assert batches.state() == {"record": 24}


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_the_global_batch(count):
    whole = take(6)
    parts = [take(6, process_index=p, process_count=count) for p in range(count)]
    for step, batch in enumerate(whole):
        together = jax.tree.map(lambda *rows: np.concatenate(rows), *(part[step] for part in parts))
        assert_same(batch, together)


def test_total_records_ends_the_stream():
    batches = Loader(RECORDS, RECIPE, batch_size=8, seed=3, start_record=16, total_records=52)
    assert len(list(batches)) == 4  # records 16 to 47; 52 is not a whole batch
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(
    "change, key",
    [
        (dict(batch_size=38), "optim.batch_size=38 is more than the 37"),
        (dict(batch_size=0), "optim.batch_size"),
        (dict(process_count=3), "optim.batch_size=8 .* 3 processes"),
        (dict(start_record=12), "start_record=12 .* optim.batch_size=8"),
        (dict(seed=-1), "seed"),
        (dict(workers=-1), "data.workers"),
        (dict(crop_on="gpu"), "data.crop_on"),
        (dict(max_unreadable=1.5), "data.max_unreadable"),
    ],
)
def test_refuses(change, key):
    with pytest.raises(InputError, match=key):
        take(0, **change)


# broken images


def test_unreadable_image_is_replaced_by_the_next_and_flagged():
    bad = {4, 5, 36}
    good, batches = take(8), take(8, Broken(bad), crop_on="device", max_unreadable=0.1)
    stand_in = {4: 6, 5: 6, 36: 0}
    seen = set()
    for whole, batch in zip(good, batches, strict=True):
        np.testing.assert_array_equal(batch["index"], whole["index"])
        np.testing.assert_array_equal(batch["replaced"], [i in bad for i in batch["index"]])
        np.testing.assert_array_equal(
            batch["source"], IMAGES[[stand_in.get(i, i) for i in batch["index"].tolist()]]
        )
        np.testing.assert_array_equal(
            batch["global"].boxes, whole["global"].boxes
        )  # the draws stay the record's own
        seen |= bad & set(batch["index"].tolist())
    assert len(seen) > 1


def test_too_many_unreadable_images_stop_the_run():
    with pytest.raises(InputError) as caught:
        take(8, Broken(range(4)), max_unreadable=0.1)  # 3.7 records
    message = str(caught.value)
    assert "data.max_unreadable=0.1" in message and "4 of 37" in message and "\n" not in message
    assert all(f"image{i}.jpg (broken on purpose)" in message for i in range(4))
    take(8, Broken(range(3)), max_unreadable=0.1)


def test_a_set_without_any_readable_image_stops_at_once():
    records = Broken(range(37))
    with pytest.raises(InputError, match="image"):
        take(1, records, max_unreadable=0.2)
    assert records.reads < 20  # two threads, of which each may find 8
    with pytest.raises(InputError, match="no record of Broken"):
        take(1, Broken(range(37)), max_unreadable=1.0)


def test_a_bad_record_is_tried_once():
    records = Broken([7])
    list(Loader(records, RECIPE, batch_size=8, seed=3, total_records=32 * 5, max_unreadable=0.5))
    assert records.reads <= 32 * 5 + 1


def test_any_other_error_arrives_unchanged():
    class Surprising(Broken):
        def __getitem__(self, i):
            raise ZeroDivisionError("from the source")

    with pytest.raises(ZeroDivisionError, match="from the source"):
        take(1, Surprising([]))


# threads and worker processes


def threads():
    return {thread for thread in threading.enumerate() if "grain" in thread.name}


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_prefetch_is_bounded_and_close_ends_the_threads():
    before = threads()
    records = Broken([])
    batches = Loader(records, RECIPE, batch_size=4, seed=3)
    next(batches)
    assert threads() - before
    time.sleep(0.5)
    assert records.reads <= 4 * (1 + workers.THREADS)
    batches.close()
    batches.close()
    assert wait_until(lambda: not threads() - before)
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_ends_the_threads():
    before = threads()
    with pytest.raises(InputError):
        next(Loader(Broken(range(37)), RECIPE, batch_size=4, seed=3))
    assert wait_until(lambda: not threads() - before)


def test_worker_processes_give_the_same_batches_and_errors(tmp_path, monkeypatch):
    """Two spawned processes that read three rows at a time: same batches, one broken file named and
    replaced; then the error of a worker.
    """
    monkeypatch.setattr(loader, "_UNIT", 3)
    for i, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{i:02d}.png")
    stream = io.BytesIO()
    Image.fromarray(IMAGES[9]).save(stream, "PNG")
    (tmp_path / "09.png").write_bytes(stream.getvalue()[:100])
    folder = Folder(tmp_path)
    options = dict(batch_size=8, seed=3, max_unreadable=0.05, start_record=16)
    alone = Loader(folder, RECIPE, **options)
    together = Loader(folder, RECIPE, workers=2, **options)
    replaced = 0
    for _ in range(9):
        batch = next(together)
        assert_same(next(alone), batch)
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(batch))  # not shared memory
        replaced += batch["replaced"].sum()
    assert replaced and len(multiprocessing.active_children()) == 2
    alone.close()
    (tmp_path / "20.png").write_bytes(b"")
    # The workers had read ahead, so the file that broke just now may take some batches to show.
    with pytest.raises(
        InputError, match=r"data.max_unreadable=0.05: already 2 of 37 .*(09|20)\.png"
    ):
        for _ in range(100):
            next(together)
    assert wait_until(lambda: not multiprocessing.active_children())


@pytest.mark.slow
def test_workers_end_with_a_killed_main_process(tmp_path, root):
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing, sys, time
            from ssl_jax.data import embedded, loader
            from ssl_jax.views import recipe

            if __name__ == "__main__":
                views = recipe.ViewRecipe((("global", recipe.GroupRecipe(1, 8, (0.5, 1.0), 4)),))
                records = embedded.GeneratedSource("photos", "train", 64)
                batches = loader.Loader(records, views, batch_size=8, seed=0, workers=2)
                next(batches), next(batches)
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
                time.sleep(600)
            """)
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with open(
        tmp_path / "stderr", "w"
    ) as errors:  # Python's resource tracker says there what it cleans up
        main = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
    workers = [int(pid) for pid in main.stdout.readline().split()]
    assert len(workers) == 2
    for pid in (
        workers
    ):  # signals for the whole group reach workers too; the main process decides when they end
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert all(alive(pid) for pid in workers)
    main.kill()
    main.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in workers))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # an orphan that has ended but was not yet collected
        return file.read().rpartition(")")[2].split()[0] != "Z"
