"""The package computes, names and stores what it did when outputs.json was written, see
tests/golden/outputs.py."""

import json

import pytest

from tests.golden import outputs

STORED = json.loads(outputs.PATH.read_text())
ITEMS = {name: x for name, x in outputs.items().items() if not name.startswith(outputs.UNSTORED)}
QUICK = ("sources", "cached", "scores/dense", "scores/frechet", "scores/knn")
# The points of t-SNE follow from the last bit of a feature.
RTOL, LOOSE = 1e-5, {"scores/tsne": 0.3, "scores/tsne_3d": 0.3}
SUMS = 1e-4  # of trained parameters


def test_every_type_of_evaluation_has_scores():
    assert {text.split()[1] for text in outputs.EVALUATIONS.values()} == {*outputs.evals.TYPES}
    assert ITEMS.keys() == STORED.keys()


@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith(QUICK) else pytest.param(name, marks=pytest.mark.nightly)
        for name in ITEMS
    ],
)
def test_an_output_is_as_it_was(name, tmp_path):
    found, stored = (
        {k: x for k, x in outputs.flat(tree).items() if not k.endswith("digest")}
        for tree in (outputs.brief(outputs.value(ITEMS[name], tmp_path)), STORED[name])
    )
    assert found.keys() == stored.keys()
    for key, x in stored.items():
        assert type(found[key]) is type(x), key
        if isinstance(x, float):
            rtol = LOOSE.get(name, SUMS if key.startswith("sums") else RTOL)
            x = pytest.approx(x, rel=rtol, abs=1e-7, nan_ok=True)
        assert found[key] == x, key
