"""`ssl-jax show --table`: the rows of a config file's TABLE, wherever the config files are."""

import pytest

from ssl_jax import cli, show
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from tests.conftest import ROOT

FILE = """
from typing import NamedTuple
from configs import shared

class Row(NamedTuple):
    paper: str
    arg: str
    expected: dict
    note: str = ""
    ours: dict = {}

TABLE: tuple = (
    Row(
        "table 1, small",
        "small",
        {"knn": shared.NUMBER, "linear": "20"},
        "scales are not published",
        {"knn": "9.5"},
    ),
    Row("table 2", "small,k=3", {"knn": "collapse"}, "scales are not published"),
    Row("table 3", "large", {"knn": "11"}, ours={"psnr": "30"}),
    Row("a stage without a number", "stage", {}),
)

def get_config(arg="small"):
    raise AssertionError("showing the table needs no config")
"""


@pytest.fixture
def folder(tmp_path):
    """A folder of config files of its own, below a folder that is not the current one."""
    configs = tmp_path / "elsewhere" / "configs"
    configs.mkdir(parents=True)
    (configs / "mine.py").write_text(FILE)
    (configs / "shared.py").write_text("NUMBER = '10.5 (paper, table 1)'\n")
    (configs / "plain.py").write_text("def get_config():\n    TABLE = 1\n")
    (configs / "broken.py").write_text("def get_config(:\n")
    return configs


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """Forgets `configs` modules before and after, so that each folder's own are imported."""
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "configs"]:
        monkeypatch.delitem(sys.modules, name)


def cells(line):
    """The cells of a line, without those that are empty."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_rows_numbers_and_notes(folder):
    lines = show.table("mine", folder).splitlines()
    argument = f"{folder / 'mine.py'}"
    assert cells(lines[0]) == ["row", "--config", "score", "paper's", "ours", "note"]
    assert set(lines[1]) == {"-"}
    assert [cells(line) for line in lines[2:8]] == [
        ["table 1, small", f"{argument}:small", "knn", "10.5 (paper, table 1)", "9.5", "[1]"],
        ["linear", "20", "-"],
        ["table 2", f"{argument}:small,k=3", "knn", "collapse", "-", "[1]"],
        ["table 3", f"{argument}:large", "knn", "11", "-"],
        ["psnr", "-", "30"],
        ["a stage without a number", f"{argument}:stage", "-", "-", "-"],
    ]
    assert lines[8:] == ["", "[1] scales are not published"]
    assert len({line.index("knn") for line in lines if "knn" in line}) == 1, "columns are aligned"


def test_an_unknown_name_is_answered_with_the_nearest_that_has_a_table(folder):
    with pytest.raises(
        InputError, match='unknown method "mini"; did you mean "mine".*known: mine.*TABLE in'
    ):
        show.table("mini", folder)
    for name in ("plain", "shared", "broken"):  # files without a TABLE of their own
        with pytest.raises(InputError, match=f'unknown method "{name}"'):
            show.table(name, folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(
        InputError, match='no folder "none" of config files: run this in the checkout'
    ):
        show.table("sop", tmp_path.parent.joinpath("none").relative_to(tmp_path.parent))


@pytest.mark.parametrize("config", ["{}", "{}/mine.py", "{}/mine.py:small", "{}/not_there.py"])
def test_the_folder_is_that_of_the_config_argument(folder, capsys, config):
    assert (
        cli.main(["ssl-jax", "show", "--table", "mine", f"--config={config.format(folder)}"]) == 0
    )
    assert "table 1, small" in capsys.readouterr().out


def test_the_folder_is_configs_of_the_current_directory(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert cli.main(["ssl-jax", "show", "--table=mine"]) == 0
    assert "configs/mine.py:small,k=3" in capsys.readouterr().out
    monkeypatch.chdir(folder)
    assert cli.main(["ssl-jax", "show", "--table=mine"]) == cli.EXIT_INPUT
    assert 'no folder "configs" of config files' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "number"),
    [("sop", "75.3 (paper, table 1)"), ("sove", "75.2"), ("massl", "75.1"), ("dino", "74.5")],
)
def test_the_tables_of_this_checkout(monkeypatch, capsys, name, number):
    monkeypatch.chdir(ROOT)
    assert cli.main(["ssl-jax", "show", "--table", name]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if f"configs/{name}.py:vits16 " in line]
    assert cells(line)[2] == "knn" and cells(line)[3].startswith(number)
    assert out.count(f"configs/{name}.py:") >= 4


def test_a_config_whose_weights_must_be_fetched_is_shown_with_its_numbers():
    config = config_lib.load(str(ROOT / "configs" / "stellar.py:vitb16,no_cluster"))
    lines = show.text(config, config).splitlines()
    assert any(line.startswith("expected linear ") and "42.14" in line for line in lines)
    assert any(
        line.startswith("cannot be trained here: ") and "tokenizer weights" in line
        for line in lines
    )
    config.stellar.prototypes = 1  # impossible, with or without weights
    with pytest.raises(InputError, match="stellar.prototypes is 1"):
        show.text(config, config)
