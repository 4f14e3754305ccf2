"""The documentation builds without a warning and without the network, and says all there is."""

import html
import os
import re
import subprocess
import sys

import pytest

from ssl_jax import config as config_lib
from ssl_jax import losses, methods, ops, papers, settings
from tests.conftest import ROOT

for _name in ("mkdocs", "material", "mkdocstrings_handlers.python", "latex2mathml"):
    pytest.importorskip(_name, reason="the extra `docs` is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """{path in the site: its HTML}, built with --strict."""
    out = tmp_path_factory.mktemp("site")
    code = (  # any connection is an error
        "import socket\n"
        "def refuse(*a, **k): raise OSError('the network was asked')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from mkdocs.__main__ import cli; cli()"
    )
    command = [sys.executable, "-c", code, "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    files = [path for path in out.rglob("*") if path.suffix in (".html", ".css")]
    return {path.relative_to(out).as_posix(): path.read_text(encoding="utf-8") for path in files}


@pytest.mark.parametrize("name", sorted(set(methods.METHODS) - {"finetune"}))
def test_a_method_has_a_page_with_equations_configs_keys_and_rows(site, name):
    page = site[f"methods/{name}.html"]
    assert page.count("<math") >= 2
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for variant in config_lib.read_module(config_lib.find(name)).VARIANTS:
        assert f"{name}:{variant}" in text
    assert [k for k in settings.keys(name) if k.startswith(f"{name}.") and k not in text] == []
    for row in papers.load(name) if name in papers.names() else ():
        assert row.name in text and row.place in text
    assert re.search(r'href="\.\./reference/losses\.html#ssl_jax\.losses\.', page)


@pytest.mark.parametrize("module", [ops, losses], ids=["ops", "losses"])
def test_every_public_function_is_in_the_reference(site, module):
    page = site[f"reference/{module.__name__.rpartition('.')[2]}.html"]
    for function in module.__all__:
        own = getattr(module, function)
        places = {f"{module.__name__}.{function}", f"{own.__module__}.{own.__name__}"}
        assert any(f'id="{place}"' in page for place in places), function
        # Not the module of the same name, which is what the shorter name finds.
        assert re.search(rf">{function}</span><span class=\"p\">|class {function}", page)


def test_nothing_is_left_unrendered_and_reading_needs_no_network(site):
    fetched = r'<(?:script|img|iframe|link rel="(?:stylesheet|preconnect|preload)")[^>]*"https?://'
    for path, page in site.items():
        if not path.endswith(".html"):
            assert not re.search(r"url\(\s*[\"']?https?:|@import", page), path
            continue
        assert not re.search(fetched, page), path
        assert not re.search(r"<!-- (configs|keys|rows|scores) ", page), path
        body = re.sub(r"<(script|pre|code).*?</\1>", "", page, flags=re.DOTALL)
        assert "$$" not in body and 'class="arithmatex"' not in body, path
        assert "::: ssl_jax" not in body, path
        drawn = re.sub(r"<annotation.*?</annotation>", "", body)
        assert not re.search(r"\\(frac|text|mathcal)", drawn), path
