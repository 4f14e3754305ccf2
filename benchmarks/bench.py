"""Measures this package beside plain formulations and other libraries.

    python -m benchmarks ops                  every op at the sizes of the papers, some minutes
    python -m benchmarks ops --only nearest,sop_vote --rounds 9
    python -m benchmarks ops --scale small    every op in a moment: do the forms agree?
    python -m benchmarks steps                the train step of every recipe of
                                                configs/compare.py, some minutes
    python -m benchmarks steps --configs dino:vits16,sop:vits16 --batch 64
                                                or of other configs, on photographs of 256 px
    python -m benchmarks steps --as-installed PyTorch and faiss are left as they are, else set
                                up as one does who knows them
    python -m benchmarks evals                extraction of features and both searches for
    python -m benchmarks evals --camvid /data/tfds    neighbours; among CamVid's patches
    python -m benchmarks parts                the operations that the papers time, some minutes
    python -m benchmarks loader               decoding and views, of one core
    python -m benchmarks cache                whole runs by data.cache, some minutes

On one core (`taskset -c 0 python -m benchmarks ...`) the times of ops, steps and evaluations are
the processor's seconds, which other work on the machine does not change.

Ops: prints a table and writes OUT/ops.json. Times are medians of interleaved rounds, each call
waited for; "x ops" is a form's time over the op's; memory is what XLA allocates for temporaries,
and of other libraries by how much the process grew in their first call, less what they returned;
difference is to the second form, relative to its largest entry. The status is 1 if a form that must
agree does not.

Steps: a table and OUT/steps.json. Medians of interleaved turns of ten steps on one batch. "x" is
relative to the first config; GFLOP/s and MFU count the products that the model needs (none twice),
MFU as a share of the device's published peak, or where none is known of what a large product
reaches here; "own ops" is the share of a step that goes when the method's objective is replaced by
a sum of the networks' outputs; memory is arrays and temporaries of one device. DINO has its step in
PyTorch beside it, if that is installed: the same network, batch and loss, with fused AdamW.

Evals: a table and OUT/evals.json. "x" is relative to the first form of each case, the network's
bare forward pass or our search; "same" is the share of our neighbours that faiss found too.

Parts: a table and OUT/parts.json, of the operations in CrIBo's table 9, STELLAR's table 13 and the
steps of SOP's table B.1. Sizes of which a call would take more than --limit seconds are not run,
and the table says so. What --only leaves out keeps its rows in the file;
--measured --write puts them into the document without measuring.

Loader: a table and OUT/loader.json, from the processor's seconds in interleaved rounds; "cores" is
how many make 1000 images a second.

Cache: a table and OUT/cache.json, of runs that take turns; "data wait" is the share of the time
that the step waits for data.
"""

import argparse
import importlib.metadata
import itertools
import json
import pathlib
import platform
import sys
import zlib

import jax

from benchmarks import libraries as bench_libraries
from benchmarks import measure as bench_measure
from benchmarks import ops as bench_ops
from experiments import tables

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "POT", "ott-jax", "faiss-cpu", "torch")
COLUMNS = ("op", "direction", "form", "ms", "x ops", "temporary MiB", "difference", "recall")


def machine() -> dict:
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    device = jax.devices()[0]
    return dict(
        processor=tables.processor(),
        cores=tables.cores(),
        system=platform.platform(),
        python=platform.python_version(),
        device=f"{device.platform}: {device.device_kind} x {jax.device_count()}",
        versions={package: version(package) for package in PACKAGES},
    )


def ops(options) -> int:
    names = _chosen(options.only, bench_ops.CASES)
    key = jax.random.key(options.seed)
    rows, skipped = [], []
    path = pathlib.Path(options.out) / "ops.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    peers = bench_libraries.setup("faiss", "torch", installed=options.as_installed)
    print(_line(COLUMNS), flush=True)
    for name in names:
        case = bench_ops.CASES[name](
            options.scale == "paper", jax.random.fold_in(key, zlib.crc32(name.encode()) >> 1)
        )
        measured, missing = bench_measure.measure(case, options.rounds)
        print(f"{name}: {case.size}")
        for row in measured:
            print(_line(_cells(name, row)), flush=True)
        for line in missing:
            print(f"  {line}", flush=True)
        rows += [dict(op=name, **row) for row in measured]
        skipped += [f"{name}: {line}" for line in missing]
        report = dict(
            machine=machine(),
            scale=options.scale,
            rounds=options.rounds,
            seed=options.seed,
            peers=peers,
            rows=rows,
            skipped=skipped,
        )
        # After every op: a run cut short keeps what it has measured.
        path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{peers}\nwrote {path}")
    _write(
        options,
        "ops",
        tables.markdown(_beside_libraries(rows)) + (f"\n{peers}.\n" if peers else ""),
    )
    wrong = [
        f"{row['op']} ({row['direction']}): {row['form']}" for row in rows if row["agrees"] is False
    ]
    for line in wrong:
        print(f"DISAGREES: {line}", file=sys.stderr)
    return 1 if wrong else 0


