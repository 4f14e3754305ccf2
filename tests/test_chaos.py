"""Faults thrown at runs: what is counted, that nothing different passes for equal, and a short
form of the command.
"""

import json
import random
import time

import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.train import checkpoint, loop
from tests import compiling, tiny
from tests.chaos import __main__ as chaos
from tests.chaos import clock, compare, faults, lane, processes, table


@pytest.fixture(scope="module")
def state():
    return loop.fresh_state(api.prepare(tiny.config("mae")))


def run_folder(folder, state, loss=0.5, score=1.0):
    saved = checkpoint.Checkpoints(folder / "checkpoints")
    saved.save(state, {"config": "{}", "record": 0})
    saved.wait()
    saved.close()
    rows = [{"step": 1, "loss": loss, "images_per_second": random.random()}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "evals.jsonl").write_text('{"step": 0, "knn": 3}\n')
    (folder / "results.json").write_text(json.dumps({"trained": score}))
    return folder


def test_what_differs_is_named(tmp_path, state):
    whole = run_folder(tmp_path / "whole", state)
    found = compare.differences(run_folder(tmp_path / "same", state), whole)
    assert found.names == () and found.rows == 2 and found.arrays > 20
    bits = np.asarray(state.params["backbone"]["cls"]).view(np.uint32).copy()
    bits.flat[3] ^= 1  # the last digit of one number
    params = {
        **state.params,
        "backbone": {**state.params["backbone"], "cls": bits.view(np.float32)},
    }
    other = run_folder(tmp_path / "other", state._replace(params=params), loss=0.25, score=2.0)
    names = compare.differences(other, whole).names
    assert names == ("params/backbone/cls", "metrics, step 1", "results.json")
    (other / "metrics.jsonl").write_text("")
    assert "metrics: 0 rows of 1" in compare.differences(other, whole).names


def test_damage_is_what_it_is_called_and_remembered(tmp_path, state):
    place = faults.Place(tmp_path / "run", None, 1, workers=False)
    run_folder(place.workdir, state)
    run_folder(place.workdir, state._replace(step=state.step + 4))
    possible = [name for name, fault in faults.FAULTS.items() if fault.needs(place)]
    assert "flipped bit" in possible and "data worker dies" not in possible
    newest = place.workdir / "checkpoints" / "4"
    before = {p: p.read_bytes() for p in newest.rglob("*") if p.is_file()}
    faults.FAULTS["flipped bit"].before(place, random.Random(0))
    changed = {p: p.read_bytes() for p in before if p.read_bytes() != before[p]}
    ((path, content),) = changed.items()
    bits = int.from_bytes(content) ^ int.from_bytes(before[path])
    assert bits.bit_count() == 1 and len(content) == len(before[path])
    # The only intact one that is left is not damaged too.
    assert faults.intact(place.workdir) == [0]
    assert not faults.FAULTS["file gone"].needs(place)
    faults.FAULTS["half a save"].before(place, random.Random(0))
    assert faults.intact(place.workdir) == [0]


def entry(fault, *, run=0, began=0, reached=0, **others):
    return {
        "fault": fault,
        "phase": "",
        "struck": True,
        "codes": (75,),
        "tracebacks": 0,
        "advice": 0,
        "survived": True,
        "over": False,
        "run": run,
        "began": began,
        "reached": reached,
    } | others


JOURNAL = [
    entry("SIGKILL", reached=5, codes=(-9,), phase="save"),
    entry("SIGTERM", began=3, reached=7, phase="step"),
    entry("flipped bit", began=6, reached=9),  # the newest, of step 7
    entry("", began=9, reached=12, codes=(0,), struck=False)
    | dict(over=True, names=(), arrays=30, rows=14),
]


def test_steps_lost_are_those_of_the_fault_that_lost_them():
    assert list(lane.lost(JOURNAL)) == [("SIGKILL", 2), ("flipped bit", 1), ("flipped bit", 0)]
    assert list(lane.lost([JOURNAL[0], entry("SIGTERM", run=1)])) == []


def test_the_table_counts_and_tells_clean_from_not():
    text = table.markdown({"sop-1": JOURNAL})
    assert "| SIGKILL | 1 | 1 | 2.0, 2 | -9 x 1 |" in text
    assert "| save | 1 | 1 |" in text and "3 faults on 1 configurations (sop-1), 3 survived" in text
    assert "0 of them different" in text and "30 arrays and 14 rows; hangs: 0" in text
    assert table.clean({"sop-1": JOURNAL})
    for change in (dict(survived=False), dict(advice=1), dict(names=("step",))):
        assert not table.clean({"sop-1": [*JOURNAL, entry("SIGTERM") | change]})


def test_the_clock_jumps(monkeypatch):
    monkeypatch.setattr(time, "time", time.time)
    before = time.time()
    clock.jump_by(faults.DAY, after=0.0)
    until = time.monotonic() + 10
    while time.time() < before + faults.DAY and time.monotonic() < until:
        time.sleep(0.001)
    assert time.time() - before == pytest.approx(faults.DAY, abs=60)


def test_a_run_that_cannot_be_is_told_at_once(tmp_path):
    attempt = processes.Attempt("nonsense", tmp_path)
    assert not attempt.until(attempt.says("^never"))
    assert attempt.ended(60) == (2,) and "nonsense" in attempt.text()
    with pytest.raises(SystemExit, match="the undisturbed run of x ended"):
        lane.undisturbed(lane.Lane("x", "nonsense", (), 1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method, count", [("sop", 6), ("cribo", 1)])
def test_faults_change_nothing(method, count, tmp_path, monkeypatch, capsys):
    arguments = [f"--faults={count}", f"--method={method}", f"--out={tmp_path}", "--minutes=15"]
    monkeypatch.setenv("XLA_FLAGS", compiling.flags())
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert chaos.main(arguments) == 0, capsys.readouterr().out
    text = capsys.readouterr().out
    assert f"{count} faults on 1 configurations ({method}-1), {count} survived" in text
    assert "equal" in text and "0 of them different" in text
    if method == "sop":  # started again, it has nothing left to do
        monkeypatch.setattr(lane, "Attempt", None)
        assert chaos.main(arguments) == 0
