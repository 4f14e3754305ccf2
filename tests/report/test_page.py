"""The report: what it says, that it needs nothing from outside, and that nothing in a run can break
out of its text."""

import datetime
import html.parser
import json
import re
import sys

import pytest

from ssl_jax import cli
from ssl_jax.report import comparison, folders, page
from tests.report import run_folders

pytest.importorskip("jinja2")
NOW = datetime.datetime(2026, 1, 2, 3, 4)
VOID = {"meta", "img", "input", "link", "br", "use"}


class Parsed(html.parser.HTMLParser):
    """Tags, attributes and text of a page; refuses tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        if not (self._open and self._open[-1] == "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def made(*paths, **words):
    return page.html(folders.read(paths), now=NOW, **words)


@pytest.fixture
def write(tmp_path):
    """write(name, knn of the trained network) -> a run folder; see `run_folders.write`."""

    def write(name, knn=62.5, *, others=(), **changes):
        results = {**run_folders.RESULTS, "trained": {"knn": knn}, **dict(others)}
        return run_folders.write(tmp_path / name, **dict(results=results) | changes)

    return write


def test_page_is_whole_and_needs_nothing_from_outside(write):
    a = write("a", pictures=("pca", "sop_neighbours", "curves"))
    text = made(a, write("b", optim={"lr": 0.5}, method="dino"))
    parsed = Parsed(text)
    assert text.startswith("<!DOCTYPE html>") and "script" not in parsed.tags
    for name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("data:image/", "#")), value[:80]
    assert not re.search(r"@import|url\((?!#)", text)
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for name, value in parsed.attributes if name == "href"}
    assert {t for t in targets if not t.startswith("c")} <= set(ids)
    for words in ("62.5", "+22.5 over untrained network", "optim.lr 0.001 0.5", "2 x gpu H100"):
        assert words in parsed.text, words
    images = re.findall(r"<img [^>]*>", text)
    assert len(images) == 4 and all(re.search(r'alt="[^"]+"', image) for image in images)
    for chart in re.findall(r"<svg role[^>]*>", text):
        assert re.search(r'aria-label="[^"]+"', chart)


HOSTILE = "<img src=x onerror=alert(1)>\"'&lt;{{ 7 * 7 }}</pre><script>alert(2)</script>"


def test_nothing_in_a_run_breaks_out_of_its_text(tmp_path):
    name = HOSTILE.replace("/", "\u2215")  # a slash cannot stand in a file's name
    folder = tmp_path / name
    run_folders.write(
        folder,
        pictures=(name, "pca"),
        method=HOSTILE,
        data={"kind": HOSTILE},
        expected={f"knn_{HOSTILE}": HOSTILE},
        evals={"knn": {"type": HOSTILE}},
        results={HOSTILE: {HOSTILE: 1.0}, "trained": {f"knn_{HOSTILE}": 2.0, HOSTILE: 1.0}},
    )
    environment = dict.fromkeys(run_folders.ENVIRONMENT, HOSTILE)
    environment |= dict(command=[HOSTILE], devices=[HOSTILE], versions={HOSTILE: HOSTILE})
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "pictures" / f"{name}.failed.txt").write_text("")
    run_folders.table(
        folder / "evals.csv", [{"step": 0, f"knn_{HOSTILE}": 1}, {"step": 9, f"knn_{HOSTILE}": 2}]
    )
    plain = run_folders.write(tmp_path / "plain")
    parsed = Parsed(made(folder, plain, title=HOSTILE))
    assert "script" not in parsed.tags and parsed.tags.count("img") == 3
    assert not [n for n, _ in parsed.attributes if n.startswith("on")]
    assert parsed.text.count("<script>alert(2)</script>") >= 8 and "{{ 7 * 7 }}" in parsed.text
    assert " 49" not in parsed.text.replace("149", "")


def test_runs_without_results_and_without_anything_have_a_page(write):
    a = write("a", results=None, pictures=(), steps=40)
    assert "40 of 100" in Parsed(made(a)).text
    b = write("b")
    (b / "pictures" / "pca.png").write_bytes(b"no picture")
    assert "pca.png" in (text := made(b)) and "<img" not in text
    rows = comparison.scores(folders.read([a, b]))["rows"][:2]
    assert [row["cells"][0]["text"] for row in rows] == ["\u2013", "62.5"]
    c = write("c", results=None, pictures=(), steps=0)
    (c / "evals.csv").write_text("")
    (c / "environment.json").unlink()
    parsed = Parsed(made(c))
    assert "0 of 100" in parsed.text and "img" not in parsed.tags


def test_a_run_that_replaces_its_files_has_a_page(write, monkeypatch):
    folder = write("a")
    monkeypatch.setattr(type(folder), "iterdir", lambda self: [self / "gone", self / "config.json"])
    assert "100 of 100" in Parsed(made(folder)).text


def best(table):
    return {row["name"]: row["cells"][0]["best"] for row in table["rows"]}


def test_best_is_marked_and_baselines_that_agree_share_a_row(write):
    a, b = write("a"), write("b", 70.0)
    table = comparison.scores(folders.read([a, b]))
    assert best(table) == {"a": False, "b": True, "untrained network": False, "raw pixels": False}
    expected = ["+30.0 over untrained network", "+40.0 over raw pixels"]
    assert table["rows"][1]["cells"][0]["notes"] == expected
    other = {"untrained network": {"knn": 65.0}}
    c = write("c", others=other, expected={"knn": "69.5 (table 1)"})
    table = comparison.scores(folders.read([a, b, c]))
    names = ["untrained network of a, b", "untrained network of c", "raw pixels"]
    assert [row["name"] for row in table["rows"]][3:] == names
    notes = table["rows"][2]["cells"][0]["notes"]
    assert (notes[0], notes[-1]) == ("\u22122.5 over untrained network", "expected 69.5 (table 1)")
    table = comparison.scores(folders.read([write("d", others={"raw pixels": {"knn": 90.0}})]))
    assert best(table) == {"d": False, "untrained network": False, "raw pixels": True}
    knn = {**run_folders.CONFIG["evals"]["knn"], "data": {"size": 48}}
    table = comparison.scores(folders.read([a, write("e", evals={"knn": knn})]))
    assert table["columns"] == [{"heading": "k-NN", "differing": ["data.size"], "images": ""}]
    assert not any(best(table).values())
    few = write("f", others={"trained": {"knn": 66.0, "knn_images": 74}})  # within the error
    assert not any(best(comparison.scores(folders.read([a, few]))).values())


def test_curves_settings_and_means_over_seeds(write):
    """Curves begin with the untrained network and end with the result."""
    runs = write("s0", 60.0, seed=0), write("s1", 64.0, seed=1), write("s2", 10.0, optim={"lr": 1})
    (group,) = comparison.over_seeds(folders.read(runs))
    assert group == {"names": ["s0", "s1"], "rows": [("k-NN", ["62.0 \u00b1 2.8"])]}
    run, other = folders.read([write("a"), write("b", optim={"lr": 0.5, "clip": 3.0})])
    found = comparison.settings([run, other])
    assert found["differing"] == [("optim.lr", ["0.001", "0.5"])]
    assert found["some"] == [("optim.clip", ["\u2013", "3.0"])]
    x, y = comparison.learning(run, "knn")
    assert list(x) == [0, 50, 100] and list(y) == [40.0, 55.0, 62.5]


def run(*arguments):
    return cli.main(["ssl-jax", "report", *map(str, arguments)])


def test_the_command_writes_the_page(write, tmp_path, monkeypatch, capsys):
    folders, out = (write("a"), write("b", results=None)), tmp_path / "page.html"
    assert run(*folders, "--out", out, "--title=Mine") == 0
    assert "<h1>Mine</h1>" in out.read_text("utf-8")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert run(*folders, "--out", out) == cli.EXIT_INPUT
    assert ".[train]" in capsys.readouterr().err
