"""`ssl-jax show`: the rows of a paper, a row, a config that cannot be trained here."""

import os
import subprocess
import sys

import pytest

from ssl_jax import cli, papers
from ssl_jax import config as config_lib
from ssl_jax.cli import show
from ssl_jax.config import InputError
from tests.conftest import ROOT

ROWS = (
    papers.Row(
        "mine",
        "table1/small",
        "table 1, small",
        "sop:photos",
        {"knn": "10.5 (paper, table 1)", "linear": "20"},
        note="scales are not published",
        ours={"knn": "9.5"},
    ),
    papers.Row(
        "mine",
        "table2",
        "table 2",
        "sop:photos",
        {"knn": "collapse"},
        note="scales are not published",
    ),
    papers.Row("mine", "table3", "table 3", "sop:photos", {"knn": "11"}, ours={"psnr": "30"}),
    papers.Row("mine", "stage", "a stage without a number", "sop:photos", {}),
)


def cells(line):
    """The cells of a line, without those that are empty."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_rows_numbers_and_notes():
    lines = show.table(ROWS).splitlines()
    assert lines[0] == "row: place [note]"
    assert cells(lines[1]) == ["score", "paper's", "ours"]
    assert set(lines[2]) == {"-"}
    assert [cells(line) for line in lines[3:11]] == [
        ["mine/table1/small: table 1, small [1]"],
        ["knn", "10.5 (paper, table 1)", "9.5"],
        ["linear", "20", "-"],
        ["mine/table2: table 2 [1]"],
        ["knn", "collapse", "-"],
        ["mine/table3: table 3"],
        ["knn", "11", "-"],
        ["psnr", "-", "30"],
    ]
    assert lines[11:] == [
        "mine/stage: a stage without a number",
        "",
        "[1] scales are not published",
    ]
    numbers = [line for line in lines[3:11] if not line.startswith("mine")]
    for titles in ("paper's", "ours"):
        start = lines[1].index(titles)
        assert all(line[start - 2 : start] == "  " != line[start] for line in numbers), "aligned"


def test_what_is_too_long_for_a_line_is_wrapped_in_its_column():
    long = " ".join(f"part{i}" for i in range(30))
    row = papers.Row("mine", "row", long, "sop:photos", {"knn": long}, ours={"knn": "9.5"})
    lines = show.table((row,)).splitlines()
    assert max(map(len, lines)) <= 100
    start, end = lines[1].index("paper's"), lines[1].index("ours")
    first = next(i for i, line in enumerate(lines) if line.startswith("  knn"))
    assert " ".join(line.strip() for line in lines[3:first]) == f"mine/row: {long}"
    assert " ".join(line[start:end].strip() for line in lines[first:]) == long
    assert lines[first].endswith("  9.5") and len(lines) > first + 1


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sop", "75.3 (paper, table 1)"),
        ("sove", "75.2"),
        ("massl", "75.1"),
        ("dino", "74.5"),
        ("stellar", "73.26"),
    ],
)
def test_the_rows_of_a_paper(capsys, monkeypatch, tmp_path, name, number):
    monkeypatch.chdir(tmp_path)  # works anywhere
    assert cli.main(["ssl-jax", "show", "--paper", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = papers.load(name)[0]
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{first.name}: {first.place}"))
    assert cells(lines[at + 1])[0] == next(iter(first.expected))
    assert cells(lines[at + 1])[1].startswith(number)


@pytest.mark.parametrize("name", papers.names())
def test_every_fact_about_a_row_stands_below_its_name_within_100_columns(name):
    rows = papers.load(name)
    text = show.table(rows)
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    starts = [f"\n{row.name}: " for row in rows]
    for row, start, end in zip(rows, starts, [*starts[1:], "\n\n"], strict=True):
        block = text[text.index(start) :].partition(end)[0]
        assert " ".join(block.split()).startswith(f"{row.name}: {row.place}")
        assert (" [" in block) == bool(row.note) and row.note in words
        for number in (*row.expected.items(), *row.ours.items()):
            assert set(" ".join(number).split()) <= set(block.split())


def test_a_row_is_shown_with_its_origin_place_and_note(capsys):
    setting = "--config.optim.lr=0.001"
    assert cli.main(["ssl-jax", "show", "--row=sop/table10/K1024", setting]) == 0
    lines = capsys.readouterr().out.splitlines()
    origin = {line.split()[0]: line.split("  ")[-1].strip() for line in lines if "  " in line}
    assert origin["sop.cls.anchors"] == origin["expected.knn"] == "paper's row"
    assert origin["sop.cls.tasks"] == "config file" and origin["optim.lr"] == "command line"
    assert any(
        line.split() == ["expected", "knn", "69.5", "(paper,", "table", "10)"] for line in lines
    )
    assert lines[-2] == "sop/table10/K1024: table 10, K = 1024"
    assert lines[-1].startswith("crop scales, temperatures and batch size")


def test_a_reader_that_closes_early_is_no_error():
    """As in `ssl-jax show ... | head -1`: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ssl_jax", "show", "--paper=sop"],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_config_whose_weights_must_be_fetched_is_shown_with_its_numbers():
    config = papers.find("stellar/table5/D").load()
    lines = show.text({"command line": config}).splitlines()
    assert any(line.startswith("expected linear ") and "42.14" in line for line in lines)
    assert any(
        line.startswith("cannot be trained here: ") and "tokenizer weights" in line
        for line in lines
    )
    config.stellar.prototypes = 1  # impossible, with or without weights
    with pytest.raises(InputError, match="stellar.prototypes is 1"):
        show.text({"command line": config})


def test_a_file_of_ones_own_imports_its_neighbours(tmp_path, capsys):
    (tmp_path / "shared.py").write_text("EPOCHS = 7.0\n")
    (tmp_path / "mine.py").write_text(
        "from ssl_jax import config as config_lib\n"
        "from . import shared\n"
        "def get_config(variant='photos'):\n"
        "    config = config_lib.load(f'sop:{variant}')\n"
        "    config.optim.epochs = shared.EPOCHS\n"
        "    return config\n"
    )
    assert config_lib.load(f"{tmp_path / 'mine.py'}:photos").optim.epochs == 7.0
    assert cli.main(["ssl-jax", "show", f"--config={tmp_path / 'mine.py'}"]) == 0
    assert "run.epochs" in capsys.readouterr().out


def test_keys_that_the_kind_of_images_has_no_use_for_are_not_shown():
    config = config_lib.load("quickstart")
    shown = show.text({"config file": config})
    assert "evals.dense.data.size" in shown and "evals.dense.data.masks" not in shown
    with config.unlocked():
        config.evals.knn.data.update(dict(kind="folder", dir="/images"))
    shown = show.text({"config file": config})
    assert "evals.knn.data.masks" in shown and "evals.linear.data.masks" not in shown
