"""What a run says, to a log file and live on a terminal; and a clock and a time to the end that
count what they say."""

import io
import re
import time

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console as Terminal

from ssl_jax import api
from ssl_jax.runtime import progress
from ssl_jax.train import console, loop
from ssl_jax.train import eta as eta_lib
from tests import tiny


def config(tasks=("knn",)):
    evals = dict(tasks=tasks, every_steps=50)
    return ConfigDict(
        dict(run=dict(total_steps=400), evals=evals, checkpoint=dict(every_steps=100))
    )


def test_the_time_to_the_end_counts_steps_evaluations_and_saves():
    eta = eta_lib.Eta(config())
    eta.begin(0)
    assert str(eta) == "?"
    eta.evaluated(0, 30.0)
    for done in range(1, 41):
        eta.step(done, 5.0 + 2.0 * done)  # the first one took longer
    # 360 steps, evaluations at 50 to 350, saves that nothing is known about yet
    assert eta.left() == (360 * 2.0 + 7 * 30.0, 0)
    assert str(eta) == "15:30 + report"
    for done in range(41, 51):
        eta.step(done, 5.0 + 2.0 * done)
    eta.evaluated(50, 10.0)
    assert eta.left()[0] == 350 * 2.0 + 6 * 10.0  # the first one also warmed up
    eta.evaluated(100, 20.0)
    eta.saved(100, 3.0)
    assert eta.left()[0] == pytest.approx(350 * 2.0 + 5 * 15.0 + 3 * 3.0)


@pytest.mark.parametrize(
    "settings, at, expected",
    [
        ({"tasks": ()}, 0, "6:38"),  # no evaluation, no report
        ({}, 300, "1:38 + 1 evaluation + report"),  # continued: no evaluation was measured
    ],
)
def test_the_time_to_the_end_says_what_it_leaves_out(settings, at, expected):
    eta = eta_lib.Eta(config(**settings))
    eta.begin(at)
    eta.step(at + 1, 1.0)
    eta.step(at + 2, 2.0)
    assert str(eta) == expected


@pytest.fixture
def run(request):
    """A prepared run, which says something every so many seconds."""
    return api.prepare(tiny.config("dino", log__every_seconds=getattr(request, "param", 0.0)))


class _Clock:
    """In place of the module time: it goes on when somebody sleeps, and a little at every look."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_only_training_counts(run, monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(console, "time", clock)
    with console.Console(run) as shown:
        shown.begin(0)
        with shown.phase("evaluating at step 0") as took:
            clock.sleep(0.2)
        clock.sleep(0.05)
        shown.waiting(lambda: clock.sleep(0.05))
        with shown.phase("saving"), shown.phase("a part of it"):
            clock.sleep(0.2)
        columns = shown.timing(4)
        assert 0.2 <= took.seconds < 0.3
        assert 4 * 8 / 0.2 < columns["images_per_second"] <= 4 * 8 / 0.1
        assert 0.25 < columns["data_wait"] <= 0.5
        assert columns["seconds"] >= 0.5
        clock.sleep(0.05)
        assert shown.timing(5)["images_per_second"] <= 8 / 0.05  # since the last row alone
        assert shown.timing(6)["data_wait"] == 0


def test_the_compiler_is_told_from_what_it_compiles(run):
    with console.Console(run) as shown, shown.phase("evaluating") as took:
        time.sleep(0.1)
        seed = time.time_ns() % 997  # no program that is kept already
        jax.jit(lambda x: jax.numpy.cos(x) * seed + jax.numpy.tanh(x))(np.ones((3, 5)))
    assert 0 < took.compiling <= took.seconds - 0.1


@pytest.mark.parametrize("run", [0.2], indirect=True)
def test_a_line_comes_at_least_so_often(run, capsys):
    with console.Console(run) as shown:
        with shown.phase("evaluating at step 0"), progress.part("knn", 1, 2):
            with progress.counter(100, "images") as add:
                add(64)
                time.sleep(0.5)
        shown.begin(3)
        shown.finished(4, {"loss": np.float32(2.5), "lr": np.float32(0.1), "other": 1})
        time.sleep(0.3)
    said = capsys.readouterr().out.splitlines()
    assert "knn" in said[0] and "64 of 100" in said[0]
    assert "4/12" in said[-1] and "2.5000" in said[-1] and 3 <= len(said) <= 5


@pytest.mark.parametrize("dtype, lines", [("float32", 0), ("bfloat16", 1)])
def test_the_first_lines_name_the_type_that_is_slow_here(tmp_path, capsys, dtype, lines):
    run = api.prepare(tiny.config("dino", model__dtype=dtype))
    with console.Console(run) as shown:
        loop._announce(tmp_path, run, 0, shown)
    assert capsys.readouterr().out.count("model.dtype") == lines


def test_a_terminal_has_a_live_line_and_lines_as_they_are(run, monkeypatch):
    written = io.StringIO()
    terminal = Terminal(file=written, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    monkeypatch.setattr(console, "Terminal", lambda: terminal)
    with console.Console(run) as shown:
        with shown.phase("compiling the step", compiling=True):
            time.sleep(0.6)
            shown.say("picture: runs/[a]/b")  # no markup
        shown.begin(6)
        time.sleep(0.4)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert "compiling the step" in text and "7/12" in text and "picture: runs/[a]/b" in text
    assert "\x1b[?25h" in written.getvalue()  # the cursor is shown again
