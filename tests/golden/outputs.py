"""Writes outputs.json: what the package computes, names and stores, for moves of its modules.

    python -m tests.golden.outputs --write [NAME ...]
    python -m tests.golden.outputs --texts FOLDER [NAME ...]

Scores of every type of evaluation on tiny networks, the names of data sources, the key of cached
features, `show` of every config, and what a run and a file of features store. NAME is an item, or
the group before its "/". tests/test_outputs.py compares. With --texts, each item is one text file
with every bit of its numbers, and so is each --help: two folders, of two versions of the package on
one machine, are compared by `diff -r`. Write again only for a change that is meant.
"""

import argparse
import contextlib
import csv
import functools
import hashlib
import io
import json
import os
import pathlib
import re
import tempfile
import time
import zipfile
from unittest import mock

from tests import conftest  # before JAX: eight devices, quick compilation

# isort: split
import jax
import numpy as np
from ml_collections import FrozenConfigDict

from ssl_jax import cli, config, evals, methods, settings
from ssl_jax.data.source import make_source
from ssl_jax.methods.encoder import Encoder
from ssl_jax.scores import frechet
from tests import tiny
from tests.data import sets
from tests.data.records import save
from tests.evals import fakes

PATH = pathlib.Path(__file__).with_name("outputs.json")
UNSTORED = ("help",)  # groups that are texts alone: they change with every option
_SEGMENT = "data.size=24 side=16 batch=8 steps=3 lrs=(0.01,)"
_LINEAR = "epochs=3 batch=16 lrs=(0.01,0.1)"
_NINE = "dir=DIR/nine mapping=DIR/map.json variants=('original','mixed_same')"
_YOLOS = """queries=4 epochs=1 batch=8 sizes=(16,) longest=32 test_size=16 canvas=8 lr=0.01
    clip=10.0 test_examples=8"""
