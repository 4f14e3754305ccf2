"""Tries at small scale what the papers claim: trains what is missing, prints the rows of a claim as
its runs end, then the table.

    python launch/claims.py --claims sop-anchors,stellar-C --seeds 0,1,2

A run is `ssl-jax train --config=compare:METHOD --config.KEY=VALUE ... --config.seed=SEED` in
WORKDIR/METHOD+KEY=VALUE-SEED, in a process of its own; it resumes after a kill, and one that has
its results.json is not made again. Claims share runs with each other and with launch/compare.py.
Costs of steps are measured at the end, in turns. Arguments --config.KEY=VALUE go to every run: give
such a rehearsal a --workdir of its own.

The rule: a claim is judged by the difference of its first and last variant with the same seed. It
holds if all seeds have the paper's sign and the mean difference is more than twice its standard
error; it does not if all have the other sign and the same is true; else it cannot be told. That two
are alike holds if the mean difference lies within the tolerance with two standard errors to spare,
and does not hold if it lies as far outside. Costs are compared by rounds in place of seeds.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launch")]

import bench_steps  # noqa: E402
import claims_measure as measures  # noqa: E402
import claims_papers  # noqa: E402
import runs  # noqa: E402

from ssl_jax import config as config_lib  # noqa: E402
from ssl_jax import papers  # noqa: E402
from ssl_jax.cli import arguments  # noqa: E402
from ssl_jax.config import InputError  # noqa: E402

CLAIMS = {claim.id: claim for claim in claims_papers.CLAIMS}
HOLDS, FAILS, OPEN, SHOWN = "holds", "does not", "cannot be told", "shown only"
RULE = (
    "Each difference is first minus last variant with the same seed (of costs: in the same round);"
    " mean ± standard error. **holds**: all have the paper's sign, and the mean is more than twice"
    " its standard error; **does not**: the same with the other sign. Where the paper says that two"
    " are alike: the mean lies within the tolerance, or outside of it, with two standard errors to"
    " spare. Two networks that are equally good pass for different in 30 of 100 such tests with two"
    " seeds (15 of them in the paper's favour) and in 18 with three, so a single row says little.\n"
)
_HEADING = ("claim", "measured", "ours", "difference", "verdict")
_ROUNDS = 8  # in which steps are timed


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--claims", default=",".join(CLAIMS), help="comma-separated; default: all")
    parser.add_argument("--seeds", default="0,1", help="comma-separated")
    parser.add_argument("--workdir", default="runs/compare", type=Path, help="where the runs go")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its own cores")
    parser.add_argument("--write", action="store_true", help="put the table into docs and papers")
    args, passed_on = parser.parse_known_args(argv)
    ids, seeds = args.claims.split(","), [int(seed) for seed in args.seeds.split(",")]
    runs.refuse_unknown(parser, passed_on, claims=(ids, CLAIMS))
    wanted = {i: runs_of(CLAIMS[i], seeds, args.workdir, passed_on) for i in ids}
    numbers: dict[str, dict] = {}

    def finish(i: str, found: dict) -> None:
        numbers[i] = found
        for _, *cells in judged(CLAIMS[i], found):
            print(line(i, *cells), flush=True)

    print(line(*_HEADING))
    ended, failed = set(), []
    for run, there in runs.train_all(distinct(wanted.values()), args.jobs):
        ended.add(run)
        if not there:
            failed.append(run)
            print(f"{run.folder.name}: FAILED, see {run.folder}.log", flush=True)
        for i, mine in wanted.items():
            if mine and i not in numbers and ended >= set(mine.values()):
                finish(i, measured(CLAIMS[i], mine))
    for i in ids:
        if i not in numbers:
            finish(i, costs(CLAIMS[i], passed_on))
    args.workdir.mkdir(parents=True, exist_ok=True)
    numbers = kept(numbers, args.workdir / "claims.json")
    rows = [row for i in numbers for row in judged(CLAIMS[i], numbers[i])]
    text = runs.markdown([_HEADING, *rows])
    (args.workdir / "claims.md").write_text(text)
    print("\n" + text)
    if args.write:
        missing = ", ".join(i for i in CLAIMS if i not in numbers)
        note = f"\nNot run yet: {missing}.\n" if missing else ""
        commit = runs.commit_of(run.folder for mine in wanted.values() for run in mine.values())
        note += f"\n{RULE}\nSeeds {', '.join(map(str, seeds))}. {runs.provenance(commit)}\n"
        runs.fill(ROOT / "docs" / "results.md", "claims", text + note)
        beside = json.dumps(ours(numbers), indent=2, ensure_ascii=False)
        papers.OURS.write_text(beside + "\n", encoding="utf-8")
    return 1 if failed else 0


def line(claim: str, measured: str, numbers: str, difference: str, verdict: str) -> str:
    """One row of the running report."""
    return f"{claim:<22}{measured:<34}{verdict:<16}{difference:<18}{numbers}"


def kept(numbers: dict, file: Path) -> dict:
    """The numbers of these claims and of those measured before, in the order of the claims; kept in
    a file, so that claims can be measured a few at a time."""
    known = json.loads(file.read_text()) if file.exists() else {}
    for found in known.values():
        for name, of_variants in found.items():
            found[name] = [{int(seed): x for seed, x in mine.items()} for mine in of_variants]
    known |= {i: found for i, found in numbers.items() if any(map(any, found.values()))}
    known = {i: known[i] for i in CLAIMS if i in known}
    file.write_text(json.dumps(known, indent=2) + "\n")
    return known


# --- runs


def changes_of(variant) -> dict:
    """What a variant changes in its recipe, {dotted key: value}, sorted, without what the recipe
    has anyway."""
    recipe = config_lib.flatten(config_lib.load(f"compare:{variant.method}"))
    return {key: value for key, value in sorted(variant.changes.items()) if recipe[key] != value}


def run_of(variant, seed: int, workdir: Path, passed_on=()) -> runs.Run:
    """The run of a variant; of an unchanged recipe the one of launch/compare.py."""
    changes = changes_of(variant)
    prefix = f"{variant.method}."
    parts = [f"{key.removeprefix(prefix)}={plain(x)}" for key, x in changes.items()]
    return runs.Run(
        f"compare:{variant.method}",
        workdir / f"{'+'.join([variant.method, *parts])}-{seed}",
        (
            *(f"--config.{key}={value}" for key, value in changes.items()),
            f"--config.seed={seed}",
            *passed_on,
        ),
    )


def plain(value) -> str:
    """A value as part of a folder's name."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def runs_of(claim, seeds, workdir: Path, passed_on=()) -> dict:
    """{(index of the variant, seed): run}; {} of a claim about the cost of a step."""
    if measures.COST in claim.measures:
        return {}
    return {
        (index, seed): run_of(variant, seed, workdir, passed_on)
        for seed in seeds
        for index, variant in enumerate(claim.variants)
    }


