"""Tries at small scale what the papers claim (claims.toml): trains what is missing, then the table.

    python -m experiments claims --claims sop-anchors,stellar-C --seeds 0,1,2
    python -m experiments claims --finished --records experiments/records/claims.jsonl --write

All 60 runs take about five hours on two cores (--jobs 2), three of them for STELLAR's 20. A run is
`ssl-jax train --config=compare:METHOD --config.KEY=VALUE ... --config.seed=SEED` in
WORKDIR/METHOD+KEY=VALUE-SEED; it resumes after a kill. Its numbers go to WORKDIR/records.jsonl (or
--records), and a run that stands there is not made again. Runs are shared with the other
experiments. What steps cost is measured by `python -m benchmarks costs`. Arguments
--config.KEY=VALUE go to every run: give such a rehearsal a --workdir of its own.
"""

import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from experiments import measures, runs, store, tables
from ssl_jax import config as config_lib
from ssl_jax.config import InputError


class Variant(NamedTuple):
    """One network that is measured; see claims.toml."""

    name: str
    method: str
    changes: dict[str, Any] = {}
    network: str = "trained"
    row: str = ""


class Claim(NamedTuple):
    """What a paper says, and what is measured; see claims.toml."""

    id: str
    paper: str
    says: str
    variants: tuple[Variant, ...]
    measures: dict[str, int]
    within: float = 0.0


def _claims() -> list[Claim]:
    data = runs.data("claims")
    known = data["variants"]

    def variant(given) -> Variant:
        given = known[given] if isinstance(given, str) else known.get(given.get("of"), {}) | given
        return Variant(**{key: value for key, value in given.items() if key != "of"})

    return [
        Claim(**claim | {"variants": tuple(map(variant, claim["variants"]))})
        for claim in data["claims"]
    ]


CLAIMS = {claim.id: claim for claim in _claims()}
PAGE = tables.ROOT / "docs" / "claims.md"
HOLDS, FAILS, OPEN, SHOWN = "holds", "fails", "undecided", "not judged"
RULE = (
    "*ours*: mean ± standard deviation. *difference*: first variant minus last with the same "
    "seed (costs: in the same timing round), mean ± standard error. **holds**: all differences "
    "have the paper's sign, and their mean is more than twice its standard error. **fails**: the"
    " same with the other sign. If the paper says that two variants are alike: the mean lies "
    "within the tolerance (holds) or outside it (fails), by at least two standard errors. "
    "**undecided**: anything else. With two seeds, equally good networks are called different 30"
    " % of the time (15 % in the paper's favour), with three seeds 18 %: a single row says "
    "little.\n"
)
_HEADING = ("claim", "measured", "ours", "difference", "verdict")


def main(argv=None) -> int:
    parser = runs.parser(__doc__, seeds="0,1")
    parser.add_argument("--claims", default=",".join(CLAIMS), help="comma-separated; default: all")
    args, passed_on = parser.parse_known_args(argv)
    ids = args.claims.split(",")
    runs.refuse_unknown(parser, passed_on, claims=(ids, CLAIMS))
    every = {i: runs_of(claim, args.seeds, args.workdir, passed_on) for i, claim in CLAIMS.items()}
    wanted = {(i, *key): run for i in ids for key, run in every[i].items()}
    _, status = runs.results(wanted, args)
    records = runs.records_of(args)
    # The tables have all that is known, whether or not it was asked for now.
    numbers = {i: measured(CLAIMS[i], every[i], records, compute=i in ids) for i in CLAIMS}
    numbers = {i: found for i, found in numbers.items() if found}
    tables.show([_HEADING, *rows_of(numbers)], args.workdir / "claims.md")
    if args.write:
        write(numbers, every, records)
    return status


def run_of(variant: Variant, seed: int, workdir: Path, passed_on=()) -> runs.Run:
    """The run of a variant, named after what it changes in its recipe."""
    recipe = config_lib.flatten(config_lib.load(f"compare:{variant.method}"))
    changes = {k: x for k, x in sorted(variant.changes.items()) if recipe[k] != x}
    parts = [variant.method]
    for key, value in changes.items():
        plain = ",".join(map(str, value)) if isinstance(value, tuple) else value
        parts.append(f"{key.removeprefix(f'{variant.method}.')}={plain}")
    arguments = [f"--config.{key}={value}" for key, value in changes.items()]
    arguments += [f"--config.seed={seed}", *passed_on]
    folder = workdir / f"{'+'.join(parts)}-{seed}"
    return runs.Run(f"compare:{variant.method}", folder, tuple(arguments))


def runs_of(claim: Claim, seeds, workdir: Path, passed_on=()) -> dict:
    """{(index of the variant, seed): run}; {} of a claim about the cost of a step."""
    return {
        (index, seed): run_of(variant, seed, workdir, passed_on)
        for seed in seeds
        for index, variant in enumerate(claim.variants)
        if measures.COST not in claim.measures
    }


