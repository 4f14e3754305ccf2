"""The benchmark runs, and notices forms that disagree. Times are measured but not judged."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import cases, evals, gpu, measure, parts
from ssl_jax import ops


def run(folder, command, *arguments) -> tuple[int, dict]:
    """Status and report of a benchmark."""
    module = importlib.import_module(f"benchmarks.{command}")
    status = module.main(["--rounds=1", f"--out={folder}", *arguments])
    return status, json.loads((folder / f"{command}.json").read_text())


@pytest.mark.slow
def test_every_op_agrees_with_its_naive_form(tmp_path):
    status, report = run(tmp_path, "ops", "--small")
    assert status == 0
    rows = report["rows"]
    forms = {(row["op"], row["direction"]) for row in rows if "naive" in row["form"]}
    assert forms >= {("joint_view_clustering", "forward"), ("sop_vote", "gradient")}
    assert all(row["agrees"] for row in rows if row["form"] == "ops")


def test_a_broken_op_is_noticed_in_both_directions(tmp_path, monkeypatch):
    right = ops.mean_shift
    monkeypatch.setattr(ops, "mean_shift", lambda *a, **options: right(*a, **options) * 1.001)
    status, report = run(tmp_path, "ops", "--small", "--only=mean_shift")
    assert status == 1
    agree = {row["direction"]: row["agrees"] for row in report["rows"] if row["form"] == "ops"}
    assert agree == dict(forward=False, gradient=False)


def test_every_op_has_a_case():
    covered = set(ops.__all__) & cases.CASES.keys()
    assert covered | cases.WITHOUT_CASE == set(ops.__all__)
    assert not covered & cases.WITHOUT_CASE


def test_difference_and_recall():
    floats, integers = np.array([1.0, -4.0]), np.array([1, 2, 3, 4])
    assert measure.difference((floats, integers), (floats, integers)) == 0
    assert measure.difference(floats + [0, 1], floats) == 0.25
    assert measure.difference(integers, np.array([1, 2, 3, 5])) == 0.25
    assert measure.difference(np.array([1.0, np.nan]), floats) == np.inf
    assert measure.difference(floats[:1], floats) == np.inf
    overlap = measure.overlap
    one = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert overlap(one, one[:, ::-1]) == 1  # in any order
    assert overlap(one, np.array([[4, 9, 8, 1], [5, 6, 7, 0]])) == 5 / 8


def test_parts_leave_out_what_would_take_too_long(monkeypatch):
    """Of two operations that take .5 and 2 seconds an image, up to 4 seconds a call."""

    def make(images, small, skipped):
        slow, step = 2 * images, 3 * images
        calls = {"encoder": lambda: 0.5 * images, "decoder": lambda: slow, "step": lambda: step}
        return {name: call for name, call in calls.items() if name not in skipped}

    monkeypatch.setattr(parts, "_seconds", lambda call, rounds: call())
    monkeypatch.setattr(parts, "PARTS", {"stellar": ("table", make, (1, 2, 4, 8))})
    rows = parts.times(["stellar"], 1, 4.0)
    ms = {(row["operation"], row["images"]): row["ms"] for row in rows}
    assert [ms["encoder", n] for n in (1, 2, 4, 8)] == [500, 1000, 2000, 4000]
    assert [ms["decoder", n] for n in (1, 2, 4, 8)] == [2000, 4000, None, None]
    assert ms[parts.REST, 1] == 500 and (parts.REST, 2) not in ms
    (expected,) = [row["expected_ms"] for row in rows if row["images"] == 8 and not row["ms"]][:1]
    assert expected == 16_000
    lines = {line[1]: line[2] for line in parts.table(rows)}
    assert lines["decoder"] == "2,000 (1), 4,000 (2); 4, 8 not run"
    ours = parts.ours(rows, "here")["stellar/table13/Sinkhorn-matching"]
    assert ours["decoder"].endswith(f"{lines['decoder']}; here")


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["steps --only=mae --batch=8", "evals --small"])
def test_steps_and_evaluations_are_timed(command, tmp_path, monkeypatch):
    names = ("dino:vits16", "compare:mae")  # the second one alone
    monkeypatch.setattr(evals, "NETWORKS", names)
    status, report = run(tmp_path, *command.split())
    assert status == 0
    for row in report["rows"]:
        if command.startswith("steps"):
            assert row["images_per_second"] == pytest.approx(1000 * 8 / row["ms"])
        assert (row.get("same") or 1) > 0.999  # faiss, where it is installed
    assert len(report["rows"]) >= (1 if command.startswith("steps") else 4)


@pytest.mark.nightly
def test_runs_are_timed_by_where_they_keep_the_set(tmp_path):
    status, report = run(tmp_path, "cache", "--small", "--rounds=1")
    assert status == 0 and [row["form"] for row in report["rows"]] == ["none", "memory", "device"]
    assert all(row["rate"] > 0 for row in report["rows"])


def test_the_loader_is_timed(tmp_path):
    status, report = run(tmp_path, "loader", "--small")
    assert status == 0 and len(report["rows"]) == 6
    for row in report["rows"]:
        assert row["cores"] == pytest.approx(1000 / row["rate"])


ROW = dict(batch=8, ms=2.0, images_per_second=4000.0, temporary=1.0, compile_seconds=3.0)


def test_a_result_of_a_gpu_is_kept_and_measured_once(tmp_path, monkeypatch):
    """One that failed is measured again."""
    asked = []

    def work(names, options):
        asked.append(names)
        yield from ((name, {"error": "no"} if name == "sop" else ROW) for name in names)

    monkeypatch.setattr(gpu, "_all", work)
    command = ["--only=dino,sop,dino-vitb16", f"--out={tmp_path}", "--toy"]
    assert [gpu.main(command), gpu.main(command)] == [1, 1]
    assert asked == [["dino", "sop", "dino-vitb16"], ["sop"]]
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [row["ms"] for row in rows] == [2.0, 2.0] and "| dino | 8 | 2.0 | 4000 |" in (
        tmp_path / "gpu.md"
    ).read_text()


def test_the_table_of_the_gpu_is_that_of_the_records(root, monkeypatch):
    written = []
    monkeypatch.setattr(gpu.tables, "fill", lambda file, name, text: written.append(text))
    gpu.main([f"--write={root / 'experiments/records/gpu_steps.jsonl'}"])
    assert written == [gpu.tables.filled(root / "docs/benchmarks.md", "gpu")]


@pytest.mark.nightly
def test_a_rehearsal_of_the_gpu_benchmark(tmp_path, root):
    command = [sys.executable, "-m", "benchmarks", "gpu", "--toy", f"--out={tmp_path}"]
    subprocess.run([*command, "--only=card,dino"], check=True, timeout=600, cwd=root)
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[1]["ms"] > 0
