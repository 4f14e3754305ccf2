"""The report: what it says, that it needs nothing from outside, and that nothing in a run can break
out of its text."""

import base64
import datetime
import html.parser
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from ssl_jax import cli
from ssl_jax.evals import charts, comparison, folders, page
from tests.evals import run_folders

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
        self.tags.append(tag)
        self.attributes += attributes
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


def cells(runs):
    table = comparison.scores(runs)
    return {row["name"]: [cell["text"] for cell in row["cells"]] for row in table["rows"]}


# --- the whole page


def test_page_is_whole_and_needs_nothing_from_outside(tmp_path):
    a = run_folders.write(tmp_path / "a", pictures=("pca", "sop_neighbours", "curves"))
    b = run_folders.write(tmp_path / "b", optim={"lr": 0.5}, method="dino")
    text = made(a, b)
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
    for words in (
        "Report on 2 runs, written 2026-01-02 03:04",
        "62.5",
        "+22.5 over untrained network",
        "Loss of sop",
        "Loss of dino",
        "sop: neighbours",
        "optim.lr 0.001 0.5",
        "ssl-jax train --config=quickstart '--workdir=runs/a b'",
        f"ssl-jax eval {a}",
        "2 x gpu H100",
    ):
        assert words in parsed.text, words


def test_every_picture_has_a_text_and_is_read_late(tmp_path):
    text = made(run_folders.write(tmp_path / "a", pictures=("pca", "curves")))
    images = re.findall(r"<img [^>]*>", text)
    assert len(images) == 2
    for image in images:
        assert 'loading="lazy"' in image and re.search(r'alt="[^"]+: a"', image)
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
    environment = dict.fromkeys(run_folders.ENVIRONMENT, HOSTILE) | {
        "command": [HOSTILE],
        "devices": [HOSTILE],
        "versions": {HOSTILE: HOSTILE},
    }
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


def test_a_run_without_results_shows_what_is_there(tmp_path):
    a = run_folders.write(tmp_path / "a", results=None, pictures=(), steps=40)
    text = Parsed(made(a)).text
    assert "No run has results yet" in text and "at step 40, no results yet" in text
    assert "40 of 100" in text and "Loss of sop" in text and "k-NN" in text
    b = run_folders.write(tmp_path / "b")
    both = cells(folders.read([a, b]))
    assert both["a"] == ["\u2013"] and both["b"] == ["62.5"]


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    a = run_folders.write(tmp_path / "a", results=None, pictures=(), steps=0)
    (a / "evals.csv").write_text("")
    (a / "environment.json").unlink()
    text = Parsed(made(a)).text
    assert "how it was trained is not recorded" in text and "0 of 100" in text
    assert "Curves" not in text and "Pictures" not in text


# --- scores


def test_best_is_marked_and_baselines_that_agree_share_a_row(tmp_path):
    better = {**run_folders.RESULTS, "trained": {"knn": 70.0}}
    a = run_folders.write(tmp_path / "a")
    b = run_folders.write(tmp_path / "b", results=better)
    table = comparison.scores(folders.read([a, b]))
    assert [row["name"] for row in table["rows"]] == ["a", "b", "untrained network", "raw pixels"]
    assert [row["cells"][0]["best"] for row in table["rows"]] == [False, True, False, False]
    assert table["rows"][1]["cells"][0]["notes"] == [
        "+30.0 over untrained network",
        "+40.0 over raw pixels",
    ]
    other = {**run_folders.RESULTS, "untrained network": {"knn": 65.0}}
    c = run_folders.write(tmp_path / "c", results=other, expected={"knn": "69.5 (table 1)"})
    table = comparison.scores(folders.read([a, b, c]))
    assert [row["name"] for row in table["rows"]][3:] == [
        "untrained network of a, b",
        "untrained network of c",
        "raw pixels",
    ]
    notes = table["rows"][2]["cells"][0]["notes"]
    assert notes[0] == "\u22122.5 over untrained network"
    assert notes[-1] == "expected 69.5 (table 1)"


def test_a_baseline_can_be_the_best(tmp_path):
    results = {**run_folders.RESULTS, "raw pixels": {"knn": 90.0}}
    table = comparison.scores(folders.read([run_folders.write(tmp_path / "a", results=results)]))
    best = {row["name"]: row["cells"][0]["best"] for row in table["rows"]}
    assert best == {"a": False, "untrained network": False, "raw pixels": True}


def test_no_best_where_evaluations_differ(tmp_path):
    a = run_folders.write(tmp_path / "a")
    knn = {**run_folders.CONFIG["evals"]["knn"], "data": {"size": 48}}
    b = run_folders.write(tmp_path / "b", evals={"knn": knn})
    table = comparison.scores(folders.read([a, b]))
    assert table["columns"] == [{"heading": "k-NN", "differing": ["data.size"]}]
    assert not any(cell["best"] for row in table["rows"] for cell in row["cells"])
    assert "These keys of the evaluation differ: data.size" in made(a, b)


def test_mean_over_seeds_of_runs_that_differ_in_nothing_else(tmp_path):
    def write(name, score, **changes):
        results = {**run_folders.RESULTS, "trained": {"knn": score}}
        return run_folders.write(tmp_path / name, results=results, **changes)

    a, b = write("a", 60.0, seed=0), write("b", 64.0, seed=1)
    other = write("c", 10.0, seed=2, optim={"lr": 1.0})
    (group,) = comparison.over_seeds(folders.read([a, b, other]))
    assert group == {"names": ["a", "b"], "rows": [("k-NN", ["62.0 \u00b1 2.8"])]}
    again = write("d", 60.0, seed=0)
    assert comparison.over_seeds(folders.read([a, again])) == []


