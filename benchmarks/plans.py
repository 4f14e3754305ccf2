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
_HEADING = (
    *("config", "devices", "memory GiB", "TFLOP", "sent MiB: summed, gathered, scattered, other"),
    *("bound by", "ms", "images/s", "device-hours"),
)
_BOUNDS = (
    *("config", "images a device", "kernels", "GB moved", "ms by bytes", "ms by products"),
    *("images/s a device", "MFU at most", "temporary GiB"),
)


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
    rows, failed = [], []
    for place in places:
        for preset in presets:
            if preset[0] not in names:
                continue
            plan = planned(preset, place, passed_on, args.out)
            if plan is None:
                failed.append(" ".join([*preset, *place]))
            else:
                rows.append((bound if args.bounds else row)(preset, plan))
                print(" | ".join(rows[-1]), flush=True)
    text = tables.markdown([_BOUNDS if args.bounds else _HEADING, *rows])
    print(f"\n{text}", end="")
    if args.write and rows:
        part = "bounds" if args.bounds else "plans"
        tables.fill(ROOT / "docs" / "clusters.md", part, f"{text}\n{tables.provenance()}\n")
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


def row(preset: tuple[str, ...], plan: dict) -> list[str]:
    """Cells of the table."""
    sent, memory = dict(plan["sent"]), sum(plan["memory"].values())
    kinds = ("all-reduce", "all-gather", "reduce-scatter")
    parts = [sent.pop(kind, 0.0) for kind in kinds]
    parts.append(sum(sent.values()))
    fits = "" if memory < plan["memory_of_device"] else " (does not fit)"
    mesh = plan["mesh"]
    return [
        " ".join(part for part in preset if "target" not in part),
        f"{mesh['data'] * mesh['fsdp']} x {plan['device']}",
        f"{memory / 2**30:.1f} of {plan['memory_of_device'] / 2**30:.4g}{fits}",
        f"{sum(plan['flops'].values()) / 1e12:.3g}",
        ", ".join(f"{part / 2**20:,.0f}" for part in parts),
        plan["bound"],
        f"{1000 * max(plan['seconds'].values()):.1f}",
        f"{plan['images_per_second']:,.0f}",
        f"{plan['device_hours']:,.0f}",
    ]


def bound(preset: tuple[str, ...], plan: dict) -> list[str]:
    """Cells of the table of bounds."""
    devices, kernels = plan["mesh"]["data"] * plan["mesh"]["fsdp"], plan["kernels"].values()
    return [
        " ".join(part for part in preset if "target" not in part),
        f"{plan['batch'] // devices} on {devices} x {plan['device']}",
        f"{sum(kind['times'] for kind in kernels):,.0f}",
        f"{sum(kind['bytes'] for kind in kernels) / 1e9:,.0f}",
        f"{1000 * plan['seconds']['memory']:.1f}",
        f"{1000 * plan['seconds']['compute']:.1f}",
        f"{plan['images_per_second'] / devices:,.0f}",
        f"{plan['mfu']:.0%}",
        f"{plan['memory']['temporary'] / 2**30:.1f}",
    ]
