"""The command line: every mistake gives one line on stderr, exit code 2 and leaves nothing behind;
show and eval say what they should.
"""

import collections
import json
import os
import re
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict
from PIL import Image

from ssl_jax import api, cli, evals, settings
from ssl_jax import config as config_lib
from ssl_jax.cli import arguments as arguments_lib
from ssl_jax.cli import cache, platforms, show
from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.train import checkpoint, log, loop
from tests import tiny
from tests.conftest import ROOT
from tests.convert import published

CONFIG = f"--config={ROOT / 'tests' / 'tiny_run.py'}:sop"


def files(folder) -> dict:
    """{path: content} of everything below a folder."""
    return {
        p.relative_to(folder): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


@pytest.fixture
def refused(capfd):
    """Runs a command that must be refused with one line (returned), on the file descriptors
    themselves.
    """

    def run(*arguments) -> str:
        capfd.readouterr()
        assert cli.main(["ssl-jax", *map(str, arguments)]) == cli.EXIT_INPUT
        out, err = capfd.readouterr()
        assert err.startswith("ssl-jax: ") and err.endswith("\n") and err.count("\n") == 1, err
        assert "step" not in out
        return err

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run of tests/tiny_run.py:sop. Not to be changed: see `copy`."""
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    assert cli.main(["ssl-jax", "train", CONFIG, f"--workdir={workdir}"]) == loop.EXIT_DONE
    return workdir


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


# --- what is wrong with the command itself

IMPOSSIBLE = {
    "unknown key": ("optim.lrr=1", r'unknown config key "optim.lrr"; did you mean "optim.lr"?'),
    "unknown key of a method": (
        "sop.cls.anchor=1",
        'unknown config key "sop.cls.anchor"; did you mean "sop.cls.anchors"?',
    ),
    "a section": ("mesh=1", '"mesh" is a section; set one of its keys: mesh.data, mesh.fsdp'),
    "no number": ("optim.lr=fast", "optim.lr is 'fast'; it must be a number, for example 0.02"),
    "no integer": (
        "optim.batch_size=8.5",
        "optim.batch_size is '8.5'; it must be an integer, for example 8",
    ),
    "no boolean": ("model.cls=perhaps", "model.cls is 'perhaps'; it must be true or false"),
    "no tuple of numbers": (
        "views.global_scale=wide",
        "views.global_scale is ('wide',); it must be a tuple of numbers",
    ),
    "no choice": (
        "views.mask=blocks",
        'views.mask is "blocks"; it must be one of none, block, random; did you mean "block"?',
    ),
    "crop and patch": (
        "views.global_size=18",
        "views.global_size is 18, not a multiple of 4 (model.patch); use 16 or 20",
    ),
    "memory and anchors": ("sop.cls.memory=11", "sop.cls.memory is 11, too small for 12 anchors"),
    "batch and devices": (
        "mesh.data=3",
        "optim.batch_size is 8, not a multiple of 3 (number of devices); use 6 or 9",
    ),
    "more devices than there are": ("mesh.data=16", "there are 8 devices"),
    "batch and data": ("data.length=5", "optim.batch_size is 8, but the set has only 5 images"),
    "method without a section": ("method=dino", 'config has no section "dino"'),
    "folder": ("data.kind=folder", 'data.dir is ""'),
    "folder that is not there": (("data.kind=folder", "data.dir=/none"), "/none does not exist"),
    "TFDS folder that is not there": (
        ("data.kind=tfds", "data.name=cifar10", "data.dir=/none"),
        "/none does not exist",
    ),
    "evaluation folder that is not there": (
        ("evals.knn.data.kind=folder", "evals.knn.data.dir=/none"),
        "/none does not exist",
    ),
    "two evaluations as one": ("evals.tasks=knn,rank", "for several write"),
}


@pytest.mark.parametrize(("settings", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_settings_that_cannot_work(refused, tmp_path, settings, message):
    settings = (settings,) if isinstance(settings, str) else settings
    error = refused(
        "train", CONFIG, *(f"--config.{s}" for s in settings), f"--workdir={tmp_path / 'run'}"
    )
    assert message in error
    assert not list(tmp_path.iterdir())


COMMANDS = {
    "no command": ((), "no command; give one of train, eval"),
    "unknown command": (("trian", CONFIG), 'unknown command "trian"; did you mean "train"?'),
    "no config": (("train", "--workdir=RUN"), "train needs --config=NAME"),
    "two configs": (
        ("train", CONFIG, CONFIG, "--workdir=RUN"),
        "only one of --config=NAME and --row=ROW can be used",
    ),
    "no such config file": (
        ("train", "--config=configs/sopp.py:cifar10", "--workdir=RUN"),
        'did you mean "configs/sop.py"?',
    ),
    "unknown variant": (
        ("train", f"--config={ROOT}/configs/sop.py:cifar", "--workdir=RUN"),
        'did you mean "cifar10"?',
    ),
    "no workdir": (("train", CONFIG), "--workdir=FOLDER is missing"),
    "unknown flag": (
        ("train", CONFIG, "--wrkdir=RUN"),
        "Unknown command line flag 'wrkdir'. Did you mean: workdir ?",
    ),
    "one argument too many": (("train", CONFIG, "RUN"), "unexpected argument"),
    "key without a value": (
        ("train", CONFIG, "--workdir=RUN", "--config.optim.lr"),
        "Missing value for flag --config.optim.lr",
    ),
    "show without config": (("show", "--config.seed=1"), "show needs --config=NAME"),
    "keys that nothing is called": (("show", "--keys=xyz"), 'no key with "xyz" in its name'),
    "keys and one argument too many": (("show", "--keys", "sop"), 'unexpected argument "sop"'),
    "a name from elsewhere": (
        ("train", CONFIG, "--workdir=RUN", "--config.learning-rate=1"),
        'unknown config key "learning-rate"; here it is optim.lr',
    ),
    "a profile that is none": (("train", CONFIG, "--workdir=RUN", "--profile=5"), "--profile is"),
    "a length that is none": (
        ("train", CONFIG, "--workdir=RUN", "--extend=2e3"),
        "--extend is '2e3'; it must be a whole number",
    ),
    "nothing to lengthen": (
        ("train", CONFIG, "--workdir=RUN", "--extend=2000"),
        "run holds no checkpoint; start the run without --extend",
    ),
    "a platform that is none": (("show", CONFIG, "--platform=gpus"), "did you mean"),
    "a platform whose package is missing": (
        ("show", CONFIG, "--platform", "gpu"),
        "pip install 'ssl-jax[gpu]'",
    ),
    "scores into a folder that is not there": (
        ("eval", "RUN", "--out=nowhere/scores.json"),
        "no folder nowhere",
    ),
    "show of what cannot work": (
        ("show", CONFIG, "--config.views.local_size=9"),
        "views.local_size is 9",
    ),
    "paper without a name": (("show", "--paper="), "--paper needs a name, one of cribo, dino,"),
    "unknown paper": (("show", "--paper", "sopp"), 'unknown paper "sopp"; did you mean "sop"?'),
    "paper of what has none": (("show", "--paper=quickstart"), 'unknown paper "quickstart"'),
    "paper with a setting": (
        ("show", "--paper=sop", "--config.optim.lr=1"),
        "Unknown command line flag 'config.optim.lr'",
    ),
    "paper and one argument too many": (
        ("show", "--paper=sop", "dino"),
        "--paper takes one name, nothing else",
    ),
    "unknown row": (
        ("train", "--row=sop/table10/K1023", "--workdir=RUN"),
        'did you mean "table10/K1024"?; ssl-jax show --paper=sop lists them',
    ),
    "unknown paper of a row": (("show", "--row=sopp/table1"), 'unknown paper "sopp"'),
    "a row and a config": (
        ("train", CONFIG, "--row=sop/table10/K1024", "--workdir=RUN"),
        "only one of --config=NAME and --row=ROW can be used",
    ),
    "a row for eval": (("eval", "RUN", "--row=sop/table10/K1024"), "are for train and show"),
    "unknown short name": (("train", "--config=sopp", "--workdir=RUN"), 'did you mean "sop"?'),
    "export of nothing": (("export", "--to=timm"), "export needs a NETWORK first"),
    "export to nothing": (("export", "RUN"), "export needs --to=FORMAT, one of timm, hf"),
    "export to what is not known": (
        ("export", "RUN", "--to=safetensor", "--out=RUN"),
        'unknown --to "safetensor"; did you mean "safetensors"?',
    ),
    "export nowhere": (("export", "RUN", "--to=npz"), "export needs --out=FILE.npz"),
    "export of two": (("export", "RUN", "RUN", "--to=npz"), "unexpected argument"),
    "eval of nothing": (("eval",), "eval needs a NETWORK"),
    "eval of what is not there": (("eval", "RUN"), "no such checkpoint or run folder"),
}


@pytest.mark.parametrize(("arguments", "message"), COMMANDS.values(), ids=COMMANDS)
def test_commands_that_cannot_be_read(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(ROOT)  # "configs/sopp.py" is a path of the checkout
    assert message in refused(*(a.replace("RUN", str(tmp_path / "run")) for a in arguments))
    assert not list(tmp_path.iterdir())


def test_the_program_itself_ends_with_two_and_one_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "ssl_jax",
        "train",
        CONFIG,
        "--config.model.ptach=8",
        f"--workdir={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr == 'ssl-jax: unknown config key "model.ptach"; did you mean "model.patch"?\n'
    assert done.stdout == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("--help",), ("help",), ("train", "--help")])
def test_help_is_no_error(capsys, arguments):
    assert cli.main(["ssl-jax", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "ssl-jax train --config=" in out and "75" in out and not err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(capsys, command):
    assert cli.main(["ssl-jax", command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"ssl-jax {command}") and not err
    examples = out.partition("Examples:\n")[2]
    assert f"  ssl-jax {command} " in examples and "Exit codes: 0 done" in examples
    assert "; 2 bad input" in examples


@pytest.mark.parametrize("given, kept", [(None, True), ("", False), ("/elsewhere", False)])
def test_compiled_programs_are_kept_unless_told_otherwise(monkeypatch, tmp_path, given, kept):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    if given is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    settings_made = []
    monkeypatch.setattr(jax.config, "update", lambda *pair: settings_made.append(pair))
    cache.keep_programs()
    assert settings_made == [("jax_compilation_cache_dir", str(cache.folder()))] * kept
    assert cache.folder().parent == tmp_path / "ssl_jax"


def test_a_run_of_a_row_has_its_config_and_numbers(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(
        api, "train", lambda config, workdir, **options: started.append(config) or 0
    )
    arguments = ["--row=sop/table10/K1024", "--config.optim.lr=1", f"--workdir={tmp_path / 'run'}"]
    assert cli.main(["ssl-jax", "train", *arguments]) == 0
    (config,) = started
    assert config.expected.to_dict() == {"knn": "69.5 (paper, table 10)"}
    assert (config.sop.cls.anchors, config.optim.epochs, config.optim.lr) == (1024, 300.0, 1.0)


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    def broken(argv):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(show, "run", broken)
    with pytest.raises(OSError, match="Input/output error"):
        cli.main(["ssl-jax", "show"])


# --- what is wrong with the data or the disk


def test_a_folder_of_truncated_images(refused, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for i in range(16):
        path = images / f"{i:02d}.jpg"
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (24, 24, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    options = ("--config.data.kind=folder", f"--config.data.dir={images}")
    error = refused("train", CONFIG, *options, f"--workdir={tmp_path / 'run'}")
    # readers run side by side, so several may have failed before the first failure is reported
    count = re.search(r"data.max_unreadable=0.01: already (\d+) of 16 records cannot be", error)
    assert count and 1 <= int(count[1]) <= 16, error
    assert ".jpg (" in error
    assert not (tmp_path / "run").exists()


def test_evaluations_that_were_asked_for_are_not_left_out(refused, tmp_path):
    for i in range(10):
        path = tmp_path / "images" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((24, 24, 3), i, np.uint8)).save(path)
    options = ("--config.data.kind=folder", f"--config.data.dir={path.parent}")
    error = refused(
        "train", "--config=quickstart", *options, "--config.evals.tasks=knn", "--workdir=RUN"
    )
    assert "evals.knn: " in error and "needs labels" in error
    error = refused("train", "--config=quickstart", *options, f"--workdir={tmp_path / 'run'}")
    assert "optim.batch_size is 64, but the set has only 10 images" in error  # only later


def test_an_empty_folder(refused, tmp_path):
    (tmp_path / "images").mkdir()
    options = ("--config.data.kind=folder", f"--config.data.dir={tmp_path / 'images'}")
    assert "no image in or below" in refused(
        "train", CONFIG, *options, f"--workdir={tmp_path / 'run'}"
    )
    assert not (tmp_path / "run").exists()


def test_a_tfds_folder_without_the_set(refused, tmp_path):
    (tmp_path / "sets").mkdir()
    options = (
        "--config.data.kind=tfds",
        "--config.data.name=cifar10",
        f"--config.data.dir={tmp_path / 'sets'}",
    )
    assert "no 'cifar10' in" in refused("train", CONFIG, *options, f"--workdir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_is_a_file(refused, tmp_path):
    (tmp_path / "run").write_text("mine")
    assert "File exists" in refused("train", CONFIG, f"--workdir={tmp_path / 'run'}")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_disk_without_room_for_the_checkpoints(refused, tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2**30, 2**30 - 2**20, 2**20))
    error = refused("train", CONFIG, f"--workdir={tmp_path / 'a' / 'run'}")
    assert "1.0 MiB free; 3 checkpoints of" in error
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that a function resizes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    if (
        os.name != "posix"
        or os.geteuid() != 0
        or shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True).returncode
    ):
        pytest.skip("only root may mount a small tmpfs, and not in every container")
    try:
        yield (
            folder,
            lambda size: subprocess.run(
                ["mount", "-o", f"remount,size={size}", str(folder)], check=True
            ),
        )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_too_small(refused, small_disk):
    folder, _ = small_disk
    assert f"{folder} has 0.6 MiB free" in refused("train", CONFIG, f"--workdir={folder / 'run'}")
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_the_last_checkpoint(finished, small_disk, capsys):
    """The start is let through as if another program wrote meanwhile; with room again, the same
    command ends as it should have.
    """
    folder, resize = small_disk
    command = ["ssl-jax", "train", CONFIG, f"--workdir={folder / 'run'}"]
    code = (
        "from ssl_jax import cli; from ssl_jax.train import checkpoint;"
        " checkpoint.check_space = lambda *a, **k: None;"
        f" raise SystemExit(cli.main({command}))"
    )
    # A process of its own: pytest would catch what Orbax's threads print.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == cli.EXIT_INPUT
    assert done.stderr.count("\n") == 1 and "no space left on the disk of" in done.stderr, (
        done.stderr
    )
    resize("64m")
    assert cli.main(command) == loop.EXIT_DONE
    assert "continuing from step" in capsys.readouterr().out
    assert (folder / "run" / "results.json").read_bytes() == (
        finished / "results.json"
    ).read_bytes()


def test_what_orbax_threads_report_late_is_dropped_and_nothing_else(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    checkpoint._quiet()
    checkpoint._quiet()
    for text in ("Event loop is closed", "another"):
        sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(text)))
    assert [str(r.exc_value) for r in reported] == ["another"]


def test_writes_that_a_full_disk_left_undone_warn_of_nothing():
    """Python warns of each when it ends, behind the one line of the error."""
    code = (
        "from ssl_jax.train import checkpoint; checkpoint._quiet()\n"
        "async def async_serialize_from_host(): pass\n"
        "async def other(): pass\n"
        "async_serialize_from_host(); other()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert "async_serialize" not in done.stderr
    assert "coroutine 'other' was never awaited" in done.stderr


# --- what is wrong with a checkpoint


def test_report_of_a_run(finished, tmp_path, capsys):
    pytest.importorskip("jinja2")
    out = tmp_path / "report.html"
    assert cli.main(["ssl-jax", "report", str(finished), f"--out={out}"]) == 0
    pictures = len(list((finished / "pictures").glob("*.png")))
    assert f"{out}: 1 run, {pictures} pictures" in capsys.readouterr().out
    text = out.read_text("utf-8")
    for scores in json.loads((finished / "results.json").read_text()).values():
        assert f'<span class="value">{scores["knn"]:.1f}' in text.replace("best value", "value")
    assert text.count("<img ") == pictures and f"ssl-jax eval {finished}" in text


def test_another_model_cannot_continue_a_run(refused, copy):
    before = files(copy)
    error = refused(
        "train", CONFIG, "--config.model.depth=3", "--config.optim.lr=0.1", f"--workdir={copy}"
    )
    assert "model.depth is 2 there, 3 here" in error and "optim.lr is 0.02 there, 0.1 here" in error
    assert files(copy) == before


DAMAGES = {
    "index": "state/manifest.ocdbt",
    "tree of the index": "state/d",
    "all data": "state/ocdbt.process_0",
    "some data": "the largest file of state/ocdbt.process_0/d",
    "half of a file": None,
    "state": "state",
    "config and position": "meta/metadata",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_with_missing_files(refused, copy, damage):
    newest = copy / "checkpoints" / "12"
    largest = max(
        (newest / "state" / "ocdbt.process_0" / "d").iterdir(), key=lambda p: p.stat().st_size
    )
    if damage == "half of a file":
        os.truncate(largest, largest.stat().st_size // 2)
    else:
        path = largest if damage == "some data" else newest / DAMAGES[damage]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = files(copy)
    error = refused("eval", newest)
    assert f"checkpoint {newest} is damaged: " in error or f"checkpoint {newest} lacks" in error
    assert files(copy) == before


def test_the_checkpoint_before_a_damaged_one_goes_on(finished, copy, capfd, refused):
    shutil.rmtree(copy / "checkpoints" / "12" / "state")
    arguments = ["train", CONFIG, f"--workdir={copy}"]
    assert cli.main(["ssl-jax", *arguments]) == loop.EXIT_DONE
    out = capfd.readouterr().out
    assert f"checkpoints/12 lacks state; it is kept as {copy}/damaged/12\n" in out
    assert "continuing from step 10" in out
    assert (copy / "results.json").read_bytes() == (finished / "results.json").read_bytes()
    for step in (10, 12):
        shutil.rmtree(copy / "checkpoints" / str(step) / "meta")
    for _ in range(2):  # never from nothing, where there was something
        assert "has no intact checkpoint to continue from" in refused(*arguments)
    assert sorted(p.name for p in (copy / "damaged").iterdir()) == ["10", "12", "12-2"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("checkpoints/7", "no such checkpoint or run folder"),
        ("pictures", "the folder checkpoints/ is missing"),
        ("checkpoints/12/state", "the folder checkpoints/ is missing"),
    ],
)
def test_eval_of_what_is_no_checkpoint(refused, finished, path, message):
    assert message in refused("eval", finished / path)


def test_eval_of_a_run_that_saved_nothing(refused, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert "holds no complete checkpoint" in refused("eval", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task=knnn"], 'unknown evaluation "knnn"; did you mean "knn"?'),
        (["--config.optim.lr=1"], "optim.lr belongs to the checkpoint and cannot be changed"),
        (
            ["--config.evals.knn.kk=1"],
            'unknown config key "evals.knn.kk"; did you mean "evals.knn.k"?',
        ),
        (["--config.evals.batch_size=0"], "evals.batch_size is 0; it must be above 0"),
        (
            ["--config.evals.knn.data.kind=folder", "--config.evals.knn.data.dir=/none"],
            "/none does not exist",
        ),
        (["--config.evals.tasks=()"], "give --task=NAME"),
        (["--add=linar"], 'unknown type of evaluation "linar"; did you mean "linear"?'),
        (["--add=linear:sop"], 'unknown protocol of the type "linear" "sop"'),
        (["--add=dense:cribo"], "needs to know its images: --config.evals.dense_cribo.data.kind="),
        (["--add=knn"], "--add=knn: the config has an evaluation knn already"),
        ([CONFIG], "eval takes the config that the checkpoint holds"),
    ],
)
def test_eval_options_that_cannot_work(refused, finished, options, message):
    assert message in refused("eval", finished, *options)


# --- what works


def test_eval_prints_three_rows_and_repeats_the_run(finished, capsys):
    assert cli.main(["ssl-jax", "eval", str(finished), "--task=knn,rank"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "sop, step 12"
    assert [line for line in out[1:] if line.startswith(evals.ROWS)][:3] == out[3:6]
    stored = json.loads((finished / "results.json").read_text())
    for name, line in zip(evals.ROWS, out[-3:], strict=True):
        scores = dict(zip(*[iter(line.removeprefix(f"{name}: ").split())] * 2, strict=True))
        assert float(scores["knn"]) == pytest.approx(stored[name]["knn"], rel=1e-3)
        if name == "raw pixels":  # of other dimensions: no baseline of RankMe
            assert "rank" not in scores
        else:
            assert 1 <= float(scores["rank"]) <= 20


def test_eval_takes_an_older_step_and_other_eval_settings(finished, capsys):
    assert (
        cli.main(
            ["ssl-jax", "eval", str(finished / "checkpoints" / "10"), "--config.evals.knn.k=(3,)"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("sop, step 10\n") and "knn_k3" in out and "knn_k10" not in out


def test_eval_adds_what_the_config_lacks_and_leaves_results(finished, tmp_path, capsys):
    data = [f"--config.evals.dense.data.{k}" for k in ("size=16", "length=12")]
    add = ["--add=dense", "--config.evals.dense.k=3", "--config.evals.dense.test_examples=6"]
    out = tmp_path / "new" / "scores"
    assert cli.main(["ssl-jax", "eval", str(finished), *add, *data, f"--out={out}"]) == 0
    printed = capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert list(results) == list(evals.ROWS)
    assert set(results["trained"]) == {"dense", "dense_pixel"}  # what was added, and nothing else
    assert (out / "results.txt").read_text() in printed
    assert (out / "pictures" / "segmentation.png").is_file()


def test_eval_of_one_file_repeats_the_run(finished, tmp_path, capsys):
    network = api.load(finished)
    api.save(network, tmp_path / "network.safetensors")
    assert cli.main(["ssl-jax", "eval", str(tmp_path / "network.safetensors"), "--task=knn"]) == 0
    of_file = capsys.readouterr().out
    assert cli.main(["ssl-jax", "eval", str(finished), "--task=knn"]) == 0
    assert capsys.readouterr().out == of_file


def test_export_of_a_run_tells_of_it(finished, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["ssl-jax", "export", str(finished), "--to", "timm", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f'timm.create_model("local-dir:{out}", pretrained=True)\n')
    assert "Not in it, as no part of the encoder: head" in said
    card = (out / "README.md").read_text()
    results = json.loads((finished / "results.json").read_text())
    for row in results:
        assert row in card
    numbers = " | ".join(f"{scores['knn']:.4g}" for scores in results.values())
    assert f"| knn | {numbers} |" in card
    assert "| trained on | photo_collages, crops of 16 px, " in card and "```bash\n" in card
    assert "workdir" not in card
    again, encoder = api.load(out), api.load(finished)
    for ours, theirs in zip(*map(jax.tree.leaves, (encoder.backbone, again.backbone)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # One checkpoint of it that is not the last: the scores are not its own.
    older = min((finished / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    out = tmp_path / "older"
    assert cli.main(["ssl-jax", "export", str(older), "--to=hf", f"--out={out}"]) == 0
    assert "## Scores" not in (out / "README.md").read_text()


def test_export_of_a_file_keeps_its_notes(finished, tmp_path, capsys):
    arguments = ["ssl-jax", "export", str(finished), "--to=npz", f"--out={tmp_path / 'a.npz'}"]
    assert cli.main(arguments) == 0
    arguments = ["ssl-jax", "export", str(tmp_path / "a.npz"), "--to=hf", f"--out={tmp_path / 'b'}"]
    assert cli.main(arguments) == 0
    assert "| knn | " in (tmp_path / "b" / "README.md").read_text()


def test_eval_of_published_weights(tmp_path, capsys):
    """They belong to no method and no run; the untrained network is one of their shape."""
    np.savez(tmp_path / "weights.npz", **published.encoder(d=64))
    data = [f"--config.evals.rank.data.{k}" for k in ("size=32", "length=8")]
    arguments = ["--family=dino", "--add=rank", *data, "--config.evals.rank.test_examples=6"]
    assert cli.main(["ssl-jax", "eval", str(tmp_path / "weights.npz"), *arguments]) == 0
    untrained, raw, loaded = capsys.readouterr().out.splitlines()[-3:]
    scores = [float(line.split()[-1]) for line in (untrained, loaded)]
    assert scores[0] != scores[1] and all(1 <= score <= 6 for score in scores)
    assert raw.strip() == "raw pixels:"  # which RankMe does not count


def test_eval_of_a_run_from_before_a_key(finished, copy, monkeypatch, capsys):
    """A config that lacks keys of today, has others and one of another type: they have defaults."""
    known = settings.completed
    stored = api.saved_config(copy).to_dict()
    del stored["evals"]["cache"], stored["evals"]["knn"]["layers"], stored["model"]["attention"]
    stored["evals"]["knn"]["gone"], stored["model"]["remat"] = 3, True
    seen = []

    def older(config):
        seen.append(known(FrozenConfigDict(stored)))
        return seen[-1]

    monkeypatch.setattr(settings, "completed", older)
    assert cli.main(["ssl-jax", "eval", str(copy), "--task=knn"]) == 0
    assert capsys.readouterr().out.startswith("sop, step 12")
    assert seen[0].evals.cache == "" and seen[0].evals.knn.layers == 1
    assert seen[0].model.remat == "none" and "gone" not in seen[0].evals.knn
    whole = FrozenConfigDict(known(api.config_lib.from_json(json.dumps(stored))))
    assert whole.optim == api.saved_config(finished).optim


def test_a_finished_run_is_left_as_it_is(finished, copy, capsys):
    assert cli.main(["ssl-jax", "train", CONFIG, f"--workdir={copy}"]) == loop.EXIT_DONE
    same = [
        name
        for name, content in files(finished).items()
        if name.suffix in (".jsonl", ".csv") and content
    ]
    assert len(same) == 4
    assert all((copy / name).read_bytes() == (finished / name).read_bytes() for name in same)


def test_a_run_folder_says_what_was_run(finished):
    assert json.loads((finished / "config.json").read_text())["run"]["total_steps"] == 12
    assert (
        json.loads((finished / "environment.json").read_text())["versions"]["jax"]
        == jax.__version__
    )
    assert [row["step"] for row in log.read_rows(finished / "metrics.jsonl")] == list(range(1, 13))
    scores = log.read_rows(finished / "evals.jsonl")
    assert [row["step"] for row in scores] == [0, 4, 8, 12]
    results = json.loads((finished / "results.json").read_text())
    assert {"step": 12, **results["trained"]} == scores[-1]  # the last ones belong to the curves


def test_show_names_origins_and_costs(capsys):
    assert (
        cli.main(["ssl-jax", "show", CONFIG, "--config.optim.lr=0.5", "--config.evals.tasks=()"])
        == 0
    )
    out = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in out.partition("\n\n")[0].splitlines())
    assert {
        key: rows[key].split()
        for key in ("optim.lr", "evals.tasks", "optim.clip", "model.patch", "run.total_steps")
    } == {
        "optim.lr": ["0.5", "command", "line"],
        "evals.tasks": ["()", "command", "line"],
        "optim.clip": ["3.0", "default"],
        "model.patch": ["4", "config", "file"],
        "run.total_steps": ["12", "computed"],
    }
    run = api.prepare(tiny.config("sop"))
    count = sum(x.size for x in jax.tree.leaves(run.abstract.params))
    assert f"parameters, all                  {count:,}\n" in out
    assert "forward, one 16 px image" in out and "training step, per image" in out and "FLOP" in out


def test_origins_of_a_resolved_config():
    default, file = settings.base_config("dino"), settings.base_config("dino")
    file.optim.epochs, file.dino.prototypes = 50.0, 1024
    final = ConfigDict(file.to_dict())
    final.update_from_flattened_dict({"optim.lr": 1e-3, "seed": 0, "optim.epochs": 20.0})
    resolved = settings.resolve(final, num_records=10_240, num_devices=8)
    layers = {"default": default, "config file": file, "command line": final}
    got = show.origins(layers, resolved)
    expected = {
        "optim.lr": "command line",
        "optim.epochs": "command line",
        "dino.prototypes": "config file",
        "dino.head_hidden": "default",
        "method": "default",
        "model.width": "computed",
        "run.total_steps": "computed",
        "seed": "default",
        "views.jitter": "default",
    }
    assert {key: got[key] for key in expected} == expected
    assert set(got) == set(config_lib.flatten(resolved))


def with_nan(indices) -> ArraySource:
    images = np.random.default_rng(0).random((32, 24, 24, 3), np.float32)
    images[list(indices)] = np.nan
    return ArraySource(images)


def test_nan_in_a_batch_is_counted_and_survived(tmp_path, capsys):
    assert api.train(tiny.config("sop"), tmp_path / "run", records=with_nan([5])) == loop.EXIT_DONE
    rows = log.read_rows(tmp_path / "run" / "metrics.jsonl")
    # The image comes once in each of three epochs.
    assert len(rows) == 12 and rows[-1]["nonfinite"] == 3
    assert [row["step"] for row in rows if not row["finite"]] == [
        row["step"] for row in rows if not np.isfinite(row["loss"])
    ]
    assert sum(row["finite"] for row in rows) == 9
    out = capsys.readouterr().out
    assert out.count("had a non-finite loss or gradient and was left out") == 3
    assert "nonfinite 3" in out  # on the progress line
    encoder = api.load(tmp_path / "run")
    assert encoder.step == 12
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(encoder.params))


def test_nothing_but_nan_stops_the_run(tmp_path):
    config = tiny.config("sop", max_nonfinite=2)
    with pytest.raises(InputError, match=r"2 steps in a row \(the last: 2\) had a non-finite loss"):
        api.train(config, tmp_path / "run", records=with_nan(range(32)))


def test_names_from_elsewhere_are_of_keys_that_exist():
    known = set(settings.keys())
    for own, names in arguments_lib._SYNONYMS.items():
        assert own in known | {"--workdir"}
        assert not known & {f"{own.rpartition('.')[0]}.{name}" for name in names.split()}


def test_a_flag_may_stand_before_its_value(capsys):
    assert cli.main(["ssl-jax", "show", "--config", "sop:photos", "--config.seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["ssl-jax", "show", "--config=sop:photos", "--config.seed=3"]) == 0
    assert shown == capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["ssl-jax", "--version"]) == 0
    versions = capsys.readouterr().out
    assert f"jax {jax.__version__}" in versions and "ssl-jax" in versions


def test_a_device_that_is_not_there_is_one_line(capsys, monkeypatch):
    """JAX says so when it is first used; any other RuntimeError keeps its traceback."""
    texts = iter(["Unable to initialize backend 'cuda': no driver\nmore", "something else"])

    def run(argv):
        raise RuntimeError(next(texts))

    monkeypatch.setattr("ssl_jax.cli.show.run", run)
    assert cli.main(["ssl-jax", "show"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("ssl-jax: Unable to initialize backend 'cuda': no driver; check the")
    with pytest.raises(RuntimeError, match="something else"):
        cli.main(["ssl-jax", "show"])


def test_platform_is_what_jax_uses(monkeypatch):
    used = {}
    monkeypatch.setattr("jax.config.update", used.__setitem__)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "jax_cuda13_plugin")
    assert platforms.choose(["eval", "--platform=gpu", "x"]) == ["eval", "x"]
    assert used == {"jax_platforms": "cuda,cpu"}
    platforms.choose(["--platform=cpu"])
    assert used == {"jax_platforms": "cpu"}
