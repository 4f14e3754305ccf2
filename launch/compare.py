"""All methods with the same network and images: trains what is missing, prints a row as each run
ends, then the table.

    python launch/compare.py --methods sop,dino --seeds 0,1 --config.optim.steps=500

A run is `ssl-jax train --config=compare:METHOD --config.seed=SEED` in WORKDIR/METHOD-SEED, in a
process of its own; it resumes after a kill, and one that has its results.json is not made again.
Runs go seed by seed, so that the methods of a row of the table share the state of the machine: the
cost of a step is compared within a seed. Arguments --config.KEY=VALUE go to every run.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from configs import compare  # noqa: E402
from ssl_jax import evals  # noqa: E402

SCORES = {name: evals.TYPES[name].heading for name in ("knn", "linear", "dense")}
SCORES["psnr"] = "PSNR"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--methods", default=",".join(compare.METHODS), help="comma-separated; default: all"
    )
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--workdir", default="runs/compare", type=Path, help="where the runs go")
    args, passed_on = parser.parse_known_args(argv)
    methods = args.methods.split(",")
    unknown = [m for m in methods if m not in compare.METHODS] + [
        a for a in passed_on if not a.startswith("--config.")
    ]
    if unknown:
        parser.error(
            f"{', '.join(unknown)}: none of the methods {', '.join(compare.METHODS)}, and no"
            " --config.KEY=VALUE"
        )
    print(line("run", SCORES, "ms a step"))
    results, failed = {}, []
    for seed in map(int, args.seeds.split(",")):
        for method in methods:
            folder = args.workdir / f"{method}-{seed}"
            if not run(method, seed, folder, passed_on):
                failed.append(folder)
                print(f"{folder.name}: FAILED, see {folder}.log", flush=True)
                continue
            results[method, seed] = read(folder, compare.TARGETS[method])
            print(
                line(
                    folder.name,
                    results[method, seed]["trained"],
                    f"{results[method, seed]['ms']:.0f}",
                ),
                flush=True,
            )
    if results:
        text = table(results)
        (args.workdir / "table.md").write_text(text)
        print("\n" + text)
    return 1 if failed else 0


def line(name: str, scores: dict, ms: str) -> str:
    """One row of the running report."""
    cells = [scores.get(key, "-") for key in SCORES]
    return (
        f"{name:<12}"
        + "".join(f"{c if isinstance(c, str) else f'{c:.1f}':>12}" for c in cells)
        + f"{ms:>12}"
    )


def run(method: str, seed: int, folder: Path, passed_on) -> bool:
    """Trains and evaluates one method, unless it has been done; True if there are results."""
    done = folder / "results.json"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ssl_jax", "train", f"--config=compare:{method}"]
        command += [f"--config.seed={seed}", f"--workdir={folder}", *passed_on]
        with open(f"{folder}.log", "a") as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
    return done.exists()


def read(folder: Path, targets) -> dict:
    """{"untrained", "raw", "trained": scores, "ms": median milliseconds of a step} of a finished
    run.

    Where it is a target, PSNR is that of the training images: in the first row of metrics and, as a
    mean, in the last 20."""
    untrained, raw, trained = json.loads((folder / "results.json").read_text()).values()
    config = json.loads((folder / "config.json").read_text())
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    if "psnr" in targets:
        trained["psnr"] = statistics.fmean(float(row["psnr"]) for row in rows[-20:])
        untrained["psnr"] = float(rows[0]["psnr"])
    speed = statistics.median(float(row["images_per_second"]) for row in rows[1:] or rows)
    return {
        "untrained": untrained,
        "raw": raw,
        "trained": trained,
        "ms": 1000 * config["optim"]["batch_size"] / speed,
    }


def table(results: dict) -> str:
    """Markdown: mean and standard deviation over seeds; margins over the best baseline in the
    target measure.
    """
    titles = ["method", *SCORES.values(), "margin", "cost of a step"]
    rows = [titles, ["---"] * len(titles)]
    for method in dict.fromkeys(m for m, _ in results):
        runs = {seed: r for (m, seed), r in results.items() if m == method}
        cells = [
            spread([r["trained"][key] for r in runs.values() if key in r["trained"]])
            for key in SCORES
        ]
        margins = ", ".join(
            f"{SCORES[key]} {spread(margin(runs.values(), key), '+')}"
            for key in compare.TARGETS[method]
        )
        base = [
            r["ms"] / results["dino", seed]["ms"]
            for seed, r in runs.items()
            if ("dino", seed) in results
        ]
        cost = (
            f"{statistics.median(base):.2f} x DINO"
            if base
            else f"{statistics.median(r['ms'] for r in runs.values()):.0f} ms"
        )
        rows.append([method, *cells, margins, cost])
    for name in ("untrained", "raw"):
        cells = [
            spread([r[name][key] for r in results.values() if key in r[name]]) for key in SCORES
        ]
        rows.append([{"untrained": "untrained network", "raw": "raw pixels"}[name], *cells, "", ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def margin(runs, key: str) -> list[float]:
    """Of each run, the trained network's score over the better of its two baselines (over the
    untrained network where pixels have none).
    """
    return [
        r["trained"][key] - max(r[name][key] for name in ("untrained", "raw") if key in r[name])
        for r in runs
    ]


def spread(values, sign: str = "") -> str:
    """ "12.3 +- 0.4", the mean and the sample standard deviation; one value has none, no value is
    "-".
    """
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):{sign}.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    sys.exit(main())
