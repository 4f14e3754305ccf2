"""Does further training help, and with which method? Trains a network further on a set's images
with `adapt:METHOD` (all weights, all with Gram anchoring, or adapters alone), and scores it before
and after: k-NN of Imagenette's classes and dense retrieval on CamVid.

    python -m experiments adapt zoo/sop_speedrun --data /data/tfds --sets camvid --write

Runs stay in WORKDIR, their scores in its records; both are made once. --write puts the table into
docs/adapting.md. adapt.toml has the settings: all runs but those of `long` take as many steps.
Further arguments (--config.KEY=VALUE) go to every run.
"""

import itertools

import ssl_jax
from experiments import measures, runs, tables
from ssl_jax import evals

SETTINGS = runs.data("adapt")
METHODS = ("sop", "cribo", "flsl", "dinov2")
SCORES = {"knn": "k-NN, Imagenette", "dense": "mIoU, CamVid"}
BEFORE = "before"


def main(argv=None) -> int:
    parser = runs.parser(__doc__, seeds="0")
    parser.add_argument("network", help="zoo/NAME, a saved network or published weights")
    parser.add_argument("--data", default="", help="folder of the TFDS sets")
    known = {"sets": SETTINGS["sets"], "methods": METHODS, "ways": SETTINGS["ways"]}
    for group, names in known.items():
        parser.add_argument(f"--{group}", default=",".join(names), help="comma-separated")
    args, passed_on = parser.parse_known_args(argv)
    asked = {group: getattr(args, group).split(",") for group in known}
    runs.refuse_unknown(parser, passed_on, **{k: (asked[k], known[k]) for k in known})
    records, status = runs.records_of(args), 0
    if BEFORE not in records:
        records[BEFORE] = {"scores": scores(args.network, args.data), "made": tables.made()}
    keys = [] if args.finished else itertools.product(args.seeds, *asked.values())
    for seed, images, method, way in keys:
        run = run_of(args, seed, images, method, way, passed_on)
        if run.folder.name in records:
            continue
        runs.train(run)
        if not run.done:
            print(f"{run.folder.name}: FAILED, see {run.folder}.log", flush=True)
            status = 1
            continue
        found = scores(run.folder, args.data)
        records[run.folder.name] = {"scores": found, "made": tables.made(run.folder)}
        print(run.folder.name, found, flush=True)
    text = tables.show(rows(records), args.workdir / "adapt.md")
    if args.write:
        where = tables.provenance(*(record["made"] for record in records.values()))
        ours = args.network.startswith("zoo/")
        network, block = (args.network, "adapt") if ours else ("WEIGHTS", "adapt published")
        command = " ".join(["adapt", network, "--data /data/tfds", *passed_on])
        note = f"\n`python -m experiments {command}`. {where}\n"
        tables.fill("docs/adapting.md", block, text + note)
    return status


def run_of(args, seed: int, images: str, method: str, way: str, passed_on) -> runs.Run:
    """The run of one row of the table."""
    changes = SETTINGS["train"] | SETTINGS["sets"][images] | SETTINGS["ways"][way]
    changes |= {"init_from": args.network, "seed": seed, "data.dir": args.data}
    changes |= {f"{method}.{key}": value for key, value in SETTINGS["heads"].items()}
    given = tuple(f"--config.{key}={value}" for key, value in changes.items())
    folder = args.workdir / f"{images}-{method}-{way}-{seed}"
    return runs.Run(f"adapt:{method}", folder, (*given, *passed_on))


def scores(network, data: str) -> dict[str, float]:
    """Those of SCORES, in percent."""
    encoder, found = ssl_jax.load(network), {}
    for name, changes in SETTINGS["scores"].items():
        section = evals.new(name, **changes)
        section.data.dir = data
        found[name] = measures.evaluated(encoder, section)[name]
    return found


def rows(records) -> list[list[str]]:
    """The table: scores before, and how much each row of runs changed them, over its seeds."""
    before = records[BEFORE]["scores"]
    made = {name.rpartition("-")[0] for name in records if name != BEFORE}
    listed = [["trained on", "method", "variant", "seeds", *SCORES.values()]]
    listed.append(["before", "", "", "", *(f"{before[score]:.1f}" for score in SCORES)])
    for key in itertools.product(SETTINGS["sets"], METHODS, SETTINGS["ways"]):
        if (name := "-".join(key)) in made:
            mine = [x["scores"] for run, x in records.items() if run.rpartition("-")[0] == name]
            changes = [tables.spread([x[k] - before[k] for x in mine], "+") for k in SCORES]
            listed.append([*key, str(len(mine)), *changes])
    return listed
