"""The command line: every mistake gives one line on stderr, exit code 2 and leaves nothing behind;
each command does what it should with good input.

Promises about the process itself are in tests/process/test_cli.py.
"""

import collections
import errno
import json
import os
import shlex
import shutil

import jax
import numpy as np
import pytest
from ml_collections import FrozenConfigDict
from PIL import Image

from ssl_jax import api, cli, evals, settings
from ssl_jax.cli import cache, export, platforms, show
from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.train import log, loop
from tests import tiny
from tests.conftest import ROOT
from tests.convert import published

CONFIG = f"--config={ROOT / 'tests' / 'tiny_run.py'}:dino"


def run(*words) -> int:
    """The exit code of a command in this process."""
    return cli.main(["ssl-jax", *map(str, words)])


def contents(folder) -> dict:
    """{path: content} of everything below a folder."""
    return {
        p.relative_to(folder): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


@pytest.fixture
def refused(capfd):
    """Runs a command that must be refused with one line, which it returns."""

    def refused(*words, code=cli.EXIT_INPUT) -> str:
        capfd.readouterr()
        assert run(*words) == code
        out, err = capfd.readouterr()
        assert err.startswith("ssl-jax: ") and err.endswith("\n") and err.count("\n") == 1, err
        assert "step" not in out
        return err

    return refused


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run. Not to be changed: see `copy`."""
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    assert run("train", CONFIG, f"--workdir={workdir}") == loop.EXIT_DONE
    return workdir


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


# --- bad command lines

# Command -> what its line must name. RUN: a folder that is not there; CONFIG: a tiny run.
BAD = """
     -> train
    trian CONFIG -> train
    train --workdir=RUN -> --config
    train CONFIG CONFIG --workdir=RUN -> --config
    train --config=configs/sopp.py:cifar10 --workdir=RUN -> configs/sop.py
    train --config=configs/sop.py:cifar --workdir=RUN -> cifar10
    train --config=sopp --workdir=RUN -> sop
    train CONFIG -> --workdir
    train CONFIG --wrkdir=RUN -> workdir
    train sop:photos --workdir=RUN -> --config=sop:photos
    train CONFIG --workdir=RUN --lr=1 -> --config.KEY
    resume RUN -> train --help
    train CONFIG --workdir=RUN --distributd -> --distributed
    train CONFIG --workdir=RUN zoo -> zoo
    train CONFIG --workdir=RUN --config.optim.lr -> --config.optim.lr
    train CONFIG --workdir=RUN --config.learning-rate=1 -> optim.lr
    train CONFIG --workdir=RUN --config.mesh=1 -> mesh.fsdp
    train CONFIG --workdir=RUN --config.optim.lr=fast -> optim.lr
    train CONFIG --workdir=RUN --config.optim.batch_size=8.5 -> optim.batch_size
    train CONFIG --workdir=RUN --config.model.cls=perhaps -> model.cls
    train CONFIG --workdir=RUN --config.views.global_scale=wide -> views.global_scale
    train CONFIG --workdir=RUN --config.data.length=5 -> optim.batch_size
    train CONFIG --workdir=RUN --config.method=sop -> sop
    train CONFIG --workdir=RUN --config.data.kind=folder --config.data.dir=/none -> /none
    train CONFIG --workdir=RUN --config.evals.knn.data.kind=folder \
        --config.evals.knn.data.dir=/none -> /none
    train CONFIG --workdir=RUN --profile=5 -> --profile
    train --import=no_such_module --config=dino:photos --workdir=RUN -> no_such_module
    train --import=ssl_jax.nosuch --config=dino:photos --workdir=RUN -> ssl_jax.nosuch
    train CONFIG --config.imports=json.nosuch --workdir=RUN -> json.nosuch
    train CONFIG --workdir=RUN --extend=2e3 -> --extend
    train CONFIG --workdir=RUN --extend=2000 -> --extend
    train CONFIG --row=sop/table10/K1024 --workdir=RUN -> --row
    train --row=sop/table10/K1023 --workdir=RUN -> table10/K1024
    show --row=sopp/table1 -> sopp
    show --config.seed=1 -> --config
    show --paper=SOP -> did you mean "sop"
    show --keys=xyz -> xyz
    show --keys xyz -> xyz
    show zoo -> zoo
    show CONFIG --platform=gpus -> gpu
    show CONFIG --platform gpu -> .[gpu]
    show --paper=sop --config.optim.lr=1 -> config.optim.lr
    show --paper=sop dino -> dino
    eval -> NETWORK
    eval RUN -> run
    eval sop_quickstart -> zoo/sop_quickstart
    export zoo/sop_speedrun --to=timm --out=RUN -> model.stem="linear"
    eval RUN --out=nowhere/scores.json -> nowhere
    eval RUN --row=sop/table10/K1024 -> --row
    export --to=timm -> NETWORK
    export RUN -> --to
    export RUN --to=safetensor --out=RUN -> safetensors
    export RUN --to=npz -> --out
    export RUN zoo --to=npz --out=RUN -> zoo
    export RUN --config.optim.lr=1 --to=npz --out=RUN -> config.optim.lr
    check -> run directory
    check RUN -> run
    plan CONFIG --devices=0 -> --devices
    report -> directory
    report RUN -> run
    embed -> NETWORK
    embed zoo/sop_quickstart here -> --out
    embed zoo/gone here --out=RUN.npy -> .npz
    embed zoo/sop_quickstart here --out=RUN.npz --layers=two -> --layers
"""


@pytest.mark.parametrize("line", [line.strip() for line in BAD.strip().splitlines()])
def test_bad_commands(refused, tmp_path, monkeypatch, line):
    monkeypatch.chdir(ROOT)  # "configs/sopp.py" is a path of the checkout
    command, _, named = line.partition("-> ")
    command = command.replace("CONFIG", CONFIG).replace("RUN", str(tmp_path / "run"))
    assert named in refused(*shlex.split(command))
    assert not list(tmp_path.iterdir())


# RUN: a finished run; HERE: a folder that holds a file of somebody's, of the name behind the arrow.
BAD_FOR_A_RUN = """
    eval RUN --task=knnn -> knn
    eval RUN --config.optim.lr=1 -> optim.lr
    eval RUN --config.evals.knn.kk=1 -> evals.knn.k
    eval RUN --config.evals.tasks=() -> --task
    eval RUN --add=linar -> linear
    eval RUN --add=dense:cribo -> evals.dense_cribo.data.kind
    eval RUN --add=logistic --config.evals.logistic.data.dir=/none -> evals.logistic.data.dir
    eval RUN --add=knn -> --add=knn
    eval RUN CONFIG -> checkpoint
    report RUN --out=none/page.html -> none
    report RUN --out=page.pdf -> .html
    report RUN --ouut=x -> ouut
    embed RUN here --out=RUN/x.npz --config.data.size=3 -> data.size
    eval RUN/checkpoints/7 -> checkpoints/7
    eval RUN/pictures -> checkpoints/
    train CONFIG --config.model.depth=3 --config.optim.lr=0.1 --workdir=RUN -> model.depth is 1
    train CONFIG --workdir=HERE/run -> run
    train CONFIG --workdir=HERE -> checkpoints
    train CONFIG --workdir=HERE -> metrics.csv
    train CONFIG --workdir=HERE -> config.json
    eval RUN --out=HERE/scores.json -> scores.json
    eval RUN --out=HERE -> results.txt
    eval RUN --out=HERE/scores -> scores
    report RUN --out=HERE/report.html -> report.html
    export RUN --to=npz --out=HERE/a.npz -> a.npz
    export RUN --to=safetensors --out=HERE/a.safetensors -> a.safetensors
    export RUN --to=hf --out=HERE -> config.json
"""


@pytest.mark.parametrize("line", [line.strip() for line in BAD_FOR_A_RUN.strip().splitlines()])
def test_bad_commands_for_a_run(refused, finished, tmp_path, line):
    command, _, named = line.partition(" -> ")
    if "HERE" in command:
        (tmp_path / named).write_text("{}")
    before = contents(finished), contents(tmp_path)
    for word, place in dict(CONFIG=CONFIG, HERE=str(tmp_path), RUN=str(finished)).items():
        command = command.replace(word, place)
    assert named in refused(*command.split())
    assert (contents(finished), contents(tmp_path)) == before


# --- bad data, a bad disk, bad checkpoints


def make_images(folder, count, damaged=False):
    folder.mkdir()
    for i in range(count):
        path = folder / f"{i:02d}.jpg"
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (24, 24, 3), np.uint8)).save(path)
        if damaged:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("count", "more", "named"),
    [
        (16, CONFIG, "data.max_unreadable"),  # of damaged images
        (0, CONFIG, "no image"),
        (0, f"{CONFIG} --config.data.kind=tfds --config.data.name=cifar10", "cifar10"),
        (10, "--config=quickstart --config.evals.tasks=knn", "evals.knn"),  # needs labels
    ],
)
def test_bad_folders(refused, tmp_path, count, more, named):
    make_images(tmp_path / "images", count, damaged=count == 16)
    folder = ["--config.data.kind=folder", f"--config.data.dir={tmp_path / 'images'}"]
    assert named in refused("train", *folder, *more.split(), f"--workdir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_a_disk_without_room_for_the_checkpoints(refused, tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2**30, 2**30 - 2**20, 2**20))
    assert "checkpoints" in refused("train", CONFIG, f"--workdir={tmp_path / 'a' / 'run'}")
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint(refused, copy):
    """tests/train/test_checkpoint.py has more of them."""
    newest = copy / "checkpoints" / "12"
    files = (newest / "state" / "ocdbt.process_0" / "d").iterdir()
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    before = contents(copy)
    assert str(newest) in refused("eval", newest)
    assert run("check", copy) == cli.EXIT_INPUT
    assert contents(copy) == before


@pytest.mark.slow
def test_the_checkpoint_before_a_damaged_one_goes_on(finished, copy, capfd, refused):
    shutil.rmtree(copy / "checkpoints" / "12" / "state")
    words = ["train", CONFIG, f"--workdir={copy}"]
    assert run(*words) == loop.EXIT_DONE
    out = capfd.readouterr().out
    assert f"{copy}/damaged/12" in out and "resuming from step 10" in out
    assert (copy / "results.json").read_bytes() == (finished / "results.json").read_bytes()
    for step in (10, 12):
        shutil.rmtree(copy / "checkpoints" / str(step) / "meta")
    for _ in range(2):  # never from nothing, where there was something
        assert "checkpoint" in refused(*words)


# --- numbers that are not finite


def with_nan(indices) -> ArraySource:
    images = np.random.default_rng(0).random((32, 24, 24, 3), np.float32)
    images[list(indices)] = np.nan
    return ArraySource(images)


@pytest.mark.slow
def test_nan_in_a_batch_is_counted_and_survived(tmp_path):
    config = tiny.config("dino", small=True, data__crop_on="device")  # floats
    assert api.train(config, tmp_path / "run", records=with_nan([5])) == loop.EXIT_DONE
    rows = log.read_rows(tmp_path / "run" / "metrics.jsonl")
    # The image comes once in each of three epochs.
    assert len(rows) == 12 and rows[-1]["nonfinite"] == 3
    assert [row["finite"] for row in rows] == [np.isfinite(row["loss"]) for row in rows]
    assert sum(row["finite"] for row in rows) == 9
    encoder = api.load(tmp_path / "run")
    assert encoder.step == 12
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(encoder.params))
    config.max_nonfinite = 2
    with pytest.raises(InputError, match="non-finite"):
        api.train(config, tmp_path / "nothing", records=with_nan(range(32)))


# --- a run


def test_train_leaves_a_run_folder(finished):
    assert json.loads((finished / "config.json").read_text())["run"]["total_steps"] == 12
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["versions"]["jax"] == jax.__version__
    assert [row["step"] for row in log.read_rows(finished / "metrics.jsonl")] == list(range(1, 13))
    scores = log.read_rows(finished / "evals.jsonl")
    assert [row["step"] for row in scores] == [0, 4, 8, 12]
    results = json.loads((finished / "results.json").read_text())
    assert results["trained"].pop("knn_images") == 20
    assert {"step": 12, **results["trained"]} == scores[-1]  # the last ones belong to the curves


@pytest.mark.slow
def test_train_and_check_leave_a_finished_run_as_it_is(finished, copy):
    assert run("check", copy) == 0
    assert contents(copy) == contents(finished)
    reported = (copy / "results.json").stat().st_mtime_ns
    assert run("eval", copy, f"--out={copy}") == cli.EXIT_INPUT
    assert run("train", CONFIG, f"--workdir={copy}") == loop.EXIT_DONE
    assert (copy / "results.json").stat().st_mtime_ns == reported  # not made again
    logs = [p.name for p in finished.iterdir() if p.suffix in (".jsonl", ".csv")]
    logs += ["config.json", "environment.json"]
    assert len(logs) == 7
    assert all((copy / name).read_bytes() == (finished / name).read_bytes() for name in logs)


def test_a_run_of_a_row_has_its_config_and_numbers(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(api, "train", lambda config, *_, **__: started.append(config) or 0)
    row = ["--row=sop/table10/K1024", "--config.optim.lr=1"]
    assert run("train", *row, f"--workdir={tmp_path / 'run'}") == 0
    (config,) = started
    assert config.expected.to_dict() == {"knn": "69.5 (paper, table 10)"}
    assert (config.sop.cls.anchors, config.optim.epochs, config.optim.lr) == (1024, 300.0, 1.0)


def test_a_run_below_the_home_folder_is_found(refused, finished, monkeypatch):
    monkeypatch.setenv("HOME", str(finished.parent))
    words = ("train", CONFIG, f"--workdir=~/{finished.name}", "--extend=12")
    assert "use more than 12" in refused(*words)


def test_report(finished, tmp_path):
    pytest.importorskip("jinja2")
    out = tmp_path / "report.html"
    assert run("report", finished, f"--out={out}") == 0
    text = out.read_text("utf-8")
    assert text.count("<img ") == len(list((finished / "pictures").glob("*.png"))) > 0
    for scores in json.loads((finished / "results.json").read_text()).values():
        assert f">{scores['knn']:.1f}" in text


def scores_of(text: str) -> dict:
    """{row: {score: number}} of what eval prints last."""
    rows = [line.partition(": ") for line in text.splitlines()[-len(evals.ROWS) :]]
    pairs = {name: zip(*[iter(scores.split())] * 2, strict=True) for name, _, scores in rows}
    return {name: {key: float(x) for key, x in row} for name, row in pairs.items()}


def test_eval_repeats_the_run(finished, tmp_path, capsys):
    """So does eval of one file of its network."""
    stored = json.loads((finished / "results.json").read_text())
    capsys.readouterr()
    assert run("eval", finished, "--task=knn,rank") == 0
    text = capsys.readouterr().out
    scores = scores_of(text)
    assert text.startswith("dino, step 12\n") and list(scores) == list(evals.ROWS)
    for name, row in scores.items():
        assert row["knn"] == pytest.approx(stored[name]["knn"], rel=1e-3)
        if name == "raw pixels":  # of other dimensions: no baseline of RankMe
            assert "rank" not in row
        else:
            assert 1 <= row["rank"] <= 20
    api.save(api.load(finished), tmp_path / "network.safetensors")
    assert run("eval", tmp_path / "network.safetensors", "--task=knn,rank") == 0
    assert capsys.readouterr().out == text


def test_eval_alone_says_how_far_it_is_where_there_is_no_terminal(finished, capsys, monkeypatch):
    monkeypatch.setattr("ssl_jax.cli.eval._EVERY", 0.01)
    assert run("eval", finished, "--config.evals.baselines=False") == 0
    text = capsys.readouterr().out
    assert "\nthe trained network" in text
    assert "untrained" not in text and "raw pixels" not in text


def test_eval_takes_an_older_step_and_other_settings(finished, capsys):
    assert run("eval", finished / "checkpoints" / "10", "--config.evals.knn.k=(3,)") == 0
    out = capsys.readouterr().out
    assert out.startswith("dino, step 10\n") and "knn_k3" in out and "knn_k10" not in out


@pytest.mark.slow
def test_eval_adds_what_the_config_lacks_and_leaves_results(finished, tmp_path):
    add = ["--task=knn", "--add=dense"]
    add += [f"--config.evals.dense.{entry}" for entry in ("k=3", "test_examples=6")]
    add += [f"--config.evals.dense.data.{entry}" for entry in ("size=16", "length=12")]
    out = tmp_path / "new" / "scores"
    assert run("eval", finished, *add, f"--out={out}") == 0
    results = json.loads((out / "results.json").read_text())
    assert list(results) == list(evals.ROWS)
    # What was named and what was added, and nothing else.
    assert {name.partition("_")[0] for name in results["trained"]} == {"knn", "dense"}
    assert (out / "results.txt").is_file() and (out / "pictures" / "segmentation.png").is_file()


def test_eval_of_published_weights(tmp_path, capsys):
    """They belong to no method and no run; the untrained network is one of their shape."""
    np.savez(tmp_path / "weights.npz", **published.dinov2())  # with a mask token
    add = ["--family=dinov2", "--heads=2", "--add=rank", "--config.evals.rank.test_examples=6"]
    add += [f"--config.evals.rank.data.{entry}" for entry in ("size=32", "length=8")]
    assert run("eval", tmp_path / "weights.npz", *add) == 0
    untrained, raw, loaded = scores_of(capsys.readouterr().out).values()
    assert untrained["rank"] != loaded["rank"] and not raw
    assert all(1 <= row["rank"] <= 6 for row in (untrained, loaded))


def test_a_stored_config_from_before_a_key_is_completed(finished):
    """It lacks keys of today, has others and one of another type: they have defaults."""
    stored = api.saved_config(finished).to_dict()
    optim = FrozenConfigDict(stored["optim"])
    del stored["evals"]["cache"], stored["evals"]["knn"]["layers"], stored["model"]["attention"]
    stored["evals"]["knn"]["gone"], stored["model"]["remat"] = 3, True
    whole = FrozenConfigDict(settings.completed(FrozenConfigDict(stored)))
    assert whole.evals.cache == "" and whole.evals.knn.layers == 1
    assert whole.model.remat == "none" and "gone" not in whole.evals.knn
    assert whole.optim == optim


def test_export_of_a_run_tells_of_it(finished, tmp_path):
    out = tmp_path / "out"
    assert run("export", finished, "--to", "timm", "--out", out) == 0
    card = (out / "README.md").read_text()
    results = json.loads((finished / "results.json").read_text())
    numbers = " | ".join(f"{scores['knn']:.4g}" for scores in results.values())
    assert f"| knn | {numbers} |" in card and all(row in card for row in results)
    assert str(finished) not in card
    again, encoder = api.load(out), api.load(finished)
    for ours, theirs in zip(*map(jax.tree.leaves, (encoder.backbone, again.backbone)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # One checkpoint of it that is not the last: the scores are not its own.
    assert run("export", finished / "checkpoints/10", "--to=hf", f"--out={tmp_path / 'b'}") == 0
    assert "| knn |" not in (tmp_path / "b" / "README.md").read_text()
    assert run("export", finished, "--to=npz", f"--out={tmp_path / 'a.npz'}") == 0  # keeps them
    assert run("export", tmp_path / "a.npz", "--to=hf", f"--out={tmp_path / 'c'}") == 0
    assert "| knn |" in (tmp_path / "c" / "README.md").read_text()


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("train --config=dino --workdir=/me/a --distributed", "train --config=dino --distributed"),
        ("train --workdir /me/a --coordinator=me:1 --config=dino", "train --config=dino"),
        (
            "train --config /me/my.py:large --config.data.dir=/me/images --config.init_from ~/w.npz"
            " --config.data.list=list.txt",
            "train --config my.py:large --config.data.dir=images --config.init_from w.npz"
            " --config.data.list=list.txt",
        ),
    ],
)
def test_a_published_command_has_no_folders_of_this_machine(given, wanted):
    assert export._command(["/me/bin/ssl-jax", *given.split()]) == f"ssl-jax {wanted}"


# --- help, platforms


@pytest.mark.parametrize(
    "words",
    ["--help", "help", "help eval", "--version", *(f"{name} --help" for name in cli.COMMANDS)],
)
def test_help_is_no_error(capsys, words):
    assert run(*words.split()) == 0
    out, err = capsys.readouterr()
    own = f"ssl-jax {words.removesuffix('--help').removeprefix('help').strip()}"
    assert not err and (jax.__version__ if words == "--version" else own) in out


@pytest.mark.parametrize(("given", "kept"), [(None, True), ("", False), ("/elsewhere", False)])
def test_compiled_programs_are_kept_unless_told_otherwise(monkeypatch, tmp_path, given, kept):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    if given is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    updates = []
    monkeypatch.setattr(jax.config, "update", lambda *pair: updates.append(pair))
    cache.keep_programs()
    assert updates == [("jax_compilation_cache_dir", str(cache.folder()))] * kept
    assert cache.folder().parent == tmp_path / "ssl_jax"


def test_without_a_home_folder_programs_are_not_kept(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache.Path, "home", home)
    before = jax.config.values["jax_compilation_cache_dir"]
    cache.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] == before


@pytest.mark.parametrize("others", [True, False])
def test_programs_that_not_all_processes_see_are_not_kept(monkeypatch, tmp_path, others):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(cache.distributed, "is_first", lambda: True)
    monkeypatch.setattr(cache.distributed, "gather_json", lambda value: [value, others])
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "new"))
    updates = []
    with monkeypatch.context() as patched:
        patched.setattr(jax.config, "update", lambda *pair: updates.append(pair))
        cache.only_shared()
    jax.config.update("jax_compilation_cache_dir", before)
    assert updates == [("jax_enable_compilation_cache", False)] * (not others)
    assert not list((tmp_path / "new").iterdir())


def test_only_an_unexpected_error_keeps_its_traceback(refused, monkeypatch):
    """A disk or a file is at fault; JAX says that a device is not there when it is first used, or
    that its memory is full. The broken pipe is not that of the output."""
    errors = [OSError(errno.ECHILD, "No child"), BrokenPipeError(), RuntimeError("something else")]
    errors += [OSError(errno.ENOENT, "No such file", "gone"), OSError(errno.EIO, "a disk")]
    errors += [RuntimeError("Unable to initialize backend 'cuda': no driver\nmore")]
    errors += [RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")]
    given = iter(errors)

    def broken(options):
        raise next(given)

    monkeypatch.setattr(show, "run", broken)
    for error in errors[:3]:
        with pytest.raises(type(error)):
            run("show")
    assert "gone" in refused("show") and "a disk" in refused("show", code=1)
    assert "cuda" in refused("show") and "optim.chunks" in refused("show")


def test_platform_is_what_jax_uses(monkeypatch):
    used = {}
    monkeypatch.setattr("jax.config.update", used.__setitem__)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "jax_cuda13_plugin")
    platforms.use("gpu")
    assert used == {"jax_platforms": "cuda,cpu"}
    platforms.use("cpu")
    assert used == {"jax_platforms": "cpu"}
