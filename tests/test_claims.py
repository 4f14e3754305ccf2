"""launch/claims.py: the rule of its verdicts, what it makes of finished runs, its probes; and every
variant of every claim is a config that can work.
"""

import csv
import importlib
import json
import math
from unittest import mock

import numpy as np
import pytest

from ssl_jax import api, evals, methods, papers
from ssl_jax import config as config_lib
from ssl_jax.cli import arguments
from ssl_jax.methods.base import Features
from tests.conftest import ROOT


def load(name: str):
    """A module of launch/, as `python launch/claims.py` imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "launch"))
        return importlib.import_module(name)


claims, measures = load("claims"), load("claims_measure")
FOLDER = ROOT / "runs" / "nowhere"
RUNS = {
    run.folder.name: run
    for run in claims.distinct(claims.runs_of(c, [0], FOLDER) for c in claims.CLAIMS.values())
}
COSTS = [
    variant
    for claim in claims.CLAIMS.values()
    for variant in claim.variants
    if measures.COST in claim.measures
]


# --- the rule


@pytest.mark.parametrize(
    ("values", "sign", "verdict"),
    [
        ([2.0, 3.0], 1, "holds"),
        ([-2.0, -3.0], -1, "holds"),
        ([-2.0, -3.0], 1, "does not"),
        ([2.0, 3.0], -1, "does not"),
        ([2.0, -0.1], 1, "cannot be told"),  # one seed against it
        ([1.0, 3.1], 1, "cannot be told"),  # 2.05 is less than twice 1.05
        ([1.0, 2.9], 1, "holds"),  # 1.95 is more than twice .95
        ([0.0, 0.0], 1, "cannot be told"),
        ([5.0], 1, "cannot be told"),
        ([], 1, "cannot be told"),
        ([2.0, 3.0], 0, "shown only"),
    ],
)
def test_a_difference_is_judged_by_sign_and_standard_error(values, sign, verdict):
    assert claims.verdict(values, sign) == verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.5, -0.5], "holds"),  # 0 ± .5
        ([1.5, 0.1], "cannot be told"),  # .8 ± .7
        ([4.0, 5.0], "does not"),
        ([-4.0, -5.0], "does not"),
        ([0.0], "cannot be told"),
    ],
)
def test_likeness_is_judged_by_a_tolerance(values, verdict):
    assert claims.verdict(values, 1, within=2.0) == verdict


def test_chance_passes_the_rule_as_often_as_the_note_says():
    rng = np.random.default_rng(0)
    for seeds, said in ((2, "30 of 100"), (3, "18 with three")):
        draws = rng.standard_normal((2000, seeds)).tolist()
        called = sum(claims.verdict(values, 1) != claims.OPEN for values in draws)
        assert said in claims.RULE
        assert 100 * called / len(draws) == pytest.approx(int(said.split()[0]), abs=3)


def test_seeds_are_paired():
    first, last = {0: 3.0, 1: 5.0, 2: 9.0}, {1: 4.0, 0: 1.0}
    assert claims.differences([first, {}, last]) == [2.0, 1.0]
    assert claims.differences([first]) == [3.0, 5.0, 9.0]


# --- the claims


def test_claims_are_whole():
    assert len(claims.CLAIMS) == sum(map(len, claims.claims_papers.PAPERS.values()))
    for claim in claims.CLAIMS.values():
        assert claim.says and any(claim.measures.values()), claim.id
        assert set(claim.measures) <= {*measures.MEASURES, measures.COST}, claim.id
        for variant in claim.variants:
            assert variant.network in ("trained", "untrained")
            assert not variant.row or papers.find(variant.row), variant.row


def test_ends_of_a_claim_are_two_networks():
    def end(variant):
        return variant.method, str(claims.changes_of(variant)), variant.network

    alike = {
        claim.id
        for claim in claims.CLAIMS.values()
        if len(claim.variants) > 1 and end(claim.variants[0]) == end(claim.variants[-1])
    }
    with_patches = config_lib.load("compare:sop").sop.patch.weight > 0
    assert alike == (set() if with_patches else {"sop-mim"})


def test_runs_are_shared_and_named_after_what_they_change():
    names = list(RUNS)
    assert len(names) == len({name.lower() for name in names})
    assert all(
        config_lib.load(run.config).method == name.split("+")[0].split("-")[0]
        for name, run in RUNS.items()
    )
    recipes = {name for name in names if "+" not in name}
    assert recipes <= {f"{method}-0" for method in methods.METHODS}
    run = claims.run_of(
        claims.claims_papers.Variant("", "sop", {"sop.cls.members": 1, "sop.anchors": "fixed"}),
        3,
        FOLDER,
        ["--config.optim.steps=5"],
    )
    assert run.folder.name == "sop+anchors=fixed+cls.members=1-3"
    assert run.arguments == (
        "--config.sop.anchors=fixed",
        "--config.sop.cls.members=1",
        "--config.seed=3",
        "--config.optim.steps=5",
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_a_config_that_can_work(name):
    """As `ssl-jax train` reads and plans it."""
    run = RUNS[name]
    recipe = config_lib.load(run.config)
    _, config = arguments.parse(["train", *run.arguments], recipe)
    assert config_lib.changed(recipe, config) == sorted(
        a.removeprefix("--config.").split("=")[0] for a in run.arguments[:-1]
    )
    resolved = api.prepare(config).config
    assert {"knn", "linear", "dense"} <= evals.chosen(resolved).keys()
    rebuilds = config.method == "stellar" and config.stellar.weights.reconstruction > 0
    assert rebuilds or "psnr" not in evals.chosen(resolved)


@pytest.mark.parametrize("variant", COSTS, ids=lambda variant: variant.name)
def test_every_cost_is_of_a_config_that_can_work(variant):
    config = config_lib.load(f"compare:{variant.method}")
    config.update_from_flattened_dict(variant.changes)
    assert api.prepare(config).config.run.total_steps > 0


# --- finished runs


def finished(run, *, trained, untrained=None, end=None):
    """A run folder as `ssl-jax train` leaves it."""
    run.folder.mkdir(parents=True)
    scores = {"untrained network": untrained or trained, "trained": trained}
    (run.folder / "results.json").write_text(json.dumps(scores))
    (run.folder / "environment.json").write_text(json.dumps({"git": "0123456789"}))
    (run.folder / "config.json").write_text(
        json.dumps({"optim": {"batch_size": 64}, "views": {"global_size": 32}})
    )
    rows = [{"step": 20 * (i + 1), "images_per_second": 64} | (end or {}) for i in range(2)]
    with (run.folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def cells(text: str, measured: str) -> list[str]:
    (row,) = [line for line in text.splitlines() if f"| {measured} |" in line]
    return [cell.strip() for cell in row.strip("|").split("|")][2:]


def test_a_claim_is_judged_on_runs_that_are_there(tmp_path, capsys):
    mine = claims.runs_of(claims.CLAIMS["sop-anchors"], [0, 1], tmp_path)
    knn = {(0, 0): 60.0, (0, 1): 62.0, (1, 0): 20.0, (1, 1): 21.0}
    for (index, seed), run in mine.items():
        entropy = {"cls_marginal_entropy": 6.0 + seed, "cls_teacher_entropy": 5.0 + index + seed}
        finished(run, trained={"knn": knn[index, seed]}, end=entropy)
    assert claims.main(["--claims", "sop-anchors", "--workdir", str(tmp_path)]) == 0
    text = (tmp_path / "claims.md").read_text()
    out = capsys.readouterr().out
    assert text in out and out.count("sop-anchors") == 2
    assert cells(text, "k-NN") == [
        "random anchors 61.0 ± 1.4, fixed anchors 20.5 ± 0.7",
        "+40.5 ± 0.5",
        "holds",
    ]
    # 1 nat with random anchors, 0 with fixed ones, and the same difference with both seeds.
    assert cells(text, "information of a target, nats") == [
        "random anchors 1.0 ± 0.0, fixed anchors 0.0 ± 0.0",
        "+1.0 ± 0.0",
        "holds",
    ]


def test_a_run_that_fails_leaves_its_claim_open(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(claims.runs.subprocess, "run", lambda *a, **k: None)
    mine = claims.runs_of(claims.CLAIMS["dino-sharpening"], [0, 1], tmp_path)
    for (index, seed), run in mine.items():
        if (index, seed) != (1, 1):
            entropy = {"cls_marginal_entropy": 6.0, "cls_teacher_entropy": 5.0}
            finished(run, trained={"knn": 60.0 - 30 * index}, end=entropy)
    assert claims.main(["--claims", "dino-sharpening", "--workdir", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{mine[1, 1].folder.name}: FAILED, see" in out
    text = (tmp_path / "claims.md").read_text()
    assert cells(text, "k-NN") == ["DINO 60.0 ± 0.0, no sharpening 30.0", "+30.0", "cannot be told"]


def test_our_numbers_go_to_the_papers_rows(tmp_path, monkeypatch, capsys):
    for run in claims.runs_of(claims.CLAIMS["sop-members"], [0, 1], tmp_path).values():
        finished(run, trained={"knn": 50.0})
    documents = tmp_path / "docs"
    documents.mkdir()
    names = ["rule of claims", *(f"claims: {paper}" for paper in claims.claims_papers.PAPERS)]
    marks = "".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in names)
    (documents / "results.md").write_text(f"Text.\n{marks}")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setattr(papers, "OURS", tmp_path / "ours.json")
    papers.OURS.write_text(json.dumps({"dino/SOP-table7/DINO": {"knn": "60.0"}}))
    assert claims.main(["--claims", "sop-members", "--workdir", str(tmp_path), "--write"]) == 0
    number = {"knn": "50.0 ± 0.0 (small scale, see docs/results.md)"}
    assert json.loads(papers.OURS.read_text()) == {
        "dino/SOP-table7/DINO": {"knn": "60.0"},  # of a run that is not on record
        "sop/table7/default": number,
        "sop/table8/MIM1-CLS1": number,
    }
    assert papers.find("sop/table8/MIM1-CLS1").ours == number
    written = (documents / "results.md").read_text()
    assert "| k-NN |" in written and "standard error" in written and "Seeds 0, 1." in written
    assert "Commit 0123456;" in written  # of the runs
    assert "Not run yet: sop-anchors, " in written and "sop-members," not in written
    assert "Verdicts: 1 cannot be told." in written
    assert written.count("\nold\n") == 4  # tables of papers without numbers stay as they are

    # Another claim joins it.
    for run in claims.runs_of(claims.CLAIMS["sop-contributions"], [0, 1], tmp_path).values():
        if not run.done:
            finished(run, trained={"knn": 49.0})
    assert claims.main(["--claims=sop-contributions", "--workdir", str(tmp_path), "--write"]) == 0
    written = (documents / "results.md").read_text()
    assert written.count("| k-NN |") == 2 and "sop-contributions," not in written
    assert written.index("one-hot") < written.index("anchor alone")
    assert {"sop/table8/MIM1-CLS1", "sop/table9/one-hot"} <= json.loads(
        papers.OURS.read_text()
    ).keys()

    # With the runs of one claim alone, as on another machine, the table of both stays.
    numbers = papers.OURS.read_text()
    other = tmp_path / "other"
    for run in claims.runs_of(claims.CLAIMS["sop-members"], [0, 1], other).values():
        finished(run, trained={"knn": 51.0})
    capsys.readouterr()
    assert claims.main(["--claims=sop-members", "--workdir", str(other), "--write"]) == 0
    assert "claims: SOP, SOVE and MaSSL: the table in " in capsys.readouterr().out
    assert (documents / "results.md").read_text() == written
    assert papers.OURS.read_text() == numbers


def test_numbers_outlive_the_folders_of_their_runs(tmp_path, capsys, monkeypatch):
    """Nothing is trained again for what is on record, in whatever folder."""
    mine = claims.runs_of(claims.CLAIMS["sop-members"], [0, 1], tmp_path / "runs")
    for (index, seed), run in mine.items():
        finished(run, trained={"knn": 50.0 + 3 * index + seed / 3})
    file = tmp_path / "records.jsonl"
    command = ["--claims=sop-members", f"--records={file}", f"--workdir={tmp_path / 'runs'}"]
    assert claims.main(command) == 0
    text = (tmp_path / "runs" / "claims.md").read_text()
    monkeypatch.setattr(claims.runs, "train", lambda *a, **k: pytest.fail("trained again"))
    for less in (command[:2], [command[1], "--finished"]):
        assert claims.main([*less, f"--workdir={tmp_path / 'new'}"]) == 0
        assert (tmp_path / "new" / "claims.md").read_text() == text
    file.write_text(file.read_text() + "[1]\n")
    with pytest.raises(claims.InputError, match="line 5 is no record"):
        claims.main(command)


def test_two_scripts_can_share_a_file_of_records(tmp_path):
    first, second = (claims.Records(tmp_path / "records.jsonl") for _ in range(2))
    first["a"] = {"minutes": 1.0}
    second["b"] = {"minutes": 2.0}
    first["a"] = {"minutes": 3.0}
    again = claims.Records(first.file)
    assert [again[name]["minutes"] for name in "ab"] == [3.0, 2.0]
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]


@pytest.mark.parametrize("argument", ["--claims=sop-ancors", "--optim.steps=7"])
def test_what_it_does_not_know_is_refused_by_name(tmp_path, capsys, argument):
    with pytest.raises(SystemExit):
        claims.main([argument, "--workdir", str(tmp_path)])
    assert argument.removeprefix("--claims=") in capsys.readouterr().err


def test_costs_are_in_percent_of_the_last_variant_round_by_round(tmp_path):
    def times(configs, rounds):
        assert configs["SOP"].views.mask_ratio == configs["iBOT"].views.mask_ratio == (0.3, 0.3)
        assert configs["SOP"].optim.steps == 5
        return {
            "SOP": [0.011 * (i + 1) for i in range(rounds)],
            "iBOT": [0.010 * (i + 1) for i in range(rounds)],
        }

    claim = claims.CLAIMS["sop-cost"]
    records = claims.Records(tmp_path / "records.jsonl")
    with mock.patch.object(claims.bench_steps, "times", autospec=True, side_effect=times) as timed:
        numbers = claims.costs(claim, records, ["--config.optim.steps=5"])
        again = claims.costs(claim, claims.Records(records.file))  # on record
    assert timed.call_count == 1 and again == numbers
    assert numbers["cost"][0] == pytest.approx(dict.fromkeys(range(8), 110.0))
    (row,) = claims.judged(claim, numbers)
    assert row[2:4] == ["SOP 110.0 ± 0.0, iBOT 100.0 ± 0.0", "+10.0 ± 0.0"]


# --- probes


class Shades:
    """An encoder whose tokens are a picture's shares of four shades and their opposite; its maps
    are the picture's own pixels, or noise that belongs to the place."""

    def __init__(self, config, follows):
        self.config, self.follows = config, follows

    def __call__(self, images, *, extras):
        patch = self.config.model.patch
        maps = images[:, ::patch, ::patch, :2]
        if not self.follows:
            noise = np.random.default_rng(0).random(maps.shape[1:], np.float32)
            maps = np.broadcast_to(noise, maps.shape)
        shades = [((images[..., 0] * 3.99).astype(int) == k).mean(axis=(1, 2)) for k in range(4)]
        shares = np.stack(shades, axis=-1)[:, None]
        tokens = np.concatenate([shares, -shares], axis=1)
        return Features(None, None, None, extras={"tokens": tokens, "localization": maps})


