"""Promises of the repository itself: exact, anonymous requirements, extras that hold what is
imported, configs that state their cost, public functions with types, nothing unsafe or unfinished.
"""

import ast
import re
import runpy
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

import ssl_jax
from ssl_jax import extras
from tests.conftest import ROOT

SCRIPTS = ("configs", "launch", "benchmarks", "experiments")
FOLDERS = ("ssl_jax", "tests", "notebooks", *SCRIPTS)
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("ssl_jax/**/*.py"))}
TREES = {path: ast.parse(text) for path, text in SOURCES.items()}
LOCK = (ROOT / "requirements.lock").read_text()
# {requirement: its hashes}
LOCKED = {
    " ".join(line.split(" --hash=")[0].split()): re.findall(r"--hash=(\S+)", line)
    for line in re.sub(r"^ *#.*\n", "", LOCK, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    if line.strip()
}
# What is imported under another name than it is installed by.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "absl": "absl-py",
    "cv2": "opencv-python-headless",
    "orbax": "orbax-checkpoint",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}


@pytest.fixture
def metadata(monkeypatch) -> dict:
    """The arguments that setup.py gives to setuptools.setup."""
    setuptools = pytest.importorskip("setuptools")
    metadata = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: metadata.update(arguments))
    runpy.run_path(str(ROOT / "setup.py"))
    return metadata


def canonical(name: str) -> str:
    """The name of a distribution, or of the one that brings an import."""
    return re.sub(r"[-_.]+", "-", DISTRIBUTIONS.get(name, name)).lower()


def distributions(requirements: list[str]) -> set[str]:
    return {canonical(Requirement(text).name) for text in requirements}


def test_the_lock_is_exact_hashed_and_names_no_place():
    assert LOCKED
    for line, hashes in LOCKED.items():
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*( ; .+)?", line), line
        # Whatever an index serves under a name and version, only what was published is installed.
        assert hashes and len(set(hashes)) == len(hashes), line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", text) for text in hashes), line
    places = r"://|--(extra-)?index|--find-links|--trusted-host|@|/(home|root|tmp|work|opt)/"
    assert not re.search(places, LOCK)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_satisfies_setup_without_tensorflow_or_accelerator(metadata, python):
    versions = {"python_version": python, "python_full_version": f"{python}.0"}
    linux = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    pinned: dict[str, str] = {}
    for requirement in map(Requirement, LOCKED):
        if requirement.marker is None or requirement.marker.evaluate(versions | linux):
            assert canonical(requirement.name) not in pinned, requirement
            pinned[canonical(requirement.name)] = next(iter(requirement.specifier)).version
    for text in metadata["install_requires"] + metadata["extras_require"]["dev"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonical(requirement.name)]), text
    unwanted = re.compile(r"tensorflow(-cpu|-intel|-macos)?$|torch|nvidia|libtpu|jax-.*plugin")
    assert not [name for name in pinned if unwanted.match(name)]


def test_requirements_are_what_is_imported(metadata):
    """What is imported without condition is in install_requires, or in [train]; an extra holds what
    the message of a missing library promises."""
    assert metadata["version"] == ssl_jax.__version__
    assert f"version: {ssl_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    core, required = distributions(metadata["install_requires"]), metadata["extras_require"]
    assert core == {"jax", "jaxlib", "jaxtyping", "numpy"}
    train = distributions(required["train"])
    for path, tree in TREES.items():
        part = path.relative_to(ROOT / "ssl_jax").with_suffix("").parts[0]
        alone = part in ("ops", "losses", "extras", "__init__", "__main__")
        names = {a.name for node in tree.body if isinstance(node, ast.Import) for a in node.names}
        names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        names = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"ssl_jax"}
        assert {canonical(name) for name in names} <= (core if alone else core | train), path
    for extra, libraries in extras.EXTRAS.items():
        added = distributions(required[extra])
        if extra == "train":
            added -= core  # their upper bounds
        else:
            assert added > train  # useful alone
            added -= train
        assert {canonical(name) for name in libraries} == added, extra
    for device, name in (("gpu", "cuda12"), ("tpu", "tpu")):
        assert [Requirement(text).extras for text in required[device]] == [{name}]


