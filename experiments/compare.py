"""All methods with the same network and images: trains what is missing, then the table.

    python -m experiments compare --methods sop,dino --seeds 0,1 --config.optim.steps=500
    python -m experiments compare --finished --records experiments/records/claims.jsonl --write

A run is `ssl-jax train --config=compare:METHOD --config.seed=SEED` in WORKDIR/METHOD-SEED, in a
process of its own; it resumes after a kill. Its numbers go to WORKDIR/records.jsonl (or --records),
and a run that stands there, or has its results.json, is not made again. Arguments
--config.KEY=VALUE go to every run. What a step costs: python -m benchmarks steps.
"""

import statistics

from configs import compare
from experiments import runs, tables
from ssl_jax import evals

KNOWN = (*compare.METHODS, *compare.BOUNDS)
SCORES = {
    name: evals.TYPES[name].heading.partition(",")[0]  # without the unit
    for name in ("knn", "linear", "dense", "psnr")
}

# Of README's table: method -> (paper, config of the paper's network, its losses).
PAPERS = {
    "stellar": ("Zhao et al.", "stellar:vitb16", ("stellar",)),
    "sop": ("Silva et al., ICML 2025", "sop:vits16", ("sop", "sop_patch")),
    "sove": ("under review", "sove:vits16", ("sop", "sop_patch")),
    "flsl": ("Su et al., NeurIPS 2023", "flsl:vits16", ("flsl",)),
    "cribo": ("Lebailly et al., ICLR 2024", "cribo:vits16_coco", ("cribo_images", "cribo_objects")),
    "dino": ("Caron et al., ICCV 2021", "dino:vits16", ("dino",)),
    "ibot": ("Zhou et al., ICLR 2022", "ibot:vits16", ("ibot",)),
    "dinov2": ("Oquab et al., TMLR 2024", "dinov2:vits16", ("dinov2",)),
    "mae": ("He et al., CVPR 2022", "mae:vitb16", ("mae",)),
    "massl": ("Silva et al., ICML 2024", "massl:vits16", ("sop",)),
}


def main(argv=None) -> int:
    parser = runs.parser(__doc__, seeds="0,1,2")
    parser.add_argument("--methods", default=",".join(KNOWN), help="comma-separated; default: all")
    args, passed_on = parser.parse_known_args(argv)
    methods = args.methods.split(",")
    runs.refuse_unknown(parser, passed_on, methods=(methods, KNOWN))
    wanted = {}
    for seed in args.seeds:
        for method in methods:
            imports = ["--import=experiments.bounds"] * (method in compare.BOUNDS)
            arguments = (*imports, f"--config.seed={seed}", *passed_on)
            folder = args.workdir / f"{method}-{seed}"
            wanted[method, seed] = runs.Run(f"compare:{method}", folder, arguments)
    results, status = runs.results(wanted, args)
    if results:
        text = tables.show(table(results), args.workdir / "table.md")
        if args.write:
            write(text, results)
    return status


def scores(rows) -> list[str]:
    """Mean and standard deviation of each score over those rows that have it."""
    rows = list(rows)
    return [tables.spread(row[key] for row in rows if key in row) for key in SCORES]


def table(results: dict) -> list[list[str]]:
    """Rows of cells: mean and standard deviation over seeds, and margins over the better baseline
    in the target measures, whose smallest is that of the worst seed.
    """
    rows = [["method", *SCORES.values(), "margin (worst seed)", "seeds"]]
    sizes: dict[int, list[dict]] = {}  # of the views: the runs
    for method, mine in by_method(results).items():
        size = mine[0]["size"]
        sizes.setdefault(size, []).extend(mine)
        cells = scores(r["trained"] for r in mine)
        targets = (compare.TARGETS | compare.BOUNDS)[method]
        margins = ", ".join(f"{SCORES[key]} {runs.margins(mine, key)}" for key in targets)
        title = f"{compare.TITLES[method]}, {size} px"
        rows.append([title, *cells, margins, str(len(mine))])
    for size, these in sorted(sizes.items()):
        for name in ("untrained", "raw"):
            cells = scores(r[name] for r in these)
            rows.append([f"{runs.ROWS[name]}, {size} px", *cells, "", ""])
    return rows


def short_table(results: dict) -> list[list[str]]:
    """Rows of cells: paper, config and losses of every method, its k-NN score, and in brackets that
    of the same network untrained."""
    rows = [["method", "paper", "config", "`ssl_jax.losses`", f"{SCORES['knn']} (untrained)"]]
    scored = by_method(results)
    for method, (paper, config, losses) in PAPERS.items():
        mine = scored.get(method, ())
        before = [run["untrained"]["knn"] for run in mine]
        score = tables.spread(run["trained"]["knn"] for run in mine)
        title = f"[{compare.TITLES[method]}](docs/methods/{method}.md)"
        names = ", ".join(f"`{name}`" for name in losses)
        cell = f"{score} ({statistics.fmean(before):.1f})" if before else "not measured"
        rows.append([title, paper, f"`{config}`", names, cell])
    return rows


def by_method(results: dict) -> dict[str, list[dict]]:
    """{method: its runs} of {(method, seed): run}."""
    groups: dict[str, list[dict]] = {}
    for (method, _), result in results.items():
        groups.setdefault(method, []).append(result)
    return groups


def write(text: str, results: dict) -> None:
    """Puts the table into docs/results.md, and its short form into README.md."""
    seeds = ", ".join(map(str, sorted({seed for _, seed in results})))
    made = tables.provenance(*(result["made"] for result in results.values()))
    tables.fill("docs/results.md", "nine methods", f"{text}\nSeeds {seeds}. {made}\n")
    tables.fill("README.md", "nine methods", tables.markdown(short_table(results)))