# Evaluations by name: the network (a method of tests/tiny.py with fresh weights, or raw pixels),
# the type, and its settings.
EVALUATIONS = {
    "box_knn": "sop box_knn k=(5,)",
    "box_knn_script": "sop box_knn k=(5,10) boxes=script cells=2 data.size=24 crop=16",
    "box_knn_pixels": "pixels box_knn k=(5,)",
    "classify": "finetune classify",
    "collapse": "sop collapse",
    "collapse_scale": "pixels collapse scale=(0.2,0.5)",
    "davis": "sop davis data.length=32",
    "davis_resized": """sop davis data.length=32 short_side=20 multiple=4 frames=2 previous=2
        radius=1 top=3""",
    "davis_pixels": "pixels davis data.length=32",
    "decode": "sop decode epochs=2 batch=8 width=16 depth=1 heads=2",
    "decode_sparse": "stellar decode epochs=2 batch=8 width=16 depth=1 heads=2 tokens=sparse",
    "dense": "sop dense k=5",
    "dense_subsample": """sop dense k=5 vote=softmax absent=skip subsample=(1,4) runs=2 layers=2""",
    "dense_pixels": "pixels dense k=5",
    "imagenet9": f"sop imagenet9 {_NINE} {_LINEAR}",
    "imagenet9_head": f"sop imagenet9 {_NINE} head=DIR/head.npz",
    "knn": "sop knn",
    "knn_cls": "sop knn k=(1,7) layers=2 tokens=cls temperature=0.2 data.size=24 crop=16",
    "knn_cls_mean": "sop knn k=(5,) tokens=cls_mean",
    "knn_sparse": "stellar knn k=(5,) tokens=sparse",
    "knn_pixels": "pixels knn k=(5,)",
    "linear": f"sop linear {_LINEAR}",
    "linear_sgd": f"""sop linear {_LINEAR} batch_factors=(1,2) optimizer=sgd scale_lr=True
        norm=False held_out=0.0 schedule=cosine layers=2 tokens=mean""",
    "linear_lars": f"sop linear {_LINEAR} optimizer=lars",
    "linear_crops": f"sop linear {_LINEAR} crop_scale=(0.5,1.0)",
    "linear_pixels": f"pixels linear {_LINEAR}",
    "logistic": "sop logistic c=(0.1,1.0)",
    "logistic_mean": "sop logistic c=(1.0,) tokens=mean layers=2 iterations=5",
    "psnr": "stellar psnr",
    "purity": "sop purity k=3",
    "purity_objects": "cribo purity clusters=objects",
    "purity_tokens": "stellar purity clusters=tokens",
    "rank": "sop rank",
    "reconstruct": "stellar reconstruct",
    "retrieval": "sop retrieval k=(1,5)",
    "retrieval_scales": "sop retrieval scales=(1.0,0.5) tokens=mean layers=2",
    "retrieval_benchmark": """sop retrieval ground_truth=DIR/truth.json fit=14 k=(1,) data.size=0
        data.kind=folder data.dir=DIR/nine/original data.split=val data.test_split=val""",
    "segment": f"sop segment {_SEGMENT}",
    "segment_layers": f"""sop segment {_SEGMENT} layers=(0,-1) batch_norm=True dropout=0.1 dice=1.0
        test=slide half=True lrs=(0.01,0.03) held_out=0.3""",
    "segment_patch": f"""sop segment {_SEGMENT} level=patch augment=resized_crop test=center
        optimizer=adam decayed=all average=all photometric=False short=20""",
    "segment_segmenter": f"sop segment {_SEGMENT} head=mask_transformer channels=16",
    "segment_fpn": f"sop segment {_SEGMENT} head=fpn channels=8",
    "segment_upernet": f"sop segment {_SEGMENT} head=upernet channels=8 layers=(0,0,1,1)",
    "segment_trained": f"""sop segment {_SEGMENT} frozen=False layer_decay=0.5 drop_path=0.2
        warmup=1 power=0.9""",
    "segment_pixels": f"pixels segment {_SEGMENT}",
    "stability": "sop stability shifts=(0,2,4)",
    "stability_tokens": "stellar stability shifts=(0,4) crops=2 data.size=20 crop=16",
    "tsne": "sop tsne perplexity=3.0 test_examples=12",
    "tsne_3d": "pixels tsne perplexity=3.0 test_examples=12 dimensions=3",
    "yolos": f"sop yolos {_YOLOS} crop_prob=0.0",
    "yolos_crops": f"""sop yolos {_YOLOS} crop_from=(20,) crop_sides=(12,16) crop_prob=1.0
        position_size=(24,24) middle_size=(16,16)""",
}  # fmt: skip


@functools.cache
def network(name: str):
    if name == "pixels":
        return evals.raw_pixels(4)
    c = settings.resolve(tiny.config(name), num_records=100, num_devices=1)
    method = methods.make(c)
    return Encoder(FrozenConfigDict(c), method.init(jax.random.key(0))[0], method.constants())


def score(name: str, folder: pathlib.Path) -> dict:
    """All scores of one of EVALUATIONS, and what they were computed from."""
    of, type, text = (EVALUATIONS[name].replace("DIR", str(folder)) + " ").split(" ", 2)
    if str(folder) in text:
        write_images(folder)
    c = tiny.config("sop" if of == "pixels" else of)
    c.evals.batch_size = 16
    first = {"data.size": 16, "train_examples": 48, "test_examples": 30}
    c.evals[type] = evals.new(type)
    c.evals[type].update_from_flattened_dict(first | tiny.values(text))
    cases = evals.cases(network(of), c, tasks=(type,))
    scores = {key: x if isinstance(x, int) else float(x) for key, x in evals.run(cases).items()}
    # Most scores are shares of few images: features, and what was trained on them, tell more.
    leaves = jax.tree.leaves(list(cases[type].extracted.values()))
    arrays = [np.asarray(x) for x in leaves if isinstance(x, np.ndarray | jax.Array)]
    sums = [float(np.abs(x, dtype=np.float64).sum()) for x in arrays if x.dtype.kind == "f"]
    digest = hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()
    return {"scores": scores, "sums": sums, "digest": digest}


