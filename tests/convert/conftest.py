"""timm and transformers as oracles; tests that need them are skipped where they are not
installed."""

import pytest

from tests.convert import write_names


@pytest.fixture(scope="session")
def operators():
    pytest.importorskip("torch", reason="the oracles of weights need torch")
    return write_names.operators()


@pytest.fixture
def timm(operators):
    return pytest.importorskip("timm", reason="the oracle of timm's weights", exc_type=ImportError)


@pytest.fixture
def transformers(operators):
    return pytest.importorskip(
        "transformers", reason="the oracle of Hugging Face's weights", exc_type=ImportError
    )
