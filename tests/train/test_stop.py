"""Signals: answered at once, and obeyed where nothing is lost; in every phase of a real run."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ssl_jax.train import checkpoint, log, stop
from tests import compiling
from tests.conftest import ROOT


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # the handler runs between two lines


def answered(capfd, text, seconds=5):
    """Whether the thread that answers says so."""
    seen, until = "", time.monotonic() + seconds
    while text not in seen and time.monotonic() < until:
        time.sleep(0.01)
        seen += capfd.readouterr().out
    return text in seen


def test_an_idle_run_is_left_and_a_busy_one_is_told(capfd):
    with stop.listening() as asked:
        with pytest.raises(stop.Interrupted):
            send(signal.SIGTERM)
        assert answered(capfd, "SIGTERM: stopping now, nothing is unsaved")
    with stop.listening() as asked:
        asked.busy()
        send(signal.SIGINT)
        assert asked.told and not asked.agreed
        assert answered(capfd, "SIGINT: saving after this step; again to stop now")
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    with stop.listening() as asked:
        asked.busy()
        send(signal.SIGUSR1)
        send(signal.SIGTERM)  # sent again by impatient schedulers: nothing more happens
        with pytest.raises(stop.Interrupted):
            asked.idle()  # of a signal that came before


def test_an_evaluation_is_left_out_and_its_step_saved(capfd):
    with stop.listening() as asked:
        asked.busy()
        reached = []

        def evaluate():
            send(signal.SIGINT)
            reached.append("the end")

        asked.unless_told(evaluate, "evaluation", 50)
        assert asked.agreed and not reached
        asked.unless_told(lambda: reached.append("begun"), "evaluation", 51)
        assert not reached  # told before
        assert answered(capfd, "SIGINT: leaving the evaluation, saving step 50; again to stop now")
        send(signal.SIGTERM)  # busy again: nothing is raised


def test_handlers_are_restored_and_the_inner_block_is_the_outer_one():
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with stop.listening() as asked, stop.listening() as inner:
        assert inner is asked
        assert signal.getsignal(signal.SIGTERM) == asked.handle
    assert before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    other = []
    thread = threading.Thread(target=lambda: other.append(stop.listening().__enter__().told))
    thread.start()
    thread.join()
    assert other == [False]  # where Python has no signals, a run still works


# --- real processes


class Process:
    """A run, and its lines as they come."""

    def __init__(self, workdir, *options, config="slow_run"):
        command = [sys.executable, "-m", "ssl_jax", "train"]
        command += [f"--config=tests/{config}.py:dino", f"--workdir={workdir}", *options]
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=compiling.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def until(self, pattern, seconds=300):
        """When a line that fits came."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for when, line in list(self.lines):
                if re.search(pattern, line):
                    return when
            assert self._process.poll() is None, self.text()
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in\n{self.text()}")

    def until_it_listens(self):
        """Until SIGTERM has a handler, where the system tells."""
        status, until = Path(f"/proc/{self._process.pid}/status"), time.monotonic() + 60
        while status.exists() and time.monotonic() < until:
            caught = int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16)
            if caught >> (signal.SIGTERM - 1) & 1:
                return
            time.sleep(0.01)
        time.sleep(3)

    def signal(self, number):
        self._process.send_signal(number)
        return time.monotonic()

    def ended(self, seconds=300):
        code = self._process.wait(timeout=seconds)
        time.sleep(0.2)
        return code

    def text(self):
        return "\n".join(line for _, line in self.lines)


def newest(workdir):
    saved = checkpoint.Checkpoints(workdir / "checkpoints", create=False)
    try:
        return saved.latest()
    finally:
        saved.close()