# --- curves, pictures, settings


def test_curves_begin_with_the_untrained_network_and_end_with_the_result(tmp_path):
    (run,) = folders.read([run_folders.write(tmp_path / "a")])
    x, y = comparison.learning(run, "knn")
    assert list(x) == [0, 50, 100] and list(y) == [40.0, 55.0, 62.5]


def svg_points(svg, color):
    """Vertices of the lines of that colour."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="[^"]*' + re.escape(color), svg)
    return [len(re.findall("[ML]", path)) for path in paths]


def test_a_chart_takes_the_colours_of_its_page_and_has_ids_of_its_own():
    x = np.arange(2000.0)
    line = charts.Line(x, np.where(x == 7, np.nan, np.sin(x / 100)), 1)
    svg = charts.lines([line, line._replace(run=8)], label='a "b" <c>', number=3)
    assert svg.startswith('<svg role="img" aria-label="a &quot;b&quot; &lt;c&gt;" viewBox=')
    assert svg.endswith("</svg>") and "currentColor" in svg and "#0000" not in svg
    assert set(re.findall(r'\bid="(..)', svg)) == {"c3"}
    assert "stroke-dasharray" in svg  # of run 8, which has the colour of run 1
    assert "nan" not in svg
    ends = svg_points(svg, "var(--run-1)")
    assert len(ends) == 2 and all(50 < count <= charts._POINTS + 2 for count in ends)
    assert svg == charts.lines([line, line._replace(run=8)], label='a "b" <c>', number=3)


def test_wide_pictures_are_scaled_down_and_the_rest_keep_their_size(tmp_path):
    a = run_folders.write(tmp_path / "a", size=(2 * page.WIDEST, 100))
    b = run_folders.write(tmp_path / "b", size=(64, 32))
    (group,) = page._pictures(folders.read([a, b]))
    large, small = group["images"]
    assert (large["width"], large["height"]) == (page.WIDEST, 50)
    assert large["why"] == f"scaled down from {2 * page.WIDEST} x 100 pixels"
    assert (small["width"], small["height"], small["why"]) == (64, 32, "")
    data = base64.b64decode(large["src"].split(",")[1])
    assert Image.open(io.BytesIO(data)).size == (page.WIDEST, 50)


def test_an_animation_stays_as_it_is(tmp_path):
    a = run_folders.write(tmp_path / "a", pictures=())
    frames = [Image.new("RGB", (2 * page.WIDEST, 8), color) for color in ("red", "blue")]
    path = a / "pictures" / "davis.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    (group,) = page._pictures(folders.read([a]))
    (image,) = group["images"]
    assert image["src"] == "data:image/gif;base64," + base64.b64encode(path.read_bytes()).decode()
    assert (image["width"], image["why"]) == (2 * page.WIDEST, "")


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    a = run_folders.write(tmp_path / "a")
    (a / "pictures" / "pca.png").write_bytes(b"no picture")
    text = made(a)
    assert "pca.png cannot be read" in text and "<img" not in text


def test_settings_that_differ(tmp_path):
    a = run_folders.write(tmp_path / "a")
    b = run_folders.write(tmp_path / "b", optim={"lr": 0.5, "clip": 3.0}, seed=0)
    found = comparison.settings(folders.read([a, b]))
    assert found["differing"] == [("optim.lr", ["0.001", "0.5"])]
    assert found["some"] == [("optim.clip", ["\u2013", "3.0"])]


@pytest.mark.parametrize(
    "argv, command",
    [
        (["/x/ssl_jax/__main__.py", "train", "--a=b c"], "ssl-jax train '--a=b c'"),
        (["/usr/bin/ssl-jax", "train"], "ssl-jax train"),
        (["mine.py", "--x"], "python mine.py --x"),
        (["/usr/bin/mine", "--x"], "/usr/bin/mine --x"),
        ([], ""),
    ],
)
def test_commands_are_as_people_type_them(argv, command):
    assert page._command(argv) == command


# --- the command


def run(*arguments):
    return cli.main(["ssl-jax", "report", *map(str, arguments)])


def test_the_command_writes_the_page_and_says_its_size(tmp_path, capsys):
    a = run_folders.write(tmp_path / "a")
    b = run_folders.write(tmp_path / "b", results=None)
    out = tmp_path / "page.html"
    assert run(a, b, "--out", out, "--title=Mine") == 0
    text, said = out.read_text("utf-8"), capsys.readouterr().out
    assert "<h1>Mine</h1>" in text
    assert re.fullmatch(rf"{out}: 2 runs, 2 pictures, \d+\.\d MiB; without results yet: b\n", said)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "report needs a run folder"),
        (("RUN", "--out=none/page.html"), "the folder none does not exist"),
        (("RUN", "--out=page.pdf"), "ends in .html"),
        (("RUN/none",), "does not exist"),
        (("RUN", "RUN"), "given twice"),
        (("RUN", "--ouut=x"), "Unknown command line flag"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    run_folders.write(tmp_path / "RUN")
    assert run(*arguments) == cli.EXIT_INPUT
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))


def test_without_jinja2_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    a = run_folders.write(tmp_path / "a")
    assert run(a, f"--out={tmp_path / 'x.html'}") == cli.EXIT_INPUT
    assert "pip install 'ssl-jax[train]'" in capsys.readouterr().err
