"""experiments/claims.py: the rule of its verdicts, what it makes of finished runs; and every
variant of every claim is a config that can work.
"""

import json
import math

import pytest

from experiments import claims, measures, runs, store
from ssl_jax import api, evals, papers
from ssl_jax import config as config_lib
from ssl_jax.cli import arguments
from ssl_jax.config import InputError
from tests.conftest import ROOT
from tests.docs.scripts import TINY, cells, finished, page

OF_CLAIMS = [claims.runs_of(claim, [0], ROOT / "nowhere") for claim in claims.CLAIMS.values()]
RUNS = list(dict.fromkeys(run for mine in OF_CLAIMS for run in mine.values()))


@pytest.mark.parametrize(
    ("values", "sign", "within", "verdict"),
    [
        ([2.0, 3.0], -1, 0, "fails"),
        ([2.0, -0.1], 1, 0, "undecided"),  # one seed against it
        ([1.0, 3.1], 1, 0, "undecided"),  # 2.05 is less than twice 1.05
        ([1.0, 2.9], 1, 0, "holds"),  # 1.95 is more than twice .95
        ([5.0], 1, 0, "undecided"),
        ([2.0, 3.0], 0, 0, "not judged"),
        ([0.5, -0.5], 1, 2, "holds"),  # alike: 0 ± .5
        ([1.5, 0.1], 1, 2, "undecided"),  # .8 ± .7
        ([4.0, 5.0], 1, 2, "fails"),
    ],
)
def test_a_difference_is_judged_by_sign_standard_error_and_tolerance(values, sign, within, verdict):
    assert claims.verdict(values, sign, within) == verdict


def test_claims_are_of_known_rows_and_share_runs_named_after_what_they_change():
    for claim in claims.CLAIMS.values():
        assert set(claim.measures) <= measures.HEADINGS.keys(), claim.id
        for variant in claim.variants:
            assert not variant.row or papers.find(variant.row), variant.row
    assert len(RUNS) == len({run.folder.name.lower() for run in RUNS})
    changes = {"sop.cls.members": 1, "sop.anchors": "fixed"}
    run = claims.run_of(claims.Variant("", "sop", changes), 3, ROOT, ["--more"])
    assert run.folder.name == "sop+anchors=fixed+cls.members=1-3"
    keys = ("sop.anchors=fixed", "sop.cls.members=1", "seed=3")
    assert run.arguments == (*(f"--config.{key}" for key in keys), "--more")


def configs():
    """{name: config} of every run, read as `ssl-jax train` does, and of every measured cost."""
    found = {}
    for run in RUNS:
        recipe = config_lib.load(run.config)
        found[run.folder.name] = arguments.changed(recipe, run.arguments)
        changed = {a.removeprefix("--config.").split("=")[0] for a in run.arguments[:-1]}
        assert set(config_lib.changed(recipe, found[run.folder.name])) == changed
    for claim in claims.CLAIMS.values():
        for variant in claim.variants if measures.COST in claim.measures else ():
            config = config_lib.load(f"compare:{variant.method}")
            config.update_from_flattened_dict(variant.changes)
            found[f"{claim.id}, {variant.name}"] = config
    return found


@pytest.mark.slow
def test_every_variant_can_be_planned_with_its_scores():
    for name, config in configs().items():
        assert api.prepare(config).config.run.total_steps > 0, name
        chosen = evals.selected(config).keys()
        assert {"knn", "linear", "dense"} <= chosen, name
        rebuilds = config.method == "stellar" and config.stellar.weights.reconstruction > 0
        assert rebuilds or "psnr" not in chosen, name


