"""The processes of one attempt at a run: started, watched, struck, waited for."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class Attempt:
    """The processes of a run that is started or goes on, and the lines they print.

    config: as `ssl-jax train` takes it. jump: seconds by which the clock jumps on the way.
    """

    def __init__(
        self,
        config: str,
        workdir: Path,
        options: tuple[str, ...] = (),
        processes: int = 1,
        jump: float = 0.0,
    ):
        self.workdir, self.lines = workdir, []
        program = ["-m", "tests.chaos.clock", str(jump)] if jump else ["-m", "ssl_jax"]
        command = [sys.executable, *program, "train", f"--config={config}", f"--workdir={workdir}"]
        port = _free_port()
        self._processes = []
        for index in range(processes):
            place = (
                f"--coordinator=localhost:{port}",
                f"--num-processes={processes}",
                f"--process-id={index}",
            )
            self._processes.append(
                subprocess.Popen(
                    [*command, *options, *(place if processes > 1 else ())],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            )
        self._readers = [
            threading.Thread(target=self._read, args=(p.stdout,), daemon=True)
            for p in self._processes
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, output):
        for line in output:
            self.lines.append(line.rstrip())

    def text(self) -> str:
        return "\n".join(list(self.lines))

    def running(self) -> bool:
        """Whether all processes are."""
        return all(p.poll() is None for p in self._processes)

    def until(self, condition: Callable[[], bool], seconds: float = 300) -> bool:
        """Whether the condition held before the run ended or the time was over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            if not self.running():
                return False
            time.sleep(0.001)
        return False

    def says(self, pattern: str) -> Callable[[], bool]:
        """A condition: a line that fits was printed."""
        wanted = re.compile(pattern)
        return lambda: any(wanted.search(line) for line in list(self.lines))

    def signal(self, number: int, index: int | None = None) -> None:
        """To one process, or to all. SIGKILL takes the workers of its loader with it."""
        for process in self._processes if index is None else [self._processes[index]]:
            if process.poll() is None:
                if number == signal.SIGKILL:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)

    def workers(self) -> list[int]:
        """Process ids of the data workers of the first process."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self._processes[0].pid:
                try:
                    group = os.getpgid(int(folder.name))
                    command = (folder / "cmdline").read_text()
                except OSError:
                    continue  # it has ended meanwhile
                if group == self._processes[0].pid and "spawn_main" in command:
                    found.append(int(folder.name))
        return found

    def ended(self, seconds: float) -> tuple[int, ...] | None:
        """Exit codes of the processes; None if they hang: then they are killed."""
        deadline = time.monotonic() + seconds
        try:
            codes = tuple(
                p.wait(timeout=max(0.0, deadline - time.monotonic())) for p in self._processes
            )
        except subprocess.TimeoutExpired:
            codes = None
        self.signal(signal.SIGKILL)
        for process, reader in zip(self._processes, self._readers, strict=True):
            process.wait()
            reader.join(5)
        return codes


def _free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]