def frechet_distance(folder: pathlib.Path) -> float:
    """The distance of two sets of random features."""
    moments = []
    for rows in np.random.default_rng(0).normal(size=(2, 9, 5)):
        moments.append(frechet.Moments(5))
        moments[-1].add(rows)
    return frechet.distance(*moments[0].result(), *moments[1].result())


def write_images(folder: pathlib.Path) -> None:
    """What `imagenet9` and the benchmark of `retrieval` read."""
    for i in range(8):
        for seed, variant in enumerate(("original", "mixed_same")):
            image = fakes.images(1, 16, 20, 10 * seed + i)[0]
            save(folder / "nine" / variant / "val" / f"0{i % 2}" / f"{i}.png", image)
    boxes = [dict(bbx=[2, 0, 18, 15], easy=[2 + i], hard=[4], junk=[5]) for i in range(2)]
    truth = dict(imlist=list("234567"), qimlist=list("01"), gnd=boxes)
    (folder / "truth.json").write_text(json.dumps(truth))
    (folder / "map.json").write_text(json.dumps({str(i): i % 2 for i in range(17)}))
    head = np.random.default_rng(0).normal(size=(17, 17)).astype(np.float32)
    np.savez(folder / "head.npz", kernel=head[1:], bias=head[0])


def source(name: str, folder: pathlib.Path) -> dict:
    """What a source says of itself, by the kinds of tests/data/sets.py."""
    with contextlib.chdir(folder):  # a repr has a hash of the masks' place in it
        made = sets.MAKERS[name](pathlib.Path("set"), False).config
        opened = make_source(made) if isinstance(made, dict) else made
    facts = ("place", "num_classes", "class_names", "mask_names", "box_names", "size", "left_out")
    told = {fact: repr(getattr(opened, fact, None)) for fact in facts}
    names = [str(opened.name(i)) for i in range(len(opened))]
    return {"repr": repr(opened), "names": names, **told}


def cached(folder: pathlib.Path) -> dict:
    """The key of cached features and what is kept with them."""
    write_images(folder)
    images = dict(kind="folder", dir=str(folder / "nine/original"), split="val", test_split="val")
    c = tiny.config("sop")
    c.evals.knn = evals.new("knn", k=(1,), test_examples=4, crop=16, data=images)
    c.evals.cache = str(folder / "cache")
    evals.evaluate(network("pixels"), c, tasks=("knn",))
    kept = [json.loads(path.read_text()) for path in (folder / "cache").glob("*/meta.json")]
    for entry in kept:
        del entry["key"]["files"]  # with dates
    return dict(enumerate(sorted(kept, key=lambda entry: entry["key"]["records"])))


def run(folder: pathlib.Path) -> dict:
    """What a run of two steps and a file of its features hold."""
    place = folder / "run"
    short = ("optim.epochs=0.5", "optim.warmup_epochs=0.25", "log.every_steps=1")
    changes = [f"--config.{key}" for key in (*short, "teacher.momentum=0.9")]
    of = f"--config={conftest.ROOT}/tests/tiny_run.py:dino"
    printed("train", of, f"--workdir={place}", *changes)
    printed("embed", str(place), f"--out={folder}/x.npz", "--config.data.length=5", "--size=16")
    names = ("config", "results", "environment")
    read = {name: json.loads((place / f"{name}.json").read_text()) for name in names}
    tables = {}
    for name in ("metrics", "evals"):
        with open(place / f"{name}.csv", newline="") as file:
            tables[name] = next(csv.reader(file))
    with np.load(folder / "x.npz") as arrays, zipfile.ZipFile(folder / "x.npz") as archive:
        about = json.loads(str(arrays["about"]))
        embedded = {"about": about, "entries": archive.namelist()}
        embedded |= {key: [list(x.shape), str(x.dtype)] for key, x in arrays.items() if x.ndim}
    paths = (p.relative_to(place) for p in place.rglob("*") if "checkpoints" not in p.parts)
    return dict(
        config=read["config"],
        results=read["results"],
        environment={key: type(x).__name__ for key, x in read["environment"].items()},
        tables=tables,
        files=sorted(map(str, paths)),
        embedding=embedded,
    )