def test_a_claim_is_judged_on_runs_that_are_there_and_on_record(tmp_path, monkeypatch):
    """Nothing is trained again, in whatever folder."""
    monkeypatch.setattr(runs.subprocess, "run", lambda *a, **k: pytest.fail("trained"))
    mine = claims.runs_of(claims.CLAIMS["sop-anchors"], [0, 1], tmp_path / "runs")
    knn = {(0, 0): 60.0, (0, 1): 62.0, (1, 0): 20.0, (1, 1): 21.0}
    for (index, seed), run in mine.items():
        end = {"cls_marginal_entropy": 6.0 + seed, "cls_teacher_entropy": 5.0 + index + seed}
        finished(run.folder, trained={"knn": knn[index, seed]}, end=end)
    records = f"--records={tmp_path / 'records.jsonl'}"
    command = ["--claims=sop-anchors", records]
    assert claims.main([*command, f"--workdir={tmp_path / 'runs'}"]) == 0
    text = (tmp_path / "runs" / "claims.md").read_text()
    knn = ["random anchors 61.0 ± 1.4, fixed anchors 20.5 ± 0.7", "+40.5 ± 0.5", "holds"]
    assert cells(text, "k-NN") == knn
    # 1 nat with random anchors, 0 with fixed ones, and the same difference with both seeds.
    nats = ["random anchors 1.0 ± 0.0, fixed anchors 0.0 ± 0.0", "+1.0 ± 0.0", "holds"]
    assert cells(text, "information of a target, nats") == nats
    for less in (command, [records, "--finished"]):
        assert claims.main([*less, f"--workdir={tmp_path / 'new'}"]) == 0
        assert (tmp_path / "new" / "claims.md").read_text() == text


def test_our_numbers_go_to_the_papers_rows(tmp_path, monkeypatch):
    names = dict.fromkeys(claim.paper for claim in claims.CLAIMS.values())
    results = page(tmp_path / "claims.md", "rule", *names)
    monkeypatch.setattr(claims, "PAGE", results)
    monkeypatch.setattr(papers, "OURS", tmp_path / "ours.json")
    papers.OURS.write_text(json.dumps({"dino/SOP-table7/DINO": {"knn": "60.0"}}))

    def write(claim, folder, knn):
        for run in claims.runs_of(claims.CLAIMS[claim], [0, 1], folder).values():
            if not run.done:
                finished(run.folder, trained={"knn": knn})
        assert claims.main([f"--claims={claim}", f"--workdir={folder}", "--write"]) == 0
        return results.read_text(), json.loads(papers.OURS.read_text())

    text, ours = write("sop-members", tmp_path / "runs", 50.0)
    number = {"knn": "50.0 ± 0.0 (small scale, see docs/claims.md)"}
    assert ours == {
        "dino/SOP-table7/DINO": {"knn": "60.0"},  # of a run that is not on record
        "sop/table7/default": number,
        "sop/table8/MIM1-CLS1": number,
    }
    assert papers.find("sop/table8/MIM1-CLS1").ours == number
    assert "Seeds 0, 1." in text and "0123456" in text  # the commit of the runs
    assert text.count("| k-NN |") == 1
    assert text.count("\nold\n") == 4  # tables of papers without numbers stay as they are

    joined = write("sop-contributions", tmp_path / "runs", 49.0)
    assert joined[0].count("| k-NN |") == 2
    assert {"sop/table8/MIM1-CLS1", "sop/table9/one-hot"} <= joined[1].keys()
    # With the runs of one claim alone, as on another machine, the table of both stays.
    assert write("sop-members", tmp_path / "other", 51.0) == joined


def test_records_are_shared_by_scripts_and_refused_where_broken(tmp_path):
    first, second = (store.Records(tmp_path / "records.jsonl") for _ in range(2))
    first["a"] = {"minutes": 1.0}
    second["b"] = {"minutes": 2.0}
    first["a"] = {"minutes": 3.0}
    again = store.Records(first.file)
    assert [again[name]["minutes"] for name in "ab"] == [3.0, 2.0]
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]
    first.file.write_text(first.file.read_text() + "[1]\n")
    with pytest.raises(InputError, match="line 3"):
        store.Records(first.file)


@pytest.mark.nightly
def test_a_claim_from_nothing_to_its_verdict(tmp_path, monkeypatch):
    """Training, probes of the trained and the untrained network, the table."""
    monkeypatch.setattr(measures, "_PICTURES", 20)
    command = ["--claims=stellar-what,stellar-where", "--seeds=0", f"--workdir={tmp_path}"]
    assert claims.main([*command, *TINY]) == 0
    assert "untrained" in cells((tmp_path / "claims.md").read_text(), "tokens kept, %")[0]
    probes = json.loads((tmp_path / "records.jsonl").read_text())["probes"]
    assert probes.keys() == {"trained", "untrained"}
    for numbers in probes.values():
        assert numbers.keys() == {"what", "where"}
        assert all(math.isfinite(x) for x in numbers.values())
