"""Run folders written by hand, for tests of what reads them."""

import csv
import json

import numpy as np
from PIL import Image

CONFIG = {
    "method": "sop",
    "seed": 0,
    "model": {"width": 96, "depth": 4, "patch": 8, "image_size": 32},
    "optim": {"batch_size": 64, "lr": 0.001},
    "data": {"kind": "photos", "name": ""},
    "evals": {"tasks": ["knn"], "knn": {"type": "knn", "k": [10, 20], "data": {"size": 32}}},
    "expected": {},
    "run": {"total_steps": 100, "num_records": 16384},
}
RESULTS = {
    "untrained network": {"knn": 40.0, "knn_k10": 39.0},
    "raw pixels": {"knn": 30.0, "knn_k10": 30.0},
    "trained": {"knn": 62.5, "knn_k10": 61.0},
}
ENVIRONMENT = {
    "command": ["/a/ssl_jax/__main__.py", "train", "--config=quickstart", "--workdir=runs/a b"],
    "devices": ["gpu H100", "gpu H100"],
    "machine": "Linux",
    "python": "3.11.7",
    "processor_count": 8,
    "process_count": 1,
    "git": "abc",
    "versions": {"jax": "0.10.2", "ssl-jax": "0.2.0"},
    "xla_flags": "",
}


def write(folder, *, results=RESULTS, pictures=("pca",), size=(40, 20), steps=100, **changes):
    """A run folder; changes: {section: value or dict of its keys} of the config."""
    config = json.loads(json.dumps(CONFIG))
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    rows = [
        {"step": s, "loss": 5 / s, "images_per_second": 64.0, "memory_mib": 100.0 + s}
        for s in range(10, steps + 1, 10)
    ]
    table(folder / "metrics.csv", rows)
    table(folder / "evals.csv", [{"step": 0, "knn": 40.0}, {"step": 50, "knn": 55.0}])
    (folder / "pictures").mkdir()
    for name in pictures:
        pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{name}.png")
    return folder


def table(path, rows):
    with open(path, "w", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
