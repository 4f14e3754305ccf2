"""Runs a case, and compares what comes out with what is stored."""

import json
import pathlib
import zlib
from typing import NamedTuple

import numpy as np

from tests.golden import adapter

FOLDER = pathlib.Path(__file__).parent
CASES = (*adapter.METHODS, *adapter.VARIANTS)
KINDS = ("metrics", "gradients", "params", "teacher", "carry")  # of one step
STEPS = 3
RTOL = 1e-6
# A change of the last bit of the weights changes some numbers by more than RTOL: the gradient of
# the keys' bias in an attention is 0 but for rounding, and Adam scales that up to a whole learning
# rate. So write.py also stores by how much each number moved under such changes, and what a
# reordering of sums may do is taken to be at most this many times that.
ROUNDINGS = 6.0
# Crops are equal to the last bit, but what is kept of them, sums, rounds as each processor adds.
SUMS = 1e-14


class Difference(NamedTuple):
    """One stored number or tensor against the one computed now."""

    kind: str  # "loss", "metrics", "gradients", "params", "teacher", "carry", "features" or "views"
    what: str  # name of a metric, or path
    step: int | None  # 0, 1, 2
    relative: float  # difference / size of the tensor (or of the number)
    limit: float  # the largest relative difference that rounding explains

    def __str__(self):
        at = "" if self.step is None else f", step {self.step}"
        return f"{self.kind} {self.what}{at}: {self.relative:.2e} relative, limit {self.limit:.1e}"


def summary(path: str, value) -> np.ndarray:
    """[3] float64: sum, L2 norm, product with a fixed random vector; the shape is ignored."""
    value = np.asarray(value, np.float64).reshape(-1)
    vector = np.random.default_rng(zlib.crc32(path.encode())).standard_normal(value.size)
    return np.array([value.sum(), np.sqrt(np.square(value).sum()), value @ vector])


def load(name: str) -> dict:
    with np.load(FOLDER / f"{name}.npz") as stored:
        return dict(stored)


def part(stored: dict, prefix: str) -> dict:
    """{"a": x} of the keys "prefix/a"."""
    prefix += "/"
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}


def initial_trees(stored: dict) -> dict:
    """The stored trees, by stored path."""
    return {k: v for k, v in stored.items() if k.split("/")[0] in ("params", "teacher", "carry")}


def renamed(flat: dict) -> dict:
    """By today's paths, without what is gone."""
    return {adapter.current_path(k): v for k, v in flat.items() if adapter.current_path(k)}


def steps(run, train_step, stored: dict, start: dict) -> dict[str, np.ndarray]:
    """Three steps from the trees `start` (stored paths): {kind: [3, number of names, 1 or 3]}."""
    current = adapter.state_from(run, int(stored["first_step"]), renamed(start), stored["key"])
    names = {kind: json.loads(str(stored[f"names/{kind}"])) for kind in KINDS}
    rows = {kind: [] for kind in KINDS}
    for i in range(STEPS):
        batch = adapter.batch_from(part(stored, f"batch/{i}"))
        current, metrics, norms = train_step(current, batch)
        after = adapter.trees(current)
        metrics = adapter.flatten(metrics, "metrics")
        rows["metrics"].append(
            [_number(metrics.get(adapter.current_path(path))) for path in names["metrics"]]
        )
        rows["gradients"].append(
            [_number(norms.get(adapter.current_path(path))) for path in names["gradients"]]
        )
        for kind in ("params", "teacher", "carry"):
            found = [after.get(adapter.current_path(path)) for path in names[kind]]
            rows[kind].append(
                [
                    np.full(3, np.nan) if value is None else summary(path, value)
                    for path, value in zip(names[kind], found, strict=True)
                ]
            )
    widths = {"metrics": 1, "gradients": 1}
    return {
        kind: np.array(values, np.float64).reshape(STEPS, len(names[kind]), widths.get(kind, 3))
        for kind, values in rows.items()
    }


def _number(value) -> list[float]:
    """NaN if there is no such value."""
    return [np.nan if value is None else float(value)]


def features(run, compute, stored: dict, start: dict) -> dict[str, np.ndarray]:
    """Features of the stored images with the weights of `start` (stored paths)."""
    current = adapter.state_from(run, int(stored["first_step"]), renamed(start), stored["key"])
    images = stored["images"].astype(np.float32) / 255
    found = compute(current, images)
    return {name: np.asarray(value) for name, value in found.items() if value is not None}


