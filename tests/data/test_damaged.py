"""Damaged files of every format: decoded or named unreadable, in bounded time and memory."""

import pytest

from tests import damaged


@pytest.fixture(scope="module")
def reader():
    process = damaged.Reader()
    yield process
    process.close()


@pytest.mark.parametrize(
    "examples", [200, pytest.param(2000, marks=pytest.mark.nightly)], ids=["few", "many"]
)
@pytest.mark.parametrize("file_format", ["jpeg", "png", "webp", "tiff", "bmp", "gif"])
def test_damaged_files_are_decoded_or_named(file_format, examples, reader):
    damaged.many(reader, file_format, examples, seed=0)  # fails at the first crash
    assert damaged.tally.unreadable > examples / 5, damaged.tally
    assert damaged.tally.decoded > 0 or examples < 1000, damaged.tally


def test_good_files_decode(reader):
    for what, data in damaged.files().items():
        assert reader.read(data)[0] == "decoded", what
        assert damaged.size_fields(data), what
