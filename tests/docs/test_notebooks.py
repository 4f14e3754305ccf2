"""The notebooks run from the first cell to the last, and what is committed of their outputs is
small and tells nothing of a machine.
"""

import json
import re
import sys
from types import SimpleNamespace

import pytest

from tests import compiling
from tests.conftest import ROOT

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
FIRST = ("what_the_features_know",)  # that a reader meets
LARGEST = 600_000  # bytes: pictures for those who read without running


def cells(path) -> list[dict]:
    """The cells of code of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def kinds(notebook: dict) -> list[tuple[bool, list[str]]]:
    """Of each cell, whether it prints and what else it gives. What is printed comes in one piece or
    in several; and warnings depend on the machine, as XLA's of a slow compilation do."""
    given = [cell.get("outputs", []) for cell in notebook["cells"]]
    printed = [any(o.get("name") == "stdout" for o in outputs) for outputs in given]
    others = [[o["output_type"] for o in x if o["output_type"] != "stream"] for x in given]
    return list(zip(printed, others))


MARKED = [
    pytest.param(name, marks=pytest.mark.slow if name in FIRST else pytest.mark.nightly)
    for name in NOTEBOOKS
]


@pytest.mark.parametrize("name", MARKED)
def test_runs(name, tmp_path, monkeypatch):
    """In a kernel of this interpreter, elsewhere: a notebook needs nothing but the package."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", compiling.flags())
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own: pictures become outputs
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    wanted = kinds(notebook)
    for cell in notebook["cells"]:  # fewer steps than a reader waits for
        cell["source"] = re.sub(r"^STEPS = \d+", "STEPS = 10", cell["source"], flags=re.MULTILINE)
    mine = ("photos/1.jpg", "run/1.jpg", "pod/1.jpg", "exported/1.jpg", "vectors.npz", "barlow.py")
    for name in mine:  # what lies beside a notebook is somebody's
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources=resources
    )
    client.execute()
    assert kinds(notebook) == wanted, "the committed outputs are of another version"
    left = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == dict.fromkeys(mine, "mine")


def test_the_first_cell_installs_the_clone_around_it(monkeypatch, tmp_path):
    (code,) = {"".join(cells(path)[0]["source"]) for path in NOTEBOOKS.values()}  # one in all
    ran = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda command, check: ran.append(command))
    monkeypatch.chdir(ROOT / "notebooks")
    exec(code, {})
    assert [command[1:4] for command in ran] == [["-m", "pip", "install"]]
    assert ran[0][-2:] == ["-e", f"{ROOT}[train]"]  # the wheel has but one of the networks in zoo/
    assert sys.path.pop(0) == str(ROOT)
    # A folder of the package's name is no package; the clone may lie below.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=None))
    (tmp_path / "ssl_jax").symlink_to(ROOT)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert ran.pop()[-1] == f"{tmp_path / 'ssl_jax'}[train]"
    sys.path.pop(0)
    (tmp_path / "ssl_jax").unlink()
    with pytest.raises(SystemExit, match="clone"):  # rather than what an index has of that name
        exec(code, {})
    assert len(ran) == 1


@pytest.mark.parametrize("path", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_committed_outputs(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    # Colab and Jupyter have one of that name.
    assert json.loads(text)["metadata"]["kernelspec"]["name"] == "python3"
    code = cells(path)
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(counts) + 1)), "run it anew from the first cell"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    last = code[-1]["outputs"][-1]
    assert {"image/png", "image/jpeg"} & set(last.get("data", ())), "it ends in a picture"
    readable = re.sub(r'"image/(png|jpeg)": "[^"]*"', "", text)
    assert not re.search(
        r"(?<![\w./])/(home|root|tmp|usr|opt|Users|content)/|\b\d{4}-\d{2}-\d{2}T\d{2}:", readable
    )