def distinct(of_claims) -> list[runs.Run]:
    """All runs once, in the order of the claims."""
    return list(dict.fromkeys(run for mine in of_claims for run in mine.values()))


# --- numbers


def measured(claim, mine: dict) -> dict[str, list[dict[int, float]]]:
    """{measure: [{seed: number} of each variant]}, of the runs that have results."""
    numbers = {name: [{} for _ in claim.variants] for name in claim.measures}
    for (index, seed), run in mine.items():
        if not run.done:
            continue
        results = runs.read(run.folder)
        for name in claim.measures:
            value = number(name, results, run.folder, claim.variants[index].network)
            if math.isfinite(value):
                numbers[name][index][seed] = value
    return numbers


def number(name: str, results: dict, folder: Path, network: str) -> float:
    """One measure of one network; NaN, with a line that says why, where it has none."""
    try:
        return measures.MEASURES[name].of(results, folder, network)
    except (InputError, KeyError) as error:
        print(f"{folder.name}: no {name}: {error}", flush=True)
        return math.nan


def costs(claim, passed_on=()) -> dict[str, list[dict[int, float]]]:
    """Of a claim about the cost of a step, the same with rounds in place of seeds: a step of that
    round in percent of the last variant's."""
    configs = {}
    for variant in claim.variants:
        config = config_lib.load(f"compare:{variant.method}")
        config.update_from_flattened_dict(variant.changes)
        _, configs[variant.name] = arguments.parse(["claims", *passed_on], config)
    taken = list(bench_steps.times(configs, _ROUNDS).values())
    shares = [
        {i: 100 * own / last for i, (own, last) in enumerate(zip(mine, taken[-1]))}
        for mine in taken
    ]
    return {measures.COST: shares}


# --- verdicts


def differences(of_variants: list[dict[int, float]]) -> list[float]:
    """First minus last variant for every seed that both have; a single variant minus 0."""
    first, *others = of_variants
    last = others[-1] if others else dict.fromkeys(first, 0.0)
    return [first[seed] - last[seed] for seed in first if seed in last]


def standard_error(values) -> float:
    """Of the mean of at least two values."""
    return statistics.stdev(values) / len(values) ** 0.5


def verdict(values, sign: int, within: float = 0.0) -> str:
    """Judges differences by the rule at the top of this file.

    sign: 1 if the paper's is positive, -1 if negative, 0 if it has none. within: tolerance of a
    claim that there is no difference.
    """
    if sign == 0:
        return SHOWN
    if len(values) < 2:
        return OPEN
    mean, spare = statistics.fmean(values), 2 * standard_error(values)
    if within:
        holds, fails = abs(mean) + spare <= within, abs(mean) - spare > within
    else:
        toward = [sign * value for value in values]
        holds = min(toward) > 0 and sign * mean > spare
        fails = max(toward) < 0 and -sign * mean > spare
    return HOLDS if holds else FAILS if fails else OPEN


def judged(claim, numbers: dict) -> list[list[str]]:
    """The rows of a claim, one for each measure: what it says (once), what was measured, numbers of
    the variants, the difference, the verdict."""
    rows = []
    for name, sign in claim.measures.items():
        values = differences(numbers[name])
        of_variants = (
            f"{variant.name} {runs.spread(mine.values())}"
            for variant, mine in zip(claim.variants, numbers[name], strict=True)
        )
        mean = f"{statistics.fmean(values):+.1f}" if values else "-"
        if len(values) > 1:
            mean += f" ± {standard_error(values):.1f}"
        tolerance = f", within {claim.within:g}" if claim.within else ""
        rows.append(
            [
                "" if rows else claim.says,
                heading(name) + tolerance,
                ", ".join(of_variants),
                mean,
                verdict(values, sign, claim.within),
            ]
        )
    return rows


def heading(name: str) -> str:
    """Of a measure, with its unit."""
    return "cost of a step, %" if name == measures.COST else measures.MEASURES[name].heading


def ours(numbers: dict) -> dict[str, dict[str, str]]:
    """{row of the papers: {score: our number}} of the variants that name one."""
    rows: dict[str, dict[str, str]] = {}
    for i, found in numbers.items():
        for name in measures.SCORES:
            for variant, mine in zip(CLAIMS[i].variants, found.get(name, ())):
                if variant.row and mine:
                    text = f"{runs.spread(mine.values())} (small scale, see docs/results.md)"
                    rows.setdefault(variant.row, {})[name] = text
    return dict(sorted(rows.items()))


if __name__ == "__main__":
    sys.exit(main())
