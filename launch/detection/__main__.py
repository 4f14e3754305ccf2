"""Trains a detector on an exported network, torchvision's Mask R-CNN or Faster R-CNN, and measures
its average precision.

    ssl-jax export RUN --to=timm --out=exported/a
    python -m launch.detection exported/a --protocol flsl_table1 --workdir runs/coco \\
        --train COCO/annotations/instances_train2017.json COCO/train2017 \\
        --val COCO/annotations/instances_val2017.json COCO/val2017

The protocols are in protocols.toml; --set KEY=VALUE changes one of their settings. A run that was
stopped goes on with the same command, to the same weights on the same machine. WORKDIR gets
settings.json, checkpoint.pt and, at the end, results.json.
"""

import argparse
import hashlib
import json
import math
import pickle
import shlex
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments import runs, tables
from experiments.store import FOLDER, Records
from experiments.tables import ROOT
from launch.detection.agnostic import agnostic_precision
from launch.detection.protocols import PROTOCOLS, protocol
from ssl_jax import extras
from ssl_jax.config import InputError
from ssl_jax.runtime import memory, stop, writing
from ssl_jax.scores import detection as scores

try:
    import torch
    from faster_coco_eval import COCOeval_faster
    from faster_coco_eval import mask as rle
    from torchvision.ops import nms

    from launch.detection import network as detection_network
    from launch.detection.images import Images
except ModuleNotFoundError as error:
    sys.exit(f"launch.detection: {error.name} is not installed; {extras.install('detection')}")

