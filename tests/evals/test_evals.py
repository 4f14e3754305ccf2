"""The registry, the shared extraction, the table."""

import numpy as np
import pytest

from ssl_jax import evals, settings
from ssl_jax.config import InputError
from tests.evals import fakes


def _config():
    config = settings.base_config("dino")
    config.model.patch = 4
    for section in (config.eval.image, config.eval.dense):
        section.update(dict(length=24, size=16))
    config.eval.update(
        dict(
            test_examples=10, batch_size=8, knn_k=(10,), linear_epochs=2, linear_batch=16, dense_k=5
        )
    )
    return config


def test_all_tasks_on_raw_pixels():
    kept = {}
    scores = evals.evaluate(evals.raw_pixels(4), _config(), extracted=kept)
    assert {
        "knn",
        "knn_k10",
        "linear",
        "linear_lr",
        "linear_held_out",
        "dense",
        "dense_pixel",
    } <= set(scores)
    assert all(isinstance(v, float) and np.isfinite(v) for v in scores.values())
    assert set(kept) == {"image", "dense"}
    train, test = kept["image"]
    assert len(train.labels) == 24 and len(test.labels) == 10
    assert scores == evals.evaluate(evals.raw_pixels(4), _config())


def test_tasks_that_share_data_encode_it_once():
    calls = []
    fn, _ = fakes.counted_features()
    source = fakes.Source(fakes.images(16), labels=np.arange(16) % 2)

    def counting(x):
        return (calls.append(len(x)), fn(x))[1]

    evals.evaluate(
        counting, _config(), tasks=("knn", "linear"), sources_of={"image": (source, source)}
    )
    assert calls == [8, 8, 8, 8]  # 16 of train, 10 of test, in batches of 8


def test_every_task_of_the_config_exists():
    assert set(evals.defaults()["tasks"].default) <= set(evals.TASKS)
    with pytest.raises(InputError, match='unknown eval task "kmn".*knn'):
        evals.evaluate(evals.raw_pixels(4), _config(), tasks=("kmn",))


def test_networks_of_one_method_share_one_trace():
    traced = []

    class Method:
        @staticmethod
        def features(params, images, config, *, layers=(), attention=False):
            traced.append(attention)
            return evals.features.Pixels(images.mean(axis=(1, 2)) * params["w"], None)

    rows = evals.baselines(
        Method, _config(), untrained={"w": np.float32(1)}, trained={"w": np.float32(2)}
    )
    assert tuple(rows) == evals.ROWS
    x = np.random.default_rng(0).random((2, 8, 8, 3)).astype(np.float32)
    np.testing.assert_allclose(2 * rows["untrained network"](x).image, rows["trained"](x).image)
    assert rows["raw pixels"](x).patches.shape == (2, 2, 2, 48)
    assert traced == [False]


def test_the_table_is_aligned_and_marks_the_best():
    text = evals.comparison_table(
        {
            "untrained network": {"knn": 20.0, "linear": 31.25, "dense": 9.0},
            "raw pixels": {"knn": 100.0, "linear": 25.0},
            "trained": {"knn": 61.0, "linear": 70.0, "dense": 40.0},
        }
    )
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "features" and "k-NN" in lines[0] and "dense mIoU" in lines[0]
    assert lines[3].split() == ["raw", "pixels", "100.0*", "25.0", "-"]
    assert lines[4].split() == ["trained", "61.0", "70.0*", "40.0*"]
    ends = [line.rstrip("*").find("61.0") + 4 for line in lines[4:5]] + [
        lines[0].find("k-NN") + 4,
        lines[3].find("100.0") + 5,
    ]
    assert len(set(ends)) == 1


def test_columns_without_a_value_are_left_out():
    text = evals.comparison_table({"trained": {"knn": 5.0}})
    assert "linear" not in text and "5.0*" in text
