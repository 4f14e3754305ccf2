"""launch/*.sh, *.sbatch and *.yaml: what they start, where stand-ins take the place of a cluster's
commands.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

LAUNCH = ROOT / "launch"
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Commands by name that write their arguments, one JSON list a line, to NAME.calls and then run
    a shell line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))

    def stand_in(name, line="exit 0"):
        file = str(tmp_path / f"{name}.calls")
        write = f"import json, sys; print(json.dumps(sys.argv[1:]), file=open({file!r}, 'a'))"
        script = f'#!/bin/bash\n{sys.executable} -c {shlex.quote(write)} "$@"\n{line}\n'
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    def calls(name):
        file = tmp_path / f"{name}.calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    stand_in.calls = calls
    return stand_in


def bash(script, *arguments, **environment):
    return subprocess.run(
        ["bash", LAUNCH / script, *arguments],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_scripts_can_be_read():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck is not installed")
    places = ("--external-sources", "--source-path=launch", "--source-path=.")
    command = [shellcheck, *places, *SCRIPTS, ROOT / ".ci" / "run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "given, folder, rest",
    [
        ((), "runs/quickstart", []),
        (("mine", "--config.seed=1"), "{here}/mine", ["--config.seed=1"]),
        (("--config.seed=1",), "runs/quickstart", ["--config.seed=1"]),
    ],
)
def test_the_quickstart_takes_a_folder_keys_or_both(given, folder, rest, place, tmp_path):
    """A copy of the script whose environment is this one."""
    (tmp_path / "launch").mkdir()
    shutil.copy(LAUNCH / "quickstart.sh", tmp_path / "launch")
    for name in ("environment.sh", "cpu.sh"):
        (tmp_path / "launch" / name).write_text("cd /\n")
    place("python")
    subprocess.run(["bash", "launch/quickstart.sh", *given], cwd=tmp_path, check=True)
    head = ["-m", "ssl_jax", "train", "--config=quickstart"]
    assert place.calls("python") == [[*head, f"--workdir={folder.format(here=tmp_path)}", *rest]]


@pytest.fixture
def prepare(tmp_path):
    """Runs a copy of environment.sh with a Python whose pip ends with a status and whose venv is a
    copy of itself; returns the exit status and what it printed."""
    (tmp_path / "launch").mkdir()
    shutil.copy(LAUNCH / "environment.sh", tmp_path / "launch")
    for name in ("requirements.lock", "setup.py"):
        (tmp_path / name).write_text("setuptools==1 ")
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/bash
case "$*" in
  "-m venv --clear "*) rm -r "${{!#}}" && exec "$0" -m venv "${{!#}}" ;;
  "-m venv "*) mkdir -p "${{!#}}/bin" && cp "$0" "${{!#}}/bin/python" ;;
  "-m pip "*) exit "$PIP" ;;
  *"print(sys.executable)"*) echo "$0" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
    )
    python.chmod(0o755)

    def run(pip=0):
        done = subprocess.run(
            ["bash", "-c", 'source launch/environment.sh; echo "$ROOT"'],
            env=os.environ | {"PYTHON": str(python), "PIP": str(pip), "CDPATH": "."},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("python", ["bin/python", "Scripts/python.exe", "link"])
def test_an_environment_of_the_users_is_never_emptied(prepare, tmp_path, python):
    """Its Python is a link to one that is gone, or Windows'; or .venv is a link to a folder."""
    folder = tmp_path / ".venv"
    if python == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        (folder / python).parent.mkdir(parents=True)
        (folder / python).symlink_to(tmp_path / "gone")
    (folder / "mine").write_text("mine")
    assert prepare()[0] == 1
    assert (folder / "mine").read_text() == "mine" and not (folder / "ssl_jax_created").exists()


def test_an_environment_of_ours_is_made_again_after_a_cut_and_a_change(prepare, tmp_path):
    folder, ready = tmp_path / ".venv", (0, f"{tmp_path}\n")
    assert prepare(pip=1)[0] == 1 and (folder / "bin" / "python").exists()
    (folder / "left over").touch()
    assert prepare() == ready and not (folder / "left over").exists()
    (folder / "added").touch()
    assert prepare(pip=1) == ready and (folder / "added").exists()  # it is up to date
    (tmp_path / "setup.py").write_text("changed")
    assert prepare() == ready and not (folder / "added").exists()
    # One with a Python that works is the user's: completed, also after a change.
    for mark in ("created", "environment"):
        (folder / f"ssl_jax_{mark}").unlink()
    (folder / "pyvenv.cfg").write_text(f"command = python3 -m venv --clear {folder}\n")
    for change in ("mine", "mine again"):
        (tmp_path / "setup.py").write_text(change)
        (folder / "mine").touch()
        assert prepare() == ready and (folder / "mine").exists()
    # Earlier versions of the scripts left a stamp and this command, but no mark.
    (folder / "ssl_jax_completed").unlink()
    (tmp_path / "setup.py").write_text("changed again")
    assert prepare() == ready and not (folder / "mine").exists()


