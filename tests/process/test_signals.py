"""Signals: answered at once, and obeyed where nothing is lost; test_disturbed.py sends them to a
whole run.
"""

import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ssl_jax.runtime import stop
from tests.process.runs import ROOT


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
    with stop.listening():
        with pytest.raises(stop.Interrupted):
            send(signal.SIGTERM)
        assert answered(capfd, "SIGTERM: ")
    with stop.listening() as signals:
        signals.busy()
        send(signal.SIGINT)
        assert signals.received and not signals.agreed and answered(capfd, "SIGINT: ")
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    with stop.listening() as signals:
        signals.busy()
        send(signal.SIGUSR1)
        send(signal.SIGTERM)  # sent again by impatient schedulers: nothing more happens
        with pytest.raises(stop.Interrupted):
            signals.idle()  # of a signal that came before


def test_an_evaluation_is_left_out_and_its_step_saved(capfd):
    with stop.listening() as signals:
        signals.busy()
        reached = []

        def evaluate():
            send(signal.SIGINT)
            reached.append("the end")

        signals.run_interruptible(evaluate, "saving step 50")
        assert signals.agreed
        signals.run_interruptible(lambda: reached.append("begun"), "saving step 51")
        assert not reached  # told before
        assert answered(capfd, "saving step 50")
        send(signal.SIGTERM)  # busy again: nothing is raised


def test_handlers_are_restored_and_the_inner_block_is_the_outer_one():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(n) for n in numbers]
    with stop.listening() as signals, stop.listening() as inner:
        assert inner is signals
        assert signal.getsignal(signal.SIGTERM) == signals.handle
    assert before == [signal.getsignal(n) for n in numbers]
    with ThreadPoolExecutor() as pool:  # where Python has no signals, a run still works
        assert pool.submit(lambda: stop.listening().__enter__().received).result() is False


def test_a_signal_while_garbage_is_collected_is_not_forgotten(capfd):
    """Python prints and forgets what is raised there; the thread ends the process instead."""
    sent = []

    def collected(phase, info):
        if not sent:
            sent.append(phase)
            send(signal.SIGTERM)

    gc.callbacks.append(collected)
    try:
        with stop.listening() as signals:
            gc.collect()
            assert signals.received and sent
            with pytest.raises(stop.Interrupted):  # at the next place where it can be
                signals.idle()
    finally:
        gc.callbacks.remove(collected)
    assert "Traceback" not in capfd.readouterr().err


def started(script):
    """A Python that runs the script, as soon as it has printed a line. SIGHUP is not ignored there,
    even if these tests run under nohup."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert process.stdout.readline()
    return process


COMPUTE = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)'
BLOCKED = """
import hashlib, time
from ssl_jax.runtime import stop
with stop.listening(whole=True) as signals:
    signals.{state}()
    print("ready", flush=True)
    {work}
"""


@pytest.mark.parametrize(
    "state, work, number, count, code",
    [
        ("idle", COMPUTE, signal.SIGTERM, 1, 75),
        ("idle", COMPUTE, signal.SIGHUP, 1, 75),
        ("busy", COMPUTE, signal.SIGINT, 2, 130),
    ],
)
def test_a_process_ends_also_from_within_a_library(state, work, number, count, code):
    """As while XLA compiles, Python sees no signal during a call into C."""
    process = started(BLOCKED.format(state=state, work=work))
    for _ in range(count):
        time.sleep(0.5)
        process.send_signal(number)
    assert process.wait(timeout=20) == code


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
print("begins", flush=True)
sys.exit(main())
"""


def test_the_program_hears_signals_before_it_imports_what_takes_long():
    assert started(EARLY).wait(timeout=60) == 75


ENDING = """
import sys, time
from ssl_jax.runtime import stop
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
    process = started(ENDING)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 7
