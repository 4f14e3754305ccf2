"""The documentation builds without a warning and without the network, and says all there is."""

import html
import os
import re
import subprocess
import sys

import pytest

from ssl_jax import config as config_lib
from ssl_jax import losses, methods, ops, papers, settings

for _name in ("mkdocs", "material", "mkdocstrings_handlers.python", "latex2mathml"):
    pytest.importorskip(_name, reason="the extra `docs` is not installed")
pytestmark = pytest.mark.slow

METHODS = sorted(set(methods.METHODS) - {"finetune"})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """{path in the site: its HTML}, built with --strict."""
    from tests.conftest import ROOT

    out = tmp_path_factory.mktemp("site")
    code = (  # any connection is an error
        "import socket\n"
        "def refuse(*a, **k): raise OSError('the network was asked')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from mkdocs.__main__ import cli; cli()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        path.relative_to(out).as_posix(): path.read_text(encoding="utf-8")
        for path in out.rglob("*")
        if path.suffix in (".html", ".css")
    }


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_every_method_has_a_page_with_equations_configs_keys_and_rows(site):
    for name in METHODS:
        page = site[f"methods/{name}.html"]
        assert page.count("<math") >= 2, name
        text = text_of(page)
        for variant in config_lib.read_module(config_lib.find(name)).VARIANTS:
            assert f"{name}:{variant}" in text
        for key in settings.keys(name):
            assert not key.startswith(f"{name}.") or key in text
        for row in papers.load(name):
            assert row.name in text and row.place in text
        assert re.search(r'href="\.\./reference/losses\.html#ssl_jax\.losses\.', page), name


def test_every_public_function_is_in_the_reference(site):
    for module in (ops, losses):
        name = module.__name__.rpartition(".")[2]
        page = site[f"reference/{name}.html"]
        for function in module.__all__:
            own = getattr(module, function)
            places = {f"{module.__name__}.{function}", f"{own.__module__}.{own.__name__}"}
            assert any(f'id="{place}"' in page for place in places), f"{name}.{function}"
            # Not the module of the same name, which is what the shorter name finds.
            assert re.search(rf">{function}</span><span class=\"p\">|class {function}", page)


def test_nothing_is_left_unrendered(site):
    for path, page in site.items():
        if not path.endswith(".html"):
            continue
        body = re.sub(r"<(script|pre|code).*?</\1>", "", page, flags=re.DOTALL)
        assert "$$" not in body and 'class="arithmatex"' not in body, path
        assert not re.search(r"<!-- (configs|keys|rows|scores) ", page), path
        assert not re.search(r"::: ssl_jax", body), path
        assert not re.search(
            r"\\(frac|text|mathcal)", re.sub(r"<annotation.*?</annotation>", "", body)
        )


def test_reading_needs_no_network(site):
    """No font, style, script or picture comes from elsewhere."""
    fetched = r'<(?:script|img|iframe|link rel="(?:stylesheet|preconnect|preload)")[^>]*"https?://'
    for path, content in site.items():
        if path.endswith(".html"):
            assert not re.search(fetched, content), path
        else:
            assert not re.search(r"url\(\s*[\"']?https?:|@import", content), path
