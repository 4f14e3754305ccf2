"""docs/tour.md is true: the code that it names and quotes is there, and arrays have its shapes."""

import ast
import importlib
import re
import textwrap

import jax
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax import config as config_lib
from ssl_jax.data import decode
from ssl_jax.methods import multicrop, sop
from ssl_jax.models import vit
from ssl_jax.train import setup, step
from ssl_jax.views import recipe
from tests.conftest import ROOT
from tests.data.records import save

TEXT = (ROOT / "docs" / "tour.md").read_text()
ANCHOR = re.compile(r"\[`([\w/]+\.py):([\w.]+)`\]\(\.\./ssl_jax/\1\)")
SHAPE = re.compile(r"`([^`\n]+): (\w+)\[([\d, ]*)\]`")
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def find(path: str, name: str) -> tuple[str, int]:
    """Source of a function or class, and its lines without docstrings and blank ones."""
    text = (ROOT / "ssl_jax" / path).read_text()
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        inside = [n for n in ast.walk(node) if isinstance(n, DEFINITIONS) and n.name == part]
        assert inside, f"{path} has no {name}"
        node = inside[0]
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    inside = [n for n in ast.walk(node) if isinstance(n, DEFINITIONS)]
    docs = [n.body[0].value for n in inside if ast.get_docstring(n, clean=False)]
    documented = sum(len(doc.value.strip().splitlines()) for doc in docs)
    return "\n".join(lines) + "\n", sum(map(bool, lines)) - documented


def test_code_that_the_tour_names_and_quotes_exists():
    anchors = list(ANCHOR.finditer(TEXT))
    assert len(anchors) >= 20
    lines = sum(find(*anchor.groups())[1] for anchor in anchors)
    assert 550 <= lines <= 750, lines  # "about 650"
    quotes = list(re.finditer(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    assert len(quotes) >= 10
    for quote in quotes:
        before = [anchor for anchor in anchors if anchor.start() < quote.start()]
        source, _ = find(*before[-1].groups())
        depths = [textwrap.indent(quote[1], " " * 4 * depth) for depth in range(6)]
        assert any(f"\n{text}" in source for text in depths), quote[1]


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


@pytest.fixture
def noted(monkeypatch):
    """{name: what each call of some functions returned, as shapes}."""
    calls: dict[str, list] = {}

    def note(place, name):
        function = getattr(place, name)

        def called(*args, **options):
            result = function(*args, **options)
            calls.setdefault(name, []).append(shapes(result))
            return result

        monkeypatch.setattr(place, name, called)

    note(recipe, "prepare")
    note(multicrop, "student_teacher")
    note(vit._ViT, "_embed")
    note(sop, "build")
    note(importlib.import_module("ssl_jax.losses.sop"), "_log_targets")
    return calls


def test_arrays_of_the_traced_step_have_the_shapes_of_the_tour(tmp_path, noted, monkeypatch):
    rng = np.random.default_rng(0)
    for i in range(64):
        size = (20, 30, 3) if i else (375, 500, 3)
        save(tmp_path / f"{i:02}.png", rng.integers(0, 256, size, np.uint8))
    config = config_lib.load("quickstart")
    config.data.kind, config.data.dir = "folder", str(tmp_path)
    config.evals.tasks = ()  # nothing is evaluated here
    config.mesh.data = 1
    run = api.prepare(config)
    batches = setup.open_loader(run)
    batch = next(batches)
    batches.close()
    outputs = []

    def encode(*args, **options):
        outputs.append(shapes(result := run.method.encode(*args, **options)))
        return result

    function = step.make_step(run.method._replace(encode=encode), run.optimizer, run.config)
    new, metrics = jax.eval_shape(function, run.abstract, batch)
    student, teacher = noted["student_teacher"][0]
    known = dict(
        pixels=decode.decode_image(str(tmp_path / "00.png")),
        record=run.source[0],
        batch=batch,
        views=noted["prepare"][0],
        x=noted["_embed"][0],
        student=student,
        teacher=teacher,
        outputs=outputs[0],
        sops=dict(zip(("members", "weights"), noted["build"][0], strict=True)),
        log_targets=noted["_log_targets"][0],
        state=new,
        metrics=metrics,
    )
    stated = SHAPE.findall(TEXT)
    assert len(stated) >= 20
    for expression, dtype, dims in stated:
        array = eval(expression, {}, known)
        shape = tuple(int(n) for n in dims.split(",") if n.strip())
        assert (str(array.dtype), array.shape) == (dtype, shape), expression
