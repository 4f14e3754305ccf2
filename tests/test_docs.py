"""The Markdown pages are true: links lead somewhere, what commands name exists, examples run."""

import base64
import json
import re
import shlex

import pytest

from ssl_jax import config as config_lib
from ssl_jax import evals, papers

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
# What a page leaves to the reader.
MINE = re.compile(r"mine|METHOD|NAME|PAPER|VARIANT|path/to|\.\.\.")


@pytest.fixture
def pages(root) -> dict:
    """{path: text} of all pages."""
    paths = [root / name for name in PAGES]
    paths = [p for path in paths for p in (path.rglob("*.md") if path.is_dir() else (path,))]
    return {path: path.read_text(encoding="utf-8") for path in sorted(paths)}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The words of every `ssl-jax` command of a page, in blocks and within sentences."""
    text = text.replace("\\\n", " ")
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    words = [shlex.split(line, comments=True) for line in lines if "ssl-jax" in line]
    return [line[line.index("ssl-jax") :] for line in words if "ssl-jax" in line]


def test_readme_is_short(root):
    lines = (root / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 100
    assert re.search(r"^bash launch/test\.sh( |$)", "\n".join(lines), re.MULTILINE)


def test_links_lead_somewhere(pages):
    for path, text in pages.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if not target.startswith("http"):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path.name}: {target}"


def test_commands_name_what_exists(pages):
    checked = 0
    for path, text in pages.items():
        for words in commands(text):
            options = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
            if any(MINE.search(options.get(name, "")) for name in ("config", "row", "paper")):
                continue
            known = {}
            if "paper" in options:
                assert papers.load(options["paper"]), path.name
            if "row" in options:
                known = config_lib.flatten(papers.find(options["row"]).load())
            if "config" in options:
                known = config_lib.flatten(config_lib.load(options["config"]))
            for key in options:
                if key.startswith("config.") and known:
                    assert key.removeprefix("config.") in known, f"{path.name}: {key}"
            checked += bool(known)
    assert checked >= 5


def test_examples_run(pages):
    """Every Python block that imports what it makes arrays with."""
    examples = [b for text in pages.values() for b in blocks(text, "python")]
    examples = [b for b in examples if re.search(r"^import (jax|numpy)", b, re.MULTILINE)]
    examples = [b for b in examples if "np.load(" not in b]  # of what a command before it wrote
    assert len(examples) >= 4
    for example in examples:
        exec(compile(example, "example", "exec"), {})


def test_pictures_are_small(root):
    pictures = list((root / "docs" / "pictures").iterdir())
    assert pictures and max(path.stat().st_size for path in pictures) < 200_000


@pytest.mark.parametrize("picture", ["patch_colours", "neighbours"])
def test_the_picture_is_the_notebooks(root, picture):
    """README and results show outputs of the notebook, to the byte."""
    notebook = json.loads((root / "notebooks" / "what_the_features_know.ipynb").read_text())
    images = [
        base64.b64decode(output["data"]["image/jpeg"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if "image/jpeg" in output.get("data", {})
    ]
    picture = root / "docs" / "pictures" / f"{picture}.jpg"
    assert picture.read_bytes() in images, "the notebook was run anew: take its picture again"


def test_the_page_of_evaluations_names_every_protocol_there_is(root):
    text = (root / "docs" / "evaluation.md").read_text()
    pairs = re.findall(r"(?<=[`=])(\w+):(\w+)", text)
    named = {pair for pair in pairs if pair[0] in evals.TYPES}
    known = {(type, name) for type, t in evals.TYPES.items() for name in t.protocols}
    assert named == known - {("classify", "imagenet")}
    assert all(f"`{type}" in text for type in evals.TYPES)
