"""What the protocols that were set right do to a score: pairs of runs of protocols.toml which
differ in one setting, as it was and as it is, for a network of zoo/. Records each run as it ends;
--write puts the tables into docs/protocol_changes.md.

    python -m experiments protocols --data /data/tfds --bases stellar,cribo --write

Runs on record are not made again; without --data none is.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import ssl_jax
from experiments import evaluate, runs, store, tables

BASES, CHANGES = (runs.data("protocols")[part] for part in ("bases", "changes"))
_PAGE = "docs/protocol_changes.md"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="", help="folder of the TFDS sets")
    parser.add_argument("--bases", default="", help="comma-separated; default: all")
    parser.add_argument("--seeds", type=runs.integers, default="0", help="comma-separated")
    parser.add_argument("--workdir", default="runs/protocols", type=Path, help="where runs go")
    parser.add_argument("--records", default=store.FOLDER / "protocols.jsonl", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {_PAGE}")
    args = parser.parse_args(argv)
    args.davis, args.examples = "", 0  # of experiments.evaluate
    bases = args.bases.split(",") if args.bases else list(BASES)
    runs.refuse_unknown(parser, [], bases=(bases, BASES))
    records = store.Records(args.records)
    wanted = dict.fromkeys(pair for change in CHANGES for pair in pairs(change))
    for seed, base in itertools.product(args.seeds if args.data else (), bases):
        for keys in (dict(keys) for of, keys in wanted if of == base):
            name = run_name(base, keys, seed)
            if name not in records and "patch" not in keys:
                records[name] = measured(base, keys, seed, args)
                print(name, records[name]["score"], flush=True)
    text = tables.markdown(of_changes(records)) + "\n" + tables.markdown(of_bases(records))
    text += "\n" + tables.provenance(*(record["made"] for record in records.values())) + "\n"
    print(text)
    if args.write:
        tables.fill(_PAGE, "protocols", text)
    return 0


def pairs(change: dict) -> list[tuple]:
    """(base, changed keys) of the run as it was and as it is; [] of a change without runs."""
    sides = (change.get(side, {}) for side in ("old", "new"))
    return [(change["base"], tuple(side.items())) for side in sides] if "base" in change else []


def run_name(base: str, keys: dict, seed: int) -> str:
    return " ".join([base, *(f"{key}={value}" for key, value in keys.items()), f"seed={seed}"])


def measured(base: str, keys: dict, seed: int, args) -> dict:
    """The record of a run: of `ssl-jax train` where the base has a config, else an evaluation."""
    spec, began = BASES[base], time.monotonic()
    network, changes = spec["network"], spec["changes"] | keys
    if "config" in spec:
        flags = changes | {"seed": seed, "init_from": network, "data.dir": args.data}
        words = tuple(f"--config.{key}={value}" for key, value in flags.items())
        run = runs.Run(spec["config"], args.workdir / run_name(base, keys, seed), words)
        if not runs.train(run):
            raise SystemExit(f"{run.folder.name}: FAILED, see {run.folder}.log")
        scores = json.loads((run.folder / "results.json").read_text())["trained"]
    else:
        row, encoder = evaluate.Row(spec["type"], spec["set"], changes), ssl_jax.load(network)
        evaluation = evaluate.opened(spec["type"], row, encoder, args, seed=seed)
        scores = evaluation(encoder.params, encoder.constants)
    return {
        "score": scores[spec["type"]],
        "scores": scores,
        "network": network,
        "keys": keys,
        "seed": seed,
        "command": f"python -m experiments protocols --bases {base} --seeds {seed}",
        "seconds": time.monotonic() - began,
        "made": tables.made(),
    }


def of_changes(records) -> list[list]:
    """The table of what was changed, with the scores of both sides."""
    rows = [["protocol", "setting", "before", "now", "source", "score before", "score now"]]
    for change in CHANGES:
        scores = []
        for base, keys in pairs(change):
            start, end = run_name(base, dict(keys), 0).removesuffix("0"), BASES[base]["score"]
            mine = [one["score"] for name, one in records.items() if name.startswith(start)]
            scores.append(f"{tables.spread(mine)} {end}" if mine else "not run")
        told = [change[key] for key in ("protocol", "setting", "before", "now", "source")]
        rows.append([*told, *(scores or [change["note"], ""])])
    return rows


def of_bases(records) -> list[list]:
    """The table of the runs."""
    rows = [["score", "network", "set", "shortened", "seconds a run"]]
    for name, base in BASES.items():
        mine = [one["seconds"] for run, one in records.items() if run.startswith(f"{name} ")]
        if mine:
            seconds = f"{min(mine):.0f} to {max(mine):.0f}"
            told = (base[key] for key in ("score", "network", "set", "shortened"))
            rows.append([*told, seconds])
    return rows