RECORDS = FOLDER / "detection.jsonl"
_SAVE_SECONDS = 300


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].replace("\n", " "))
    parser.add_argument("network", type=Path, help="folder of ssl-jax export --to=timm")
    parser.add_argument("--protocol", required=True, help=", ".join(PROTOCOLS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    for part in ("train", "val"):
        parser.add_argument(
            f"--{part}", nargs=2, required=True, metavar=("JSON", "IMAGES"), type=Path
        )
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--random", action="store_true", help="random weights instead of learned")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", default=0, type=int, help="processes that read images")
    parser.add_argument("--pieces", default=1, type=int, help="of a batch, where it is too large")
    parser.add_argument("--draw", type=Path, help="picture of what is found in images of --val")
    parser.add_argument("--record", help="name of the row of docs/detection.md to write")
    args = parser.parse_args(argv)
    p = protocol(args.protocol, args.set)
    train = Images(args.train[0], args.train[1], p, args.seed)
    val = Images(args.val[0], args.val[1], p)
    if train.names != val.names:
        raise InputError(f"--train has the categories {train.names}, --val {val.names}")
    torch.manual_seed(args.seed)
    model = detection_network.detector(args.network, p, len(train.names), args.random)
    model.to(args.device)
    made_with = vars(p) | dict(random=args.random, seed=args.seed, images=len(train.ids))
    made_with |= dict(pieces=args.pieces, classes=train.names)
    made_with |= dict(network=_digest(args.network / "model.safetensors"))
    made_with |= dict(train_json=_digest(args.train[0]), val_json=_digest(args.val[0]))
    file = args.workdir / "results.json"
    if file.exists():
        _check_same(file, json.loads(file.read_text()), made_with)
    state = fit(model, train, made_with, args)
    if state["step"] < state["steps"]:
        print(f"stopped after step {state['step']}; the same command goes on", flush=True)
        return stop.EXIT_PREEMPTED
    if not file.exists():
        began = time.monotonic()
        result = measure(model, val, p, args.device)
        result["eval_minutes"] = (time.monotonic() - began) / 60
        result["memory_gb"] = state["memory_gb"]
        command = shlex.join(map(str, sys.argv[1:] if argv is None else argv))
        result |= dict(command=command, minutes=state["seconds"] / 60)
        result |= dict(val=len(val.ids), protocol=args.protocol, changes=args.set) | made_with
        writing.replace({file: writing.as_json(result | {"made": tables.made()})})
    result = json.loads(file.read_text())
    print(" | ".join(f"{name} {result[name]:.1f}" for name in result if "ap" in name), flush=True)
    if args.draw:
        draw(model, val, args.device, args.draw)
    if args.record:
        records = Records(RECORDS)
        records[args.record] = result
        tables.fill(ROOT / "docs" / "detection.md", "detectors", table(list(records.items())))
    return 0


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _check_same(file: Path, stored: dict, made_with: dict) -> None:
    """Raises InputError if what a file holds was made with another network, data or settings, or
    does not say with which."""
    other = [
        f"{'another' if key in stored else 'an unknown'} {key}"
        for key, value in made_with.items()
        if stored.get(key) != value
    ]
    if other:
        raise InputError(f"{file} was made with {', '.join(other)}; give another --workdir")


def fit(model, data: Images, made_with: dict, args) -> dict:
    """Trains until the last step or a signal to stop; goes on from WORKDIR/checkpoint.pt.

    Returns {"step", "steps", "seconds", "memory_gb"}. Raises InputError where the checkpoint was
    made with other settings, and where the loss is no number.
    """
    p, file = SimpleNamespace(**made_with), args.workdir / "checkpoint.pt"
    optimizer = detection_network.optimizer(model, p)
    steps = math.ceil(p.epochs * len(data.ids) / p.batch)
    state = {"step": 0, "steps": steps, "seconds": 0.0, "memory_gb": 0.0}
    if file.exists():
        try:
            stored = torch.load(file, map_location=args.device, weights_only=True)
            _check_same(file, stored["made_with"], made_with)
        except (RuntimeError, EOFError, LookupError, TypeError, pickle.UnpicklingError) as error:
            raise InputError(f"{file} is no checkpoint, move it away: {error}") from error
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        state = stored["state"]
    model.train()
    batches = data.batches(p.batch, state["step"], steps)
    loader = torch.utils.data.DataLoader(
        data, batch_sampler=batches, num_workers=args.workers, collate_fn=list
    )
    began, saved = time.monotonic() - state["seconds"], time.monotonic()
    with stop.listening() as signals:
        signals.busy()
        for batch in loader if state["step"] < steps else ():
            loss = _step(model, optimizer, batch, state["step"], len(data.ids), p, args)
            if not math.isfinite(loss):
                raise InputError(
                    f"the loss is {loss} at step {state['step']}; --set rate or clip lower"
                )
            state["step"] += 1
            state["seconds"] = time.monotonic() - began
            state["memory_gb"] = max(state["memory_gb"], _memory(args.device))
            if state["step"] % 50 == 0:
                print(f"step {state['step']} of {steps}, loss {loss:.3f}", flush=True)
            due = time.monotonic() - saved > _SAVE_SECONDS
            if signals.received or due or state["step"] == steps:
                weights = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
                with writing.replacing(file) as new:
                    torch.save(weights | dict(state=state, made_with=made_with), new)
                saved = time.monotonic()
            if signals.received:
                break
    return state


def _step(model, optimizer, batch, step: int, count: int, p, args) -> float:
    """One step of training; returns its loss."""
    torch.manual_seed(args.seed * 2**32 + step)
    passed = sum(step * p.batch >= epoch * count for epoch in p.steps)
    rate = p.rate * min(1.0, (step + 1) / max(1, p.warmup)) * 0.1**passed
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    device, total = torch.device(args.device).type, 0.0
    optimizer.zero_grad()
    for piece in (batch[i :: args.pieces] for i in range(min(args.pieces, len(batch)))):
        images = [image.to(args.device) for image, _ in piece]
        targets = [{k: v.to(args.device) for k, v in target.items()} for _, target in piece]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = sum(model(images, targets).values()) * (len(piece) / len(batch))
        loss.backward()
        total += loss.item()
    if p.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), p.clip)
    optimizer.step()
    return total


