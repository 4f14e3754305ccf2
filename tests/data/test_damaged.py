"""Damaged files of every format: decoded or named unreadable, in bounded time and memory."""

import pytest

from tests import damaged


@pytest.fixture(scope="module")
def reader():
    process = damaged.Reader()  # reads good files first
    yield process
    process.close()


@pytest.mark.parametrize(
    "examples", [200, pytest.param(2000, marks=pytest.mark.nightly)], ids=["few", "many"]
)
@pytest.mark.parametrize("file_format", ["jpeg", "png", "webp", "tiff", "bmp", "gif"])
def test_damaged_files_are_decoded_or_named(file_format, examples, reader):
    found = damaged.many(reader, file_format, examples, seed=0)
    assert found.total() - found["decoded"] > examples / 5, found
    assert found["decoded"] > 0 or examples < 1000, found