def printed(*words: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = cli.main(["ssl-jax", *words])
    assert code == 0, (words, code)
    return out.getvalue()


def shown(name: str, folder: pathlib.Path) -> str:
    """`show` of a config where the sets that must be downloaded are not."""
    with mock.patch.dict(os.environ, TFDS_DATA_DIR=str(folder / "tfds")):
        return printed("show", f"--config={name}")


def presets() -> list[str]:
    """Every variant of every config of the package."""
    modules = {name: vars(config.read_module(config.find(name))) for name in config.shipped()}
    variants = {n: m.get("VARIANTS") or m.get("METHODS") or () for n, m in modules.items()}
    return [f"{n}:{v}" if v else n for n, of in variants.items() for v in of or ("",)]


def items() -> dict:
    """{name: function of an empty folder -> a string or a tree of dicts, lists and numbers}."""
    made = {f"scores/{name}": functools.partial(score, name) for name in EVALUATIONS}
    made |= {f"sources/{name}": functools.partial(source, name) for name in sets.MAKERS}
    made |= {"scores/frechet": frechet_distance, "run": run, "cached": cached}
    for name in presets():
        made[f"show/{name}"] = functools.partial(shown, name)
    for name in cli.COMMANDS:
        made[f"help/{name}"] = lambda _, name=name: printed(name, "--help")
    for words in (["--help"], ["show"], ["show", "--keys"]):
        made[f"help/all {' '.join(words)}"] = lambda _, words=words: printed(*words)
    return made


def value(make, folder: pathlib.Path):
    """Of an item, without the names of places on this machine."""
    text = json.dumps(make(folder))
    for place, word in ((folder, "DIR"), (conftest.ROOT, "ROOT")):
        text = re.sub(rf"{re.escape(str(place))}(?![\w-])", word, text)
    return json.loads(text)


def brief(x):
    """As outputs.json holds it: of a long text its length and hash."""
    if isinstance(x, str):
        return {"lines": x.count("\n"), "sha256": hashlib.sha256(x.encode()).hexdigest()}
    return x


def flat(tree, path: str = "") -> dict:
    """{path: leaf} of a tree of dicts and lists."""
    if not isinstance(tree, dict | list):
        return {path: tree}
    rows = tree.items() if isinstance(tree, dict) else enumerate(tree)
    leaves: dict = {path: type(tree).__name__} if not tree else {}
    for key, below in rows:
        leaves |= flat(below, f"{path}/{key}" if path else str(key))
    return leaves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true")
    how.add_argument("--texts", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    golden = json.loads(PATH.read_text()) if PATH.exists() else {}
    chosen = set(arguments.names)
    for name, make in items().items():
        group = name.partition("/")[0]
        if chosen and not {name, group} & chosen or arguments.write and group in UNSTORED:
            continue
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            found = value(make, pathlib.Path(folder))
        print(name, round(time.process_time() - began, 1), flush=True)
        if arguments.write:
            golden[name] = brief(found)
            continue
        lines = [f"{key}: {x!r}\n" for key, x in flat(found).items()]
        path = arguments.texts / f"{re.sub('[^A-Za-z0-9/]+', '_', name)}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found if isinstance(found, str) else "".join(lines))
    if arguments.write:
        rows = [f'"{name}": {json.dumps(x)}' for name, x in sorted(golden.items())]
        PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
