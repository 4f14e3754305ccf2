"""Exports networks as programs, runs them and compares: seconds, differences, sizes.

    python -m benchmarks programs --write

Networks: an untrained ViT-S/16 at 224 pixels and zoo/sop_imagenette at its own size. Prints a
table; --write puts it into docs/export.md. Needs onnx and onnxruntime.
"""

import argparse
import io
import tempfile
import time
import zipfile
from pathlib import Path

import jax
import numpy as np
import onnxruntime
from jax import export

import ssl_jax
from benchmarks import measure
from experiments import tables
from ssl_jax.methods import encoder
from ssl_jax.models import vit, zoo

NAMES = ("image", "cls", "patches")
BATCH, ROUNDS = 16, 5


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/export.md")
    args = parser.parse_args(argv)
    small = zoo.vit_config(dict(size="s", image_size=224))
    weights = vit.vit(small).init(jax.random.key(0))
    networks = {
        "ViT-S/16, untrained, 224 px": encoder.published(small, weights, "untrained"),
        "`zoo/sop_imagenette`, 48 px": ssl_jax.load("zoo/sop_imagenette"),
    }
    rows = [["network", "file", "export", "MB", "largest difference"]]
    rows[0] += ["ms per image", "ms in ssl_jax"]
    for title, network in networks.items():
        for to in ("stablehlo", "onnx"):
            rows.append([title, f"`{to}`", *measured(network, to)])
    text = tables.markdown(rows) + (
        f"\n`python -m benchmarks programs --write`: batches of {BATCH} random images, float32,"
        f" medians of {ROUNDS} interleaved\nrounds; onnxruntime {onnxruntime.__version__}."
        f" {tables.provenance()}\n"
    )
    print(text)
    if args.write:
        tables.fill("docs/export.md", "programs", text)
    return 0


def measured(network, to: str) -> list[str]:
    """The cells of one file: seconds of its export, with compilation and comparison, its size, how
    far its features are from ours, of numbers how large, and milliseconds an image of both."""
    with tempfile.TemporaryDirectory() as folder:
        began, path = time.monotonic(), Path(folder) / f"a.{to}"
        ssl_jax.export(network, path, to=to)
        seconds, content = time.monotonic() - began, path.read_bytes()
    side, channels = network.shape.image_size, network.shape.in_channels
    images = np.random.default_rng(1).random((BATCH, side, side, channels), np.float32)

    def ours(images):
        features = network(images)
        return {name: np.asarray(getattr(features, name)) for name in NAMES}

    program = {"stablehlo": by_jax, "onnx": by_onnxruntime}[to](content)
    expected, given = ours(images), program(images)
    distance = max(np.abs(expected[name] - x).max() for name, x in given.items())
    largest = max(np.abs(x).max() for x in given.values())
    calls = {"program": lambda: program(images), "ours": lambda: ours(images)}
    times = measure.medians(calls, ROUNDS, now=time.monotonic)
    speeds = [f"{1000 * s / BATCH:.1f}" for s in times.values()]
    sizes = f"{len(content) / 1e6:.1f}", f"{distance:.1g} of {largest:.2g}"
    return [f"{seconds:.0f} s", *sizes, *speeds]


def by_jax(content: bytes):
    """images -> {name: array} by jax.export's program alone."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        program = jax.jit(export.deserialize(bytearray(file.read("program"))).call)
    return lambda images: jax.tree.map(np.asarray, program(images))


def by_onnxruntime(content: bytes):
    """The same by onnxruntime, on as many threads as JAX has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = tables.cores()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(names, {"images": images}), strict=True))