def compare(name: str) -> tuple[Difference, ...]:
    """Every number of a case; NaN where one is missing on either side."""
    stored = load(name)
    run = adapter.prepare(name)
    wanted = json.loads(str(stored["facts"]))
    actual = adapter.facts(run)
    if {key: actual.get(key) for key in wanted} != wanted:
        raise AssertionError(f"{name} is another run: its config gives {actual}, stored {wanted}")
    start = initial_trees(stored)
    found = steps(run, adapter.make_step(run), stored, start)
    differences = []
    for kind in KINDS:
        names = json.loads(str(stored[f"names/{kind}"]))
        noise = stored[f"noise/{kind}"]
        if kind == "metrics":  # a meter may be 1 minus a share; settings like lr have no noise
            noise = np.where(noise > 0, np.maximum(noise, RTOL / ROUNDINGS), 0)
        for i, path in enumerate(names):
            if _gone(kind, path):
                continue
            for s in range(STEPS):
                size = start[path].size if path in start and kind != "gradients" else 1
                values = found[kind][s, i], stored[f"values/{kind}"][s, i], noise[s, i]
                label = "loss" if path == "metrics/loss" else kind
                differences.append(Difference(label, path, s, *_of_numbers(*values, size)))
    differences += _of_features(features(run, adapter.make_features(run), stored, start), stored)
    return tuple(differences)


def _gone(kind: str, path: str) -> bool:
    """Whether the package has no such number any more, as adapter.RENAMED says."""
    now = adapter.current_path(path)
    return not now or (kind == "gradients" and not now.startswith("params/"))


def _of_numbers(found, stored, noise, size: int) -> tuple[float, float]:
    """(relative, limit) of one number [1] or one summary [3] of a tensor with `size` elements.

    A sum is measured against norm * sqrt(size), a random product against the norm: what equal
    relative changes of all elements would make of them.
    """
    if len(stored) == 1:
        scale = np.abs(stored)
    else:
        scale = stored[1] * np.array([np.sqrt(size), 1.0, 1.0])
    return _relative(np.abs(found - stored), noise, scale)


def _of_features(found: dict, stored: dict) -> list[Difference]:
    """Features, in the max-norm of each tensor."""
    wanted, differences = part(stored, "features"), []
    for name in sorted(wanted):
        relative, limit = np.nan, RTOL
        if name in wanted and name in found and wanted[name].size == found[name].size:
            gap = np.abs(found[name].reshape(-1) - wanted[name].reshape(-1)).max()
            noise = stored[f"noise/features/{name}"]
            relative, limit = _relative(gap, noise, np.abs(wanted[name]).max())
        differences.append(Difference("features", name, None, relative, limit))
    return differences


def _relative(gap, noise, scale) -> tuple[float, float]:
    """The worst entry's (gap / scale, limit); entries that should be 0 count by their gap."""
    gap, noise, scale = (np.atleast_1d(x).astype(np.float64) for x in (gap, noise, scale))
    scale = np.where(scale > 0, scale, 1.0)
    relative, limit = gap / scale, np.maximum(RTOL, ROUNDINGS * noise / scale)
    worst = int(np.argmax(np.where(np.isnan(relative), np.inf, relative / limit)))
    return float(relative[worst]), float(limit[worst])


def views(name: str) -> dict[str, np.ndarray]:
    """Draws of eight records by the recipe of a method's tiny config; images as summaries.

    The host cuts images of eight sizes; the device cuts stored ones. What follows the cut is the
    same, so the host's crops are prepared for one method only.
    """
    run = adapter.prepare(name)
    rng = np.random.default_rng(0)
    sizes = [(24 + 3 * i, 40 - 2 * i) for i in range(8)]
    images = {
        "host": [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes],
        "device": list(load("views")["images"]),
    }
    found = {}
    for crop_on, source in images.items():
        prepare = crop_on == "device" or name == "dino"
        drawn = adapter.views(run, seed=7, epoch=1, images=source, crop_on=crop_on, prepare=prepare)
        for path, value in drawn.items():
            if path.endswith(("/crops", "/prepared")):  # [8, views, size, size, 3]
                value = np.array([[summary(path, view) for view in row] for row in value])
            found[f"{name}/{crop_on}/{path}"] = value
    return found


def compare_views() -> tuple[Difference, ...]:
    """Every array of views.npz, in its max-norm."""
    stored, differences = load("views"), []
    del stored["images"]  # what the views are of
    found = {path: x for name in adapter.METHODS for path, x in views(name).items()}
    for path in sorted(stored.keys() | found.keys()):
        relative, limit = np.nan, RTOL
        if path in stored and path in found and stored[path].shape == found[path].shape:
            new, old = found[path].astype(np.float64), stored[path].astype(np.float64)
            relative = float(np.abs(new - old).max() / max(np.abs(old).max(), 1e-30))
            limit = {"boxes": RTOL, "prepared": RTOL, "crops": SUMS}.get(path.split("/")[-1], 0.0)
        differences.append(Difference("views", path, None, relative, limit))
    return tuple(differences)


def failures(differences) -> list[Difference]:
    """Those beyond their limit, or missing; the worst first."""
    beyond = [d for d in differences if not d.relative <= d.limit]
    return sorted(beyond, key=lambda d: -d.relative if np.isfinite(d.relative) else -np.inf)
