"""Tries at small scale what the papers claim: trains what is missing, prints the rows of a claim as
its runs end, then the table.

    python -m experiments claims --claims sop-anchors,stellar-C --seeds 0,1,2

A run is `ssl-jax train --config=compare:METHOD --config.KEY=VALUE ... --config.seed=SEED` in
WORKDIR/METHOD+KEY=VALUE-SEED, in a process of its own; it resumes after a kill. Its numbers go to
WORKDIR/records.jsonl (or --records), and a run that stands there, or has its results.json, is not
made again. Claims share runs with each other and with experiments/compare.py. Costs of steps are
measured at the end, in turns. Arguments --config.KEY=VALUE go to every run: give such a rehearsal a
--workdir of its own.

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
from pathlib import Path

from benchmarks import steps as bench_steps
from experiments import claims_papers, measures, runs
from experiments.runs import ROOT
from experiments.store import Records, train_all
from ssl_jax import config as config_lib
from ssl_jax import papers
from ssl_jax.cli import arguments
from ssl_jax.config import InputError

CLAIMS = {claim.id: claim for claims in claims_papers.PAPERS.values() for claim in claims}
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
    parser.add_argument("--records", type=Path, help="file of the numbers of runs made before")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its own cores")
    parser.add_argument("--finished", action="store_true", help="train nothing: what is there")
    parser.add_argument("--write", action="store_true", help="put the tables into docs and papers")
    args, passed_on = parser.parse_known_args(argv)
    ids, seeds = args.claims.split(","), [int(seed) for seed in args.seeds.split(",")]
    runs.refuse_unknown(parser, passed_on, claims=(ids, CLAIMS))
    records = Records(args.records or args.workdir / "records.jsonl")
    of_claims = {i: runs_of(claim, seeds, args.workdir, passed_on) for i, claim in CLAIMS.items()}
    wanted = distinct(of_claims[i] for i in ids)
    if args.finished:
        wanted = [run for run in wanted if run.done or run.folder.name in records]
    numbers: dict[str, dict] = {}

    def finish(i: str, found: dict) -> None:
        numbers[i] = found
        for _, *cells in judged(CLAIMS[i], found):
            print(line(i, *cells), flush=True)

    print(line(*_HEADING))
    ended, failed = set(), []
    for run, record in train_all(wanted, args.jobs, records):
        ended.add(run)
        if record is None:
            failed.append(run)
            print(f"{run.folder.name}: FAILED, see {run.folder}.log", flush=True)
        for i in ids:
            mine = of_claims[i]
            if mine and i not in numbers and ended >= set(mine.values()):
                finish(i, measured(CLAIMS[i], mine, records))
    for i in ids:
        if not of_claims[i] and not args.finished:
            finish(i, costs(CLAIMS[i], records, passed_on))
    # The tables have all that is known without more work, whether or not it was asked for now.
    for i, mine in of_claims.items():
        if i not in numbers and known(CLAIMS[i], mine, records):
            numbers[i] = measured(CLAIMS[i], mine, records) if mine else costs(CLAIMS[i], records)
    numbers = {i: numbers[i] for i in CLAIMS if i in numbers}
    text = runs.markdown([_HEADING, *rows_of(numbers)])
    args.workdir.mkdir(parents=True, exist_ok=True)
    (args.workdir / "claims.md").write_text(text)
    print("\n" + text)
    if args.write:
        write(numbers, of_claims, records)
    return 1 if failed else 0


def line(claim: str, measured: str, numbers: str, difference: str, verdict: str) -> str:
    """One row of the running report."""
    return f"{claim:<22}{measured:<34}{verdict:<16}{difference:<18}{numbers}"


# --- runs


def changes_of(variant) -> dict:
    """What a variant changes in its recipe, {dotted key: value}, sorted, without what the recipe
    has anyway."""
    recipe = config_lib.flatten(config_lib.load(f"compare:{variant.method}"))
    return {key: value for key, value in sorted(variant.changes.items()) if recipe[key] != value}


def run_of(variant, seed: int, workdir: Path, passed_on=()) -> runs.Run:
    """The run of a variant; of an unchanged recipe the one of experiments/compare.py."""
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


def known(claim, mine: dict, records: Records) -> bool:
    """Whether the numbers of each variant are on record, with one seed at least, or the costs."""
    if not mine:
        return claim.id in records
    there = {
        index
        for (index, _), run in mine.items()
        if run.folder.name in records
        and all(
            measures.on_record(name, records[run.folder.name], claim.variants[index].network)
            for name in claim.measures
        )
    }
    return len(there) == len(claim.variants)


def measured(claim, mine: dict, records: Records) -> dict[str, list[dict[int, float]]]:
    """{measure: [{seed: number} of each variant]}, of the runs that are on record."""
    numbers = {name: [{} for _ in claim.variants] for name in claim.measures}
    for (index, seed), run in mine.items():
        if run.folder.name not in records:
            continue
        for name in claim.measures:
            value = number(name, run, records, claim.variants[index].network)
            if math.isfinite(value):
                numbers[name][index][seed] = value
    return numbers


def number(name: str, run: runs.Run, records: Records, network: str) -> float:
    """One measure of one network; NaN, with a line that says why, where it has none. What had to
    be computed goes on record."""
    record = records[run.folder.name]
    try:
        value = measures.MEASURES[name].of(record, run.folder, network)
    except (InputError, KeyError) as error:
        print(f"{run.folder.name}: no {name}: {error}", flush=True)
        return math.nan
    records[run.folder.name] = record
    return value


def costs(claim, records: Records, passed_on=()) -> dict[str, list[dict[int, float]]]:
    """Of a claim about the cost of a step, the same with rounds in place of seeds: a step of that
    round in percent of the last variant's."""
    if claim.id not in records:
        configs = {}
        for variant in claim.variants:
            config = config_lib.load(f"compare:{variant.method}")
            config.update_from_flattened_dict(variant.changes)
            configs[variant.name] = arguments.changed(config, passed_on)
        seconds = bench_steps.times(configs, _ROUNDS)
        records[claim.id] = {"seconds": seconds, "made": runs.made()}
    *_, last = taken = [records[claim.id]["seconds"][variant.name] for variant in claim.variants]
    shares = [
        {i: 100 * own / of_last for i, (own, of_last) in enumerate(zip(mine, last))}
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


def rows_of(numbers: dict) -> list[list[str]]:
    """The rows of all these claims."""
    return [row for i, found in numbers.items() for row in judged(CLAIMS[i], found)]


# --- documents


def write(numbers: dict, of_claims: dict, records: Records) -> None:
    """Puts a table for each paper of which there are numbers, and the rule, into docs/results.md,
    and our numbers beside the papers'. A table with more rows than there are now stays."""
    document = ROOT / "docs" / "results.md"
    runs.fill(document, "rule of claims", RULE)
    written = {}
    for paper, claims in claims_papers.PAPERS.items():
        mine = {claim.id: numbers[claim.id] for claim in claims if claim.id in numbers}
        if mine:
            missing = [claim.id for claim in claims if claim.id not in mine]
            used = dict.fromkeys(name for i in mine for name in names_of(i, of_claims[i]))
            made = [records[name]["made"] for name in used if name in records]
            text, place = section(mine, missing, made), f"claims: {paper}"
            if text.count("\n| ") < runs.filled(document, place).count("\n| "):
                print(f"{place}: the table in {document} has more rows, and stays as it is")
                continue
            runs.fill(document, place, text)
            written |= mine
    rows = json.loads(papers.OURS.read_text(encoding="utf-8")) if papers.OURS.exists() else {}
    for row, found in ours(written).items():
        rows[row] = rows.get(row, {}) | found
    text = json.dumps(dict(sorted(rows.items())), indent=2, ensure_ascii=False)
    papers.OURS.write_text(text + "\n", encoding="utf-8")


def names_of(i: str, mine: dict) -> list[str]:
    """Under which a claim's numbers are on record."""
    return [run.folder.name for run in mine.values()] or [i]


def section(numbers: dict, missing: list[str], made: list[dict]) -> str:
    """The table of a paper's claims and what goes with it."""
    rows = rows_of(numbers)
    said = [row[-1] for row in rows]
    counts = ", ".join(f"{said.count(v)} {v}" for v in (HOLDS, FAILS, OPEN, SHOWN) if v in said)
    seeds = {
        seed
        for found in numbers.values()
        for name, of_variants in found.items()
        if name != measures.COST
        for of_variant in of_variants
        for seed in of_variant
    }
    notes = [f"Verdicts: {counts}."]
    if missing:
        notes.append(f"Not run yet: {', '.join(missing)}.")
    if seeds:
        notes.append(f"Seeds {', '.join(map(str, sorted(seeds)))}.")
    notes.append(runs.provenance_of(made))
    return runs.markdown([_HEADING, *rows]) + f"\n{' '.join(notes)}\n"


def ours(numbers: dict) -> dict[str, dict[str, str]]:
    """{row of the papers: {score: our number}} of the variants that name one."""
    rows: dict[str, dict[str, str]] = {}
    for i, found in numbers.items():
        for name in measures.SCORES:
            for variant, mine in zip(CLAIMS[i].variants, found.get(name, ())):
                if variant.row and mine:
                    text = f"{runs.spread(mine.values())} (small scale, see docs/results.md)"
                    rows.setdefault(variant.row, {})[name] = text
    return rows
