"""The data flow is the import graph: a module imports only from its left; heavy libraries stay
where they belong.
"""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import ssl_jax
from ssl_jax import extras
from tests.conftest import ROOT

PACKAGE = ROOT / "ssl_jax"

# Left to right.
ORDER = """
    extras trees config papers ops runtime models losses convert data views methods features scores
    evals train settings report api cli __main__
""".split()

# All that ops and losses may import.
NUMERICS = {"jax", "jaxtyping", "numpy", "ssl_jax"} | sys.stdlib_module_names


def module_name(path: Path) -> str:
    """ssl_jax/ops/voting.py -> "ssl_jax.ops.voting"; ssl_jax/ops/__init__.py -> "ssl_jax.ops"."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Full names of what a file imports, at its top or inside a function; `from a import b` gives
    "a.b"."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
# Of each module but the root, which only imports on first use: what it imports of the package, and
# top-level names of all that it imports.
OWN, OUTSIDE = {}, {}
for _name in FILES.keys() - {"ssl_jax"}:
    _all = imports(FILES[_name])
    _inside = {x for x in _all if x.startswith("ssl_jax.")}
    OWN[_name] = {x if x in FILES else x.rpartition(".")[0] for x in _inside}
    OUTSIDE[_name] = {x.partition(".")[0] for x in _all}


def place(name: str) -> int:
    """Position of a module, or else of its package, in ORDER."""
    inner = name.removeprefix("ssl_jax.")
    part = inner if inner in ORDER else inner.partition(".")[0]
    assert part in ORDER, f"{name} has no place in the data flow: add {part!r} to ORDER"
    return ORDER.index(part)


def test_every_module_imports_only_from_its_left():
    for name, own in OWN.items():
        assert "ssl_jax" not in own, f"{name} imports from the root what is no module"
        wrong = {target for target in own if place(target) > place(name)}
        assert not wrong, f"{name} imports {sorted(wrong)}, which stand to its right"
    graph = {name: own - {name} for name, own in OWN.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError
    of_config = set().union(*(OWN[name] for name in OWN if name.startswith("ssl_jax.config")))
    assert all(name.startswith("ssl_jax.config") for name in of_config)


def test_heavy_libraries_stay_where_they_belong():
    """TensorFlow and what imports it nowhere; torch where its own file format is read."""
    for name, outside in OUTSIDE.items():
        part = name.split(".")[1]
        allowed = {"torch"} if name == "ssl_jax.convert.read" else set()
        assert not outside & {"tensorflow", "clu", "torch", "albumentations"} - allowed, name
        assert part == "models" or "flax" not in outside, name
        if part in ("ops", "losses"):
            assert outside <= NUMERICS, name
            assert {target.split(".")[1] for target in OWN[name]} <= {"ops", "losses"}


def python(code: str) -> None:
    """In a fresh interpreter."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numerics_work_without_what_the_extras_bring():
    """The root imports nothing, ops and losses JAX alone; everything else names its extra."""
    blocked = {name for names in extras.EXTRAS.values() for name in names} | {"tensorflow", "clu"}
    python(f"""
import sys
sys.modules.update(dict.fromkeys({sorted(blocked)}))
import ssl_jax
assert {{"ops", "losses", "methods", "models", "evals"}} <= set(dir(ssl_jax))
assert not sys.modules.keys() & {{"jax", "numpy"}}
from ssl_jax import losses, ops
import jax.numpy as jnp
x = jnp.eye(4)
assert ops.sinkhorn_knopp(x, temperature=1.0).shape == (4, 4)
views = x[None].repeat(2, 0)
kinds = dict(student_temperature=0.1, teacher_temperature=0.1)
assert losses.dino(views, views, jnp.zeros(4), **kinds)["loss"] > 0
try:
    ssl_jax.load
except ModuleNotFoundError as error:
    assert "ssl_jax.load" in str(error) and ".[train]" in str(error), error
else:
    raise AssertionError("nothing was missing")
""")


def test_the_root_is_complete_and_the_command_line_loads_no_tensorflow():
    python("""
import sys, ssl_jax.cli
assert not sys.modules.keys() & {"tensorflow", "torch"}
assert all(getattr(ssl_jax, name) for name in ssl_jax.__all__)
""")


def test_root_hides_no_other_error(monkeypatch):
    """A module that no extra brings is a fault of ours, and stays what it is."""
    error = ModuleNotFoundError("No module named 'ssl_jax.gone'", name="ssl_jax.gone")
    monkeypatch.setattr(ssl_jax.importlib, "import_module", mock.Mock(side_effect=error))
    with pytest.raises(ModuleNotFoundError) as caught:
        ssl_jax.__getattr__("models")
    assert caught.value is error
    with pytest.raises(AttributeError, match="opps"):
        ssl_jax.opps  # noqa: B018
