"""What people install: the wheel is built from the sdist, is complete, and works away from the
checkout.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from packaging.requirements import Requirement

from ssl_jax import extras
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def build(kind: str, folder, out) -> None:
    """Builds the "wheel" or "sdist" of a folder without the network."""
    code = f"import sys, setuptools.build_meta as b; b.build_{kind}(sys.argv[1])"
    command = [sys.executable, "-c", code, str(out)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """(sdist, wheel), the wheel built from the unpacked sdist."""
    pytest.importorskip("setuptools", minversion="77")
    place = tmp_path_factory.mktemp("build")
    copy, out = place / "checkout", place / "dist"
    skip = ".* runs build dist __pycache__ *.egg-info".split()
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*skip))
    build("sdist", copy, out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        # Python before 3.11.4 has no filters.
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(place / "unpacked", **options)
    (folder,) = (place / "unpacked").iterdir()
    build("wheel", folder, out)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def run(command, place, cwd, check=True) -> subprocess.CompletedProcess:
    """A command that finds the package in a place, and not in the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    options = dict(cwd=cwd, env=environment, check=check, capture_output=True, text=True)
    return subprocess.run([str(word) for word in command], **options)


def test_sdist_and_wheel_hold_what_is_needed_and_no_more(dist):
    with tarfile.open(dist[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "configs/sop.py"} < names
    assert not [name for name in names if name.startswith(("tests", ".", "runs"))]

    def files(pattern, place=""):
        found = {place + path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
        assert found, pattern
        return found

    names = set(zipfile.ZipFile(dist[1]).namelist())
    wanted = files("ssl_jax/**/*.py") | files("ssl_jax/**/*.toml")
    wanted |= files("configs/*.py", "ssl_jax/")
    wanted |= {"ssl_jax/py.typed", "ssl_jax/papers/ours.json", "ssl_jax/report/page.html"}
    assert wanted <= names and any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "configs", "zoo"))]
    weights = [name for name in names if name.endswith((".safetensors", ".npz"))]
    assert weights == ["ssl_jax/zoo/sop_speedrun.safetensors"]
    assert dist[1].stat().st_size < 3e6


def test_the_metadata_state_licence_author_versions_and_lower_bounds(dist):
    with zipfile.ZipFile(dist[1]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
        stated = email.message_from_bytes(wheel.read(name))
    assert stated["License-Expression"] == "Apache-2.0" and stated["License-File"] == "LICENSE"
    assert stated["Author"] and f"name: {stated['Author']}" in (ROOT / "CITATION.cff").read_text()
    assert "UNKNOWN" not in stated.values()
    requirements = [Requirement(text) for text in stated.get_all("Requires-Dist")]
    core = {r.name: r.specifier for r in requirements if r.marker is None}
    assert core.keys() == {"jax", "jaxlib", "jaxtyping", "numpy"}
    assert all(part.operator == ">=" for bounds in core.values() for part in bounds)
    train = {r.name: str(r.specifier) for r in requirements if 'extra == "train"' in str(r.marker)}
    assert all("<" in train[name] for name in ("jax", "jaxtyping", "numpy"))
    # The versions that launch/environment.sh looks for, and that the lock has files for.
    claimed = re.findall(r"Python :: (3\.\d+)", str(stated))
    tested = re.search(r"python3\.13 .*", (ROOT / "launch" / "environment.sh").read_text())[0]
    assert [f"python{version}" for version in reversed(claimed)] == tested.rstrip(")").split()


def test_an_installed_wheel_is_a_program(dist, tmp_path):
    """Installed by pip into an empty folder and used from another one."""
    pytest.importorskip("pip")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(site), str(dist[1])], check=True, capture_output=True)
    done = run(
        [sys.executable, site / "bin" / "ssl-jax", "show", "--config=sop:vits16"], site, elsewhere
    )
    assert re.search(r"^sop\.cls\.anchors +4096 ", done.stdout, re.MULTILINE)
    assert done.stderr == ""
    code = "import ssl_jax; ssl_jax.load('zoo/sop_speedrun'); print(ssl_jax.__file__)"
    assert run([sys.executable, "-c", code], site, elsewhere).stdout.startswith(str(site))
    # Where the extra is not installed, one line says so.
    blocked = [name for names in extras.EXTRAS.values() for name in names]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked})); from ssl_jax import __main__;"
        " sys.argv = ['ssl-jax', 'train', '--config=sop']; sys.exit(__main__.main())"
    )
    done = run([sys.executable, "-c", code], site, elsewhere, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert ".[train]" in line
