"""The benchmark runs, says what it measured, and notices forms that disagree. Times are measured
but not judged.
"""

import importlib
import importlib.util
import json

import jax.numpy as jnp
import numpy as np
import pytest

from configs import compare
from ssl_jax import api, ops
from ssl_jax.train import loop, step
from tests import tiny

ROW = {
    "op",
    "size",
    "direction",
    "form",
    "ms",
    "times_ops",
    "temporary_bytes",
    "difference",
    "recall",
    "agrees",
}


@pytest.fixture
def load(root, monkeypatch):
    """Imports a module of launch/ as `python launch/bench.py` does."""
    monkeypatch.syspath_prepend(str(root / "launch"))
    return importlib.import_module


def test_loader_reports_every_form(load, tmp_path, capsys):
    bench = load("bench")
    assert bench.main(["loader", "--scale", "small", "--rounds", "1", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "loader.json").read_text())["rows"]
    assert [(row["case"], row["form"]) for row in rows] == [
        ("JPEG of 48 x 64", "ours"),
        ("JPEG of 48 x 64", "ours, data.decode_size=256"),
        ("JPEG of 48 x 64", "OpenCV"),
        ("views of quickstart", "crop_on=host"),
        ("views of quickstart", "crop_on=device"),
    ]
    assert all(row["cores"] == pytest.approx(1000 / row["rate"]) for row in rows)
    assert rows[0]["x"] == rows[3]["x"] == 1
    assert "cores for 1000 images/s" in capsys.readouterr().out


def run(bench, folder, only) -> tuple[int, dict]:
    status = bench.main(
        ["ops", "--scale", "small", "--rounds", "1", "--only", only, "--out", str(folder)]
    )
    return status, json.loads((folder / "ops.json").read_text())


def test_small_run_reports_and_agrees(load, tmp_path, capsys):
    status, report = run(load("bench"), tmp_path, "joint_view_clustering,sop_vote")
    assert status == 0
    assert (report["scale"], report["rounds"], report["seed"]) == ("small", 1, 0)
    assert (
        report["machine"]["cores"] >= 1
        and report["machine"]["processor"]
        and report["machine"]["device"]
    )
    assert report["machine"]["versions"]["jax"]
    rows = report["rows"]
    assert all(set(row) == ROW for row in rows)
    measured = {(row["op"], row["direction"], row["form"]) for row in rows}
    assert measured >= {
        ("joint_view_clustering", "forward", "ops"),
        ("joint_view_clustering", "forward", "naive, [B, 2N, 2N, K]"),
        ("sop_vote", "forward", "ops"),
        ("sop_vote", "gradient", "ops"),
        ("sop_vote", "gradient", "naive, Y as a matrix"),
    }
    for row in rows:
        assert row["ms"] > 0 and row["times_ops"] > 0
        assert row["agrees"] is (None if "naive" in row["form"] else True), row
        if row["form"] == "ops":
            assert row["times_ops"] == 1 and row["temporary_bytes"] > 0 and row["difference"] < 1e-5
    table = capsys.readouterr().out
    assert all(row["form"] in table for row in rows)


def test_broken_op_is_noticed_in_both_directions(load, tmp_path, monkeypatch, capsys):
    right = ops.mean_shift
    monkeypatch.setattr(
        ops, "mean_shift", lambda *arrays, **options: right(*arrays, **options) * 1.001
    )
    status, report = run(load("bench"), tmp_path, "mean_shift")
    assert status == 1
    assert {
        row["direction"]: row["agrees"] for row in report["rows"] if row["form"] == "ops"
    } == dict(forward=False, gradient=False)
    assert "DISAGREES: mean_shift (gradient): ops" in capsys.readouterr().err


def test_broken_naive_form_is_noticed(load, tmp_path, monkeypatch):
    naive = load("bench_naive")
    right = naive.mean_shift
    monkeypatch.setattr(naive, "mean_shift", lambda *arrays: right(*arrays) + 1e-3)
    assert run(load("bench"), tmp_path, "mean_shift")[0] == 1


def test_every_op_has_a_case(load):
    bench_ops = load("bench_ops")
    covered = {name for name in ops.__all__ if name in bench_ops.CASES}
    assert covered | bench_ops.WITHOUT_CASE == set(ops.__all__)
    assert not covered & bench_ops.WITHOUT_CASE


def test_missing_library_is_named(load):
    measure = load("bench_measure")
    forms = {"ops": lambda x: x + 1, "naive": lambda x: 1 + x}
    absent = measure.Library(
        "no_such_library_here", lambda: pytest.fail("made although it is not installed")
    )
    rows, skipped = measure.measure(
        measure.Case("2 numbers", (jnp.ones(2),), forms, {"other": absent}, gradient=0), rounds=1
    )
    assert skipped == ["skipped: other (no_such_library_here is not installed)"]
    assert [row["form"] for row in rows] == ["ops", "naive"] * 2