def test_maps_that_follow_the_picture_are_told_from_maps_that_stay(monkeypatch):
    monkeypatch.setattr(measures, "_PICTURES", 30)
    config = config_lib.load("compare:stellar")
    moved, still = (measures.shifts(Shades(config, follows)) for follows in (True, False))
    assert moved["where"] > 20 and still["where"] < -50
    assert 0 < moved["what"] == still["what"] < 100


@pytest.mark.slow
def test_a_claim_from_nothing_to_its_verdict(tmp_path):
    """Three steps: training, probes of the trained and the untrained network, the table."""
    small = [
        "--config.optim.steps=3",
        "--config.evals.tasks=('dense',)",
        "--config.evals.dense.train_examples=20",
        "--config.evals.dense.test_examples=20",
    ]
    command = ["--claims", "stellar-what,stellar-where", "--seeds", "0", *small]
    assert claims.main([*command, "--workdir", str(tmp_path)]) == 0
    text = (tmp_path / "claims.md").read_text()
    assert "untrained" in cells(text, "tokens kept, %")[0]
    assert "PSNR from the dense map" not in text  # of the same run, but nobody asked for its probe
    probes = json.loads((tmp_path / "records.jsonl").read_text())["probes"]
    assert probes.keys() == {"trained", "untrained"} and probes["trained"].keys() == {
        "what",
        "where",
    }
    assert all(math.isfinite(x) for numbers in probes.values() for x in numbers.values())
