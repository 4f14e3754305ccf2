"""Trees by path, and blocks in a stack or one by one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import trees

TREE = {"norm": {"scale": 1, "bias": 2}, "blocks": {"10": {"x": 3}, "2": {"x": 4}}, "cls": 5}
FLAT = {"blocks/10/x": 3, "blocks/2/x": 4, "cls": 5, "norm/bias": 2, "norm/scale": 1}


def test_flatten_sorts_the_keys_of_every_level_and_nest_is_its_inverse():
    assert list(trees.flatten(TREE).items()) == list(FLAT.items())
    assert trees.flatten({1: {2: "x"}, 3: {}}) == {"1/2": "x"}
    assert trees.nest(FLAT) == TREE and trees.nest({}) == {}


def test_map_with_path_keeps_the_tree():
    paths = trees.map_with_path(lambda path, leaf: (path, leaf), TREE | {"empty": {}})
    assert paths["blocks"]["2"]["x"] == ("blocks/2/x", 4) and paths["empty"] == {}
    assert trees.flatten(paths) == {path: (path, leaf) for path, leaf in FLAT.items()}


@pytest.mark.parametrize("numpy", [np, jnp])
def test_blocks_in_a_stack_and_one_by_one(numpy):
    x = numpy.arange(22 * 3).reshape(22, 3)
    flat = {"backbone/blocks/norm1/bias": x, "blocks/ls1/gamma": x[:2], "cls": x, "myblocks/a": x}
    apart = trees.per_block(flat)
    assert len(apart) == 22 + 2 + 1 + 1
    np.testing.assert_array_equal(apart["backbone/blocks/10/norm1/bias"], x[10])
    np.testing.assert_array_equal(apart["blocks/1/ls1/gamma"], x[1])
    shapes = {path: leaf.shape for path, leaf in apart.items()}
    assert {path: shape.shape for path, shape in trees.shapes(flat).items()} == shapes
    assert trees.per_block(apart) == apart, "what is apart stays so"
    assert [trees.rank(path, leaf) for path, leaf in flat.items()] == [1, 1, 2, 2]
    again = trees.stacked(dict(reversed(apart.items())))
    chex.assert_trees_all_equal(again, flat)
    assert all(isinstance(leaf, type(x)) for leaf in jax.tree.leaves(again))


def test_a_stack_that_lacks_a_block_is_named():
    with pytest.raises(ValueError, match="blocks/norm/bias"):
        trees.stacked({"blocks/0/norm/bias": np.ones(2), "blocks/2/norm/bias": np.ones(2)})
