"""What people install: the wheel is built from the sdist, is complete, and works away from the
checkout; the citation file says whom to cite.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string

import pytest
import yaml

from ssl_jax import extras

pytest.importorskip("setuptools", minversion="77")
EXTRAS = "train gpu tpu eval convert track notebooks docs oracles dev".split()


def build(kind: str, folder, out) -> None:
    """Builds the "wheel" or "sdist" of a folder without the network."""
    code = f"import sys, setuptools.build_meta as b; b.build_{kind}(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with sdist and wheel, the wheel built from the unpacked sdist."""
    from tests.conftest import ROOT

    place = tmp_path_factory.mktemp("build")
    copy, out = place / "checkout", place / "dist"
    skip = shutil.ignore_patterns(
        ".git", ".venv", ".cache", ".*_cache", "runs", "build", "dist", "__pycache__", "*.egg-info"
    )
    shutil.copytree(ROOT, copy, ignore=skip)
    build("sdist", copy, out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        # Python before 3.11.4 has no filters.
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(place / "unpacked", **options)
    (folder,) = (place / "unpacked").iterdir()
    build("wheel", folder, out)
    return out


@pytest.fixture
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


def test_sdist_holds_what_a_reader_needs(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "configs/sop.py"} < names
    assert not [name for name in names if name.startswith(("tests", ".", "runs"))]


def test_wheel_ships_all_modules_configs_papers_and_py_typed(root, wheel, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(root).as_posix() for path in (root / "ssl_jax").rglob("*.py")}
    tables = {path.relative_to(root).as_posix() for path in (root / "ssl_jax").rglob("*.toml")}
    configs = {f"ssl_jax/configs/{path.name}" for path in (root / "configs").glob("*.py")}
    assert len(tables) == 10 and {"ssl_jax/configs/sop.py"} < configs
    networks = {f"ssl_jax/zoo/{path.name}" for path in (root / "zoo").glob("*.safetensors")}
    others = networks | {"ssl_jax/py.typed", "ssl_jax/papers/ours.json", "ssl_jax/evals/page.html"}
    assert modules | tables | configs | others <= names
    assert any(name.endswith("LICENSE") for name in names)
    # What is in it works away from the checkout.
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import ssl_jax; from ssl_jax import config; ssl_jax.load('zoo/sop_quickstart');"
        " print(config.__file__, config.load('sop:vits16').expected)"
    )
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.stdout.startswith(str(tmp_path / "site")) and "75.3 (paper, table 1)" in done.stdout
    assert not {name for name in names if name.startswith(("tests", "configs", "zoo"))}


def test_metadata_offers_the_extras_and_demands_little(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
    assert metadata.get_all("Provides-Extra") == EXTRAS
    always = [text for text in metadata.get_all("Requires-Dist") if "extra ==" not in text]
    assert len(always) == 4 and not [text for text in always if "flax" in text]
    assert metadata["License"] == "Apache-2.0"


@pytest.mark.slow
def test_an_installed_wheel_is_a_program(wheel, tmp_path):
    """Installed by pip into an empty folder and used from another one."""
    pytest.importorskip("pip")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(site), str(wheel)], check=True, capture_output=True)
    program = [sys.executable, site / "bin" / "ssl-jax"]
    done = run([*program, "show", "--config=sop:vits16"], tmp_path, elsewhere)
    assert re.search(r"^sop\.cls\.anchors +4096 +default$", done.stdout, re.MULTILINE)
    assert done.stderr == ""
    # Where the extra is not installed, one line says so.
    blocked = [name for names in extras.EXTRAS.values() for name in names]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked})); from ssl_jax import __main__;"
        " sys.argv = ['ssl-jax', 'train', '--config=sop']; sys.exit(__main__.main())"
    )
    done = run([sys.executable, "-c", code], tmp_path, elsewhere, check=False)
    assert done.returncode == 2
    assert done.stderr == "ssl-jax: absl is not installed: pip install 'ssl-jax[train]'\n"


def run(command, place, cwd=None, check=True) -> subprocess.CompletedProcess:
    """A command that finds the package in place/site, and not in the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(place / "site")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd or place,
        env=environment,
        check=check,
        capture_output=True,
        text=True,
    )


# --- CITATION.cff, https://citation-file-format.github.io, version 1.2.0


def test_citation_names_this_package_and_the_five_papers(root):
    import ssl_jax

    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["version"] == ssl_jax.__version__ and citation["license"] == "Apache-2.0"
    assert citation["message"] and citation["title"] == "ssl_jax"
    known = {"article", "conference-paper", "generic", "software", "unpublished"}
    for entry in (citation, *citation["references"]):
        assert entry["type"] in known and entry["title"] and entry["authors"]
        for author in entry["authors"]:
            # A person or an entity, as the schema has them, and not both.
            assert set(author) <= {"family-names", "given-names", "name", "alias"}
            assert ("name" in author) != ("family-names" in author)
    titles = " ".join(reference["title"] for reference in citation["references"])
    pages = (root / "docs" / "papers.md").read_text(encoding="utf-8")
    for method in ("STELLAR", "SOP", "SOVE", "FLSL", "CrIBo"):
        (row,) = re.findall(rf"^\| \[{method}\]\(.*$", pages, re.MULTILINE)
        title = row.split("|")[3].partition(",")[0].strip()
        assert title in titles, f"{title} is not cited"
    assert len(citation["references"]) == 5
