"""Trees by path."""

from ssl_jax import trees

TREE = {"norm": {"scale": 1, "bias": 2}, "blocks": {"10": {"x": 3}, "2": {"x": 4}}, "cls": 5}
FLAT = {"blocks/10/x": 3, "blocks/2/x": 4, "cls": 5, "norm/bias": 2, "norm/scale": 1}


def test_flatten_sorts_the_keys_of_every_level():
    assert list(trees.flatten(TREE).items()) == list(FLAT.items())
    assert trees.flatten({1: {2: "x"}, 3: {}}) == {"1/2": "x"}


def test_nest_is_the_inverse():
    assert trees.nest(FLAT) == TREE
    assert trees.nest({}) == {}


def test_map_with_path_keeps_the_tree():
    paths = trees.map_with_path(lambda path, leaf: (path, leaf), TREE | {"empty": {}})
    assert paths["blocks"]["2"]["x"] == ("blocks/2/x", 4) and paths["empty"] == {}
    assert trees.flatten(paths) == {path: (path, leaf) for path, leaf in FLAT.items()}