@pytest.mark.slow
def test_a_run_stopped_in_every_phase_exits_75_and_ends_as_an_undisturbed_one(tmp_path):
    run = tmp_path / "run"
    scored = lambda: [row["step"] for row in log.read_rows(run / "evals.jsonl")]  # noqa: E731

    starting = Process(run)
    starting.until_it_listens()  # long before JAX is imported
    starting.signal(signal.SIGTERM)
    assert starting.ended() == 75, starting.text()
    assert "SIGTERM: stopping now, nothing is unsaved" in starting.text()

    compiling = Process(run)
    compiling.until("compiling the step")
    told = compiling.signal(signal.SIGINT)
    assert compiling.until("^SIGINT: stopping now") - told < 2  # also while it compiles
    assert compiling.ended() == 75
    assert "compiled in" not in compiling.text() or "step      1" not in compiling.text()

    evaluating = Process(run)
    evaluating.until(r"evaluating at step 4: slow, \d+ of 12 parts \.\.\. 0:0")
    told = evaluating.signal(signal.SIGTERM)
    assert evaluating.until("^SIGTERM: leaving the evaluation, saving step 4") - told < 2
    assert evaluating.ended() == 75
    assert "signal received: saved step 4" in evaluating.text()
    assert newest(run) == 4 and scored() == [0]

    training = Process(run)
    training.until("eval at step 4: slow")  # what was left out is made up for
    training.until(r"step +5/12")
    told = training.signal(signal.SIGINT)
    training.until("^SIGINT: (saving after this step|leaving the evaluation).*; again to stop now")
    assert training.ended() == 75
    assert 5 <= newest(run) <= 8 and scored()[:2] == [0, 4]

    drawing = Process(run)
    drawing.until(r"final report: slow, \d+ of 12 parts \.\.\.")  # behind the scores: its picture
    drawing.signal(signal.SIGTERM)
    assert drawing.ended() == 75, drawing.text()
    assert "stopping now, nothing is unsaved" in drawing.text()
    assert newest(run) == 12 and scored() == [0, 4, 8, 12]

    whole = Process(tmp_path / "whole")
    assert whole.ended() == 0, whole.text()
    last = Process(run)  # the report alone
    assert last.ended() == 0, last.text()
    assert "compiling" not in last.text() and "step " not in last.text().partition("picture")[2]
    assert (run / "pictures" / "slow.png").is_file()
    for table in ("metrics", "evals"):
        rows, others = (
            [
                {k: v for k, v in row.items() if k not in log.TIMING}
                for row in log.read_rows(folder / f"{table}.jsonl")
            ]
            for folder in (run, tmp_path / "whole")
        )
        assert rows == others and rows
    assert (run / "results.json").read_text() == (tmp_path / "whole" / "results.json").read_text()


BLOCKED = """
import hashlib, time
from ssl_jax.train import stop
with stop.listening(whole=True) as asked:
    {state}
    print("ready", flush=True)
    {work}
"""


@pytest.mark.parametrize(
    "state, work, signals, code, said",
    [
        ("asked.idle()", "compute", 1, 75, "SIGTERM: stopping now"),
        ("asked.busy()", "time.sleep(60)", 2, 130, "again to stop now\nstopped at once"),
        ("asked.busy()", "compute", 2, 130, "again to stop now\nstopped at once"),
    ],
)
def test_a_process_ends_also_from_within_a_library(state, work, signals, code, said):
    """As while XLA compiles, Python sees no signal during a call into C."""
    compute = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)'
    script = BLOCKED.format(state=state, work=work.replace("compute", compute))
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    for _ in range(signals):
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM if signals == 1 else signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == code and said in out


EARLY = """
import os, signal, sys, time
class Told:
    def find_spec(self, name, path=None, target=None):
        if name == "ssl_jax.cli":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
sys.meta_path.insert(0, Told())
sys.argv = ["ssl-jax", "train"]
from ssl_jax.__main__ import main
assert not {"absl", "ml_collections", "numpy", "jax"} & set(sys.modules)
sys.exit(main())
"""


def test_the_program_hears_signals_before_it_imports_what_takes_long():
    done = subprocess.run(
        [sys.executable, "-c", EARLY], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (75, "")
    assert "SIGTERM: stopping now, nothing is unsaved" in done.stdout


def test_a_signal_while_garbage_is_collected_is_not_forgotten(capfd):
    """Python prints and forgets what is raised there; the thread ends the process instead."""
    import gc

    sent = []

    def collected(phase, info):
        if not sent:
            sent.append(phase)
            send(signal.SIGTERM)

    gc.callbacks.append(collected)
    try:
        with stop.listening() as asked:
            gc.collect()
            assert asked.told and sent
            with pytest.raises(stop.Interrupted):  # at the next place where it can be
                asked.idle()
    finally:
        gc.callbacks.remove(collected)
    assert "Traceback" not in capfd.readouterr().err


ENDING = """
import sys, time
from ssl_jax.train import stop

class Late:
    def __del__(self):
        print("ending", flush=True)
        time.sleep(3)

late = Late()
with stop.listening(whole=True):
    pass
sys.exit(7)
"""


def test_a_signal_while_python_ends_changes_no_exit_code():
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 7


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    run = Process(tmp_path / "run")
    run.until(r"final report: slow, \d+ of 12")
    for _ in range(2):
        run.signal(signal.SIGINT)
        time.sleep(0.02)
    assert run.ended() in (75, 130), run.text()  # the first alone may have been quick enough
    assert newest(tmp_path / "run") == 12
    again = Process(tmp_path / "run")
    assert again.ended() == 0, again.text()
    assert "compiling" not in again.text()
