"""How well images are rebuilt from r sparse tokens, beside a dense MAE: trains what is missing,
then a new decoder of the same shape on the frozen features of each network.

    python -m experiments reconstruct --tokens 1,2,4,8,16 --seeds 0

STELLAR is `compare:stellar` with model.queries=r, the dense network `compare:mae`, whose decoder
gets every patch token; the decoder has the shape of STELLAR's there and is trained by the
evaluation `decode`. Runs are shared with claims.py and compare.py; a run resumes
after a kill, and one that has its results.json is not made again. The decoder's scores and pictures
are kept in FOLDER/decode.json and decode.npz.

Writes WORKDIR/reconstruct.md, reconstruct_by_r.png (PSNR against r) and
reconstruct_images.png; --write puts the table and the curve into docs. Arguments
--config.KEY=VALUE go to every run: give such a rehearsal a --workdir of its own.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

import ssl_jax
from experiments import claims, runs
from experiments.claims_papers import Variant
from experiments.runs import ROOT
from ssl_jax import evals
from ssl_jax.data.source import make_source
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Chart, Curve, Picture
from ssl_jax.report import render

DENSE = "dense MAE"
_HEADING = ("tokens", "k-NN, %", "PSNR, own decoder", "PSNR, new decoder", "SSIM, new decoder")
_NAMES = ("knn", "psnr", "decode", "decode_ssim")  # of the columns


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", default="1,2,4,8,16", help="numbers of sparse tokens")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--workdir", default="runs/compare", type=Path, help="where the runs go")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on its own cores")
    parser.add_argument("--images", type=int, default=2048, help="that a decoder is trained on")
    parser.add_argument("--write", action="store_true", help="also write into docs/")
    args, passed_on = parser.parse_known_args(argv)
    runs.refuse_unknown(parser, passed_on)
    counts, seeds = ([int(x) for x in text.split(",")] for text in (args.tokens, args.seeds))
    if min(counts) < 1:
        parser.error(f"--tokens {args.tokens}: a network has at least 1")
    wanted = wanted_runs(counts, seeds, args.workdir, passed_on)
    failed = []
    for run, there in runs.train_all(list(wanted.values()), args.jobs):
        print(f"{run.folder.name}: {'done' if there else f'FAILED, see {run.folder}.log'}")
        failed += [] if there else [run]
    numbers, pictures = {}, {}
    for (name, seed), run in wanted.items():
        if run in failed:
            continue
        numbers[name, seed] = measured(run, args.images)
        if seed == seeds[0]:
            pictures[name] = run
        print(f"{run.folder.name}: {numbers[name, seed]}", flush=True)
    if numbers:
        text = runs.markdown([_HEADING, *table(numbers)])
        args.workdir.mkdir(parents=True, exist_ok=True)
        (args.workdir / "reconstruct.md").write_text(text)
        print("\n" + text)
        render.one(chart(numbers), args.workdir, "reconstruct_by_r.png")
        render.one(compared(pictures), args.workdir, "reconstruct_images.png")
        if args.write:
            made = runs.provenance(*(run.folder for run in wanted.values()))
            note = f"\nSeeds {', '.join(map(str, seeds))}. {made}\n"
            runs.fill(ROOT / "docs" / "results.md", "reconstruction", text + note)
            render.one(chart(numbers), ROOT / "docs" / "pictures", "reconstruct_by_r.png")
    return 1 if failed else 0


def wanted_runs(counts, seeds, workdir: Path, passed_on=()) -> dict:
    """{(name of the network, seed): run}; names are the numbers of tokens and DENSE."""
    variants = {str(r): Variant("", "stellar", {"model.queries": r}) for r in counts}
    variants[DENSE] = Variant("", "mae")
    return {
        (name, seed): claims.run_of(variant, seed, workdir, passed_on)
        for name, variant in variants.items()
        for seed in seeds
    }


def case_of(run, images: int) -> evals.Case:
    """The evaluation `decode` of a run: a decoder of compare:stellar's shape, on photographs of the
    network's size; the low-rank map of sparse tokens, or every patch token."""
    encoder = ssl_jax.load(run.folder)
    config = encoder.config
    section = evals.new(
        "decode",
        width=64,
        depth=2,
        heads=4,
        data=dict(kind="photos", size=config.views.global_size),
        train_examples=images,
        test_examples=500,
    )
    sources = (make_source(section.data, split=split) for split in ("train", "test"))
    return evals.Case(encoder, section, *sources, seed=config.seed, patch=config.model.patch)


def measured(run, images: int) -> dict[str, float]:
    """Scores of the run and of a new decoder: knn, psnr (its own decoder), decode, decode_ssim."""
    file = run.folder / "decode.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    if known.get("images") != images:
        case = case_of(run, images)
        known = {"images": images} | evals.TYPES["decode"].run(case)
        (picture,) = evals.TYPES["decode"].figures(case).values()  # of the same decoder
        shown = [np.stack([row[i].image for row in picture.rows]) for i in (0, 1)]
        np.savez(run.folder / "decode.npz", images=shown[0], rebuilt=shown[1])
        file.write_text(json.dumps(known, indent=2) + "\n")
    trained = runs.read(run.folder)["trained"]
    return {name: x for name, x in (trained | known).items() if name in _NAMES}


def of_name(numbers: dict, name: str, score: str) -> list[float]:
    """A score of one network for all seeds."""
    return [x[score] for (n, _), x in numbers.items() if n == name and score in x]


def table(numbers: dict) -> list[list[str]]:
    """A row per network; the SSIM in percent."""
    rows = []
    for name in dict.fromkeys(n for n, _ in numbers):
        cells = [of_name(numbers, name, score) for score in _NAMES]
        cells[-1] = [100 * x for x in cells[-1]]
        rows.append([name, *map(runs.spread, cells)])
    return rows


def chart(numbers: dict) -> Chart:
    """PSNR of the decoders against r, with that of the dense network as a line."""
    counts = sorted({int(n) for n, _ in numbers if n != DENSE})
    curves = [
        Curve(label, counts, [_mean(of_name(numbers, str(r), score)) for r in counts])
        for score, label in (("decode", "new decoder"), ("psnr", "its own decoder"))
    ]
    level = _mean(of_name(numbers, DENSE, "decode"))
    curves.append(Curve("dense MAE, new decoder", counts, [level] * len(counts), dashed=True))
    return Chart("Images rebuilt from r tokens", tuple(curves), x="sparse tokens r", y="PSNR, dB")


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


def compared(of_names: dict) -> Picture:
    """The first test images beside what the new decoders made of each network's features."""
    rebuilt, images = {}, None
    for name, run in of_names.items():
        with np.load(run.folder / "decode.npz") as file:
            images = file["images"]
            rebuilt[name if name == DENSE else f"r = {name}"] = file["rebuilt"]
    return reconstructions.compared(images, rebuilt, "Images rebuilt from r tokens")
