"""`ssl-jax show`: configs and papers, keys, the rows of a paper, a row, what cannot be trained
here.
"""

import pytest

from ssl_jax import cli, papers
from ssl_jax import config as config_lib
from ssl_jax.cli import catalogue, show
from ssl_jax.config import InputError, key


@pytest.fixture
def shown(capsys):
    """What `ssl-jax show` prints."""

    def shown(*arguments) -> str:
        capsys.readouterr()
        assert cli.main(["ssl-jax", "show", *arguments]) == 0
        return capsys.readouterr().out

    return shown


def cells(line):
    """The cells of a line, without those that are empty."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def row(id, place, expected, note="", ours=None):
    return papers.Row("mine", id, place, "sop:photos", expected, note=note, ours=ours or {})


# --- tables


def test_rows_numbers_and_notes():
    note = "scales are not published"
    rows = (
        row(
            "table1/small",
            "table 1, small",
            {"knn": "10.5 (paper, table 1)", "linear": "20"},
            note,
            {"knn": "9.5"},
        ),
        row("table2", "table 2", {"knn": "collapse"}, note),
        row("table3", "table 3", {"knn": "11"}, ours={"psnr": "30"}),
        row("stage", "a stage without a number", {}),
    )
    lines = show.table(rows).splitlines()
    assert [cells(line) for line in lines if line.strip("- ")] == [
        ["row: place [note]"],
        ["score", "paper's", "ours"],
        ["mine/table1/small: table 1, small [1]"],
        ["knn", "10.5 (paper, table 1)", "9.5"],
        ["linear", "20", "-"],
        ["mine/table2: table 2 [1]"],
        ["knn", "collapse", "-"],
        ["mine/table3: table 3"],
        ["knn", "11", "-"],
        ["psnr", "-", "30"],
        ["mine/stage: a stage without a number"],
        [f"[1] {note}"],
    ]
    for title in ("paper's", "ours"):  # columns are aligned
        start = lines[1].index(title)
        numbers = [line for line in lines[3:11] if not line.startswith("mine")]
        assert all(line[start - 2 : start] == "  " != line[start] for line in numbers)


def test_what_is_too_long_for_a_line_is_wrapped_in_its_column():
    long = " ".join(f"part{i}" for i in range(30))
    lines = show.table((row("row", long, {"knn": long}, ours={"knn": "9.5"}),)).splitlines()
    assert max(map(len, lines)) <= 100
    start, end = lines[1].index("paper's"), lines[1].index("ours")
    first = next(i for i, line in enumerate(lines) if line.startswith("  knn"))
    assert " ".join(line.strip() for line in lines[3:first]) == f"mine/row: {long}"
    assert " ".join(line[start:end].strip() for line in lines[first:]) == long
    assert lines[first].endswith("  9.5") and len(lines) > first + 1


FIRST = {"sop": "75.3 (paper, table 1)", "sove": "75.2", "massl": "75.1", "dino": "74.5"}


@pytest.mark.parametrize("name", papers.names())
def test_every_fact_about_a_row_stands_below_its_name_within_100_columns(shown, name):
    rows = papers.load(name)
    text = shown(f"--paper={name}")
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    starts = [f"\n{row.name}: " for row in rows]
    for i, (row, start, end) in enumerate(zip(rows, starts, [*starts[1:], "\n\n"], strict=True)):
        block = text[text.index(start) :].partition(end)[0]
        assert " ".join(block.split()).startswith(f"{row.name}: {row.place}")
        assert (" [" in block) == bool(row.note) and row.note in words
        for number in (*row.expected.items(), *row.ours.items()):
            assert set(" ".join(number).split()) <= set(block.split())
        if i == 0:
            assert FIRST.get(name, "") in block


# --- a config, a row


def test_a_row_is_shown_with_its_origin_place_and_note(shown):
    text = shown("--row=sop/table10/K1024", "--config.optim.lr=0.001")
    lines = text.splitlines()
    origin = {line.split()[0]: cells(line)[-1] for line in lines if "  " in line}
    assert origin["sop.cls.anchors"] == origin["expected.knn"] == "paper's row"
    assert origin["sop.cls.tasks"] == "config file" and origin["optim.lr"] == "command line"
    assert "expected knn 69.5 (paper, table 10)" in " ".join(text.split())
    assert "sop/table10/K1024: table 10, K = 1024" in lines
    assert papers.find("sop/table10/K1024").note in " ".join(text.split())


@pytest.mark.slow
def test_what_cannot_be_trained_here_is_shown():
    config = papers.find("stellar/table5/D").load()
    text = show.text({"command line": config})
    assert "42.14" in text and "tokenizer weights" in text  # which must be fetched
    config.stellar.prototypes = 1  # impossible, with or without weights
    with pytest.raises(InputError, match="stellar.prototypes"):
        show.text({"command line": config})
    file, config = config_lib.load("sop:vits16"), config_lib.load("sop:vits16")
    config.data.dir = "nowhere"
    text = show.text({"config file": file, "command line": config})
    assert "75.3 (paper, table 1)" in text and "nowhere" in text.splitlines()[-1]


def test_a_file_of_ones_own_is_shown(shown, tmp_path):
    (tmp_path / "shared.py").write_text("EPOCHS = 7.0\n")
    (tmp_path / "mine.py").write_text(
        "from ssl_jax import config as config_lib\n"
        "from . import shared\n"
        "def get_config(variant='photos'):\n"
        "    config = config_lib.load(f'sop:{variant}')\n"
        "    config.optim.epochs = shared.EPOCHS\n"
        "    return config\n"
    )
    text = shown(f"--config={tmp_path / 'mine.py'}")
    assert ["optim.epochs", "7.0", "config file"] in map(cells, text.splitlines())


@pytest.mark.slow
def test_keys_that_the_kind_of_images_has_no_use_for_are_not_shown():
    config = config_lib.load("quickstart")
    text = show.text({"config file": config})
    assert "evals.dense.data.size" in text and "evals.dense.data.masks" not in text
    with config.unlocked():
        config.evals.knn.data.update(dict(kind="folder", dir="/images"))
    text = show.text({"config file": config})
    assert "evals.knn.data.masks" in text and "evals.linear.data.masks" not in text


# --- what there is


def test_every_config_and_paper_is_listed(shown):
    text = shown()
    for name, path in config_lib.shipped().items():
        assert f"{name}: " in text
        assert all(f" {variant}" in text for variant in config_lib.read_module(path).VARIANTS)
    assert all(name in text.partition("--paper=NAME")[2] for name in papers.names())
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_key_means(shown):
    declared = {
        "a.rate": key(0.5, "how fast", "steps", above=0),
        "a.kind": key("x", "which one", choices=("x", "y")),
        "b.names": key(("p",), "of things"),
    }
    lines = catalogue.explained(declared).splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "a.kind: which one",
        "a.rate: how fast",
        "b.names: of things",
    ]
    assert all(word in lines[1] for word in ("0.5", "steps", "above 0"))
    assert "x, y" in lines[0] and catalogue.explained(declared, "fast") == lines[1]
    text = shown("--keys=optim.weight_decay")
    assert text.startswith("optim.weight_decay: ") and "0.04" in text
    everything = shown("--keys")
    assert "\nflsl." in everything and "\nevals.davis." in everything
    of_sop = shown("--keys", "--config=sop:photos")
    assert "\nsop." in of_sop and "\nflsl." not in of_sop and "\nevals.davis." not in of_sop
