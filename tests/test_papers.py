"""The papers' tables as data: what a file may say, and how a row is named."""

import json
import re

import pytest

from ssl_jax import config as config_lib
from ssl_jax import evals, papers
from ssl_jax.config import InputError
from tests.conftest import ROOT

ROW = """
[[row]]
id = "table1/small"
place = "table 1, small"
config = "sop:photos"
changes = { "sop.cls.anchors" = 64, "views.global_scale" = [0.5, 1.0] }
expected = { knn = 10.5, linear = "20 (official README)" }
note = "scales are not published"
ours = { knn = "9.5 (seed 0)" }

[[row]]
id = "table2"
place = "table 2"
config = "sop:photos"
expected = {}
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        (tmp_path / "mine.toml").write_text(text)
        return papers.read(tmp_path / "mine.toml")

    return write_and_read


def test_a_row_has_its_place_numbers_and_config(read):
    first, second = read(ROW)
    assert (first.name, first.place) == ("mine/table1/small", "table 1, small")
    assert first.expected == {"knn": "10.5 (paper, table 1)", "linear": "20 (official README)"}
    assert first.ours == {"knn": "9.5 (seed 0)"} and first.note == "scales are not published"
    assert (second.changes, second.expected, second.note) == ({}, {}, "")
    config = first.load()
    assert (config.sop.cls.anchors, config.views.global_scale) == (64, (0.5, 1.0))
    assert config.expected.to_dict() == first.expected
    changed = set(config_lib.changed(config_lib.load("sop:photos"), config))
    assert changed == {*first.changes, "expected.knn", "expected.linear"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("place =", "plaec ="), "plaec"),
        (('place = "table 1, small"\n', ""), "place"),
        (('id = "table2"', 'id = "table1/small"'), "table1/small"),
        (('"table 2"', "2"), "place"),
        (("10.5", "true"), "knn"),
        (("expected = {}", "expected ="), "mine.toml"),
        (("cls.anchors", "cls.anchor"), "sop.cls.anchor"),  # once its config is made
    ],
)
def test_a_file_that_says_something_else_is_refused(read, change, named):
    with pytest.raises(InputError, match=named):
        [row.load() for row in read(ROW.replace(*change))]


def test_rows_are_found_by_name_with_our_numbers_beside_the_papers(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "OURS", tmp_path / "ours.json")
    papers.OURS.write_text(json.dumps({"sop/table10/K1024": {"knn": "55.5 ± 1.0 (small scale)"}}))
    row = papers.find("sop/table10/K1024")
    assert row.changes == {"sop.cls.anchors": 1024} and row.expected["knn"].startswith("69.5")
    assert row.ours == {"knn": "55.5 ± 1.0 (small scale)"}
    assert papers.find("sop/table10/K2048").ours == {}
    for name in ("sopp/table10/K1024", "sop/table10/K1023"):
        with pytest.raises(InputError):
            papers.find(name)


def test_numbers_are_of_rows_that_exist():
    names = {row.name for paper in papers.names() for row in papers.load(paper)}
    numbers = json.loads(papers.OURS.read_text())
    assert numbers.keys() <= names
    assert all(isinstance(text, str) for scores in numbers.values() for text in scores.values())
    # A config has the numbers of the row that changes nothing.
    assert papers.expected("sop:vits16")["knn"] == "75.3 (paper, table 1)"
    assert papers.expected("sop:photos") == papers.expected("quickstart") == {}


@pytest.mark.parametrize("name", papers.names())
def test_the_rows_of_a_paper(name):
    rows = papers.load(name)
    # Each has its place; only FLSL has rows twice, see its file.
    assert len({(row.place, row.config.endswith("_paper")) for row in rows}) == len(rows)
    # The score of a linear layer names its protocol in brackets: one of this package's, or a
    # paper's own that it does not have.
    known = {p for type in ("linear", "segment", "knn") for p in evals.TYPES[type].protocols}
    for score in (score for row in rows for score in row.expected):
        if "linear" in score or "layers" in score:
            (named,) = re.findall(r"linear[^(]*\(([\w, ]+)\)|layers \((\w+)\)", score)
            assert set("".join(named).split(", ")) <= known | {"MAE", "DINOv2"}, score


def test_the_page_counts_them():
    page = (ROOT / "docs" / "papers.md").read_text()
    counts = re.findall(
        r"^\| \[.*\(methods/(\w+)\.md\) .* \| (\d+) \| (\d+) \| (.*) \|$", page, re.M
    )
    assert {name for name, *_ in counts} == set(papers.names())
    for name, rows, ours, lacking in counts:
        loaded = papers.load(name)
        assert (int(rows), int(ours)) == (len(loaded), sum(bool(row.ours) for row in loaded)), name
        assert (lacking == "none") == (not papers.missing(name)), name