def _memory(device: str) -> float:
    """The most that was used so far, of the device, or of the process on a CPU; GB."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return memory.peak() / 1e9


@torch.inference_mode()
def measure(model, data: Images, p, device: str) -> dict[str, float]:
    """Average precision in percent: "ap", "ap50", ... of boxes and "mask_ap", ... as COCO defines
    them; or of boxes without classes ("uavdt")."""
    model.eval()
    rows, found = [], []
    for record, image_id in enumerate(data.ids):
        out = {k: v.cpu() for k, v in model([data.open(record).to(device) / 255])[0].items()}
        boxes = out["boxes"].clone()
        boxes[:, 2:] -= boxes[:, :2]
        single = nms(out["boxes"], out["scores"], 0.5)  # an object once, whatever its classes
        labels = np.zeros(len(single), np.int32)
        of_image = boxes[single][:, [1, 0, 3, 2]].numpy(), labels, out["scores"][single].numpy()
        found.append(scores.Boxes(*of_image))
        masks = out.get("masks", [None] * len(boxes))
        for box, label, score, mask in zip(boxes, out["labels"], out["scores"], masks):
            category = data.categories[int(label) - 1]
            row = dict(
                image_id=image_id, category_id=category, bbox=box.tolist(), score=float(score)
            )
            if mask is not None:
                row["segmentation"] = rle.encode(np.asfortranarray(mask[0] > 0.5, np.uint8))
            rows.append(row)
    if p.score == "uavdt":
        true = [_true(data.coco.imgToAnns[i]) for i in data.ids]
        kinds = {"ap50": 0.5, "ap70": 0.7}
        return {name: agnostic_precision(found, true, iou) for name, iou in kinds.items()}
    result: dict[str, float] = {}
    for kind, prefix in (("bbox", ""), ("segm", "mask_"))[: 1 + data.masks]:
        values = [0.0] * len(scores.SCORES)
        if rows:
            evaluator = COCOeval_faster(data.coco, data.coco.loadRes(rows), kind)
            evaluator.run()
            values = evaluator.stats
        pairs = zip(scores.SCORES, values)
        result |= {f"{prefix}{name}": 100 * float(x) for name, x in pairs if x >= 0}
    return result


def _true(annotations) -> scores.Boxes:
    boxes = np.array([a["bbox"] for a in annotations], np.float64).reshape(-1, 4)[:, [1, 0, 3, 2]]
    crowd = np.array([bool(a.get("iscrowd")) for a in annotations], bool)
    return scores.Boxes(boxes, np.zeros(len(boxes), np.int32), crowd=crowd)


@torch.inference_mode()
def draw(model, data: Images, device: str, file: Path, count: int = 3) -> None:
    """The first images of a set with what is found, score above one half."""
    model.eval()
    count = min(count, len(data.ids))
    figure = Figure(figsize=(4 * count, 3.4), layout="constrained")
    kinds = {}
    for record, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        image = data.open(record)
        found = model([image.to(device) / 255])[0]
        axes.imshow(image.permute(1, 2, 0).numpy())
        axes.set_axis_off()
        rows = zip(*(found[key].tolist() for key in ("boxes", "labels", "scores")))
        for (x, y, right, below), label, score in rows:
            if score > 0.5:
                box = Rectangle((x, y), right - x, below - y, fill=False, edgecolor=f"C{label - 1}")
                kinds[data.names[label - 1]] = axes.add_patch(box)
    figure.legend(kinds.values(), kinds, loc="outside lower center", ncols=10)
    figure.savefig(file, dpi=80)


def table(rows) -> str:
    """A Markdown table of (name, result) of finished runs, and where they were made."""
    heading = ["run", "protocol", "weights", "images, tested on", "steps", "AP", "AP50", "AP75"]
    cells = [[*heading, "minutes", "GB", "seed"]]
    for name, r in rows:
        steps = math.ceil(r["epochs"] * r["images"] / r["batch"])
        counts = f"{r['images']}, {r['val']}", steps
        numbers = [f"{r[score]:.1f}" if score in r else "-" for score in ("ap", "ap50", "ap75")]
        used = f"{r['minutes']:.1f}", f"{r['memory_gb']:.1f}", r["seed"]
        kind = "random" if r["random"] else "learned"
        cells.append([name, r["protocol"], kind, *counts, *numbers, *used])
    commands = "".join(f"    python -m launch.detection {r['command']}\n" for _, r in rows)
    made = tables.provenance(*[r["made"] for _, r in rows])
    return f"{tables.markdown(cells)}\n{commands}\n{made}\n"


if __name__ == "__main__":
    runs.start(main)