def test_configs_say_command_hardware_time_and_expected_number():
    checked = 0
    for path in sorted((ROOT / "configs").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if not any(getattr(node, "name", "") == "get_config" for node in tree.body):
            continue
        text, checked = ast.get_docstring(tree) or "", checked + 1
        command = rf"(ssl-jax|python -m ssl_jax) train .*--config={path.stem}\b"
        labels = [rf"^{x}: \S" for x in ("Hardware", "Expected time", "Expected number")]
        for wanted in (command, *labels):
            assert re.search(wanted, text, re.MULTILINE), f"{path.name}: {wanted}"
    assert checked


def bare(node: ast.Module | ast.ClassDef) -> list[str]:
    """Public functions of a module or class that lack the type of an argument, or of what comes
    back."""
    found = []
    for inner in node.body:
        name = getattr(inner, "name", "_")
        if isinstance(inner, ast.ClassDef) and not name.startswith("_"):
            found += bare(inner)
        public = not name.startswith("_") or name in ("__init__", "__call__")
        if isinstance(inner, ast.FunctionDef) and public:
            static = any(ast.unparse(d) == "staticmethod" for d in inner.decorator_list)
            all_ = inner.args
            named = [*all_.posonlyargs, *all_.args][isinstance(node, ast.ClassDef) and not static :]
            named += [x for x in (all_.vararg, *all_.kwonlyargs, all_.kwarg) if x]
            untyped = inner.returns is None and name != "__init__"
            found += [name] * (untyped or any(x.annotation is None for x in named))
    return found


def test_public_functions_are_annotated():
    assert {path.name: bare(tree) for path, tree in TREES.items() if bare(tree)} == {}


def test_what_the_design_forbids_is_absent():
    for files, lines in (("README.md", 120), ("ssl_jax/methods/*.py", 260)):
        for path in ROOT.glob(files):
            assert path.read_text().count("\n") <= lines, path.name
    folders = [ROOT / name for name in FOLDERS]
    paths = [path for folder in folders for path in folder.rglob("*")]
    grab_bags = ("utils", "util", "common", "helpers", "misc")
    assert not [path for path in paths if path.stem in grab_bags]
    assert not [x for x in ("setup.cfg", "requirements.txt", "Dockerfile") if (ROOT / x).exists()]
    # In two parts: this file is searched too.
    unwanted = r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|(?<![\w./])/(work|root|tmp)/|\.\./sha" r"red\b"
    for path in paths:
        if path.suffix in (".py", ".sh", ".sbatch", ".yaml"):
            found = re.search(unwanted, path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found.group()}"


# Functions of jax.random -> the number of arguments with which the last one is the type.
DRAWS = {"bits": 3, "normal": 3, "uniform": 3, "randint": 5, "beta": 5}


def test_draws_name_their_type_and_keys_their_kind():
    """Else JAX's defaults, which the environment can change, would decide what is drawn."""
    calls = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree)]
    calls = [(path, node) for path, node in calls if isinstance(node, ast.Call)]
    for path, call in calls:
        module, _, name = ast.unparse(call.func).rpartition(".")
        given = {keyword.arg for keyword in call.keywords}
        if module == "jax.random" and name in DRAWS:
            assert "dtype" in given or len(call.args) >= DRAWS[name], (path, call.lineno)
        if module == "jax.random" and name in ("key", "PRNGKey"):
            assert "impl" in given, (path, call.lineno)


def unsafe_reads(tree: ast.Module) -> list[int]:
    """Lines that read a file of torch's or NumPy's in a way that may run what is in it."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            unsafe = called in ("torch.jit.load", "torch.hub.load", "joblib.load")
            unsafe |= called == "torch.load" and given.get("weights_only") != "True"
            unsafe |= called in ("np.load", "numpy.load") and len(node.args) > 2
            unsafe |= any(given.get(k, "False") != "False" for k in _PERMITS)
            lines += [node.lineno] * unsafe
    return lines


_PERMITS = ("allow_pickle", "trust_remote_code")


def test_nothing_runs_what_a_file_says():
    """Weights come by safetensors, npz without Python objects, or torch's weights_only."""
    pytest.importorskip("ruff")  # knows pickle and its kin, eval, exec, marshal, yaml.load
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--no-cache"]
    by_hand = ROOT / "launch/revisited_json.py"  # people run it for a pickle that they trust
    command += ["--select=S102,S301,S302,S307,S506", f"--exclude={by_hand}"]
    command += ["ssl_jax", "zoo", *SCRIPTS]
    assert subprocess.run(command, cwd=ROOT).returncode == 0
    others = [path for x in ("zoo", *SCRIPTS) for path in (ROOT / x).rglob("*.py")]
    trees = TREES | {path: ast.parse(path.read_text(encoding="utf-8")) for path in others}
    assert {path.name: unsafe_reads(x) for path, x in trees.items() if unsafe_reads(x)} == {}
    assert not [path for path, x in trees.items() if f"import {by_hand.stem}" in ast.unparse(x)]
