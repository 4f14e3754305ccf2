"""What the tests of evaluations share."""

import matplotlib.figure
import pytest


@pytest.fixture
def figures(monkeypatch):
    """The matplotlib figures that were written to files, in their order."""
    written, save = [], matplotlib.figure.Figure.savefig

    def keep(figure, *arguments, **options):
        written.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return written
