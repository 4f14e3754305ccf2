"""The notebooks run from the first cell to the last, and what is committed of their outputs is
small and tells nothing of a machine.
"""

import json
import re

import pytest
from packaging.requirements import Requirement

from tests import compiling
from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 600_000  # bytes: pictures for those who read without running


def outputs(notebook: dict) -> list[dict]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def kinds(notebook: dict) -> list[tuple[bool, list[str]]]:
    """Of each cell, whether it prints and what else it gives. What is printed comes in one piece or
    in several; and warnings depend on the machine, as XLA's of a slow compilation do."""
    cells = [cell.get("outputs", []) for cell in notebook["cells"]]
    return [
        (
            any(o.get("name") == "stdout" for o in given),
            [o["output_type"] for o in given if o["output_type"] != "stream"],
        )
        for given in cells
    ]


def test_there_are_notebooks():
    names = {"losses_from_the_papers", "what_the_features_know", "pod_checkpoint_to_timm"}
    assert names <= {path.stem for path in NOTEBOOKS}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    """In a kernel of this interpreter, elsewhere: a notebook needs nothing but the package."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", compiling.flags())
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own: pictures become outputs
    notebook = nbformat.read(path, as_version=4)
    wanted = kinds(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources=resources
    ).execute()
    assert kinds(notebook) == wanted, "the committed outputs are of another version"


@pytest.mark.parametrize("repository", ["", "/a/checkout", "git+https://x.org/ssl_jax"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_what_the_others_import(path, repository, monkeypatch):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "".join(next(cell["source"] for cell in cells if cell["cell_type"] == "code"))
    assert 'REPOSITORY = ""' in code
    commands = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    monkeypatch.chdir(ROOT / "notebooks")
    exec(code.replace('REPOSITORY = ""', f"REPOSITORY = {repository!r}"), {})
    ((*program, wanted),) = commands
    assert program[1:4] == ["-m", "pip", "install"]
    if repository.startswith("git+"):
        named = Requirement(wanted)
        assert (named.name, named.extras, named.url) == ("ssl-jax", {"train"}, repository)
    else:
        assert wanted == f"{repository or ROOT}[train]"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_outputs(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert len(text.encode()) < LARGEST
    # Colab and Jupyter have one of that name.
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run it anew from the first cell"
    assert not [
        o for o in outputs(notebook) if o["output_type"] == "error" or o.get("name") == "stderr"
    ]
    pictures = [
        o for o in outputs(notebook) if {"image/png", "image/jpeg"} & set(o.get("data", ()))
    ]
    assert pictures
    *_, last = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert last["outputs"][-1] in pictures, "it ends in a picture"
    readable = re.sub(r'"image/(png|jpeg)": "[^"]*"', "", text)
    assert not re.search(
        r"(?<![\w./])/(home|root|tmp|usr|opt|Users|content)/|\b\d{4}-\d{2}-\d{2}T\d{2}:", readable
    )
