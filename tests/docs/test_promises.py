"""Documents that say which test holds a promise name files that exist."""

import re

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/reliability.md", "docs/resuming.md"])
def test_named_tests_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/.-]+\.py)`", text))
    named = {name for name in named if "NAME" not in name}  # what a reader is to write
    assert named
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []
