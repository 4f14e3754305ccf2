"""The Markdown pages are true: links lead somewhere, what commands name exists, examples run, and
the README's commands do what it says.
"""

import importlib
import re
import shlex

import numpy as np
import pytest

import ssl_jax
from ssl_jax import cli, evals, papers
from ssl_jax import config as config_lib
from ssl_jax.cli import arguments
from ssl_jax.cli import commands as cli_commands
from tests.conftest import ROOT
from tests.data.records import save, write_tfds

# What a page leaves to the reader.
MINE = re.compile(r"mine|METHOD|NAME|PAPER|VARIANT|path/to|\.\.\.")


_NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/tried.md")
_PATHS = [ROOT / name for name in _NAMES]
# What runs `ssl-jax train` with the arguments that follow.
_LAUNCHED = r"\b(sbatch|bash)\b[^\n`]*launch/(slurm\.sbatch|tpu_pod\.sh \w+ \w+)(?= )"

PAGES = {path: path.read_text() for path in (*_PATHS, *sorted((ROOT / "docs").rglob("*.md")))}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The words of every `ssl-jax` command of a page, in blocks and within sentences."""
    text = re.sub(_LAUNCHED, "ssl-jax train", text.replace("\\\n", " "))
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    words = [shlex.split(line, comments=True) for line in lines if "ssl-jax" in line]
    return [line[line.index("ssl-jax") :] for line in words if "ssl-jax" in line]


def test_links_lead_somewhere():
    for path, text in PAGES.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if not target.startswith("http"):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path.name}: {target}"


def test_pictures_are_shown_and_small():
    text = "".join(PAGES.values())
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{picture.name})" in text and picture.stat().st_size < 200_000, picture


def test_tests_that_hold_a_promise_exist():
    for name in ("CONTRIBUTING.md", "docs/reliability.md", "docs/resuming.md"):
        named = set(re.findall(r"`(tests/[\w/.-]+\.py)`", PAGES[ROOT / name]))
        named = {test for test in named if "NAME" not in test}  # what a reader is to write
        assert named and all((ROOT / test).is_file() for test in named), sorted(named)


def test_commands_name_what_exists():
    checked = 0
    for path, text in PAGES.items():
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
            keys = {key.removeprefix("config.") for key in options if key.startswith("config.")}
            assert not known or keys <= known.keys(), f"{path.name}: {keys - known.keys()}"
            checked += bool(known)
    assert checked >= 5


def test_scripts_that_are_named_exist():
    """Of commands in pages, in configs and in rows of papers."""
    files = [*(ROOT / "configs").glob("*.py"), *(ROOT / "ssl_jax" / "papers").glob("*.toml")]
    text = " ".join([*PAGES.values(), *(path.read_text() for path in files)])
    scripts = set(re.findall(r"(?<![\w/])(?:launch|benchmarks|experiments)/[\w/]+\.\w+", text))
    assert len(scripts) > 10 and not [name for name in scripts if not (ROOT / name).is_file()]
    modules = set(re.findall(r"-m\s((?:launch|benchmarks|experiments)[\w.]*)(?:\s(\w+))?", text))
    for module, word in modules:
        if module.startswith("launch"):
            found = [ROOT / f"{module.replace('.', '/')}{end}" for end in (".py", "/__main__.py")]
            assert any(path.is_file() for path in found), module
        else:
            names = ("NAME", *importlib.import_module(f"{module}.__main__").NAMES)
            assert word in names, (module, word)
    assert len(modules) > 10


def test_commands_of_blocks_parse():
    parsers = cli_commands.parsers()[1]
    for path, text in PAGES.items():
        for words in commands("".join(f"```bash\n{b}```\n" for b in blocks(text, "bash"))):
            if not any(MINE.search(word) for word in words):
                keys, rest = arguments.split(words[2:])
                assert not keys or parsers[words[1]].takes_keys, f"{path.name}: {words}"
                parsers[words[1]].check_flags(rest)
                parsers[words[1]].parse_args(rest)


def test_examples_run():
    """Every Python block that imports what it makes arrays with."""
    examples = [b for text in PAGES.values() for b in blocks(text, "python")]
    examples = [b for b in examples if re.search(r"^import (jax|numpy)", b, re.MULTILINE)]
    # Not those of files: what a command before it wrote, a photograph of the reader's.
    examples = [b for b in examples if "np.load(" not in b and ".open(" not in b]
    assert len(examples) >= 4
    for example in examples:
        exec(compile(example, "example", "exec"), {})


def test_the_page_of_evaluations_names_every_protocol_there_is():
    text = PAGES[ROOT / "docs" / "evaluation.md"]
    pairs = re.findall(r"(?<=[`=])(\w+):(\w+)\b(?!\*)", text)
    named = {pair for pair in pairs if pair[0] in evals.TYPES}
    known = {(type, name) for type, t in evals.TYPES.items() for name in t.protocols}
    assert named == known - {("classify", "imagenet")}
    assert all(f"`{type}" in text for type in evals.TYPES)


# As little as `ssl-jax train` can do.
TINY = """
    optim.steps=1 optim.batch_size=8 mesh.data=1 evals.tasks=() data.name=shapes data.workers=0
    model.size=custom model.width=24 model.heads=2 model.depth=1 model.image_size=32
    views.global_size=32 views.local_count=0 sop.head_hidden=16 sop.head_out=8
    sop.cls.anchors=16 sop.patch.anchors=16
""".split()


@pytest.mark.slow
def test_the_commands_of_the_readme_run_in_their_order(tmp_path, monkeypatch):
    text = PAGES[ROOT / "README.md"]
    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), np.uint8)
    for i, image in enumerate(images):
        save(tmp_path / "images" / f"{i:02}.png", image)
    splits = {"train": range(12), "validation": range(12)}
    write_tfds(tmp_path / "tfds", "shapes", splits, mask=False)
    monkeypatch.chdir(tmp_path)
    ran = []
    for words in commands(text):
        words = [re.sub("/my/|/data/", f"{tmp_path}/", word) for word in words]
        keys = [key for key in TINY if "name" not in key or "--config=quickstart" not in words]
        tiny = [f"--config.{key}" for key in keys] * (words[1] == "train")
        assert cli.main([*words, *tiny]) == 0, words
        ran.append(words[1])
    assert {"train", "show", "embed", "export", "report"} <= set(ran)
    vectors = np.load("vectors.npz")
    assert vectors["image"].shape == (24, 24) and len(vectors["names"]) == 24
    assert (tmp_path / "exported" / "mine" / "model.safetensors").is_file()
    assert (tmp_path / "report.html").is_file()
    save(tmp_path / "photo.jpg", images[0])
    (code,) = [block for block in blocks(text, "python") if "ssl_jax.load" in block]
    names: dict = {}
    exec(compile(code, "example", "exec"), names)
    assert names["features"].image.shape == (1, 128)
    assert names["features"].patches.shape == (1, 28, 28, 128)
    features = ssl_jax.load("runs/mine")(images[:2])
    np.testing.assert_allclose(features.image, vectors["image"][:2], atol=1e-5)
