"""classes.py: from the values of mask files to classes."""

import numpy as np
import pytest

from ssl_jax.data import classes, layouts, names

EVERY = range(256)
BEFORE = classes.table({10: 0, 20: 1, 30: 255}, num_classes=2)


@pytest.mark.parametrize(
    "table, values, expected",
    [
        (classes.table(), EVERY, EVERY),
        (classes.table((2, 0, 255), ignore=7), (0, 1, 2, 7, 255), (2, 0, 255, 255, 255)),
        (classes.table({0: 0, 255: 1}), (0, 255), (0, 1)),  # a mask of black and white
        (classes.table(((0, 0), (255, 1))), (0, 255), (0, 1)),  # as a config holds it
        (classes.table(reduce_zero_label=True, num_classes=3), (0, 1, 3, 255), (255, 0, 2, 255)),
        (classes.table(reduce_zero_label=True, before=BEFORE), (10, 20, 30), (255, 0, 255)),
    ],
)
def test_values_become_classes(table, values, expected):
    found = classes.apply(table, np.array([values], np.uint8))
    np.testing.assert_array_equal(found, [expected])


@pytest.mark.parametrize(
    "table, value",
    [
        (classes.table(num_classes=3), 3),
        (classes.table(reduce_zero_label=True, num_classes=3), 4),
        (classes.table((1, 0)), 2),
        (classes.table({5: 0}), 0),
        (classes.table(before=classes.table({9: 0})), 0),
    ],
)
def test_a_value_without_a_class_is_named(table, value):
    with pytest.raises(ValueError, match=f"{value}"):
        classes.apply(table, np.array([[255, value]], np.uint8))


@pytest.mark.parametrize(
    "section, expected",
    [
        ({}, ("a", "b", "c")),
        (dict(reduce_zero_label=True), ("b", "c")),
        (dict(class_map=(1, 0, 0)), None),
        (dict(class_map=(1, 0, 0), class_names="names.txt"), ("x", "y")),
    ],
)
def test_names_follow_the_rules(section, expected, tmp_path, monkeypatch):
    (tmp_path / "names.txt").write_text("x\ny\n")
    monkeypatch.chdir(tmp_path)
    assert classes.of_masks(section, ("a", "b", "c"))["mask_names"] == expected


def test_known_sets_have_their_number_of_classes():
    """As the papers state them; the maps reach each class once."""
    counts = dict(VOC=21, ADE20K=150, COCO=80, COCO_STUFF=171, PASCAL_CONTEXT=60, CITYSCAPES=19)
    for name, count in counts.items():
        known = getattr(names, name)
        assert len(known) == len(set(known)) == count and all(n == n.strip() for n in known)
    for name in ("ADE20K", "CITYSCAPES", "COCO_STUFF"):
        reached = sorted(c for c in getattr(layouts, f"_{name}").values() if c != 255)
        assert reached == list(range(counts[name]))
    assert names.ADE20K[layouts._ADE20K[13]] == "person"