# What SLURM 22.05 says of a job whose processes have just ended.
_TIME_NEAR = "JobState=RUNNING Reason=None EndTime=2026-01-01T00:00:00 PreemptTime=None"


@pytest.mark.parametrize(
    "code, job, again",
    [
        (0, _TIME_NEAR, False),
        (2, _TIME_NEAR, False),
        (75, _TIME_NEAR, True),
        (75, "JobState=RUNNING Reason=None EndTime=Unknown PreemptTime=2026-01-01T00:00:00", True),
        (75, "JobState=COMPLETING Reason=None PreemptTime=2026-01-01T00:00:00", True),
        (75, "JobState=COMPLETING Reason=TimeLimit PreemptTime=None", True),
        (75, "JobState=COMPLETING Reason=None PreemptTime=None", False),  # cancelled
    ],
)
def test_slurm_queues_a_job_again_that_has_saved(place, code, job, again):
    place("srun", f"exit {code}")
    place("scontrol", f'[ "$1" = show ] && echo "JobId=17 {job} Partition=a"; exit 0')
    arguments = ["--config=sop:vits16", "--workdir=/a b"]
    done = bash("slurm.sbatch", *arguments, SLURM_JOB_ID="17", PYTHON="py")
    assert done.returncode == code
    (call,) = place.calls("srun")
    assert call[-5:] == ["ssl_jax", "train", "--distributed", *arguments]
    asked = [["show", "job", "--oneliner", "17"]] if code == 75 else []
    assert place.calls("scontrol") == [*asked, *([["requeue", "17"]] if again else [])]


def test_of_an_array_the_task_alone_is_queued_again(place):
    """The id of its last task is that of the array."""
    place("srun", "exit 75")
    place("scontrol", f'[ "$1" = show ] && echo "{_TIME_NEAR}"; exit 0')
    array = dict(SLURM_JOB_ID="17", SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID="3")
    assert bash("slurm.sbatch", "--config=a", **array).returncode == 75
    assert place.calls("scontrol") == [["show", "job", "--oneliner", "17_3"], ["requeue", "17_3"]]
    assert "--kill-on-bad-exit=0" in place.calls("srun")[0]


def test_a_signal_to_the_job_does_not_end_it_before_its_processes(place):
    """A preemption signals the script as well; it must still queue the job again."""
    place("srun", "kill -TERM $PPID; sleep 1; exit 75")
    place("scontrol")
    assert bash("slurm.sbatch", "--config=a", SLURM_JOB_ID="17").returncode == 75
    assert place.calls("scontrol")[-1] == ["requeue", "17"]


def test_a_tpu_slice_gets_the_checkout_and_the_same_command_on_every_host(place, tmp_path):
    place("gcloud")
    place("git", '[ "$1" = archive ] || echo " M setup.py"')
    arguments = ["--config=sop:vitl16", "--workdir=/mnt/a b"]
    (tmp_path / "tmp").mkdir()
    start = ("tpu_pod.sh", "slice", "us-central1-a", *arguments)
    done = bash(*start, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 2 and "setup.py" in done.stderr and not place.calls("gcloud")
    place("git")
    done = bash(*start, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "tmp").iterdir())
    copied, installed, trained = place.calls("gcloud")
    assert copied[3] == "scp" and copied[4].endswith(".tar.gz")
    assert all("--worker=all" in call for call in (copied, installed, trained))
    (command,) = (part for part in trained if part.startswith("--command="))
    words = shlex.split(command.removeprefix("--command="))
    assert words[-4:] == ["train", "--distributed", *arguments]


@pytest.mark.parametrize("script", ["slurm.sbatch", "tpu_pod.sh", "speedrun.sh"])
def test_without_arguments_a_script_says_how_it_is_used(script):
    done = bash(script, PYTHON="py")
    assert done.returncode == 2 and "usage: " in done.stderr


def test_a_cluster_has_as_many_pods_as_hosts_and_starts_the_program():
    job = yaml.safe_load((LAUNCH / "gke.yaml").read_text())
    pods = job["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "ssl_jax", "train", "--distributed"]
    size = pods["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = int(container["resources"]["limits"]["google.com/tpu"])
    wide, high = map(int, size.split("x"))
    assert pods["parallelism"] == pods["completions"] == wide * high // chips
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    assert all(f"${name}" in task["run"] for name in task["envs"])
    # What is installed is what runs, and no Python of the machine's.
    environment = "../ssl_jax_env/bin/python"
    assert f"--python {environment} -e" in task["setup"] and f"{environment} -m" in task["run"]
