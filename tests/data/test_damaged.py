"""Damaged files of every format: decoded or named unreadable, in bounded time and memory."""

import os
import re
import time

import hypothesis
import numpy as np
import pytest

from ssl_jax.data import decode
from tests import damaged


@pytest.fixture(scope="module")
def reader():
    process = damaged.Reader()
    yield process
    process.close()


@pytest.mark.parametrize("file_format", ["jpeg", "png", "webp", "tiff", "bmp", "gif"])
def test_damaged_files_are_decoded_or_named(file_format, reader):
    @hypothesis.settings(
        max_examples=250,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(data=damaged.mutated((file_format,)))
    def case(data):
        damaged.tried(reader, data)

    case()
    # Few: hypothesis also tries constants of whatever modules are loaded, so counts vary.
    assert damaged.tally.decoded > 0 and damaged.tally.unreadable > 50, damaged.tally


def test_good_files_decode(reader):
    for what, data in damaged.files().items():
        assert reader.read(data)[0] == "decoded", what
        assert damaged.size_fields(data), what


def test_checksums_are_right_again():
    good = damaged.files()["png"]
    assert damaged.with_checksums(good) == good
    broken = bytearray(good)
    broken[29] ^= 1  # of the first checksum
    assert damaged.with_checksums(bytes(broken)) == good


def misbehaving(data):
    """What `decode` must not do, in a process of its own."""
    if data == b"die":
        os._exit(3)
    if data == b"hang":
        time.sleep(600)
    if data == b"grow":
        np.ones(200 * 2**20, np.uint8)
    return "decoded", ""


def test_what_a_crash_is(monkeypatch):
    reader = damaged.Reader(misbehaving)
    assert reader.read(b"die") == ("crashed", "the process died with exit code 3")
    assert reader.read(b"") == ("decoded", "")  # by another process
    outcome, said = reader.read(b"grow")
    assert outcome == "crashed" and re.fullmatch(r"took (19|2\d)\d MiB", said)
    assert reader.read(b"") == ("decoded", "")
    monkeypatch.setattr(damaged, "SECONDS", -2.5)
    assert reader.read(b"hang") == ("crashed", "hangs")
    reader.close()


def test_what_is_no_answer_is_a_crash(monkeypatch):
    good = damaged.files()["png"]
    assert damaged._outcome(good) == ("decoded", "(37, 53)")
    assert damaged._outcome(b"") == ("unreadable", "the file is empty")
    monkeypatch.setattr(decode, "image_shape", lambda *a, **k: (1, 1))
    assert damaged._outcome(good)[0] == "crashed"
    monkeypatch.setattr(decode, "image_shape", lambda *a, **k: 1 / 0)
    assert damaged._outcome(good) == ("crashed", "ZeroDivisionError('division by zero')")
    with pytest.raises(AssertionError, match="exit code 3"):
        damaged.tried(Answer("crashed", "exit code 3"), b"")
    assert damaged.tally.crashes == 1
    damaged.tally.crashes = damaged.tally.mutated = 0  # not one of the images that count


class Answer:
    """A reader that says this of any file."""

    def __init__(self, *answer):
        self.read = lambda data: answer
