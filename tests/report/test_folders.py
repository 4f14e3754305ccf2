"""What is read of run folders, and what is refused."""

import os

import pytest

from ssl_jax.config import InputError
from ssl_jax.report import folders
from tests.report import run_folders


def test_a_run_is_read(tmp_path):
    (run,) = folders.read([run_folders.write(tmp_path / "a")])
    assert (run.name, run.step, run.total_steps) == ("a", 100, 100)
    assert run.results == run_folders.RESULTS and run.config["seed"] == 0
    assert list(run.scores["knn"]) == [40.0, 55.0] and len(run.metrics["loss"]) == 10
    assert [path.name for path in run.pictures] == ["pca.png"] and run.failed == ()
    assert run.headings() == {"knn": ("knn", "k-NN")}


def test_a_run_that_has_just_begun_is_read(tmp_path):
    evals = {"birds": {"type": "knn"}, "mine": {"type": "of_a_module_elsewhere"}, "every_steps": 0}
    run_folders.write(tmp_path / "a", results=None, pictures=(), steps=0, evals=evals)
    (tmp_path / "a" / "evals.csv").unlink()
    (tmp_path / "a" / "pictures" / "pca.failed.txt").write_text("Traceback")
    (run,) = folders.read([tmp_path / "a"])
    assert run.results == {} and run.metrics == {} and run.scores == {} and run.step == 0
    assert run.failed == ("pca",)
    known = run.headings()  # they carry the names of evaluations
    assert known["birds_knn"] == ("birds", "birds k-NN") and known["knn"] == ("knn", "k-NN")
    assert known["mine_of_a_module_elsewhere"][0] == "mine"


@pytest.mark.parametrize(
    "paths, names",
    [(("/r/1/a", "/r/2/a", "/r/c"), ["1/a", "2/a", "c"]), (("/r/a", "/a"), ["r/a", "//a"])],
)
def test_names_tell_runs_apart(paths, names):
    assert folders.distinct([tuple(path.split("/")) for path in paths]) == [
        name.replace("//", "/") for name in names
    ]


@pytest.mark.parametrize(
    "path, named",
    [
        ("none", "none"),
        ("file", "file"),
        ("runs", "runs.* a"),  # the runs that it holds
        ("runs/a/checkpoints/100", "runs/a"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, path, named):
    run_folders.write(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "checkpoints" / "100").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=named):
        folders.read([tmp_path / path])
    with pytest.raises(InputError):  # each is named once
        folders.read([tmp_path / "runs" / "a", tmp_path / "runs" / ".." / "runs" / "a"])


MANY = "1" + "0" * 400
DAMAGES = {
    "config.json": ["{", "[" * 100_000, '{"a":' * 90 + "1" + "}" * 90, '{"evals": []}'],
    "environment.json": ["[]", '{"versions": []}', '{"devices": [[]]}', None],
    "results.json": [f'{{"trained": {{"knn": {x}}}}}' for x in ('"good"', MANY)],
    "metrics.csv": ["a,b\n1,2\n", "step,loss\n1e300,2\n", b"step,loss\n1,\xff\n"],
    "pictures/pca.png": [None],
}
DAMAGES["config.json"] += ['{"run": {"total_steps": "x"}}', '{"expected": 3}']
DAMAGES["config.json"] += [f'{{"optim": {{"batch_size": {MANY}}}}}']
DAMAGES["metrics.csv"] += ["step,loss\n1," + "9" * 200_000 + "\n"]


@pytest.mark.parametrize("name, text", [(n, text) for n in DAMAGES for text in DAMAGES[n]])
def test_damaged_files_are_named(tmp_path, name, text):
    """None: a link to what is not the run's, which the page would show."""
    run_folders.write(tmp_path / "a")
    file = tmp_path / "a" / name
    if text is None:
        file = file.rename(tmp_path / file.name)
        (tmp_path / "a" / name).symlink_to(file)
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=name):
        folders.read([tmp_path / "a"])


def test_null_is_as_nothing(tmp_path):
    nothing = {"run": None, "optim": {"batch_size": None}, "evals": None, "expected": {"knn": None}}
    (run,) = folders.read([run_folders.write(tmp_path / "a", **nothing)])
    assert run.total_steps == 0 and run.headings() == {}
    assert run.config == {
        **{name: run_folders.CONFIG[name] for name in ("method", "seed", "model", "data")},
        "optim": {"lr": 0.001},
        "expected": {},
    }


def test_what_is_no_file_is_left_alone(tmp_path):
    os.mkfifo(run_folders.write(tmp_path / "a", pictures=()) / "pictures" / "pca.png")
    assert folders.read([tmp_path / "a"])[0].pictures == ()
