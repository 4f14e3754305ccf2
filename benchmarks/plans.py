"""What the papers' presets take on many devices, as `ssl-jax plan` has it: one table.

    python -m benchmarks plans --topology v5e:16x16 --topology v5p:4x4x4    TPU slices, by libtpu
    python -m benchmarks plans --devices 64 --device H100
    python -m benchmarks plans --topology v5e:16x16 --write             also into docs/clusters.md
    python -m benchmarks plans --bounds --topology h100:8 --write       what bounds a step there

A compilation of some minutes each, on a CPU. STELLAR's target is pixels: codes need a file.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from experiments import runs, tables
from experiments.tables import ROOT

# Config, then changes. With mesh.fsdp the weights are cut as well.
PRESETS = (
    ("dino:vits16",),
    ("ibot:vitb16",),
    ("massl:vitb16",),
    ("mae:vitl16",),
    ("flsl:vits8",),
    ("sove:vits16",),
    ("sop:vits16",),
    ("sop:vitl16", "mesh.fsdp=8"),
    ("cribo:vits16_in1k",),
    ("cribo:vitb16_in1k",),
    ("stellar:vitb16", "stellar.target=pixel"),
    ("stellar:vith14", "stellar.target=pixel", "mesh.fsdp=8"),
)
# Of the table of bounds: those whose steps are to be timed.
BOUNDED = (
    *((f"{name}:vits16",) for name in ("dino", "ibot", "sop", "sove", "massl", "flsl", "dinov2")),
    ("cribo:vits16_in1k",),
    ("mae:vitb16",),
    ("dino:vitb16",),
    ("sop:vitl16", "mesh.fsdp=8"),
    ("stellar:vitb16", "stellar.target=pixel"),
)
IMAGES = 1281167  # of ImageNet


def _memory(plan: dict) -> str:
    memory, there = sum(plan["memory"].values()), plan["memory_of_device"]
    fits = "" if memory < there else " (does not fit)"
    return f"{memory / 2**30:.1f} of {there / 2**30:.4g}{fits}"


def _sent(plan: dict) -> str:
    sent = dict(plan["sent"])
    parts = [sent.pop(kind, 0.0) for kind in ("all-reduce", "all-gather", "reduce-scatter")]
    return ", ".join(f"{part / 2**20:,.0f}" for part in [*parts, sum(sent.values())])


def _kernels(plan: dict, key: str) -> float:
    return sum(kind[key] for kind in plan["kernels"].values())


# {heading: cell of a plan}
COLUMNS = {
    "devices": lambda p: f"{p['devices']} x {p['device']}",
    "memory GiB": _memory,
    "TFLOP": lambda p: f"{sum(p['flops'].values()) / 1e12:.3g}",
    "sent MiB: summed, gathered, scattered, other": _sent,
    "bound by": lambda p: p["bound"],
    "ms": lambda p: f"{1000 * max(p['seconds'].values()):.1f}",
    "images/s": lambda p: f"{p['images_per_second']:,.0f}",
    "device-hours": lambda p: f"{p['device_hours']:,.0f}",
}
BOUNDS = {
    "images a device": lambda p: f"{p['batch'] // p['devices']} on {p['devices']} x {p['device']}",
    "kernels": lambda p: f"{_kernels(p, 'times'):,.0f}",
    "GB moved": lambda p: f"{_kernels(p, 'bytes') / 1e9:,.0f}",
    "ms by bytes": lambda p: f"{1000 * p['seconds']['memory']:.1f}",
    "ms by products": lambda p: f"{1000 * p['seconds']['compute']:.1f}",
    "images/s a device": lambda p: f"{p['images_per_second'] / p['devices']:,.0f}",
    "MFU at most": lambda p: f"{p['mfu']:.0%}",
    "temporary GiB": lambda p: f"{p['memory']['temporary'] / 2**30:.1f}",
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topology", action="append", default=[], help="h100:8, v5e:16x16; repeat")
    parser.add_argument("--devices", type=int, help="a number of devices instead")
    parser.add_argument("--device", default="H100", help="and their kind")
    parser.add_argument("--bounds", action="store_true", help="the table of what bounds a step")
    parser.add_argument("--only", default="", help="configs, comma-separated")
    parser.add_argument("--write", action="store_true", help="put it into docs/clusters.md")
    parser.add_argument("--out", default="runs/plans", type=Path, help="folder of what plan says")
    args, passed_on = parser.parse_known_args(argv)
    presets = BOUNDED if args.bounds else PRESETS
    known = {name for name, *_ in presets}
    names = args.only.split(",") if args.only else known
    runs.refuse_unknown(parser, passed_on, configs=(names, known))
    places = [[f"--topology={slice_}"] for slice_ in args.topology]
    if args.devices:
        places.append([f"--devices={args.devices}", f"--device={args.device}"])
    if not places:
        parser.error("give --topology=SLICE or --devices=N")
    args.out.mkdir(parents=True, exist_ok=True)
    rows, failed, columns = [], [], BOUNDS if args.bounds else COLUMNS
    for place in places:
        for preset in presets:
            if preset[0] not in names:
                continue
            plan = planned(preset, place, passed_on, args.out)
            if plan is None:
                failed.append(" ".join([*preset, *place]))
            else:
                plan["devices"] = plan["mesh"]["data"] * plan["mesh"]["fsdp"]
                label = " ".join(part for part in preset if "target" not in part)
                rows.append([label, *(cell(plan) for cell in columns.values())])
                print(" | ".join(rows[-1]), flush=True)
    text = tables.markdown([["config", *columns], *rows])
    print(f"\n{text}", end="")
    if args.write and rows:
        part = "bounds" if args.bounds else "plans"
        tables.fill("docs/clusters.md", part, f"{text}\n{tables.provenance()}\n")
    for what in failed:
        print(f"FAILED: {what}, see {args.out}", file=sys.stderr)
    return 1 if failed else 0


def planned(preset: tuple[str, ...], place: list[str], more: list[str], folder: Path):
    """What plan says, from a file if it was asked before; None if it failed."""
    name, *changes = preset
    parts = "_".join([*preset, *place, *more])
    file = folder / f"{parts.replace(':', '_').replace('/', '_')}.json"
    if not file.exists():
        changes = [f"--config.{change}" for change in changes]
        command = [sys.executable, "-m", "ssl_jax", "plan", f"--config={name}", *place, *changes]
        command += [f"--images={IMAGES}", "--json", *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            file.with_suffix(".log").write_text(done.stdout + done.stderr)
            return None
        file.write_text(done.stdout)
    return json.loads(file.read_text())