def steps(options) -> int:
    # Here and not above: the ops are measured in a process that holds neither the loop nor what it
    # imports.
    from benchmarks import steps as bench_steps
    from configs import compare

    if options.configs:
        configs = {name: with_photographs(name) for name in options.configs.split(",")}
    else:
        names = _chosen(options.only, compare.METHODS)
        configs = {name: compare.get_config(name) for name in names}
    for config in configs.values():
        config.seed, config.evals.tasks = options.seed, ()
        config.optim.batch_size = options.batch or config.optim.batch_size
        config.model.dtype = options.dtype or config.model.dtype
    peers = bench_libraries.setup("torch", installed=options.as_installed)
    rows = bench_steps.measure(configs, options.rounds)
    heading = ("config", "ms", "images/s", "x", "GFLOP/s", "MFU", "own ops", "MiB")
    cells = [
        (
            row["config"],
            f"{row['ms']:.1f}",
            f"{row['images_per_second']:.1f}",
            f"{row['x']:.2f}",
            f"{row['gflops']:.1f}",
            f"{row['mfu']:.1%}",
            "" if row["own"] is None else f"{row['own']:.1%}",
            "" if row["mib"] is None else f"{row['mib']:.0f}",
        )
        for row in rows
    ]
    _report(options, "steps", rows, [heading, *cells], peers)
    return 0


def evals(options) -> int:
    from benchmarks import evals as bench_evals

    small = options.scale == "small"
    peers = bench_libraries.setup("faiss", installed=options.as_installed)
    rows = bench_evals.measure(options.rounds, options.seed, small=small, camvid=options.camvid)
    cells = [
        (
            row["case"],
            row["form"],
            f"{row['ms']:.0f}",
            f"{row['x']:.2f}",
            "-" if row["same"] is None else f"{row['same']:.6f}",
        )
        for row in rows
    ]
    _report(options, "evals", rows, [("case", "form", "ms", "x", "same"), *cells], peers)
    return 0


def parts(options) -> int:
    from benchmarks import parts as bench_parts

    names = [] if options.measured else _chosen(options.only, bench_parts.PARTS)
    small = options.scale == "small"
    rows = bench_parts.measure(names, options.rounds, options.limit, small=small)
    path = pathlib.Path(options.out) / "parts.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in before if row["part"] not in names] + rows
    rows.sort(key=lambda row: list(bench_parts.PARTS).index(row["part"]))
    _report(options, "parts", rows, bench_parts.table(rows))
    if options.write:
        from ssl_jax import papers

        where = f"{tables.processor()}, {tables.cores()} cores, see docs/benchmarks.md"
        numbers = json.loads(papers.OURS.read_text(encoding="utf-8"))
        for name, mine in bench_parts.ours(rows, where.replace("1 cores", "1 core")).items():
            numbers[name] = numbers.get(name, {}) | mine
        text = json.dumps(dict(sorted(numbers.items())), indent=2, ensure_ascii=False)
        papers.OURS.write_text(text + "\n", encoding="utf-8")
    return 0


def loader(options) -> int:
    from benchmarks import loader as bench_loader

    small = dict(configs=("quickstart",), sizes=((48, 64),)) if options.scale == "small" else {}
    rows = bench_loader.measure(options.rounds, **small)
    cells = [
        (row["case"], row["form"], f"{row['rate']:,.0f}", f"{row['x']:.2f}", f"{row['cores']:.1f}")
        for row in rows
    ]
    heading = ("case", "form", "images/s of a core", "x", "cores for 1000 images/s")
    _report(options, "loader", rows, [heading, *cells])
    return 0


def cache(options) -> int:
    from benchmarks import cache as bench_cache

    one = next(iter(bench_cache.RUNS))
    small = dict(cases={one: bench_cache.RUNS[one]}, steps=12) if options.scale == "small" else {}
    rows = bench_cache.measure(options.rounds, **small)
    cells = [
        (row["case"], row["form"], f"{row['rate']:,.0f}", f"{row['x']:.2f}", f"{row['wait']:.1%}")
        for row in rows
    ]
    heading = ("run", "data.cache", "images/s", "x", "data wait")
    _report(options, "cache", rows, [heading, *cells])
    return 0


def _report(options, name: str, rows: list[dict], table: list, peers: str = "") -> None:
    """Prints the table, keeps the rows as OUT/NAME.json; with --write the table goes into
    docs/benchmarks.md. peers: how other libraries were set up, a line below the table."""
    text = tables.markdown(table) + (f"\n{peers}.\n" if peers else "")
    print(text)
    path = pathlib.Path(options.out) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report = dict(machine=machine(), rounds=options.rounds, seed=options.seed, rows=rows)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {path}")
    _write(options, name, text)


