"""How well images are rebuilt from r sparse tokens, beside a dense MAE (STELLAR figure 2c and table
3, small): trains what is missing, then a new decoder of one shape on the features of each network.

    python -m experiments reconstruct --tokens 1,2,4,8,16 --seeds 0 --jobs 2

STELLAR is `compare:stellar` with model.queries=r, the dense network `compare:mae`, whose decoder
gets every patch token. An hour on two cores; runs and records are shared with the other
experiments. Writes WORKDIR/reconstruct.md and reconstruct_by_r.png (PSNR against r); --write puts
both into docs. Arguments --config.KEY=VALUE go to every run: give such a rehearsal a --workdir of
its own.
"""

import statistics

from experiments import measures, runs, tables
from experiments.claims import Variant, run_of
from ssl_jax.methods.pictures.base import Chart, Curve
from ssl_jax.report import render

DENSE = "dense MAE"
COLUMNS = {
    "knn": "k-NN, %",
    "psnr": "PSNR, own decoder",
    "decode": "PSNR, new decoder",
    "decode_ssim": "SSIM, new decoder",
}


def main(argv=None) -> int:
    parser = runs.parser(__doc__, seeds="0")
    parser.add_argument(
        "--tokens", type=runs.integers, default="1,2,4,8,16", help="numbers of them"
    )
    args, passed_on = parser.parse_known_args(argv)
    runs.refuse_unknown(parser, passed_on)
    if min(args.tokens) < 1:
        parser.error(f"--tokens {args.tokens}: a network has at least 1")
    variants = {str(r): Variant("", "stellar", {"model.queries": r}) for r in args.tokens}
    variants[DENSE] = Variant("", "mae")
    wanted = {
        (name, seed): run_of(variant, seed, args.workdir, passed_on)
        for name, variant in variants.items()
        for seed in args.seeds
    }
    results, status = runs.results(wanted, args)
    records = runs.records_of(args)
    numbers: dict[str, dict[str, list[float]]] = {}
    for (name, seed), record in results.items():
        run = wanted[name, seed]
        for column in COLUMNS:
            value = measures.number(column, record, run.folder, "trained")
            of_name = numbers.setdefault(name, {}).setdefault(column, [])
            of_name += [value] if value == value else []
        records[run.folder.name] = record
    if numbers:
        rows = [[name, *map(tables.spread, of.values())] for name, of in numbers.items()]
        heading = ["tokens", *COLUMNS.values()]
        text = tables.show([heading, *rows], args.workdir / "reconstruct.md")
        render.one(chart(numbers), args.workdir, "reconstruct_by_r.png")
        if args.write:
            made = tables.provenance(*(record["made"] for record in results.values()))
            note = f"\nSeeds {', '.join(map(str, args.seeds))}. {made}\n"
            tables.fill("docs/claims.md", "reconstruction", text + note)
            render.one(chart(numbers), tables.ROOT / "docs" / "pictures", "reconstruct_by_r.png")
    return status


def chart(numbers: dict) -> Chart:
    """PSNR of the decoders against r, with that of the dense network as a line."""

    def mean(name: str, column: str) -> float:
        values = numbers.get(name, {}).get(column)
        return statistics.fmean(values) if values else float("nan")

    counts = sorted(int(name) for name in numbers if name != DENSE)
    curves = [
        Curve(label, counts, [mean(str(r), column) for r in counts])
        for column, label in (("decode", "new decoder"), ("psnr", "its own decoder"))
    ]
    level = [mean(DENSE, "decode")] * len(counts)
    curves.append(Curve("dense MAE, new decoder", counts, level, dashed=True))
    return Chart("Images rebuilt from r tokens", tuple(curves), x="sparse tokens r", y="PSNR, dB")
