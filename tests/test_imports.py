"""The data flow is the import graph: a module imports only from its left; heavy libraries stay
where they belong.
"""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

from ssl_jax import extras

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "ssl_jax"

# Left to right; a dotted name stands for that module of its package. The loader turns records into
# views, so it stands right of both.
ORDER = (
    "extras",
    "trees",
    "config",
    "papers",
    "data",
    "views",
    "data.loader",
    "ops",
    "models",
    "losses",
    "methods",
    "train.stop",
    "train.progress",
    "train.distributed",
    "train.clip",
    "train.optim",
    "train.schedule",
    "train.sharding",
    "train.state",
    "train.step",
    "evals",
    "embedding",
    "train.checksums",
    "train.checkpoint",
    "convert",
    "train.log",
    "train.trackers",
    "train.health",
    "settings",
    "train",
    "api",
    "cli",
    "__main__",
)

NUMERICS = {
    "jax",
    "jaxtyping",
    "numpy",
    "ssl_jax",
} | sys.stdlib_module_names  # all that ops and losses may import


def module_name(path: pathlib.Path) -> str:
    """ssl_jax/ops/voting.py -> "ssl_jax.ops.voting"; ssl_jax/ops/__init__.py -> "ssl_jax.ops"."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = [name for name in FILES if name != "ssl_jax"]  # the root only imports on first use


def imports(source: str) -> set[str]:
    """Full names of what Python source imports, at its top or inside a function; `from a import b`
    gives "a.b".
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(name: str) -> set[str]:
    """Modules of the package that module `name` imports."""
    inside = {
        target
        for target in imports(FILES[name].read_text(encoding="utf-8"))
        if target.startswith("ssl_jax.")
    }
    return {target if target in FILES else target.rpartition(".")[0] for target in inside}


def outside_imports(name: str) -> set[str]:
    """Top-level names of everything that module `name` imports."""
    return {target.partition(".")[0] for target in imports(FILES[name].read_text(encoding="utf-8"))}


def place(name: str) -> int:
    """Position of a module, or else of its package, in ORDER."""
    inner = name.removeprefix("ssl_jax.")
    part = inner if inner in ORDER else inner.partition(".")[0]
    assert part in ORDER, f"{name} has no place in the data flow: add {part!r} to ORDER"
    return ORDER.index(part)


def test_imports_finds_every_form():
    source = "import a.b\nfrom ssl_jax import ops\ndef f():\n    from c import d as e\n"
    assert imports(source) == {"a.b", "ssl_jax.ops", "c.d"}


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_from_its_left(name):
    assert "ssl_jax" not in own_imports(name), (
        f"{name} imports what is not a module from the root (a missing module?)"
    )
    wrong = {target for target in own_imports(name) if place(target) > place(name)}
    assert not wrong, f"{name} imports {sorted(wrong)}, which stand to its right"


def test_no_cycles():
    graphlib.TopologicalSorter({name: own_imports(name) - {name} for name in MODULES}).prepare()


def test_config_imports_nothing_of_the_package():
    assert own_imports("ssl_jax.config") == set()


def test_only_models_import_flax():
    guilty = {name for name in MODULES if "flax" in outside_imports(name)}
    assert {name for name in guilty if name.split(".")[1] != "models"} == set()


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name.split(".")[1] in ("ops", "losses")]
)
def test_numerics_import_only_jax_and_numpy(name):
    assert outside_imports(name) <= NUMERICS
    assert {target.split(".")[1] for target in own_imports(name)} <= {"ops", "losses"}


def test_nothing_imports_tensorflow():
    """Nor what imports it (clu.metric_writers), nor torch, except where its own file format is
    read.
    """
    for name in MODULES:
        allowed = {"torch"} if name == "ssl_jax.convert.read" else set()
        assert (
            not (outside_imports(name) & {"tensorflow", "clu", "torch", "albumentations"}) - allowed
        ), name


def test_no_grab_bags():
    forbidden = {"utils", "util", "common", "helpers", "misc"}
    assert {name for name in FILES if forbidden & set(name.split("."))} == set()


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in sys.modules after a fresh interpreter ran `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_numerics_load_no_framework():
    loaded = loaded_after("from ssl_jax import ops, losses")
    assert {"jax", "ssl_jax"} <= loaded
    assert not loaded & {
        "flax",
        "tensorflow",
        "grain",
        "orbax",
        "optax",
        "ml_collections",
        "absl",
        "cv2",
        "PIL",
    }


def test_numerics_work_without_what_the_extras_bring():
    blocked = [name for names in extras.EXTRAS.values() for name in names]
    loaded_after(
        f"import sys; sys.modules.update(dict.fromkeys({blocked}))\n"
        "import jax.numpy as jnp; from ssl_jax import losses, ops\n"
        "x = jnp.eye(4); assert ops.sinkhorn_knopp(x, temperature=1.0).shape == (4, 4)\n"
        "terms = losses.dino(x[None].repeat(2, 0), x[None].repeat(2, 0), jnp.zeros(4),"
        " student_temperature=0.1, teacher_temperature=0.1); assert terms['loss'] > 0"
    )


def test_root_says_which_extra_is_missing():
    code = "import sys; sys.modules['flax'] = None\nimport ssl_jax; ssl_jax.load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = "ModuleNotFoundError: ssl_jax.load: flax is not installed: pip install 'ssl-jax[train]'"
    assert done.stderr.splitlines()[-1] == line


def test_root_hides_no_other_error(monkeypatch):
    """A module that no extra brings is a fault of ours, and stays what it is."""
    import ssl_jax

    error = ModuleNotFoundError("No module named 'ssl_jax.gone'", name="ssl_jax.gone")

    def fail(name):
        raise error

    monkeypatch.setattr(ssl_jax.importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError) as caught:
        ssl_jax.__getattr__("models")
    assert caught.value is error


def test_root_is_lazy_and_complete():
    statement = (
        "import ssl_jax; assert {'ops', 'losses', 'methods', 'models', 'evals'} <="
        " set(dir(ssl_jax))"
    )
    assert not loaded_after(statement) & {"jax", "numpy", "flax"}
    loaded_after(
        "import ssl_jax; ssl_jax.ops, ssl_jax.losses, ssl_jax.models, ssl_jax.methods,"
        " ssl_jax.evals"
    )


def test_root_names_what_it_has_when_asked_for_something_else():
    import ssl_jax

    with pytest.raises(AttributeError, match="'opps'.*ops"):
        ssl_jax.opps  # noqa: B018


def test_command_line_loads_no_tensorflow():
    assert not loaded_after("import ssl_jax.cli") & {"tensorflow", "torch"}