def test_library_is_compared(load):
    measure = load("bench_measure")
    forms = {"ops": lambda x: 2 * x, "naive": lambda x: x + x}
    libraries = {
        "right": measure.Library("numpy", lambda: lambda: np.full(2, 2, np.float32)),
        "wrong": measure.Library("numpy", lambda: lambda: np.full(2, 3, np.float32)),
        "another problem": measure.Library("numpy", lambda: lambda: None),
    }
    rows, _ = measure.measure(measure.Case("2 numbers", (jnp.ones(2),), forms, libraries), rounds=2)
    agrees = {row["form"]: row["agrees"] for row in rows}
    assert agrees == {
        "ops": True,
        "naive": None,
        "right": True,
        "wrong": False,
        "another problem": None,
    }
    assert {row["form"]: row["difference"] for row in rows}["wrong"] == 0.5


def test_difference_and_recall(load):
    measure = load("bench_measure")
    floats, integers = np.array([1.0, -4.0]), np.array([1, 2, 3, 4])
    assert measure.difference((floats, integers), (floats, integers)) == 0
    assert measure.difference(floats + [0, 1], floats) == 0.25
    assert measure.difference(integers, np.array([1, 2, 3, 5])) == 0.25
    assert measure.difference(np.array([1.0, np.nan]), floats) == np.inf
    assert measure.difference(floats[:1], floats) == np.inf
    case = measure.Case("", (jnp.zeros(1),), {}, tolerance=None)
    outputs = {"ops": (0, jnp.array([[1, 2], [3, 4]])), "naive": (0, jnp.array([[2, 1], [3, 5]]))}
    calls = {name: lambda output=output: output for name, output in outputs.items()}
    rows = measure._compare(case._replace(forms=outputs), "forward", calls, {}, rounds=1)
    assert [row["recall"] for row in rows] == [0.75, 1.0]


def test_rounds_are_interleaved(load):
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    assert set(load("bench_measure").time_interleaved(calls, 3)) == set("abc")
    assert "".join(order) == "abcbcacab"


@pytest.mark.parametrize(
    "wrong", [["--only", "no_such_op"], ["--rounds", "0"], ["--scale", "huge"]]
)
def test_wrong_options_are_refused(load, tmp_path, wrong):
    with pytest.raises(SystemExit) as refused:
        load("bench").main(["ops", "--out", str(tmp_path), *wrong])
    assert refused.value.code not in (0, None)
    assert not list(tmp_path.iterdir())


def test_steps_are_timed_in_turns(load, tmp_path, capsys):
    bench = load("bench")
    assert bench.main(["steps", "--only", "mae", "--rounds", "1", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "steps.json").read_text())
    (row,) = report["rows"]
    assert row["config"] == "mae" and row["x"] == 1 and report["machine"]["cores"] >= 1
    assert row["images_per_second"] == pytest.approx(
        1000 * compare.get_config("mae").optim.batch_size / row["ms"]
    )
    assert row["mib"] > 0 and row["own"] < 1 and 0 < row["mfu"] and row["gflops"] > 0
    assert "| mae | " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--only is maee; it must name some of dino"):
        bench.main(["steps", "--only", "maee"])


def test_evaluations_are_timed_beside_the_forward_pass_and_faiss(load, tmp_path, monkeypatch):
    bench, cases = load("bench"), load("bench_evals")
    monkeypatch.setattr(cases, "NETWORKS", ("dino:vits16", "compare:mae"))  # the second one alone
    command = ["evals", "--scale", "small", "--rounds", "1", "--out", str(tmp_path)]
    assert bench.main(command) == 0
    rows = json.loads((tmp_path / "evals.json").read_text())["rows"]
    forms = [(row["case"].split(":")[0], row["form"]) for row in rows]
    faiss = importlib.util.find_spec("faiss") is not None
    assert forms == [
        ("k-NN", "ssl_jax"),
        *[("k-NN", "faiss flat")] * faiss,
        ("dense retrieval", "ssl_jax"),
        *[("dense retrieval", "faiss flat")] * faiss,
        ("extraction", "forward pass"),
        ("extraction", "features.extract"),
    ]
    assert all(row["ms"] > 0 and row["x"] > 0 for row in rows)
    assert all(row["same"] > 0.999 for row in rows[: 4 if faiss else 2])


def test_the_overlap_of_neighbours_does_not_look_at_their_order(load):
    overlap = load("bench_evals").overlap
    one = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert overlap(one, one[:, ::-1]) == 1
    assert overlap(one, np.array([[4, 9, 8, 1], [5, 6, 7, 0]])) == 5 / 8


def test_the_step_without_the_objective_runs_the_networks(load):
    steps, run = load("bench_steps"), api.prepare(tiny.config("sop"))
    state = loop.fresh_state(run)
    bare = step.make_step(steps.networks_only(run.method), run.optimizer, run.config)
    after, metrics = bare(state, tiny.batches(run, 1)[0])
    assert bool(metrics["finite"]) and metrics["grad_norm"] > 0
    assert tiny.identical(after.carry, state.carry)


def test_rounds_that_do_not_count(load, monkeypatch):
    measure = load("bench_measure")
    clock = iter([0, 9, 10, 11, 20, 23])  # seconds of three calls: 9, 1, 3
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert measure.time_interleaved({"a": lambda: None}, 3, skip=1) == {"a": 2.0}
