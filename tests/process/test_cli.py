"""The program as a process: exit codes, pipes, a shell that asks, a disk that fills up."""

import os
import shutil
import subprocess
import sys

import pytest

from ssl_jax import cli
from ssl_jax.train import loop
from tests.conftest import ROOT

CONFIG = f"--config={ROOT / 'tests' / 'tiny_run.py'}:dino"


def python(*arguments, **options) -> subprocess.CompletedProcess:
    options = dict(stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=300) | options
    environment = {**os.environ, "XLA_FLAGS": ""}
    return subprocess.run([sys.executable, *arguments], env=environment, **options)


def test_bad_input_ends_with_two_and_one_line(tmp_path):
    command = ["train", CONFIG, "--config.model.ptach=8", f"--workdir={tmp_path / 'run'}"]
    done = python("-m", "ssl_jax", *command, stdout=subprocess.PIPE)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("ssl-jax: ") and done.stderr.count("\n") == 1
    assert "model.patch" in done.stderr and not list(tmp_path.iterdir())


def test_a_reader_that_closes_early_is_no_error():
    """As in `ssl-jax show ... | head -1`: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = python("-m", "ssl_jax", "show", "--paper=sop", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


JUDGES = """
import sys
from ssl_jax import cli
from ssl_jax.cli import check
def run(options):
    print("x" * 10**6, flush=True)
    return 2
check.run = run
sys.exit(cli.main(["ssl-jax", "check", "runs/a"]))
"""


def test_a_command_that_judges_goes_on_to_its_end_without_a_reader():
    reader, writer = os.pipe()
    os.close(reader)
    done = python("-c", JUDGES, stdout=writer)
    os.close(writer)
    assert done.returncode == 2


OUTLIVES = """
import os, sys
from ssl_jax.runtime import output
output.outlive_reader(disk=True)
print("x" * 10**6)
print("more", flush=True)
os.write(2, b"end")
"""


def test_a_run_outlives_the_reader_of_its_output():
    reader, writer = os.pipe()
    os.close(reader)
    done = python("-c", OUTLIVES, stdout=writer)
    os.close(writer)
    assert done.returncode == 0 and done.stderr.endswith("end")
    assert done.stderr.count("\n") == 1 and "the command continues" in done.stderr
    with open("/dev/full", "w") as full:  # the text may be all that a command makes
        assert python("-c", OUTLIVES.replace("True", "False"), stdout=full).returncode != 0


CLOSED = """
import os, sys
os.closerange(0, 3)
from ssl_jax import __main__, cli
def run():
    return min(os.pipe())
cli.main, sys.argv = run, ["ssl-jax", "train"]
os._exit(__main__.main())
"""


def test_without_any_stream_no_other_file_is_taken_for_one():
    """A log line of XLA on descriptor 2 came to the pipe of signals, and its end was a SIGUSR1."""
    assert python("-c", CLOSED).returncode > 2


COMPLETED = {
    "ssl-jax ev": {"eval"},
    "ssl-jax train --config=stel": {"--config=stellar"},
    "ssl-jax train --config=dino:photo": {"photos", "photo_collages"},
    "ssl-jax train --config=sop:photos --config.sop.cls.w": {"--config.sop.cls.weight"},
    "ssl-jax embed runs/a --config.data.k": {"--config.data.kind"},
}
# As argcomplete's shell code asks: the line in the environment, the answer in a file.
ASK = """
import os, sys
from ssl_jax import cli
for i, line in enumerate(sys.argv[2:]):
    if os.fork() == 0:
        words = dict(COMP_LINE=line, COMP_POINT=str(len(line)), COMP_TYPE="9", _ARGCOMPLETE="1")
        os.environ |= words | {
            "_ARGCOMPLETE_IFS": "\\n",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "_ARGCOMPLETE_COMP_WORDBREAKS": " \\t\\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": f"{sys.argv[1]}/{i}",
        }
        cli.main(["ssl-jax"])
    os.wait()
"""


@pytest.mark.slow
def test_completion(tmp_path):
    assert python("-c", ASK, str(tmp_path), *COMPLETED).returncode == 0
    for i, (line, wanted) in enumerate(COMPLETED.items()):
        answer = (tmp_path / str(i)).read_text().split("\n")
        assert {word.rpartition(":")[2].removesuffix(" ") for word in answer} == wanted, line


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, and a function that resizes it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small tmpfs, and not in every container")

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    try:
        yield folder, resize
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_the_last_checkpoint(small_disk, capfd):
    """The second start is let through as if another program wrote meanwhile; with room again, the
    same command ends as it should have.
    """
    folder, resize = small_disk
    command = ["ssl-jax", "train", CONFIG, "--config.evals.tasks=()", f"--workdir={folder / 'run'}"]
    assert cli.main(command) == cli.EXIT_INPUT
    line = capfd.readouterr().err
    assert line.count("\n") == 1 and str(folder) in line and not list(folder.iterdir())
    code = (
        "from ssl_jax import cli; from ssl_jax.train import disk;"
        " disk.check_space = lambda *a, **k: None;"
        f" raise SystemExit(cli.main({command}))"
    )
    # A process of its own: pytest would catch what Orbax's threads print.
    done = python("-c", code, stdout=subprocess.PIPE)
    assert done.returncode == cli.EXIT_INPUT
    assert done.stderr.count("\n") == 1 and "no space left" in done.stderr, done.stderr
    resize("64m")
    assert cli.main(command) == loop.EXIT_DONE
    assert "resuming from step" in capfd.readouterr().out
    assert (folder / "run" / "checkpoints" / "12").is_dir()