def measured(claim: Claim, mine: dict, records, compute: bool = True) -> dict:
    """{measure: [{seed: number} of each variant]} of the runs that are on record; {} where a
    variant has none. What has to be computed from a network goes on record, or is left out."""
    if measures.COST in claim.measures:
        return costs(claim, records)
    numbers: dict = {name: [{} for _ in claim.variants] for name in claim.measures}
    for (index, seed), run in mine.items():
        if run.folder.name not in records:
            continue
        record, network = records[run.folder.name], claim.variants[index].network
        for name in claim.measures:
            known = measures.on_record(name, record, network)
            if not known and not compute:
                continue
            try:
                value = measures.number(name, record, run.folder, network)
            except (InputError, KeyError) as error:
                print(f"{run.folder.name}: no {name}: {error}")
                continue
            if not known:
                records[run.folder.name] = record
            if math.isfinite(value):
                numbers[name][index][seed] = value
    return numbers if all(found for of in numbers.values() for found in of) else {}


def costs(claim: Claim, records) -> dict:
    """The same with rounds in place of seeds: a step of that round in percent of the last
    variant's."""
    if claim.id not in records:
        return {}
    *_, last = taken = [records[claim.id]["seconds"][variant.name] for variant in claim.variants]
    return {measures.COST: [dict(enumerate(100 * a / b for a, b in zip(x, last))) for x in taken]}


def differences(of_variants: list[dict[int, float]]) -> list[float]:
    """First minus last variant for every seed that both have; a single variant minus 0."""
    first, *others = of_variants
    last = others[-1] if others else dict.fromkeys(first, 0.0)
    return [first[seed] - last[seed] for seed in first if seed in last]


def standard_error(values) -> float:
    """Of the mean of at least two values."""
    return statistics.stdev(values) / len(values) ** 0.5


def verdict(values, sign: int, within: float = 0.0) -> str:
    """Judges differences by RULE.

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


def judged(claim: Claim, numbers: dict) -> list[list[str]]:
    """The rows of a claim, one for each measure: what it says (once), what was measured, numbers of
    the variants, the difference, the verdict."""
    rows: list[list[str]] = []
    for name, sign in claim.measures.items():
        values = differences(numbers[name])
        pairs = zip(claim.variants, numbers[name], strict=True)
        each = ", ".join(f"{variant.name} {tables.spread(of.values())}" for variant, of in pairs)
        mean = f"{statistics.fmean(values):+.1f}" if values else "-"
        if len(values) > 1:
            mean += f" ± {standard_error(values):.1f}"
        tolerance = f", within {claim.within:g}" if claim.within else ""
        says, heading = "" if rows else claim.says, f"{measures.HEADINGS[name]}{tolerance}"
        rows.append([says, heading, each, mean, verdict(values, sign, claim.within)])
    return rows


def rows_of(numbers: dict) -> list[list[str]]:
    """The rows of all these claims."""
    return [row for i, found in numbers.items() for row in judged(CLAIMS[i], found)]


def write(numbers: dict, every: dict, records) -> None:
    """Puts the rule and a table for each paper of which there are numbers into docs/claims.md, and
    our numbers beside the papers'. A table with more rows than there are now stays."""
    tables.fill(PAGE, "rule", RULE)
    written: dict[str, dict] = {}
    for paper in dict.fromkeys(claim.paper for claim in CLAIMS.values()):
        mine = {i: found for i, found in numbers.items() if CLAIMS[i].paper == paper}
        if not mine:
            continue
        used = [[run.folder.name for run in every[i].values()] or [i] for i in mine]
        names = dict.fromkeys(name for of_claim in used for name in of_claim if name in records)
        text = section(paper, mine, [records[name]["made"] for name in names])
        if text.count("\n| ") < tables.filled(PAGE, paper).count("\n| "):
            print(f"{paper}: the table in {PAGE} has more rows, and stays as it is")
            continue
        tables.fill(PAGE, paper, text)
        written |= mine
    store.beside_papers(ours(written))


def section(paper: str, numbers: dict, made: list[dict]) -> str:
    """The table of a paper's claims and what goes with it."""
    rows = rows_of(numbers)
    said = [row[-1] for row in rows]
    counts = ", ".join(f"{said.count(v)} {v}" for v in (HOLDS, FAILS, OPEN, SHOWN) if v in said)
    notes = [f"Verdicts: {counts}."]
    if missing := [c.id for c in CLAIMS.values() if c.paper == paper and c.id not in numbers]:
        notes.append(f"Not run yet: {', '.join(missing)}.")
    measures_of = [found for found in numbers.values() if measures.COST not in found]
    if seeds := {seed for found in measures_of for of in found.values() for x in of for seed in x}:
        notes.append(f"Seeds {', '.join(map(str, sorted(seeds)))}.")
    notes.append(tables.provenance(*made))
    return tables.markdown([_HEADING, *rows]) + f"\n{' '.join(notes)}\n"


def ours(numbers: dict) -> dict[str, dict[str, str]]:
    """{row of the papers: {score: our number}} of the variants that name one."""
    rows: dict[str, dict[str, str]] = {}
    for i, found in numbers.items():
        for name in measures.SCORES:
            for variant, mine in zip(CLAIMS[i].variants, found.get(name, ())):
                if variant.row:
                    text = f"{tables.spread(mine.values())} (small scale, see docs/claims.md)"
                    rows.setdefault(variant.row, {})[name] = text
    return rows