def _write(options, name: str, text: str) -> None:
    """With --write, a table and what lies below it go into docs/benchmarks.md."""
    if options.write:
        rounds = f"Medians of {options.rounds} rounds" if options.rounds > 1 else "One round"
        note = f"\n{rounds}, seed {options.seed}. {tables.provenance()}\n"
        tables.fill(tables.ROOT / "docs" / "benchmarks.md", name, text + note)


def _beside_libraries(rows: list[dict]) -> list[tuple]:
    """A table of the ops that another library has too, a line for each direction."""
    table = [("op", "ms", "MiB", "other forms take x times as long")]
    libraries = {row["op"] for row in rows if row["library"]}
    for (name, size, direction), group in itertools.groupby(
        rows, lambda row: (row["op"], row["size"], row["direction"])
    ):
        ours, *others = group
        if name in libraries:
            memory = f"{ours['temporary_bytes'] / 2**20:.0f}"
            forms = "; ".join(f"{row['form']}: {row['times_ops']:.3g}" for row in others)
            table.append((f"{name}: {size}, {direction}", f"{ours['ms']:.1f}", memory, forms))
    return table


def with_photographs(name: str):
    """A config by name, on pictures that come with the package."""
    from ssl_jax import config as config_lib

    config = config_lib.load(name)
    config.data.update(dict(kind="photos", size=256, length=4096, workers=0))
    if config.method == "stellar":
        config.stellar.target = "pixel"  # codes need a tokenizer's file
    return config


def _chosen(only: str, known) -> list[str]:
    """The names in `only`, or all that are known."""
    names = only.split(",") if only else list(known)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"--only is {','.join(unknown)}; it must name some of {', '.join(known)}")
    return names


def _cells(name: str, row: dict) -> tuple:
    def number(value, form):
        return "-" if value is None else format(value, form)

    memory = None if row["temporary_bytes"] is None else row["temporary_bytes"] / 2**20
    tail = number(memory, ".1f"), number(row["difference"], ".1e"), number(row["recall"], ".3f")
    return (
        name,
        row["direction"],
        row["form"],
        number(row["ms"], ".2f"),
        number(row["times_ops"], ".2f"),
        *tail,
    )


def _line(cells) -> str:
    widths = (24, 9, 38, 10, 8, 13, 10, 6)
    return "  ".join(
        f"{cell:<{width}}" if i < 3 else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(cells, widths))
    )


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "ops", help="every op beside its naive form and the libraries that are installed"
    )
    command.add_argument("--scale", choices=("paper", "small"), default="paper")
    command = commands.add_parser("steps", help="the train step of every method, in turns")
    command.add_argument("--configs", default="", help="NAME[:VARIANT],... instead of the recipes")
    command.add_argument("--batch", type=int, default=0, help="images of a step; 0 = the config's")
    command.add_argument("--dtype", default="", help="model.dtype instead of the config's")
    for command in commands.choices.values():
        command.add_argument("--only", default="", help="names of cases (methods), comma-separated")
    command = commands.add_parser("evals", help="what evaluations of frozen features cost")
    command.add_argument("--scale", choices=("paper", "small"), default="paper")
    command.add_argument("--camvid", default="", help="folder of CamVid in TFDS's form")
    command = commands.add_parser("parts", help="the operations of a step that papers time")
    command.add_argument("--scale", choices=("paper", "small"), default="paper")
    command.add_argument("--only", default="", help="some of cribo, stellar, sop")
    command.add_argument("--measured", action="store_true", help="the rows of OUT/parts.json alone")
    command.add_argument("--limit", type=float, default=10, help="seconds of a call, at most")
    command = commands.add_parser("loader", help="what a core does for an image")
    command.add_argument("--scale", choices=("paper", "small"), default="paper")
    command = commands.add_parser("cache", help="whole runs, by where the decoded set is kept")
    command.add_argument("--scale", choices=("paper", "small"), default="paper")
    for name in ("ops", "steps", "evals"):
        commands.choices[name].add_argument(
            "--as-installed", action="store_true", help="other libraries are left as they are"
        )
    for command in commands.choices.values():
        command.add_argument(
            "--write", action="store_true", help="put the table into docs/benchmarks.md"
        )
        command.add_argument(
            "--rounds", type=int, default=5, help="timed calls of every form (turns of 10 steps)"
        )
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--out", default="runs/bench", help="folder of the JSON file")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; it must be at least 1")
    commands = dict(ops=ops, steps=steps, evals=evals, parts=parts, loader=loader, cache=cache)
    return commands[options.command](options)
