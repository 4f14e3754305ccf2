"""`ssl-jax show`: configs and papers, keys, the rows of a paper, a row, what cannot be trained
here.
"""

import jax
import pytest

from ssl_jax import api, cli, papers
from ssl_jax import config as config_lib
from ssl_jax.cli import show
from ssl_jax.config import InputError
from tests import tiny
from tests.conftest import ROOT


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


@pytest.mark.parametrize("name", papers.names())
def test_every_fact_about_a_row_stands_below_its_name_within_100_columns(shown, name):
    rows = papers.load(name)
    text = shown(f"--paper={name}")
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    starts = [f"\n{row.name}: " for row in rows]
    for row, start, end in zip(rows, starts, [*starts[1:], "\n\n"], strict=True):
        block = text[text.index(start) :].partition(end)[0]
        assert " ".join(block.split()).startswith(f"{row.name}: {row.place}")
        assert (" [" in block) == bool(row.note) and row.note in words
        for number in (*row.expected.items(), *row.ours.items()):
            assert set(" ".join(number).split()) <= set(block.split())


# --- a config, a row


@pytest.mark.parametrize(
    ("devices", "data", "fsdp", "on"),
    [(8, 0, 1, 8), (8, 2, 1, 2), (8, 0, 3, 6), (1, 0, 8, 8), (1, 2, 8, 16)],
)
def test_a_config_is_shown_for_a_mesh_that_this_machine_lacks(monkeypatch, devices, data, fsdp, on):
    monkeypatch.setattr(show, "_costs", lambda config: [])
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    config = tiny.config("dino", optim__batch_size=48, data__length=96)
    config.mesh.update(dict(data=data, fsdp=fsdp))
    lines = [cells(line) for line in show.text({"config file": config}).splitlines()]
    assert ["run.batch_per_device", str(48 // on), "computed"] in lines


def test_a_row_is_shown_with_origins_place_and_note(shown):
    text = shown("--row=sop/table10/K1024", "--config.optim.lr=0.001", "--config.seed=0")
    lines = text.splitlines()
    origin = {line.split()[0]: cells(line)[-1] for line in lines if "  " in line}
    assert origin["sop.cls.anchors"] == origin["expected.knn"] == "paper's row"
    assert origin["sop.cls.tasks"] == "config file" and origin["optim.lr"] == "command line"
    assert origin["seed"] == "default" and origin["run.total_steps"] == "computed"
    assert "expected knn 69.5 (paper, table 10)" in " ".join(text.split())
    assert "sop/table10/K1024: table 10, K = 1024" in lines
    assert papers.find("sop/table10/K1024").note in " ".join(text.split())


def test_costs_are_shown(shown):
    text = shown(f"--config={ROOT / 'tests' / 'tiny_run.py'}:sop")
    abstract = api.prepare(tiny.config("sop", small=True)).abstract
    assert f"{sum(x.size for x in jax.tree.leaves(abstract.params)):,}\n" in text
    assert "FLOP" in text


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


# --- what there is


@pytest.mark.parametrize("name", papers.names())
def test_what_a_paper_has_and_no_config_gives(name, shown):
    text = " ".join(shown(f"--paper={name}", "--missing").split())
    entries = papers.missing(name)
    assert entries or "every number" in text
    for entry in entries:
        assert f"{entry.place}: {entry.why}" in text
        assert all(f"{score} {number}" in text for score, number in entry.expected.items())


def test_every_config_and_paper_is_listed(shown):
    text = shown()
    for name, path in config_lib.shipped().items():
        assert f"{name}: " in text
        variants = getattr(config_lib.read_module(path), "VARIANTS", ())
        assert all(f" {variant}" in text for variant in variants)
    assert all(name in text.partition("--paper=NAME")[2] for name in papers.names())
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_key_means(shown):
    text = shown("--keys=optim.weight_decay")
    assert text.startswith("optim.weight_decay: ") and "0.04" in text
    everything = shown("--keys")
    assert "\nflsl." in everything and "\nevals.davis." in everything
    of_sop = shown("--keys", "--config=sop:photos")
    assert "\nsop." in of_sop and "\nflsl." not in of_sop and "\nevals.davis." not in of_sop
