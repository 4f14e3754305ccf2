"""Writes the golden numbers.

    JAX_PLATFORMS=cpu python -m tests.golden.write [NAME ...]

Only at the commit that README.md beside this file names: elsewhere it would make any change right.
"""

import json
import sys

import numpy as np

from tests.golden import adapter, measure

FIRST = 3  # of the three steps: the last of epoch 0, then two of epoch 1
MOVED = {1: 0.02, 2: 0.1}  # rank -> standard deviation of what is added to a weight before them
TRIALS = 8  # runs with the weights' last bit changed


def write_case(name: str) -> None:
    """Trees after FIRST steps of training (memories and centers are filled), moved at random.

    Moved, biases and gains are not 0 and 1, and teacher and student differ clearly.
    """
    run = adapter.prepare(name)
    train_step, compute = adapter.make_step(run), adapter.make_features(run)
    current = adapter.fresh_state(run)
    for batch in adapter.batches(run, 0, FIRST):
        current, metrics, norms = train_step(current, batch)
    rng = np.random.default_rng(0)
    start = {path: _moved(rng, path, np.asarray(x)) for path, x in adapter.trees(current).items()}
    images = measure.load("views")["images"][:4]
    stored = {
        "facts": json.dumps(adapter.facts(run)),
        "config": adapter.config_text(run),
        "first_step": np.int32(FIRST),
        "key": adapter.key_data(current),
        "images": images[:, 4:20, 4:20],
        **start,
    }
    for i, batch in enumerate(adapter.batches(run, FIRST, measure.STEPS)):
        stored |= adapter.flatten(batch, f"batch/{i}")
    metrics = adapter.flatten(metrics, "metrics")
    names = {"metrics": sorted(metrics), "gradients": sorted(norms)}
    names |= {
        kind: sorted(path for path in start if path.startswith(f"{kind}/"))
        for kind in ("params", "teacher", "carry")
    }
    stored |= {f"names/{kind}": json.dumps(value) for kind, value in names.items()}

    def numbers(trees):
        found = {
            f"values/{kind}": x for kind, x in measure.steps(run, train_step, stored, trees).items()
        }
        tensors = measure.features(run, compute, stored, trees)
        return found | {f"features/{path}": x for path, x in tensors.items()}

    values = numbers(start)
    assert all(np.isfinite(x).all() for x in values.values()), name
    gaps = {path: np.zeros_like(x) for path, x in values.items()}
    for _ in range(TRIALS):
        other = numbers({path: _last_bit(rng, path, x) for path, x in start.items()})
        gaps = {
            path: np.maximum(gap, np.abs(other[path] - values[path])) for path, gap in gaps.items()
        }
    for path, gap in gaps.items():
        if path.startswith("features/"):
            gap = gap.max()
        elif path == "values/metrics":  # few numbers: one may happen to stay in one of the steps
            gap = np.broadcast_to(gap.max(axis=0), gap.shape)
        stored[f"noise/{path.removeprefix('values/')}"] = np.float32(gap)
    np.savez_compressed(measure.FOLDER / f"{name}.npz", **(stored | values))


def _trained(path: str) -> bool:
    return path.startswith(("params/", "teacher/")) and "/frozen/" not in path


def _moved(rng, path: str, x):
    if not _trained(path):
        return x
    return (x + MOVED[x.ndim] * rng.standard_normal(x.shape)).astype(x.dtype)


def _last_bit(rng, path: str, x):
    """Each weight one float32 up, down or as it is."""
    if not _trained(path):
        return x
    towards = rng.choice(np.array([-np.inf, 0, np.inf], x.dtype), x.shape)
    return np.where(towards == 0, x, np.nextafter(x, towards))


def write_views() -> None:
    found = {path: x for name in adapter.METHODS for path, x in measure.views(name).items()}
    images = measure.load("views")["images"]
    np.savez_compressed(measure.FOLDER / "views.npz", images=images, **found)


if __name__ == "__main__":
    for name in sys.argv[1:] or (*measure.CASES, "views"):
        write_views() if name == "views" else write_case(name)
        print(name, (measure.FOLDER / f"{name}.npz").stat().st_size, "bytes", flush=True)
