"""What a step costs in the variants of the papers' claims about costs (experiments/claims.toml), in
turns; goes to the records from which `python -m experiments claims` makes its tables.
"""

import argparse
from pathlib import Path

from benchmarks import steps
from experiments import measures, store, tables
from experiments.claims import CLAIMS
from ssl_jax import config as config_lib


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=Path("runs/compare/records.jsonl"))
    parser.add_argument("--rounds", type=int, default=8, help="turns of 10 steps")
    args = parser.parse_args(argv)
    records = store.Records(args.records)
    for claim in CLAIMS.values():
        if measures.COST in claim.measures and claim.id not in records:
            configs = {}
            for variant in claim.variants:
                config = config_lib.load(f"compare:{variant.method}")
                config.update_from_flattened_dict(variant.changes)
                configs[variant.name] = config
            seconds = steps.times(configs, args.rounds)
            records[claim.id] = {"seconds": seconds, "made": tables.made()}
    return 0
